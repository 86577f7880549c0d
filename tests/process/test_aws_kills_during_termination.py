"""The controller process is killed while it terminates instances: it leaves none running, and terminates no others."""

from __future__ import annotations

import pytest

from support.aws.controller_cluster import NO_LEADER_ELECTION, ControllerCluster
from support.aws.interruption_queue import spot_interruption
from support.aws.kill_points import DELETE, REMOVE_FINALIZER, KillPoint, RequestOutcome

pytestmark = pytest.mark.timeout(900)

PODS = 6
_DEFAULT_KILL_POINT = KillPoint("TerminateInstances", 1, RequestOutcome.ANSWER_LOST)
_TERMINATIONS = (
    KillPoint("TerminateInstances", 1, RequestOutcome.NOT_EXECUTED),
    KillPoint("TerminateInstances", 1, RequestOutcome.ANSWER_LOST),
    KillPoint("TerminateInstances", 1, RequestOutcome.LATE),
    KillPoint(REMOVE_FINALIZER, 1, RequestOutcome.NOT_EXECUTED),
    KillPoint(REMOVE_FINALIZER, 3, RequestOutcome.ANSWER_LOST),
)
_INTERRUPTIONS = (
    KillPoint(DELETE, 1, RequestOutcome.NOT_EXECUTED),
    KillPoint(DELETE, 1, RequestOutcome.ANSWER_LOST),
    KillPoint("DeleteMessage", 1, RequestOutcome.NOT_EXECUTED),
    KillPoint("DeleteMessage", 1, RequestOutcome.ANSWER_LOST),
    KillPoint("TerminateInstances", 1, RequestOutcome.NOT_EXECUTED),
    KillPoint("TerminateInstances", 1, RequestOutcome.ANSWER_LOST),
    KillPoint("TerminateInstances", 1, RequestOutcome.LATE),
    KillPoint(REMOVE_FINALIZER, 1, RequestOutcome.ANSWER_LOST),
    KillPoint("CreateFleet", 1, RequestOutcome.NOT_EXECUTED),
    KillPoint("CreateFleet", 1, RequestOutcome.ANSWER_LOST),
    KillPoint("CreateFleet", 1, RequestOutcome.LATE),
)


_MARKED_TERMINATIONS = [
    pytest.param(kill_point, id=str(kill_point), marks=() if kill_point == _DEFAULT_KILL_POINT else pytest.mark.soak)
    for kill_point in _TERMINATIONS
]


@pytest.mark.parametrize("kill_point", _MARKED_TERMINATIONS)
async def test_a_controller_killed_while_it_terminates_leaves_no_instance(
    cluster: ControllerCluster, kill_point: KillPoint
) -> None:
    """AWS-526, OPS-211"""
    cluster.aws.control.set_timing(shutting_down=1.0)
    cluster.add_pods(PODS)
    with cluster.controller(*NO_LEADER_ELECTION) as running:
        await cluster.until(lambda: cluster.missing_for(PODS))
        await cluster.clear()
        await cluster.wait_for_kill_point(kill_point, running, running.kill)
    with cluster.controller(*NO_LEADER_ELECTION):
        await cluster.until(lambda: cluster.missing_for(0))
    cluster.kill_trigger.release_all()
    assert len(cluster.aws.control.instances()) == PODS


@pytest.mark.soak
@pytest.mark.parametrize("kill_point", _INTERRUPTIONS, ids=str)
async def test_a_controller_killed_during_an_interruption_replaces_one_instance_by_one(
    cluster: ControllerCluster, kill_point: KillPoint
) -> None:
    """AWS-640, AWS-645: a message that was not deleted is received again after twenty seconds and has no further effect."""
    cluster.add_pods(PODS)
    with cluster.controller(*NO_LEADER_ELECTION):
        await cluster.until(lambda: cluster.missing_for(PODS))
    interrupted = next(
        instance["instance_id"] for instance in cluster.instances() if instance["capacity_type"] == "spot"
    )
    cluster.queue.send(spot_interruption(interrupted))
    # A process lists all NodeClaims before it receives messages.
    await cluster.run_until_killed(kill_point)

    def missing() -> str:
        if interrupted in {instance["instance_id"] for instance in cluster.instances()}:
            return f"{interrupted} is still there"
        return cluster.missing_for(PODS) or ("a message is left" if cluster.queue.remaining() else "")

    with cluster.controller(*NO_LEADER_ELECTION):
        await cluster.until(missing)
    cluster.kill_trigger.release_all()
    assert len(cluster.aws.control.instances()) == PODS + 1
