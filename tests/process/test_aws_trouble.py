"""AWS that answers late, not at all or with errors, and a leader that sleeps, while it buys instances: none is bought twice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from controlplane.process import Controller
from support.aws.control import Control
from support.aws.kill_points import MARK, TELL, Fate, Moment
from support.aws.process_scene import ALONE, Scene

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

PODS = 6
_STORM_SECONDS = 10.0
_FOLLOWS = "new leader elected"
_SEEDS = range(6)
_FLEETS = "CreateFleet"


def _half_the_calls_are_throttled(control: Control) -> None:
    control.storm(_STORM_SECONDS)


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


def _machines_are_seen_late(control: Control) -> None:
    control.set_timing(visible_after=60.0 + 5.0)


_TROUBLES = (
    _half_the_calls_are_throttled,
    _answers_are_lost,
    _requests_are_lost,
    _servers_fail,
    _answers_are_lost_and_the_next_calls_throttled,
    _machines_are_seen_late,
)


def _moment(numbers: random.Random) -> Moment:
    request = numbers.choice((_FLEETS, _FLEETS, MARK, TELL))
    fates = tuple(Fate) if request == _FLEETS else (Fate.NEVER, Fate.UNHEARD)
    return Moment(request, numbers.randint(1, 2), numbers.choice(fates))


@pytest.mark.parametrize("trouble", _TROUBLES)
async def test_in_trouble_instances_are_bought_once(cluster: Scene, trouble: Callable[[Control], None]) -> None:
    """AWS-457, AWS-093"""
    cluster.ask(2)
    with cluster.controller(*ALONE) as running:
        await cluster.until(lambda: cluster.lacking(2))
        trouble(cluster.aws.control)
        cluster.ask(PODS)
        await cluster.until(lambda: cluster.lacking(2 + PODS))
        assert running.is_running
    assert len(cluster.aws.control.machines()) == 2 + PODS


@pytest.mark.parametrize("seed", _SEEDS)
async def test_killed_in_trouble_it_is_followed_by_one_that_buys_nothing_twice(cluster: Scene, seed: int) -> None:
    """AWS-457, AWS-093: and the trouble goes on while the successor starts."""
    moment, trouble = _moment(random.Random(seed)), _TROUBLES[seed]
    cluster.ask(2)
    with cluster.controller(*ALONE) as running:
        await cluster.until(lambda: cluster.lacking(2))
        trouble(cluster.aws.control)
        cluster.ask(PODS)
        await cluster.struck(moment, running, running.kill)
    trouble(cluster.aws.control)
    with cluster.controller(*ALONE):
        await cluster.until(lambda: cluster.lacking(2 + PODS))
    cluster.ambush.release_all()
    assert len(cluster.aws.control.machines()) == 2 + PODS


@pytest.mark.parametrize(
    "moment",
    [
        Moment(_FLEETS, 1, Fate.LATE),
        Moment(_FLEETS, 2, Fate.UNHEARD),
        Moment(MARK, 3, Fate.UNHEARD),
        Moment(TELL, 2, Fate.UNHEARD),
    ],
    ids=str,
)
async def test_a_leader_that_sleeps_while_it_buys_wakes_up_and_buys_nothing_more(
    cluster: Scene, moment: Moment
) -> None:
    """OPS-361, AWS-093: its successor has finished what it began, and its own request arrives late."""
    cluster.ask(2)
    with cluster.controller() as leader:
        await cluster.until(lambda: cluster.lacking(2))
        with cluster.controller() as standby:
            await _said(cluster, standby, _FOLLOWS)
            cluster.ask(PODS)
            await cluster.struck(moment, leader, leader.pause)
            await cluster.until(lambda: "" if standby.leads else f"the standby does not lead:\n{standby.log[-2000:]}")
            await cluster.until(lambda: cluster.lacking(2 + PODS))
            cluster.ambush.release_all()
            leader.resume()
            assert await asyncio.to_thread(leader.ended) == 1
            await cluster.until(lambda: cluster.lacking(2 + PODS))
    assert len(cluster.aws.control.machines()) == 2 + PODS


async def _said(cluster: Scene, process: Controller, message: str) -> None:
    await cluster.until(lambda: "" if process.lines(message) else f"not said: {message}\n{process.log[-2000:]}")
