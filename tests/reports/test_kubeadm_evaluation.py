"""An evaluation for a kubeadm cluster on EC2: Ubuntu nodes that join with kubeadm, bursts of workers, limits (AWS §20.3).

That its instances join a real control plane is shown by ``tests/cluster/test_kubeadm.py``, that its manifests are taken by
``tests/cluster/test_applied_appendix.py``.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec
import yaml

from karpenter.api import kinds
from karpenter.api.apps import Deployment
from karpenter.api.ec2_node_class import EC2NodeClass
from karpenter.api.scheduling_constraints import Toleration
from karpenter.model import labels, quantity
from karpenter.providers.aws.bootstrap.bootstrap_settings import BootstrapMode, BootstrapSettings
from karpenter.providers.aws.bootstrap.bootstrap_token import JoinParameters
from karpenter.providers.aws.bootstrap.join_rules import bootstrap_problem, joins_with_kubeadm
from karpenter.providers.aws.userdata import render_user_data
from support.consolidation_cases import scale
from support.kubeadm_user_data import FIELD_REPORT, TOKEN, authority, joining
from support.kubeadm_user_data import cluster as kubeadm_cluster
from support.report_pools import MANIFESTS, begin, converted_pool, is_running, pinned, types_named
from support.virtual_cluster import VirtualCluster, in_virtual_time, until

_POOL = "worker-scalable"


def _ubuntu_class(**annotations: str) -> EC2NodeClass:
    """The report's class, with the annotation of its owner."""
    content = yaml.safe_load((MANIFESTS / "a41-v1-ubuntu-class.yaml").read_text(encoding="utf-8"))
    content["metadata"]["annotations"] = annotations
    return kinds.EC2_NODE_CLASS.decode(msgspec.json.encode(content))


def test_the_class_of_the_report_joins_with_kubeadm_unchanged() -> None:
    """API-A41, API-860, AWS-871, AWS-901: Ubuntu with a complete script is treated like Custom."""
    settings = BootstrapSettings(mode=BootstrapMode.KUBEADM, default_custom=True)
    assert joins_with_kubeadm(_ubuntu_class(), settings)
    annotated = _ubuntu_class(**{"karpenter.k8s.aws/bootstrap": "kubeadm"})
    assert bootstrap_problem(annotated) == ""
    assert joins_with_kubeadm(annotated, BootstrapSettings())


def test_the_three_variables_of_its_script_are_replaced() -> None:
    """AWS-871, AWS-910: endpoint, token and hash; the rest of the script is unchanged."""
    join = JoinParameters(claim="worker-1", pool=_POOL, node_class="default", token=TOKEN)
    options = replace(joining(FIELD_REPORT, kubeadm_cluster(authority("ca")), join), family="Ubuntu")
    text = render_user_data(options).decode()
    assert f"--token {TOKEN.value} " in text
    assert not any(name in text for name in ("CLUSTER_ENDPOINT", "BOOTSTRAP_TOKEN", "CA_CERT_HASH"))
    assert "${HOME}" in text


def _workers(replicas: int) -> Deployment:
    """Worker pods that tolerate the taint of the pool."""
    made = pinned("worker", replicas, _POOL)
    template = made.spec.template
    tolerations = (Toleration(key="workload", operator="Equal", value="ai", effect="NoSchedule"),)
    spec = msgspec.structs.replace(template.spec, tolerations=tolerations)
    changed = msgspec.structs.replace(made.spec, template=msgspec.structs.replace(template, spec=spec))
    return msgspec.structs.replace(made, spec=changed)


async def _begin(cluster: VirtualCluster, replicas: int) -> None:
    cluster.simulated(types_named("ap-northeast-2", "t3.medium", "t3.large", "t3.xlarge", "m5.large"))
    await begin(cluster, converted_pool("a40-v1-pool"))
    await cluster.kube.create(kinds.DEPLOYMENT, _workers(replicas))


@in_virtual_time
async def test_a_burst_gets_nodes_of_its_types_in_time_and_they_are_removed_afterwards(cluster: VirtualCluster) -> None:
    """API-A40, AWS-876: running within 60 s, removed after the 30 s of its policy."""
    await _begin(cluster, 6)
    await until(lambda: is_running(cluster, "worker", 6), 60)
    nodes = [node.metadata.labels for node in await cluster.all(kinds.NODE)]
    assert {node[labels.INSTANCE_TYPE] for node in nodes} <= {"t3.medium", "t3.large", "t3.xlarge"}
    assert {(node["role"], node["managed-by"]) for node in nodes} == {("worker", "karpenter")}
    await scale(cluster, "worker", 0)
    await until(lambda: _is_empty(cluster), 600)


async def _is_empty(cluster: VirtualCluster) -> bool:
    return not await cluster.all(kinds.NODE)


@in_virtual_time
async def test_no_burst_exceeds_the_limits(cluster: VirtualCluster) -> None:
    """API-A40: 20 CPUs and 40 Gi; the pods beyond them wait."""
    await _begin(cluster, 60)
    await until(lambda: _some_run(cluster), 120)
    nodes = await cluster.all(kinds.NODE)
    for resource, limit in (("cpu", "20"), ("memory", "40Gi")):
        total = sum(quantity.parse_milli(str(node.status.capacity[resource])) for node in nodes)
        assert total <= quantity.parse_milli(limit)
    assert any(pod.status.phase == "Pending" for pod in await cluster.all(kinds.POD))


async def _some_run(cluster: VirtualCluster) -> bool:
    return any(pod.status.phase == "Running" for pod in await cluster.all(kinds.POD))
