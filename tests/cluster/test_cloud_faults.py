"""What clouds and people do to a cluster: launches refused, types sold out, instances lost, budgets closed, pools wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from controlplane.harness import ControlPlane
from controlplane.process import Controller, controller
from controlplane.stage import ALONE, TYPE, WITH, Sight, Stage, staged, ways
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
def stage(plane: ControlPlane) -> Iterator[Stage]:
    with staged(plane) as ready:
        ready.pool()
        yield ready


@pytest.fixture
def start(stage: Stage, nomination: tuple[str, str], tmp_path: Path) -> Iterator[Start]:
    """Starts the controller with a fault script."""
    file = tmp_path / "faults.yaml"
    flags = (*ALONE, *nomination, "--simulated-faults-file", str(file))
    with ExitStack() as stack:

        def begin(script: str) -> Controller:
            file.write_text(script)
            running = stack.enter_context(controller(stage.account.kubeconfig, *flags))
            running.await_leading()
            return running

        yield begin


def claim_of(sight: Sight, pod: Pod) -> NodeClaim:
    """The claim whose Node a pod runs on."""
    (nodeclaim,) = (claim for claim in sight.claims if claim.status.node_name == pod.spec.node_name)
    return nodeclaim


@pytest.mark.parametrize("nomination", ways())
def test_refused_launches_are_tried_again_for_the_same_claims(stage: Stage, start: Start) -> None:
    """OPS-016"""
    running = start("launchErrors: [{reason: RequestLimitExceeded, message: too many requests, count: 6}]")
    stage.deploy(_PODS)
    sight = stage.until_running(_PODS)
    assert len(sight.claims) == _PODS
    assert stage.given_up(kinds.NODE_CLAIM) == 0
    refused = [line for line in running.lines("Reconciler error") if "too many requests" in str(line["error"])]
    assert len(refused) == 6


@pytest.mark.parametrize("nomination", ways(WITH))
def test_what_is_sold_out_is_bought_from_another_pool(stage: Stage, start: Start) -> None:
    """OPS-014: the claims are given up, say why, and the pods are planned again."""
    stage.pool("other", types=(_OTHER_TYPE,))
    stage.patch(kinds.NODE_POOL, "default", {"spec": {"weight": 10}})
    running = start("insufficientCapacity: [{nodePool: default}]")
    # A pool that is not Ready yet is passed over, and the pods would be bought for from the other one at once.
    running.until(lambda: stage.pool_condition("default", "Ready")[0] == "True", "find the pool ready")
    stage.deploy(_PODS)
    sight = stage.until_running(_PODS)
    assert {node.metadata.labels[labels.NODE_POOL] for node in sight.nodes} == {"other"}
    assert len(sight.claims) == _PODS
    given_up = {str(line["NodeClaim"]["name"]) for line in running.lines("failed launching nodeclaim")}  # type: ignore[index]
    assert given_up
    for name in given_up:
        (event, *_) = stage.events("InsufficientCapacityError", name)
        assert event.type == "Warning"


@pytest.mark.parametrize("nomination", ways())
def test_without_spot_capacity_the_same_claims_become_on_demand_instances(stage: Stage, start: Start) -> None:
    """OPS-256"""
    start("insufficientCapacity: [{capacityType: spot}]")
    stage.deploy(_PODS)
    sight = stage.until_running(_PODS)
    assert {node.metadata.labels[labels.CAPACITY_TYPE] for node in sight.nodes} == {"on-demand"}
    assert stage.given_up(kinds.NODE_CLAIM) == 0


@pytest.mark.parametrize("nomination", ways())
def test_pods_of_lost_instances_get_new_nodes(stage: Stage, start: Start) -> None:
    """OPS-090, DIS-503: and nobody else's instance goes."""
    start("{}")
    stage.deploy(_PODS)
    before = stage.until_running(_PODS)
    lost, kept = before.instances[:2], before.instances[2:]
    for instance in lost:
        stage.lose(instance)
    stage.until_gone(*(instance.claim_uid for instance in lost))
    after = stage.until_running(_PODS)
    assert len(after.claims) == _PODS
    assert {instance.claim_uid for instance in kept} < {claim.metadata.uid for claim in after.claims}


@pytest.mark.parametrize("nomination", ways())
def test_instances_a_script_loses_are_replaced(stage: Stage, start: Start) -> None:
    """OPS-269"""
    start("lost: [{after: 60s, count: 2}]")
    stage.deploy(_PODS)
    before = stage.until_running(_PODS, 50.0)
    doomed = {instance.claim_uid for instance in before.instances if instance.fate.lost_seconds is not None}
    assert len(doomed) == 2
    stage.until_gone(*doomed)
    after = stage.until_running(_PODS)
    assert {claim.metadata.uid for claim in before.claims} - doomed < {claim.metadata.uid for claim in after.claims}


