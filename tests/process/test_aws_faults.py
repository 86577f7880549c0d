"""AWS answers late, not at all or with errors, or the leader is suspended, during launches: no instance is launched twice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from controlplane.process import Controller
from support.aws.control import Control
from support.aws.controller_cluster import NO_LEADER_ELECTION, ControllerCluster
from support.aws.kill_points import RECORD_BATCH, RECORD_INSTANCE, KillPoint, RequestOutcome

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

PODS = 6
_THROTTLING_SECONDS = 10.0
_STANDBY_LINE = "new leader elected"
_SEEDS = range(6)
_FLEETS = "CreateFleet"


def _half_the_calls_are_throttled(control: Control) -> None:
    control.throttle(_THROTTLING_SECONDS)


def _answers_are_lost(control: Control) -> None:
    for nth in (1, 2, 4):
        control.lose_answer(_FLEETS, nth)


def _requests_are_lost(control: Control) -> None:
    for nth in (1, 2, 4):
        control.lose_request(_FLEETS, nth)


def _servers_fail(control: Control) -> None:
    control.fail(_FLEETS, "InternalError", status=500, times=5)


def _answers_are_lost_and_the_next_calls_throttled(control: Control) -> None:
    control.lose_answer(_FLEETS, 1)
    control.fail(_FLEETS, "RequestLimitExceeded", status=503, times=3, skip=1)


def _instances_are_visible_late(control: Control) -> None:
    control.set_timing(visible_after=60.0 + 5.0)


_FAULTS = (
    _half_the_calls_are_throttled,
    _answers_are_lost,
    _requests_are_lost,
    _servers_fail,
    _answers_are_lost_and_the_next_calls_throttled,
    _instances_are_visible_late,
)


def _kill_point(numbers: random.Random) -> KillPoint:
    request = numbers.choice((_FLEETS, _FLEETS, RECORD_BATCH, RECORD_INSTANCE))
    outcomes = (
        tuple(RequestOutcome) if request == _FLEETS else (RequestOutcome.NOT_EXECUTED, RequestOutcome.ANSWER_LOST)
    )
    return KillPoint(request, numbers.randint(1, 2), numbers.choice(outcomes))


@pytest.mark.parametrize("fault", _FAULTS)
async def test_during_aws_faults_instances_are_launched_once(
    cluster: ControllerCluster, fault: Callable[[Control], None]
) -> None:
    """AWS-457, AWS-093"""
    cluster.add_pods(2)
    with cluster.controller(*NO_LEADER_ELECTION) as running:
        await cluster.until(lambda: cluster.missing_for(2))
        fault(cluster.aws.control)
        cluster.add_pods(PODS)
        await cluster.until(lambda: cluster.missing_for(2 + PODS))
        assert running.is_running
    assert len(cluster.aws.control.instances()) == 2 + PODS


@pytest.mark.parametrize("seed", _SEEDS)
async def test_the_successor_of_a_controller_killed_during_aws_faults_launches_nothing_twice(
    cluster: ControllerCluster, seed: int
) -> None:
    """AWS-457, AWS-093: the fault also holds while the successor starts."""
    kill_point, fault = _kill_point(random.Random(seed)), _FAULTS[seed]
    cluster.add_pods(2)
    with cluster.controller(*NO_LEADER_ELECTION) as running:
        await cluster.until(lambda: cluster.missing_for(2))
        fault(cluster.aws.control)
        cluster.add_pods(PODS)
        await cluster.wait_for_kill_point(kill_point, running, running.kill)
    fault(cluster.aws.control)
    with cluster.controller(*NO_LEADER_ELECTION):
        await cluster.until(lambda: cluster.missing_for(2 + PODS))
    cluster.kill_trigger.release_all()
    assert len(cluster.aws.control.instances()) == 2 + PODS


@pytest.mark.parametrize(
    "kill_point",
    [
        KillPoint(_FLEETS, 1, RequestOutcome.LATE),
        KillPoint(_FLEETS, 2, RequestOutcome.ANSWER_LOST),
        KillPoint(RECORD_BATCH, 3, RequestOutcome.ANSWER_LOST),
        KillPoint(RECORD_INSTANCE, 2, RequestOutcome.ANSWER_LOST),
    ],
    ids=str,
)
async def test_a_leader_suspended_during_a_launch_launches_nothing_after_it_resumes(
    cluster: ControllerCluster, kill_point: KillPoint
) -> None:
    """OPS-361, AWS-093: its successor has completed the launch, and its own request arrives late."""
    cluster.add_pods(2)
    with cluster.controller() as leader:
        await cluster.until(lambda: cluster.missing_for(2))
        with cluster.controller() as standby:
            await _logged(cluster, standby, _STANDBY_LINE)
            cluster.add_pods(PODS)
            await cluster.wait_for_kill_point(kill_point, leader, leader.pause)
            await cluster.until(lambda: "" if standby.leads else f"the standby does not lead:\n{standby.log[-2000:]}")
            await cluster.until(lambda: cluster.missing_for(2 + PODS))
            cluster.kill_trigger.release_all()
            leader.resume()
            assert await asyncio.to_thread(leader.ended) == 1
            await cluster.until(lambda: cluster.missing_for(2 + PODS))
    assert len(cluster.aws.control.instances()) == 2 + PODS


async def _logged(cluster: ControllerCluster, process: Controller, message: str) -> None:
    await cluster.until(lambda: "" if process.lines(message) else f"not logged: {message}\n{process.log[-2000:]}")
