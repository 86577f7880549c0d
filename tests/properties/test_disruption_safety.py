"""Laws every disruption decision obeys, on clusters that grew by plans and lost some of their pods."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from karpenter.api.core import Pod
from karpenter.api.karpenter import Budget
from karpenter.disruption.decide.candidates import CandidateChecks, DisruptionContext
from karpenter.disruption.decide.command import Candidate, Command, DisruptionReason, pending_command
from karpenter.disruption.decide.command_validation import validate_command
from karpenter.disruption.decide.consolidation_memory import DisruptionMemory
from karpenter.disruption.decide.costs import NodePrices
from karpenter.disruption.decide.disruption_decision import decide_disruption
from karpenter.disruption.decide.disruption_preview import (
    budgets_allow_all,
    decide_without_budgets,
    decide_without_thresholds,
)
from karpenter.disruption.decide.disruption_problem import DisruptionProblem
from karpenter.disruption.decide.disruption_problem_file import disruption_solution_bytes
from karpenter.disruption.decide.move_blockers import SavingTooSmall
from karpenter.disruption.decide.move_evaluation import MoveEvaluator, SameTypeReplacement
from karpenter.disruption.decide.replacement_prices import MoveRejection
from karpenter.disruption.decide.scheduling_simulation import UnreschedulablePods, prepare_simulation
from karpenter.model import pods
from karpenter.scheduling.demand import SchedulingNodeClaim
from karpenter.scheduling.objective import NO_EXPOSURE_LIMITS, NODE_FEE_PER_HOUR, Objective
from karpenter.scheduling.problem import build_problem
from karpenter.scheduling.scheduling_options import ArrivalForecast, SchedulingOptions
from karpenter.scheduling.solution import Solution
from karpenter.scheduling.solver import solve
from karpenter.scheduling.whatif import rescheduling
from karpenter.scheduling.whatif.pass_facts import PassFacts, facts_of
from karpenter.scheduling.whatif.questions import ReschedulingResult, TooExpensive, UnreadyHosts, WhatIf
from karpenter.scheduling.whatif.refused_nodes import RefusedNodes
from karpenter.scheduling.whatif.rescheduling import ReschedulingBase
from karpenter.simulator.gap_probe import ProbeMemory, WithheldSavings, withheld_savings
from support import mixed_clusters, related_pod_clusters
from support.applied_commands import DisruptedCluster, with_budget
from support.builders import NOW, UNSCHEDULABLE, replaced, snapshot
from support.examples import examples
from support.plan_checker import violations
from support.plan_checker_cluster import cluster_of_snapshot
from support.replay_check import check_disruption_replay

_ROUNDING = 1e-9
_QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
_TINY = 1e-9
_STEPS = 60


@st.composite
def shrunken(draw: st.DrawFn, budgets: Sequence[Budget] = (), **spec: object) -> DisruptedCluster:
    """Nodes that plans have launched in a few batches, less some of their pods. ``spec``: fields of every pool.

    Half of them have rich pools and nodes, the others pods that look at each other.
    """
    if draw(st.booleans()):
        types, pools, arriving = (
            draw(mixed_clusters.types()),
            draw(mixed_clusters.pools()),
            mixed_clusters.waiting_pods(),
        )
    else:
        types, pools, arriving = (
            draw(related_pod_clusters.instance_types()),
            draw(related_pod_clusters.node_pools()),
            related_pod_clusters.waiting(),
        )
    pools = [replaced(pool, spec=replaced(pool.spec, **spec)) for pool in pools]
    grown = DisruptedCluster([with_budget(pool, *budgets) for pool in pools], types=types)
    for batch in range(draw(st.integers(1, 3))):
        grown.batch([_renamed(pod, f"b{batch}") for pod in draw(arriving)])
    grown.finish()
    there = grown.bound()
    gone = draw(st.sets(st.sampled_from([pod.metadata.uid for pod in there]))) if there else set()
    grown.delete_pods(gone)
    return grown


def _renamed(pod: Pod, prefix: str) -> Pod:
    meta = replaced(pod.metadata, name=f"{prefix}-{pod.metadata.name}", uid=f"{prefix}-{pod.metadata.uid}")
    return replaced(pod, metadata=meta)


def moved(command: Command) -> Counter[str]:
    """Where every pod of a command is meant to go, by uid."""
    going = [pod for planned in command.replacements for pod in planned.pods]
    going += [pod for placed in command.placed_on_existing for pod in placed.pods]
    return Counter(pod.metadata.uid for pod in going)


@settings(max_examples=examples(250), deadline=None, suppress_health_check=_QUIET)
@given(shrunken())
def test_a_move_saves_money_and_leaves_no_pod_without_a_place(grown: DisruptedCluster) -> None:
    """Properties of the issue: never more expensive, no pod evicted without a place; each pod has exactly one place."""
    before = grown.price
    solution = grown.decide()
    for command in solution.commands:
        uids = [pod.metadata.uid for candidate in command.candidates for pod in candidate.reschedulable_pods]
        assert moved(command) == Counter(uids)
        assert command.saving_per_hour is None or command.saving_per_hour > _TINY
    grown.carry_out(solution.commands)
    saved = sum(command.saving_per_hour or 0.0 for command in solution.commands)
    assert grown.price == pytest.approx(before - saved)


@settings(max_examples=examples(250), deadline=None, suppress_health_check=_QUIET)
@given(shrunken())
def test_pods_are_moved_to_places_the_scheduler_would_take_them_to(grown: DisruptedCluster) -> None:
    """Give the plan of all moves together to the plan checker."""
    solution = grown.decide()
    gone = {candidate.state_node.name for command in solution.commands for candidate in command.candidates}
    claims = {candidate.key for command in solution.commands for candidate in command.candidates}
    moving = {uid for command in solution.commands for uid in moved(command)}
    left = [_waiting(i) if isinstance(i, Pod) and i.metadata.uid in moving else i for i in grown.objects()]
    there = snapshot([wire for wire in left if wire.metadata.name not in gone | claims])  # type: ignore[attr-defined]
    plan = Solution(
        new_claims=tuple(planned for command in solution.commands for planned in command.replacements),
        placed_on_existing=tuple(placed for command in solution.commands for placed in command.placed_on_existing),
    )
    types = {pool.metadata.name: grown.given_types for pool in there.pools}
    cluster = cluster_of_snapshot(there, types, namespaces=related_pod_clusters.SPACES)
    assert violations(cluster, plan) == []


def _waiting(pod: Pod) -> Pod:
    spec = replaced(pod.spec, node_name="")
    return replaced(pod, spec=spec, status=replaced(pod.status, phase="Pending", conditions=(UNSCHEDULABLE,)))


@settings(max_examples=examples(250), deadline=None, suppress_health_check=_QUIET)
@given(shrunken([Budget(nodes="1")]))
def test_no_pool_loses_more_nodes_than_its_budget_allows(grown: DisruptedCluster) -> None:
    """DIS-147: over all commands and reasons together."""
    taken = Counter(c.node_pool for command in grown.decide().commands for c in command.candidates)
    assert all(number <= 1 for number in taken.values())


@settings(max_examples=examples(250), deadline=None, suppress_health_check=_QUIET)
@given(shrunken(limits={}))
def test_what_has_been_moved_is_not_moved_again(grown: DisruptedCluster) -> None:
    """The anti-churn law: on an unchanged snapshot without budgets, the moves leave one on which none is proposed.

    Limits aside: a node that goes frees room below its pool's limits, so that another node may be replaced afterwards. And a
    saving that was too small a share of its pool's price may be enough once other nodes are gone; no pod moves twice by it.
    """
    solution = grown.decide()
    first = solution.commands
    note(
        f"{[(c.decision, [x.state_node.name for x in c.candidates], [p.name for p in c.replacements]) for c in first]}"
    )
    grown.carry_out(first)
    second = grown.decide().commands
    assert not _moved_by(first) & _moved_by(second)
    if not any(isinstance(node.blocker, SavingTooSmall) for node in solution.blocked_nodes):
        assert second == ()


def _moved_by(commands: Iterable[Command]) -> set[str]:
    return {uid for command in commands for uid in moved(command)}


@settings(max_examples=examples(80), deadline=None, suppress_health_check=_QUIET)
@given(shrunken([Budget(nodes="1")]))
def test_repeated_decisions_end_in_a_stable_cluster(grown: DisruptedCluster) -> None:
    """Where budgets let one node of a pool go at a time, every step is cheaper, and there is a last one."""
    for _ in range(_STEPS):
        before = grown.price
        commands = grown.decide().commands
        if not commands:
            return
        grown.carry_out(commands)
        assert grown.price < before
    pytest.fail(f"still moving after {_STEPS} steps")


@settings(max_examples=examples(200), deadline=None, suppress_health_check=_QUIET)
@given(shrunken(limits={}), st.data())
def test_the_simulation_is_the_provisioning_decision(grown: DisruptedCluster, data: st.DataObject) -> None:
    """What a prepared simulation answers is what provisioning plans once the nodes terminate, or a more expensive plan.

    But for limits: until its replacement runs, a node that goes counts against its pool's. And but for shares of spot pools.
    """
    options = SchedulingOptions(arrival_forecast=ArrivalForecast.NONE, objective=Objective(exposure=NO_EXPOSURE_LIMITS))
    taken = grown.snapshot()
    if not taken.nodes:
        return
    gone = data.draw(st.sets(st.sampled_from([view.key for view in taken.nodes]), min_size=1))
    judging = CandidateChecks(taken, grown.types, DisruptionContext(NOW))
    cluster = prepare_simulation(taken, grown.types, DisruptionContext(NOW), options, judging)
    prices = NodePrices(grown.types)
    candidates = [
        Candidate(
            view, view.pool, tuple(p for p in view.pods if pods.is_reschedulable(p)), prices.price_per_hour(view), 1.0
        )
        for view in taken.nodes
        if view.key in gone
    ]
    nodes = tuple(replace(view, marked_for_deletion=True) if view.key in gone else view for view in taken.nodes)
    expected = solve(build_problem(replace(taken, nodes=nodes), grown.types, NOW, options), grown.types)
    reschedule = cluster.reschedule(candidates)
    assert not isinstance(reschedule, TooExpensive)
    if isinstance(reschedule, UnreschedulablePods):
        assert expected.unschedulable
        return
    assert not expected.unschedulable
    fees = NODE_FEE_PER_HOUR * (len(reschedule.new_claims) - len(expected.new_claims))
    assert reschedule.price_per_hour + fees >= expected.price_per_hour - _ROUNDING


@settings(max_examples=examples(250), deadline=None, suppress_health_check=_QUIET)
@given(shrunken([Budget(nodes="2")]) | shrunken())
def test_validation_of_an_unchanged_cluster_confirms_everything(grown: DisruptedCluster) -> None:
    """DIS-272: or nothing would ever be carried out."""
    first = grown.decide().commands
    again = grown.decide(DisruptionContext(NOW, pending_commands=tuple(map(pending_command, first))))
    blocked = {blocked_node.state_node.key for blocked_node in again.blocked_nodes}
    for command in first:
        assert isinstance(validate_command(command, again.commands, blocked), Command)


@settings(max_examples=examples(100), deadline=None, suppress_health_check=_QUIET)
@given(shrunken(), st.randoms(use_true_random=False))
def test_the_decision_does_not_depend_on_the_order_of_events(grown: DisruptedCluster, chance: Random) -> None:
    """Reproducible: ties are settled by names."""
    wires = grown.objects()
    chance.shuffle(wires)
    other = decide_disruption(DisruptionProblem(snapshot(wires), DisruptionContext(NOW)), grown.types)
    assert [_described(command) for command in other.commands] == [_described(c) for c in grown.decide().commands]


@settings(max_examples=examples(60), deadline=None, suppress_health_check=_QUIET)
@given(shrunken())
def test_any_disruption_problem_replays(grown: DisruptedCluster) -> None:
    """From its file: the decision, and the validation, which has the commands as pending ones."""
    first = grown.decide()
    pending = tuple(map(pending_command, first.commands))
    for context in (DisruptionContext(NOW), DisruptionContext(NOW, pending_commands=pending)):
        problem = DisruptionProblem(grown.snapshot(), context)
        check_disruption_replay(problem, grown.types, decide_disruption(problem, grown.types))


@settings(max_examples=examples(60), deadline=None, suppress_health_check=_QUIET)
@given(shrunken([Budget(nodes="2")]) | shrunken(limits={"cpu": "64"}) | shrunken(), st.data())
def test_what_earlier_decisions_left_changes_no_later_one(grown: DisruptedCluster, data: st.DataObject) -> None:
    """Byte for byte, while commands are carried out and pods leave."""
    memory = DisruptionMemory()
    for passed in range(3):
        for minutes in (0, 0, data.draw(st.integers(0, 90))):
            nominated = data.draw(
                st.sets(st.sampled_from([view.key for view in grown.snapshot().nodes] or [""]), max_size=1)
            )
            context = DisruptionContext(NOW + timedelta(hours=passed, minutes=minutes), nominated=frozenset(nominated))
            problem = DisruptionProblem(grown.snapshot(), context)
            expected = decide_disruption(problem, grown.types)
            remembered = decide_disruption(problem, grown.types, memory)
            assert disruption_solution_bytes(problem, remembered) == disruption_solution_bytes(problem, expected)
        grown.carry_out(expected.commands)
        left = [pod.metadata.uid for pod in grown.bound()]
        grown.delete_pods(data.draw(st.sets(st.sampled_from(left), max_size=2)) if left else set())


@settings(max_examples=examples(40), deadline=None, suppress_health_check=_QUIET)
@given(shrunken([Budget(nodes="2")]) | shrunken([Budget(nodes="100%")]) | shrunken(limits={"cpu": "64"}), st.data())
def test_what_earlier_measurements_of_a_simulation_left_changes_no_later_one(
    grown: DisruptedCluster, data: st.DataObject
) -> None:
    """What budgets and thresholds withhold: decisions that share packings are those made afresh, one by one."""
    memory = ProbeMemory()
    for passed in range(3):
        for minutes in (0, data.draw(st.integers(0, 90))):
            context = DisruptionContext(NOW + timedelta(hours=passed, minutes=minutes))
            problem = DisruptionProblem(grown.snapshot(), context)
            decided = decide_disruption(problem, grown.types)
            free = decide_without_budgets(problem, grown.types)
            if budgets_allow_all(problem):
                assert list(map(_described, free.commands)) == list(map(_described, decided.commands))
            now = _nano_saving(decided.commands)
            without_budgets = max(now, _nano_saving(free.commands))
            hasty = _nano_saving(decide_without_thresholds(problem, grown.types).commands)
            expected = WithheldSavings(without_budgets - now, max(0, hasty - without_budgets))
            assert withheld_savings(problem, grown.types, memory) == expected
        grown.carry_out(decided.commands)
        left = [pod.metadata.uid for pod in grown.bound()]
        grown.delete_pods(data.draw(st.sets(st.sampled_from(left), max_size=2)) if left else set())


def _nano_saving(commands: Iterable[Command]) -> int:
    moves = (command for command in commands if command.reason is DisruptionReason.UNDERUTILIZED)
    return round(sum(command.saving_per_hour or 0.0 for command in moves) * 10**9)


def _described(command: Command) -> tuple[object, ...]:
    return (
        [candidate.key for candidate in command.candidates],
        [(planned.name, planned.instance_types) for planned in command.replacements],
        [(placed.node_key, [pod.metadata.uid for pod in placed.pods]) for placed in command.placed_on_existing],
    )


@settings(max_examples=examples(150), deadline=None, suppress_health_check=_QUIET)
@given(shrunken(), related_pod_clusters.odd_pods(), st.data())
def test_odd_pods_block_no_decision(grown: DisruptedCluster, odd: list[Pod], data: st.DataObject) -> None:
    """Bound pods whose every field may be nonsense: never an error, and no pod that costs something to evict loses its place."""
    hosts = [view.name for view in grown.snapshot().nodes]
    if hosts:
        there = [replaced(pod, spec=replaced(pod.spec, node_name=data.draw(st.sampled_from(hosts)))) for pod in odd]
        solution = decide_disruption(
            DisruptionProblem(snapshot(grown.objects() + there), DisruptionContext(NOW)), grown.types
        )
        for command in solution.commands:
            moving = [pod for candidate in command.candidates for pod in candidate.reschedulable_pods]
            if command.reason is DisruptionReason.EMPTY:
                assert all(candidate.state_node.is_empty for candidate in command.candidates)
            else:
                assert moved(command) == Counter(pod.metadata.uid for pod in moving)


_remembered_facts = ReschedulingBase._facts


def _compared_facts(base: ReschedulingBase, question: WhatIf) -> PassFacts:
    """What a base says of a question, once it is known that a pass over the very pods says the same."""
    facts, movers = _remembered_facts(base, question), base._movers(question.pods)
    result = base._pass(question, movers)
    other = facts_of(base._options_for(question), result, movers)
    assert [(host.key, host.initialized) for host in facts.taking] == [
        (host.key, host.initialized) for host in other.taking
    ]
    for host, placement in zip(facts.taking, result.placements, strict=True):
        if host.first_pod is not None:
            group, position = host.first_pod
            assert movers.groups[group].pods[position] is placement.pods[0]
    assert [(each.requests, each.count, each.options) for each in facts.demands] == [
        (each.requests, each.count, each.options) for each in other.demands
    ]
    assert (facts.has_unplaced, facts.have_topology) == (other.has_unplaced, other.have_topology)
    return facts


_reschedule = ReschedulingBase.reschedule


def _compared_answer(
    base: ReschedulingBase, question: WhatIf, *limits: Any
) -> ReschedulingResult | TooExpensive | RefusedNodes | UnreadyHosts:
    """What a base answers; that pods would wait for nodes only where the whole plan says it of the same pod and node."""
    answer = _reschedule(base, question, *limits)
    if isinstance(answer, UnreadyHosts):
        with patch.object(rescheduling, "unready_hosts", lambda *_: None):
            plan = _reschedule(base, question, *limits)
        assert isinstance(plan, ReschedulingResult)
        assert not plan.unschedulable
        waiting = [placed for placed in plan.placements if placed.node_key in plan.uninitialized_nodes]
        assert (waiting[0].pods[0], min(plan.uninitialized_nodes)) == (answer.pod, answer.node_key)
    return answer


@given(shrunken() | shrunken(limits={"cpu": "64"}), st.randoms(use_true_random=False))
@settings(suppress_health_check=_QUIET)
def test_pods_that_would_wait_for_starting_nodes_are_reported_without_a_plan(
    cluster: DisruptedCluster, random: Random
) -> None:
    taken = cluster.snapshot()
    nodes = tuple(replace(node, initialized=node.initialized and random.random() < 0.5) for node in taken.nodes)
    problem = DisruptionProblem(replace(taken, nodes=nodes), DisruptionContext(NOW))
    with patch.object(ReschedulingBase, "reschedule", _compared_answer):
        decide_disruption(problem, cluster.types)
        decide_without_thresholds(problem, cluster.types)


@given(shrunken(), st.randoms(use_true_random=False))
@settings(suppress_health_check=_QUIET)
def test_every_question_of_a_decision_is_answered_in_counts_as_over_pods(
    cluster: DisruptedCluster, random: Random
) -> None:
    """Also where one decision remembers what another one knew, and of sets of nodes."""
    with patch.object(ReschedulingBase, "_facts", _compared_facts):
        _decide_while_pods_go(cluster, random, times=2)


_foreseen_rejection = MoveEvaluator._foreseen_rejection


def _compared_rejection(
    evaluator: MoveEvaluator, candidates: Sequence[Candidate], new_nodes: Sequence[SchedulingNodeClaim]
) -> MoveRejection | None:
    """What is foreseen of a move, once a plan has the same new nodes and comes to the same rejection."""
    foreseen = _foreseen_rejection(evaluator, candidates, new_nodes)
    plan = evaluator.simulation.reschedule(candidates)
    assert isinstance(plan, ReschedulingResult)
    assert list(map(_claim_described, plan.new_claims)) == list(map(_claim_described, new_nodes))
    move = evaluator._rescheduled(candidates, plan)
    if foreseen is not None:
        assert type(move) is type(foreseen)
        assert len(candidates) > 1 or move == foreseen
    if isinstance(foreseen, SameTypeReplacement):
        assert isinstance(move, SameTypeReplacement)
        assert not isinstance(move.full_move, Command)
        assert (move.candidate_keys, move.same_type_keys) == (foreseen.candidate_keys, foreseen.same_type_keys)
    return foreseen


def _claim_described(claim: SchedulingNodeClaim) -> tuple[object, ...]:
    return claim.template.name, claim.requirements, claim.types, claim.requests, claim.contents, claim.reservation


@given(shrunken(), st.randoms(use_true_random=False))
@settings(suppress_health_check=_QUIET)
def test_what_is_foreseen_of_a_move_is_what_its_plan_comes_to(cluster: DisruptedCluster, random: Random) -> None:
    """From the new nodes that an earlier plan for as many pods of the same kinds had."""
    with patch.object(MoveEvaluator, "_foreseen_rejection", _compared_rejection):
        _decide_while_pods_go(cluster, random, times=3)


def _decide_while_pods_go(cluster: DisruptedCluster, random: Random, times: int) -> None:
    """Decisions, each of both kinds, that remember those before; some pods go after each."""
    memory = DisruptionMemory()
    for _ in range(times):
        problem = DisruptionProblem(cluster.snapshot(), DisruptionContext(NOW))
        decide_disruption(problem, cluster.types, memory)
        decide_without_thresholds(problem, cluster.types, memory)
        cluster.delete_pods(_some(random, [pod.metadata.uid for pod in cluster.bound()]))


def _some(random: Random, uids: Sequence[str]) -> set[str]:
    """About a quarter of them."""
    return {uid for uid in uids if random.random() < 0.25}
