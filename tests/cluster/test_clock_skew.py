"""The controller's clock is wrong, either way: it buys, drains and gives back as ever, and is not kept busy by it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from controlplane import skewed
from controlplane.harness import ControlPlane
from controlplane.process import Controller, controller
from controlplane.stage import ALONE, Stage, at_rest, cases, staged
from karpenter.api import kinds

pytestmark = pytest.mark.cluster

_PODS = 5
_QUIET_PASSES = 3
#: A story of six nodes, two of which go, takes 180 writes, with the stand-in's, nominations and events.
_MOST_WRITES = 300
_GIVEN_BACK_SECONDS = 120.0


@pytest.fixture
def stage(plane: ControlPlane) -> Iterator[Stage]:
    with staged(plane) as ready:
        ready.pool(after="5s", terminationGracePeriod="10m")
        yield ready


@pytest.fixture
def running(stage: Stage, ahead: int, nomination: tuple[str, str]) -> Iterator[Controller]:
    program = (sys.executable, str(Path(skewed.__file__)), str(ahead))
    with controller(stage.account.kubeconfig, *ALONE, *nomination, program=program) as process:
        process.await_leading()
        yield process


def offset(stage: Stage) -> timedelta:
    """How far the controller's times in claims lie ahead of the API server's."""
    (claim, *_) = stage.look().claims
    stamps = [
        condition.last_transition_time
        for condition in claim.status.conditions
        if condition.last_transition_time is not None
    ]
    created = claim.metadata.creation_timestamp
    assert created is not None
    return min(stamps) - created


def until_quiet(stage: Stage, running: Controller) -> None:
    """Wait until the controller considers disruption several times and writes nothing meanwhile."""
    stage.until(at_rest(running, _QUIET_PASSES, stage.writes))


@pytest.mark.parametrize(("ahead", "nomination"), cases([60, -60, -20]))
def test_a_wrong_clock_neither_holds_up_nor_hurries_nor_keeps_busy(
    stage: Stage, running: Controller, ahead: int
) -> None:
    """OPS-050, OPS-090, DIS-241, DIS-500"""
    stage.deploy(_PODS)
    before = stage.until_running(_PODS)
    assert abs(offset(stage).total_seconds() - ahead) < abs(ahead) / 2
    assert len(before.claims) == _PODS
    assert stage.given_up(kinds.NODE_CLAIM) == 0
    until_quiet(stage, running)
    # One drains by hand and its pod gets another node; then one pod less, and a node is given back.
    drained = before.claims[0]
    stage.remove(drained)
    stage.until_gone(drained.metadata.uid)
    assert len(stage.until_running(_PODS).claims) == _PODS
    stage.deploy(_PODS - 1)
    stage.until(lambda: _too_many(stage), _GIVEN_BACK_SECONDS)
    until_quiet(stage, running)
    assert stage.until_running(_PODS - 1).running == _PODS - 1
    assert len(running.lines("disrupting node(s)")) == 1
    assert not running.lines("Reconciler error")
    assert stage.writes() < _MOST_WRITES


def _too_many(stage: Stage) -> str:
    count = len(stage.look().claims)
    return f"{count} claims" if count != _PODS - 1 else ""
