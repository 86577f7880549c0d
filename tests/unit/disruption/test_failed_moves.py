"""Backoff counts for one node and one kind of move, deletion or replacement by an offering: it delays nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from karpenter.api.karpenter import Budget, Disruption
from karpenter.api.meta import LabelSelector
from karpenter.api.scheduling_constraints import PodAffinityTerm
from karpenter.disruption.command_backoff import CommandBackoff
from karpenter.disruption.decide.candidates import DisruptionContext
from karpenter.disruption.decide.command import Command, DisruptionReason, pending_command
from karpenter.disruption.decide.disruption_problem import DisruptionSolution
from karpenter.disruption.decide.failed_moves import DELETION, moves_by_node
from karpenter.model import labels
from support.applied_commands import QUIET
from support.builders import node_pool, owner, pod
from support.disruption_cases import KINDS, decide, drifted, gone, pool, running, why
from support.topology_builders import pod_anti_affinity_to

_MINUTE = 60.0


def _at_zero() -> float:
    return 0.0


def _after(backoff: CommandBackoff, now: float = 1.0) -> DisruptionContext:
    return replace(QUIET, failed_moves=backoff.failed_moves(now))


def _failed(command: Command, clock: Callable[[], float] = _at_zero) -> CommandBackoff:
    backoff = CommandBackoff(clock)
    backoff.record_failed_command(command, "no capacity", has_deleted_nodes=False)
    return backoff


def _drifting(*names: str) -> list[object]:
    return [running(name, "m", 4, conditions=drifted()) for name in names]


def test_a_sold_out_replacement_of_one_node_delays_no_other_node_of_the_pool() -> None:
    cluster = [pool("np"), _drifting("a", "b", "c")]
    failed, *others = decide(cluster).commands
    assert (gone([failed]), len(failed.replacements), gone(others)) == (["a"], 1, ["b", "c"])
    assert gone(decide(cluster, circumstances=_after(_failed(failed)))) == ["b", "c"]


def test_the_node_itself_may_be_deleted_or_replaced_by_another_offering_meanwhile() -> None:
    failed = decide(pool(), _drifting("a")).commands[0]
    context = _after(_failed(failed))
    assert gone(decide(pool(), _drifting("a"), circumstances=context)) == []
    assert gone(decide(pool(), _drifting("a"), running("b", "l", conditions=()), circumstances=context)) == ["a"]
    without = tuple(each for each in KINDS if each.name != failed.replacements[0].instance_types[0])
    assert gone(decide(pool(), _drifting("a"), types=without, circumstances=context)) == ["a"]


def test_after_a_deletion_that_failed_only_the_deletion_is_in_backoff() -> None:
    cluster = [pool(), running("a", "m", 1), running("b", "m", 3)]
    first = decide(cluster).commands[0]
    assert (gone([first]), moves_by_node(first)) == (["a"], {"claim-a": {DELETION}})
    assert gone(decide(cluster, circumstances=_after(_failed(first)))) == ["b"]


def test_only_the_offerings_that_failed_are_in_backoff_and_only_for_nodes_with_pods_there() -> None:
    """A command launches two offerings, and one of them is sold out."""
    cluster = [pool(), running("a", "m", 4, conditions=drifted()), running("b", "s", 2, conditions=drifted())]
    sold_out, other = decide(cluster).commands
    assert moves_by_node(sold_out)["claim-a"] != moves_by_node(other)["claim-b"]
    both = replace(
        sold_out,
        candidates=sold_out.candidates + other.candidates,
        replacements=sold_out.replacements + other.replacements,
    )
    backoff = CommandBackoff(_at_zero)
    names = [replacement.name for replacement in sold_out.replacements]
    backoff.record_failed_command(both, "sold out", names, has_deleted_nodes=False)
    failed = backoff.failed_moves(1.0)
    assert [failed.has_in_backoff(command) for command in (both, sold_out, other)] == [True, True, False]
    assert gone(decide(cluster, circumstances=_after(backoff))) == ["b"]


def test_a_consolidation_that_cannot_be_launched_says_so() -> None:
    cluster = [pool(), running("a", "l", 1)]
    solution = decide(cluster)
    assert len(solution.commands[0].replacements) == 1
    again = decide(cluster, circumstances=_after(_failed(solution.commands[0])))
    assert gone(again) == []
    assert why(again, "a") == "The same move failed a short while ago, it is tried again later"


def _unready(*pools: str, launching: tuple[str, ...] = (), now: float = 300.0) -> DisruptionContext:
    backoff = CommandBackoff(_at_zero)
    backoff.record_unready_pools(pools, "they did not register")
    return replace(QUIET, failed_moves=backoff.failed_moves(now, launching))


def test_where_replacements_do_not_become_ready_one_node_of_the_nodepool_is_tried_at_a_time() -> None:
    """K15-360: an image that does not work would fail for every node in turn. Other NodePools go on."""
    cluster = [pool("np"), _drifting("a", "b", "c")]
    assert gone(decide(cluster, circumstances=_unready("other", now=1.0))) == ["a", "b", "c"]
    paused = decide(cluster, circumstances=_unready("np", now=1.0))
    assert gone(paused) == []
    assert why(paused, "a") == (
        'The last replacements in NodePool "np" did not become ready: one at a time is tried, after pauses'
    )
    trial = decide(cluster, circumstances=_unready("np"))
    assert gone(trial) == ["a"]
    assert why(trial, "b") == why(paused, "a")
    assert gone(decide(cluster, circumstances=_unready("np", launching=("np",)))) == []


def _apart(host: str, **fields: object) -> list[object]:
    """A node that is too large for its pod, which shares no node with others of its kind."""
    term = PodAffinityTerm(topology_key=labels.HOSTNAME, label_selector=LabelSelector(match_labels={"app": "w"}))
    metadata = {"labels": {"app": "w"}, "owner_references": (owner("ReplicaSet", "w"),)}
    return [
        *running(host, "l", **fields),
        pod(f"w-{host}", {"cpu": "1500m"}, meta=metadata, node_name=host, affinity=pod_anti_affinity_to(term)),
    ]


def test_consolidation_tries_one_replacement_at_a_time_too_and_none_beside_drift() -> None:
    """K15-360: all methods of a pass share the one trial of a NodePool."""
    alone = [pool("np"), *(_apart(name) for name in "abcd")]
    assert gone(decide(alone)) == ["a", "b", "c", "d"]
    trial = decide(alone, circumstances=_unready("np"))
    assert len(gone(trial)) == 1
    (stays, *_) = sorted(set("abcd") - set(gone(trial)))
    assert why(trial, stays).startswith('The last replacements in NodePool "np" did not become ready')
    pod_affinity_to = [pool("np"), _apart("a"), _apart("b"), _apart("d", conditions=drifted())]
    assert gone(decide(pod_affinity_to)) == ["a", "b", "d"]
    assert gone(decide(pod_affinity_to, circumstances=_unready("np"))) == ["d"]


def test_a_consolidation_that_awaits_validation_is_dropped_when_its_nodepool_closes() -> None:
    """K15-360: its replacement would be launched in the pause, or beside the one that is tried."""
    cluster = [pool("np"), *_apart("a")]
    (chosen,) = decide(cluster).commands
    due = replace(QUIET, pending_commands=(pending_command(chosen),))
    assert gone(decide(cluster, circumstances=due)) == ["a"]
    closed = replace(due, failed_moves=_unready("np", now=1.0).failed_moves)
    assert gone(decide(cluster, circumstances=closed)) == []


def test_nodes_whose_pods_fit_elsewhere_do_not_wait_for_replacements_that_become_ready() -> None:
    cluster = [pool(), _drifting("a"), running("b", "l", conditions=())]
    assert gone(decide(cluster, circumstances=_unready("np", now=1.0))) == ["a"]


def test_static_nodepools_try_one_replacement_at_a_time_too() -> None:
    open_budget = Disruption(budgets=(Budget(nodes="100%"),))
    cluster = [node_pool("np", replicas=3, disruption=open_budget), _drifting("a", "b", "c")]
    assert len(gone(decide(cluster))) == 3
    assert len(gone(decide(cluster, circumstances=_unready("np")))) == 1
    paused = decide(cluster, circumstances=_unready("np", now=1.0))
    assert gone(paused) == []
    assert 'The last replacements in NodePool "np" did not become ready' in why(paused, "a")


@pytest.mark.parametrize(("has_deleted_nodes", "longest"), [(False, 600.0), (True, 3600.0)])
def test_where_nothing_was_deleted_backoff_lasts_ten_minutes_at_most(has_deleted_nodes: bool, longest: float) -> None:
    """Pauses are longer by up to a fifth, so that what failed together is not tried again together."""
    now = 0.0
    backoff = CommandBackoff(lambda: now)
    command = decide(pool(), _drifting("a")).commands[0]
    for _ in range(12):
        backoff.record_failed_command(command, "no capacity", has_deleted_nodes=has_deleted_nodes)
    assert backoff.failed_moves(now + longest - 1).has_in_backoff(command)
    assert not backoff.failed_moves(now + 1.2 * longest).has_in_backoff(command)


def test_a_success_resets_all_failures_of_the_node() -> None:
    command = decide(pool(), _drifting("a")).commands[0]
    backoff = _failed(command)
    backoff.reset_nodes(DisruptionReason.DRIFTED, ["claim-b"])
    assert backoff.failed_moves(1.0).has_in_backoff(command)
    backoff.reset_nodes(DisruptionReason.DRIFTED, ["claim-a"])
    assert not backoff.failed_moves(1.0).failures


def test_nodes_that_can_be_replaced_do_not_wait_for_those_that_cannot() -> None:
    """Eight nodes that never succeed and nine that do, one at a time: candidates rotate, each failure takes ten minutes."""
    now = 0.0
    backoff = CommandBackoff(lambda: now)
    impossible = [f"a{number}" for number in range(8)]
    left = [f"b{number}" for number in range(9)]
    while left:
        solution: DisruptionSolution = decide(
            pool("np", Budget(nodes="1")), _drifting(*impossible, *left), circumstances=_after(backoff, now)
        )
        [command] = solution.commands
        [name] = gone([command])
        if name in left:
            left.remove(name)
            now += 2 * _MINUTE
        else:
            now += 10 * _MINUTE
            backoff.record_failed_command(command, "no capacity", has_deleted_nodes=False)
        assert now <= 100 * _MINUTE
