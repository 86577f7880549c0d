"""What clouds and people do to a cluster: launches refused, types sold out, instances lost, budgets closed, pools wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from controlplane.harness import ControlPlane
from controlplane.process import Controller, controller
from controlplane.workload_cluster import ALONE, TYPE, WITH, Observation, WorkloadCluster, ways, workload_cluster
from karpenter.api import kinds
from karpenter.api.core import Pod
from karpenter.api.karpenter import NodeClaim
from karpenter.model import labels

pytestmark = pytest.mark.cluster

_PODS = 4
_OTHER_TYPE = "m6i.large"
#: Claims are compared with the cloud's instances every two minutes; Kubernetes collects pods of a Node that is gone after one.
_COLLECTED_SECONDS = 270.0
Start = Callable[[str], Controller]


@pytest.fixture
def cluster(plane: ControlPlane) -> Iterator[WorkloadCluster]:
    with workload_cluster(plane) as ready:
        ready.pool()
        yield ready


@pytest.fixture
def start(cluster: WorkloadCluster, nomination: tuple[str, str], tmp_path: Path) -> Iterator[Start]:
    """Starts the controller with a fault script."""
    file = tmp_path / "faults.yaml"
    flags = (*ALONE, *nomination, "--simulated-faults-file", str(file))
    with ExitStack() as stack:

        def begin(script: str) -> Controller:
            file.write_text(script)
            running = stack.enter_context(controller(cluster.account.kubeconfig, *flags))
            running.await_leading()
            return running

        yield begin


def claim_of(observation: Observation, pod: Pod) -> NodeClaim:
    """The claim whose Node a pod runs on."""
    (nodeclaim,) = (claim for claim in observation.claims if claim.status.node_name == pod.spec.node_name)
    return nodeclaim


@pytest.mark.parametrize("nomination", ways())
def test_refused_launches_are_tried_again_for_the_same_claims(cluster: WorkloadCluster, start: Start) -> None:
    """OPS-016"""
    running = start("launchErrors: [{reason: RequestLimitExceeded, message: too many requests, count: 6}]")
    cluster.deploy(_PODS)
    observation = cluster.until_running(_PODS)
    assert len(observation.claims) == _PODS
    assert cluster.given_up(kinds.NODE_CLAIM) == 0
    refused = [line for line in running.lines("Reconciler error") if "too many requests" in str(line["error"])]
    assert len(refused) == 6


@pytest.mark.parametrize("nomination", ways(WITH))
def test_what_is_sold_out_is_launched_from_another_pool(cluster: WorkloadCluster, start: Start) -> None:
    """OPS-014: the claims are given up, say why, and the pods are planned again."""
    cluster.pool("other", types=(_OTHER_TYPE,))
    cluster.patch(kinds.NODE_POOL, "default", {"spec": {"weight": 10}})
    running = start("insufficientCapacity: [{nodePool: default}]")
    # A pool that is not Ready yet is passed over, and the other one would launch nodes for the pods at once.
    running.until(lambda: cluster.pool_condition("default", "Ready")[0] == "True", "find the pool ready")
    cluster.deploy(_PODS)
    observation = cluster.until_running(_PODS)
    assert {node.metadata.labels[labels.NODE_POOL] for node in observation.nodes} == {"other"}
    assert len(observation.claims) == _PODS
    given_up = {str(line["NodeClaim"]["name"]) for line in running.lines("failed launching nodeclaim")}
    assert given_up
    for name in given_up:
        (event, *_) = cluster.events("InsufficientCapacityError", name)
        assert event.type == "Warning"


@pytest.mark.parametrize("nomination", ways())
def test_without_spot_capacity_the_same_claims_become_on_demand_instances(
    cluster: WorkloadCluster, start: Start
) -> None:
    """OPS-256"""
    start("insufficientCapacity: [{capacityType: spot}]")
    cluster.deploy(_PODS)
    observation = cluster.until_running(_PODS)
    assert {node.metadata.labels[labels.CAPACITY_TYPE] for node in observation.nodes} == {"on-demand"}
    assert cluster.given_up(kinds.NODE_CLAIM) == 0


@pytest.mark.parametrize("nomination", ways())
def test_pods_of_lost_instances_get_new_nodes(cluster: WorkloadCluster, start: Start) -> None:
    """OPS-090, DIS-503: and no other instance goes."""
    start("{}")
    cluster.deploy(_PODS)
    before = cluster.until_running(_PODS)
    lost, kept = before.instances[:2], before.instances[2:]
    for instance in lost:
        cluster.lose(instance)
    cluster.until_gone(*(instance.claim_uid for instance in lost))
    after = cluster.until_running(_PODS)
    assert len(after.claims) == _PODS
    assert {instance.claim_uid for instance in kept} < {claim.metadata.uid for claim in after.claims}


@pytest.mark.parametrize("nomination", ways())
def test_instances_a_script_loses_are_replaced(cluster: WorkloadCluster, start: Start) -> None:
    """OPS-269"""
    start("lost: [{after: 60s, count: 2}]")
    cluster.deploy(_PODS)
    before = cluster.until_running(_PODS, 50.0)
    doomed = {instance.claim_uid for instance in before.instances if instance.fate.lost_seconds is not None}
    assert len(doomed) == 2
    cluster.until_gone(*doomed)
    after = cluster.until_running(_PODS)
    assert {claim.metadata.uid for claim in before.claims} - doomed < {claim.metadata.uid for claim in after.claims}


@pytest.mark.parametrize("nomination", ways())
@pytest.mark.timeout(600)
def test_a_claim_whose_instance_is_gone_and_whose_node_is_silent_is_collected(
    cluster: WorkloadCluster, start: Start
) -> None:
    """OPS-090: no component removes the Node here, as in a cluster without cloud controller."""
    start("{}")
    cluster.deploy(_PODS)
    before = cluster.until_running(_PODS)
    gone = before.instances[0]
    name = gone.node_name
    # Without this label the stand-in ignores the Node.
    cluster.patch(kinds.NODE, name, {"metadata": {"labels": {"kwok.x-k8s.io/node": None}}})
    cluster.plane.request("DELETE", kinds.CONFIG_MAP.path("kube-system", name))
    silent = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
    status = {"status": {"conditions": [silent]}}
    path = kinds.NODE.path(name=name, subresource="status")
    cluster.plane.request("PATCH", path, status, "application/strategic-merge-patch+json")
    cluster.until_gone(gone.claim_uid, seconds=_COLLECTED_SECONDS)
    after = cluster.until_running(_PODS, _COLLECTED_SECONDS)
    assert {instance.claim_uid for instance in before.instances[1:]} < {
        nodeclaim.metadata.uid for nodeclaim in after.claims
    }


@pytest.mark.parametrize("nomination", ways())
def test_a_budget_that_opens_lets_the_pod_go_to_a_new_node(cluster: WorkloadCluster, start: Start) -> None:
    """DIS-S300 with what comes after it: the pod runs all the time the budget is closed, and elsewhere in the end."""
    start("{}")
    cluster.deploy(2)
    cluster.until_running(2)
    cluster.budget(2)
    before = cluster.observe()
    guarded = before.pods[0]
    held = claim_of(before, guarded)
    cluster.remove(held)
    cluster.until(lambda: "" if cluster.events("FailedDraining", held.status.node_name) else "nothing holds the drain")
    during = cluster.observe()
    assert guarded.metadata.uid in {pod.metadata.uid for pod in during.pods}
    assert during.running == 2
    cluster.budget(1)
    cluster.until_gone(held.metadata.uid)
    after = cluster.until_running(2)
    assert guarded.metadata.uid not in {pod.metadata.uid for pod in after.pods}
    assert len(after.claims) == 2


@pytest.mark.parametrize("nomination", ways())
def test_pools_that_are_wrong_say_so_and_others_work(cluster: WorkloadCluster, start: Start) -> None:
    """API-076, API-641; once mended, they take part."""
    start("{}")
    taint = {"key": "example.com/special", "effect": "NoSchedule"}
    cluster.pool("twice-tainted", taints=[taint], startupTaints=[taint])
    missing = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "later"}
    cluster.pool("classless", nodeClassRef=missing)
    cluster.deploy(2)
    for pool in ("twice-tainted", "classless"):
        wanted = {"nodeSelector": {labels.NODE_POOL: pool}, "tolerations": [{"operator": "Exists"}]}
        cluster.deploy(1, f"for-{pool}", **wanted)
    cluster.until(lambda: "" if cluster.observe().running == 2 else "the pods of the good pool do not run")
    status, reason, message = cluster.pool_condition("twice-tainted", "ValidationSucceeded")
    assert (status, reason) == ("False", "NodePoolValidationFailed")
    assert "example.com/special:NoSchedule is there already" in message
    assert cluster.pool_condition("classless", "NodeClassReady")[:2] == ("False", "NodeClassNotFound")
    for pool, condition in (("twice-tainted", "ValidationSucceeded"), ("classless", "NodeClassReady")):
        assert cluster.pool_condition(pool, "Ready")[0] == "False"
        assert any("-> False" in event.message for event in cluster.events(condition, pool))
    waiting = [pod for pod in cluster.observe().pods if not pod.spec.node_name]
    assert len(waiting) == 2
    for pod in waiting:
        assert any(event.type == "Warning" for event in cluster.events("FailedScheduling", pod.metadata.name))
    cluster.node_class("later")
    cluster.patch(kinds.NODE_POOL, "twice-tainted", {"spec": {"template": {"spec": {"startupTaints": None}}}})
    cluster.until_running(4)
    assert {node.metadata.labels[labels.INSTANCE_TYPE] for node in cluster.observe().nodes} == {TYPE}
