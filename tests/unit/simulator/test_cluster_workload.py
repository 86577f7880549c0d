"""The workloads of manifests or of a cluster as the load of a study."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from karpenter.api.core import Container, ContainerPort, PodOS, PodSpec
from karpenter.api.meta import OwnerReference
from karpenter.api.scheduling_constraints import (
    Affinity,
    NodeAffinity,
    NodeSelector,
    PodAffinity,
    PodAffinityTerm,
    Toleration,
    TopologySpreadConstraint,
)
from karpenter.cli.main import app
from karpenter.model import labels
from karpenter.model.clock import SystemClock
from karpenter.simulation.apiserver import MemoryServer
from karpenter.simulator.cluster_workload import ClusterPods, LoadPattern, cluster_workload
from karpenter.simulator.workload import WorkloadError
from karpenter.state.host_ports import host_ports_of
from karpenter.state.pod_volumes import ClusterVolumes
from support.builders import NOW, expr, owner, pod, pods, term
from support.manifest_builders import type_of
from support.volume_builders import pvc, using, zonal

_DAY = 86_400
_POOL = """
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: default}
spec:
  template:
    spec:
      requirements: []
      nodeClassRef: {group: karpenter.kwok.sh, kind: KWOKNodeClass, name: default}
"""
_SHOP = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: shop, namespace: prod}
spec:
  replicas: 3
  selector: {matchLabels: {app: shop}}
  template:
    metadata: {labels: {app: shop}}
    spec:
      containers: [{name: main, image: shop, resources: {requests: {cpu: 500m, memory: 1Gi}}}]
"""


def test_pods_of_daemonsets_and_finished_pods_are_left_out_and_the_others_stay() -> None:
    found = [
        *pods(3, {"cpu": "250m"}, meta={"owner_references": (owner("ReplicaSet", "web"),)}),
        pod("agent", {"cpu": "1"}, meta={"owner_references": (owner("DaemonSet", "agent"),)}),
        pod("done", {"cpu": "1"}, status={"phase": "Succeeded"}),
        pod("alone", {"cpu": "2"}, node_name="n", node_selector={"disk": "ssd"}, tolerations=(Toleration(key="t"),)),
    ]
    workload = cluster_workload(ClusterPods(tuple(found)), LoadPattern.STEADY, seed=1, days=2)
    assert Counter(life.template.workload for life in workload.pods) == {"web-0": 3, "alone-1": 1}
    assert {life.leaves_at_seconds for life in workload.pods} == {None}
    (alone,) = (life.template for life in workload.pods if life.template.workload == "alone-1")
    assert dict(alone.requests) == {"cpu": "2"}
    assert (alone.spec.node_selector, alone.spec.node_name) == ({"disk": "ssd"}, "")
    assert alone.spec.tolerations == (Toleration(key="t"),)


@pytest.mark.parametrize(("pattern", "least", "most"), [(LoadPattern.DAILY, 5, 16), (LoadPattern.OFFICE, 1, 10)])
def test_a_pattern_moves_the_replicas_of_a_workload(pattern: LoadPattern, least: int, most: int) -> None:
    found = pods(10, {"cpu": "250m"}, meta={"owner_references": (owner("ReplicaSet", "web"),)})
    workload = cluster_workload(ClusterPods(tuple(found)), pattern, seed=1, days=2)

    def running(second: int) -> int:
        ends = ((life.arrives_at_seconds, life.leaves_at_seconds) for life in workload.pods)
        return sum(begin <= second and (end is None or second < end) for begin, end in ends)

    levels = {running(second) for second in range(600, 2 * _DAY, 600)}
    assert least <= min(levels) < 8
    assert 10 <= max(levels) <= most


def test_without_pods_there_is_nothing_to_simulate() -> None:
    with pytest.raises(WorkloadError, match="there are no pods to simulate"):
        cluster_workload(ClusterPods(()), LoadPattern.DAILY, seed=1, days=1)


