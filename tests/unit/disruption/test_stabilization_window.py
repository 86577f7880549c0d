"""Nodes that become consolidatable within seconds of each other are decided together."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from karpenter.api.meta import Condition, Wire
from karpenter.disruption.decide.command import pending_command
from karpenter.disruption.decide.consolidation_delays import time_driven_changes
from karpenter.disruption.decide.disruption_problem import DisruptionOptions, DisruptionSolution
from karpenter.model.consolidation_thresholds import ConsolidationDefaults
from support.applied_commands import CONSOLIDATABLE, QUIET
from support.builders import NOW, flatten, snapshot
from support.disruption_cases import decide, gone, pool, running

_NO_WAIT = DisruptionOptions(consolidation=ConsolidationDefaults(stabilization_window=timedelta(0)))
_PERIOD = "30s"


def _consolidatable_since(name: str, seconds_ago: float, *cpus: float, kind: str = "m") -> list[Wire]:
    """A node whose consolidateAfter ended so long ago; if that is in the future, it is not consolidatable yet."""
    since = NOW - timedelta(seconds=30 + seconds_ago)
    conditions = (Condition(type="Initialized", status="True", last_transition_time=since),)
    return running(name, kind, *cpus, conditions=(*conditions, CONSOLIDATABLE) if seconds_ago >= 0 else conditions)


def _decide(*nodes: list[Wire], options: DisruptionOptions | None = None) -> DisruptionSolution:
    return decide(pool(consolidate_after=_PERIOD), *nodes, options=options or DisruptionOptions())


def test_a_node_waits_for_one_whose_period_ends_soon_and_both_are_decided_together() -> None:
    """The pod of the first node would move to the second, which goes seconds later."""
    others = (_consolidatable_since("b", 60, 1.5), _consolidatable_since("c", 60, 1.5))
    first, second = _consolidatable_since("a", 1, 1), _consolidatable_since("l", -2, 3, kind="l")
    alone = _decide(first, second, *others, options=_NO_WAIT)
    waiting = _decide(first, second, *others)
    assert "a" in gone(alone)
    assert "a" not in gone(waiting)
    assert "l" in gone(_decide(_consolidatable_since("a", 4, 1), _consolidatable_since("l", 1, 3, kind="l"), *others))


def test_nodes_wait_no_longer_than_four_windows_after_the_first_of_them() -> None:
    """Pods come and go on some node all the time: that holds up no other node for ever."""
    restless, room = _consolidatable_since("b", -1, 1), running("c", "m", 3, conditions=())
    series = [_consolidatable_since(f"n{ago}", ago, 4) for ago in (14, 28, 42)]
    assert gone(_decide(_consolidatable_since("a", 56, 1), *series, restless, room)) == []
    assert gone(_decide(_consolidatable_since("a", 60, 1), *series[1:], restless, room)) == ["a"]
    late = [_consolidatable_since(f"n{ago}", ago, 4) for ago in (14, 28, 42, 56)]
    assert gone(_decide(_consolidatable_since("a", 60, 1), *late, restless, room)) == ["a"]


def test_nodes_whose_period_ends_late_or_that_are_empty_delay_no_other() -> None:
    for other in (_consolidatable_since("b", -16, 1), _consolidatable_since("b", -1)):
        assert gone(_decide(_consolidatable_since("a", 1, 1), other, running("c", "m", 1))) != []


def test_the_moment_at_which_a_node_waits_no_longer_leads_to_a_decision() -> None:
    nodes = (_consolidatable_since("a", 5, 1), _consolidatable_since("b", -1, 1))
    moments = time_driven_changes(snapshot(flatten([pool(consolidate_after=_PERIOD), *nodes])), NOW, 60)
    assert NOW + timedelta(seconds=55) in set(moments)


def test_a_command_that_awaits_validation_waits_for_no_node() -> None:
    """Otherwise every pod that starts somewhere would undo what was decided."""
    candidate, room = _consolidatable_since("a", 1, 1), running("c", "m", 3, conditions=())
    [command] = _decide(candidate, room).commands
    due = replace(QUIET, pending_commands=(pending_command(command),))
    cluster = (pool(consolidate_after=_PERIOD), candidate, room, _consolidatable_since("b", -2, 1))
    assert gone(decide(*cluster)) == []
    assert gone(decide(*cluster, circumstances=due)) == ["a"]