@pytest.mark.parametrize("nomination", ways())
@pytest.mark.timeout(600)
def test_a_claim_whose_instance_is_gone_and_whose_node_is_silent_is_collected(stage: Stage, start: Start) -> None:
    """OPS-090: nobody takes the Node away here, as where no cloud controller does."""
    start("{}")
    stage.deploy(_PODS)
    before = stage.until_running(_PODS)
    gone = before.instances[0]
    name = gone.node_name
    # Without this label the stand-in takes the Node for somebody else's and leaves it alone.
    stage.patch(kinds.NODE, name, {"metadata": {"labels": {"kwok.x-k8s.io/node": None}}})
    stage.plane.request("DELETE", kinds.CONFIG_MAP.path("kube-system", name))
    silent = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
    status = {"status": {"conditions": [silent]}}
    path = kinds.NODE.path(name=name, subresource="status")
    stage.plane.request("PATCH", path, status, "application/strategic-merge-patch+json")
    stage.until_gone(gone.claim_uid, seconds=_COLLECTED_SECONDS)
    after = stage.until_running(_PODS, _COLLECTED_SECONDS)
    assert {instance.claim_uid for instance in before.instances[1:]} < {
        nodeclaim.metadata.uid for nodeclaim in after.claims
    }


@pytest.mark.parametrize("nomination", ways())
def test_a_budget_that_opens_lets_the_pod_go_to_a_new_node(stage: Stage, start: Start) -> None:
    """DIS-S300 with what comes after it: the pod runs all the time the budget is closed, and elsewhere in the end."""
    start("{}")
    stage.deploy(2)
    stage.until_running(2)
    stage.budget(2)
    before = stage.look()
    guarded = before.pods[0]
    held = claim_of(before, guarded)
    stage.remove(held)
    stage.until(lambda: "" if stage.events("FailedDraining", held.status.node_name) else "nothing holds the drain")
    during = stage.look()
    assert guarded.metadata.uid in {pod.metadata.uid for pod in during.pods}
    assert during.running == 2
    stage.budget(1)
    stage.until_gone(held.metadata.uid)
    after = stage.until_running(2)
    assert guarded.metadata.uid not in {pod.metadata.uid for pod in after.pods}
    assert len(after.claims) == 2


@pytest.mark.parametrize("nomination", ways())
def test_pools_that_are_wrong_say_so_and_others_work(stage: Stage, start: Start) -> None:
    """API-076, API-641; once mended, they take part."""
    start("{}")
    taint = {"key": "example.com/special", "effect": "NoSchedule"}
    stage.pool("twice-tainted", taints=[taint], startupTaints=[taint])
    missing = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "later"}
    stage.pool("classless", nodeClassRef=missing)
    stage.deploy(2)
    for pool in ("twice-tainted", "classless"):
        wanted = {"nodeSelector": {labels.NODE_POOL: pool}, "tolerations": [{"operator": "Exists"}]}
        stage.deploy(1, f"for-{pool}", **wanted)
    stage.until(lambda: "" if stage.look().running == 2 else "the pods of the good pool do not run")
    status, reason, message = stage.pool_condition("twice-tainted", "ValidationSucceeded")
    assert (status, reason) == ("False", "NodePoolValidationFailed")
    assert "example.com/special:NoSchedule is there already" in message
    assert stage.pool_condition("classless", "NodeClassReady")[:2] == ("False", "NodeClassNotFound")
    for pool, condition in (("twice-tainted", "ValidationSucceeded"), ("classless", "NodeClassReady")):
        assert stage.pool_condition(pool, "Ready")[0] == "False"
        assert any("-> False" in event.message for event in stage.events(condition, pool))
    waiting = [pod for pod in stage.look().pods if not pod.spec.node_name]
    assert len(waiting) == 2
    for pod in waiting:
        assert any(event.type == "Warning" for event in stage.events("FailedScheduling", pod.metadata.name))
    stage.node_class("later")
    stage.patch(kinds.NODE_POOL, "twice-tainted", {"spec": {"template": {"spec": {"startupTaints": None}}}})
    stage.until_running(4)
    assert {node.metadata.labels[labels.INSTANCE_TYPE] for node in stage.look().nodes} == {TYPE}