def test_pods_keep_their_rules_about_other_pods_their_owner_and_what_they_say_of_themselves() -> None:
    apart = Affinity(pod_anti_affinity=PodAffinity(required=(PodAffinityTerm(topology_key="kubernetes.io/hostname"),)))
    spread = TopologySpreadConstraint(max_skew=1, topology_key=labels.ZONE, when_unsatisfiable="DoNotSchedule")
    ports = (Container(name="c", ports=(ContainerPort(container_port=80, host_port=8080),)),)
    rules = {"affinity": apart, "topology_spread_constraints": (spread,), "containers": ports, "priority": 7}
    meta = {
        "namespace": "prod",
        "labels": {"app": "shop"},
        "annotations": {labels.DO_NOT_DISRUPT: "true"},
        "owner_references": (owner("ReplicaSet", "shop"),),
    }
    workload = cluster_workload(ClusterPods((pod("p", meta=meta, **rules),)), LoadPattern.STEADY, seed=1, days=1)
    played = workload.pods[0].template.pod("new")
    assert (played.spec.affinity, played.spec.topology_spread_constraints) == (apart, (spread,))
    assert (host_ports_of(played.spec), played.spec.priority) == (host_ports_of(PodSpec(containers=ports)), 7)
    assert (played.metadata.namespace, played.metadata.labels) == ("prod", {"app": "shop"})
    assert played.metadata.annotations == {labels.DO_NOT_DISRUPT: "true"}
    (controller,) = played.metadata.owner_references
    assert (controller.kind, controller.name, controller.controller) == ("ReplicaSet", "shop", True)


def test_the_controller_of_pods_has_a_uid_that_no_object_of_the_study_gets() -> None:
    """An embedded API server counts its uids. Once an Event of the study with the uid of a controller expired, its pods went."""
    server = MemoryServer(SystemClock())
    read = server.create(
        server.resource("apps", "v1", "replicasets"), "default", {"metadata": {"name": "shop"}}
    ).decoded()
    uid = read["metadata"]["uid"]
    controller = OwnerReference(api_version="apps/v1", kind="ReplicaSet", name="shop", uid=uid, controller=True)
    found = pods(2, {"cpu": "1"}, meta={"owner_references": (controller,)})
    workload = cluster_workload(ClusterPods(tuple(found)), LoadPattern.STEADY, seed=1, days=1)
    (played,) = {life.template.owner.uid for life in workload.pods if life.template.owner is not None}
    other = MemoryServer(SystemClock())
    resource = other.resource("", "v1", "configmaps")
    given = [other.create(resource, "default", {"metadata": {"name": f"c{n}"}}).decoded() for n in range(20)]
    assert uid in {each["metadata"]["uid"] for each in given}
    assert played not in {each["metadata"]["uid"] for each in given}


@pytest.mark.parametrize("pattern", [LoadPattern.STEADY, LoadPattern.DAILY])
def test_pods_stay_in_the_zone_of_their_volumes(pattern: LoadPattern) -> None:
    arm = Affinity(
        node_affinity=NodeAffinity(required=NodeSelector(node_selector_terms=(term(expr("arch", "In", "arm")),)))
    )
    meta = {"owner_references": (owner("StatefulSet", "db"),)}
    found = [pod(f"db-{zone}", {"cpu": "1"}, meta=meta, affinity=arm, volumes=using(f"data-{zone}")) for zone in "abcd"]
    volumes = ClusterVolumes(
        {("default", f"data-{zone}"): pvc(f"data-{zone}", f"pv-{zone}") for zone in "abcd"},
        {f"pv-{zone}": zonal(f"pv-{zone}", zone) for zone in "abcd"},
    )
    workload = cluster_workload(ClusterPods(tuple(found), volumes), pattern, seed=1, days=0.1)
    first_two = [life.template.spec.affinity for life in workload.pods[:2]]
    assert [affinity.node_affinity.required.node_selector_terms for affinity in first_two] == [
        (term(expr("arch", "In", "arm"), expr(labels.ZONE, "In", zone)),) for zone in "ab"
    ]


def test_a_replica_that_comes_back_is_in_the_zone_of_its_own_volume() -> None:
    """With a pattern replicas come and go; two in one zone would be two pods with one volume."""
    meta = {"owner_references": (owner("StatefulSet", "db"),)}
    found = [pod(f"db-{zone}", {"cpu": "1"}, meta=meta, node_selector={labels.ZONE: zone}) for zone in "abc"]
    workload = cluster_workload(ClusterPods(tuple(found)), LoadPattern.DAILY, seed=1, days=3)
    assert len(workload.pods) > 10
    for arrival in workload.pods:
        moment = arrival.arrives_at_seconds
        there = [
            life.template.spec.node_selector[labels.ZONE]
            for life in workload.pods
            if life.arrives_at_seconds <= moment < (life.leaves_at_seconds or _DAY * 3)
        ]
        assert len(there) <= 3 or len(set(there)) == 3
        assert len(set(there)) == min(3, len(there))


