"""The API server is away for twenty seconds, while instances are bought and while Nodes drain: it costs time, nothing else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from controlplane.harness import ApiError, ControlPlane
from controlplane.process import Controller, controller
from controlplane.stage import ALONE, Stage, cases, staged
from karpenter.api import kinds
from karpenter.api.karpenter import NodeClaim

pytestmark = pytest.mark.cluster

AWAY_SECONDS = 20.0
#: Others wait up to half a minute before they try again, the scheduler among them.
_SECONDS = 150.0
_PODS = 20
_GUARDED = "guarded"
_LAUNCHING = ("created nodeclaim", "launched nodeclaim", "registered nodeclaim")


@pytest.fixture
def stage(plane: ControlPlane) -> Iterator[Stage]:
    with staged(plane) as ready:
        ready.pool()
        yield ready


@contextmanager
def outage(stage: Stage) -> Iterator[None]:
    """The API server is away while the context lasts, and for twenty seconds at least."""
    plane = stage.plane
    stage.account.check()
    plane.stop_server()
    back = time.monotonic() + AWAY_SECONDS
    try:
        yield
        plane.until(lambda: time.monotonic() >= back, "the end of the outage")
    finally:
        plane.start_server()
        plane.until(lambda: is_usable(stage), "the server to serve everything")
        stage.account.overlook_a_restart()


def is_usable(stage: Stage) -> bool:
    """A server that has just started answers for some kinds before others."""
    try:
        stage.look()
    except ApiError:
        return False
    return True


def check_log(running: Controller) -> None:
    """One outage is one cause, told once, and told to be over once.

    A server that has just started has more to say, for it does not know its roles at first: that is no cause.
    """
    running.await_line("the API server can be used again", _SECONDS)
    (cause,) = running.lines("the API server cannot be used")
    assert "cannot reach the API server at https://127.0.0.1:" in str(cause["error"])
    assert len(running.lines("the API server can be used again")) == 1


def held(stage: Stage) -> NodeClaim:
    """A claim that is deleted and whose Node a budget keeps from draining."""
    stage.deploy(1, _GUARDED)
    (claim,) = stage.until_running(1).claims
    stage.budget(1, _GUARDED)
    stage.remove(claim)
    stage.until(lambda: "" if stage.events("FailedDraining", claim.status.node_name) else "nothing holds the drain")
    return claim


def check_held(stage: Stage, claim: NodeClaim) -> None:
    """Every pod runs and the claim is still there: nobody let its pod go, for which an instance is kept ready."""

    def lacking() -> str:
        sight = stage.look()
        return "" if sight.running == _PODS + 1 else f"{sight.running} of {len(sight.pods)} pods run"

    stage.until(lacking, _SECONDS)
    claims = stage.look().claims
    assert len(claims) == _PODS + 2
    assert [each.metadata.uid for each in claims if each.metadata.deletion_timestamp] == [claim.metadata.uid]


@pytest.mark.parametrize(("step", "nomination"), cases(_LAUNCHING))
def test_an_outage_while_instances_are_bought_and_nodes_drain_costs_only_time(
    stage: Stage, step: str, nomination: tuple[str, str]
) -> None:
    """OPS-012, OPS-364, DIS-S300: what a budget held before it holds afterwards."""
    with controller(stage.account.kubeconfig, *ALONE, *nomination) as running:
        running.await_leading()
        guarded = held(stage)
        before = len(running.lines(step))
        stage.deploy(_PODS)
        running.until(lambda: len(running.lines(step)) >= before + _PODS // 3, f"log {step!r}")
        with outage(stage):
            running.await_line("the API server cannot be used")
        check_held(stage, guarded)
        assert stage.given_up(kinds.CONFIG_MAP) == 0
        stage.budget(0, _GUARDED)
        stage.until_gone(guarded.metadata.uid)
        sight = stage.until_running(_PODS + 1, _SECONDS)
        assert len(sight.claims) == _PODS + 1
        assert stage.given_up(kinds.NODE_CLAIM) == 0
        check_log(running)


@pytest.mark.parametrize(("step", "nomination"), cases(_LAUNCHING))
def test_a_leader_that_could_not_renew_ends_and_its_next_start_finishes_the_job(
    stage: Stage, step: str, nomination: tuple[str, str]
) -> None:
    """OPS-361: the kubelet starts it again while the server is still away."""
    with controller(stage.account.kubeconfig, *nomination) as first:
        first.await_leading()
        stage.deploy(_PODS)
        first.until(lambda: len(first.lines(step)) >= _PODS // 3, f"log {step!r}")
        with outage(stage):
            assert first.ended() == 1
            assert len(first.lines("leader election lost")) == 1
    with controller(stage.account.kubeconfig, *nomination) as second:
        sight = stage.until_running(_PODS, _SECONDS)
        assert len(sight.claims) == _PODS
        assert stage.given_up(kinds.NODE_CLAIM) == stage.given_up(kinds.CONFIG_MAP) == 0
        assert not second.lines("Reconciler error")