def test_a_volume_that_is_in_reach_of_two_zones_allows_both_and_other_rules_still_hold() -> None:
    volumes = ClusterVolumes({("default", "data"): pvc("data", "pv")}, {"pv": zonal("pv", "a", "b")})
    wide = Affinity(node_affinity=NodeAffinity(required=NodeSelector(node_selector_terms=(term(),))))
    for stated, terms in ((None, 2), (wide, 0)):
        found = ClusterPods((pod("p", {"cpu": "1"}, volumes=using("data"), affinity=stated),), volumes)
        (life,) = cluster_workload(found, LoadPattern.STEADY, seed=1, days=1).pods
        assert len(life.template.spec.affinity.node_affinity.required.node_selector_terms) == terms


def test_pods_keep_their_system_and_their_grace_period_and_lose_what_steers_simulated_nodes() -> None:
    leaving = {"deletion_timestamp": NOW, "owner_references": (owner("ReplicaSet", "web"),)}
    steering = {"annotations": {"karpenter.kwok.sh/run-seconds": "60", "team": "a", "example.com/kwok-owner": "b"}}
    rules = {
        "os": PodOS(name="linux"),
        "termination_grace_period_seconds": 300,
        "priority_class_name": "system-node-critical",
    }
    found = (
        pod("gone", meta=leaving),
        pod("p", meta=steering, **rules),
        pod("q", priority=5, priority_class_name="own"),
    )
    first, second = cluster_workload(ClusterPods(found), LoadPattern.STEADY, seed=1, days=1).pods
    assert first.template.annotations == {"team": "a", "example.com/kwok-owner": "b"}
    spec = first.template.spec
    assert (spec.os, spec.termination_grace_period_seconds, spec.priority_class_name) == tuple(rules.values())
    spec = second.template.spec
    assert (spec.priority, spec.priority_class_name) == (5, ""), "its class is not in the simulated cluster"


_RULES = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: shop, namespace: prod}
spec:
  replicas: 4
  selector: {matchLabels: {app: shop}}
  template:
    metadata: {labels: {app: shop}}
    spec:
      affinity:
        podAntiAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
          - {topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: shop}}}
      containers: [{name: main, image: shop, resources: {requests: {cpu: 100m, memory: 64Mi}}}]
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent, namespace: monitoring}
spec:
  selector: {matchLabels: {app: agent}}
  template:
    metadata: {labels: {app: agent}}
    spec:
      priorityClassName: agents
      containers: [{name: main, image: agent, resources: {requests: {cpu: 1500m}}}]
"""


def simulated(tmp_path: Path, manifests: str, *options: str) -> Result:
    """A steady simulation of manifests, with one type of two CPU."""
    (tmp_path / "cluster.yaml").write_text(manifests)
    (tmp_path / "types.json").write_text(json.dumps([type_of("a.small", 2, 4, 0.1)]))
    files = ("-f", str(tmp_path / "cluster.yaml"), "--instance-types", str(tmp_path / "types.json"))
    return CliRunner().invoke(app, ["simulate", *files, "--pattern", "steady", *options], catch_exceptions=False)


def test_pods_that_must_be_apart_are_on_nodes_of_their_own_in_the_simulation(tmp_path: Path) -> None:
    """The pods and the DaemonSet are in namespaces of their own, and the DaemonSet names a class, which nobody gave."""
    result = simulated(tmp_path, f"{_POOL}---{_RULES}", "--days", "0.02", "-o", "json")
    assert (result.exit_code, result.stderr) == (0, "")
    (report,) = json.loads(result.stdout)["reports"]
    assert report["nodes"]["peak"] == 4
    assert report["nodes"]["cpuRequested"] < 0.1, "pods of the DaemonSet do not count, but they take most of a node"
    assert {line["instanceType"] for line in report["capacity"]} == {"a.small"}


def test_what_an_api_server_refuses_ends_the_simulation_in_one_line(tmp_path: Path) -> None:
    """It would be as if such pods had never come, at the price of those that did."""
    rules = _RULES.split("---")[0]
    for text, said in (
        (rules.replace("{app: shop}", "{app: two words}"), "cannot be simulated"),
        (rules.replace("namespace: prod", "namespace: Prod_1"), "the simulated cluster refuses what was read"),
    ):
        result = simulated(tmp_path, f"{_POOL}---{text}", "--days", "0.02")
        assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
        assert said in result.stderr


def test_a_file_with_node_pools_and_deployments_is_simulated(tmp_path: Path) -> None:
    result = simulated(tmp_path, f"{_POOL}---{_SHOP}", "--days", "0.05", "-o", "json")
    assert (result.exit_code, result.stderr) == (0, "")
    (report,) = json.loads(result.stdout)["reports"]
    assert report["waiting"]["arrivals"]["pods"] == 3
    assert report["waiting"]["stillWaiting"] == 0
