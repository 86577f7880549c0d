"""A preview of disruption for users outside the controller: what would happen now, and what only budgets hold back.

The controller has state that is not in the objects. The preview derives it from objects and time, and reports its assumptions:
that ``consolidateAfter`` is over although no condition says so yet, that a node with the disruption taint is about to be deleted,
and that pending pods go where the next scheduling pass places them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from msgspec.structs import replace as changed

from karpenter.api.karpenter import NodePool
from karpenter.api.meta import Condition
from karpenter.disruption.decide.balanced import is_balanced
from karpenter.disruption.decide.budget_status import BudgetStatus, budget_status
from karpenter.disruption.decide.candidates import (
    DisruptionContext,
    consolidate_after_end,
    consolidation_enabled,
    is_consolidatable,
)
from karpenter.disruption.decide.command import Command, DisruptionReason
from karpenter.disruption.decide.consolidation_memory import DisruptionMemory
from karpenter.disruption.decide.disruption_decision import decide_disruption
from karpenter.disruption.decide.disruption_problem import DisruptionOptions, DisruptionProblem, DisruptionSolution
from karpenter.disruption.decide.remaining_budgets import RemainingBudgets, pool_node_counts
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.model import labels, taints
from karpenter.model.consolidation_thresholds import ConsolidationDefaults
from karpenter.model.disruption_rules import disruption_rules
from karpenter.scheduling.problem import build_problem
from karpenter.scheduling.scheduling_options import SchedulingOptions
from karpenter.scheduling.solver import solve
from karpenter.state.snapshot import ClusterSnapshot
from karpenter.state.state_node import StateNode
from karpenter.state.virtual_pods import is_virtual_pod


@dataclass(frozen=True)
class DisruptionPreview:
    """The decision at a moment within budgets and without any, on one snapshot.

    ``assumed_consolidatable``: nodes assumed to be consolidatable although no condition says so yet. ``tainted_for_disruption``:
    nodes with the disruption taint. ``nominated``: nodes that pending pods need. All three by key. ``budget_statuses``: for every
    NodePool and reason that the decision without budgets disrupts nodes for. ``consolidate_after_ends``: ends of the
    consolidateAfter periods that still run, by key.
    """

    snapshot: ClusterSnapshot
    now: datetime
    within_budgets: DisruptionSolution
    without_budgets: DisruptionSolution
    budget_statuses: tuple[BudgetStatus, ...]
    assumed_consolidatable: tuple[str, ...] = ()
    tainted_for_disruption: tuple[str, ...] = ()
    nominated: tuple[str, ...] = ()
    consolidate_after_ends: Mapping[str, datetime] = field(default_factory=dict)
    options: DisruptionOptions = field(default_factory=DisruptionOptions)

    @property
    def context(self) -> DisruptionContext:
        """What it was decided under, beside the snapshot."""
        return DisruptionContext(self.now, nominated=frozenset(self.nominated))


def preview_disruption(
    snapshot: ClusterSnapshot, indexes: Mapping[str, TypeIndex], now: datetime, options: DisruptionOptions
) -> DisruptionPreview:
    """What would be done at ``now``, and what would be if budgets and freezes forbade nothing."""
    pools = {pool.metadata.name: pool for pool in snapshot.pools}
    assumed = frozenset(view.key for view in snapshot.nodes if _is_assumed_consolidatable(view, pools, now))
    going = frozenset(
        view.key for view in snapshot.nodes if view.managed and not view.marked_for_deletion and _is_tainted(view)
    )
    views = (_marked_consolidatable(view) if view.key in assumed else view for view in snapshot.nodes)
    taken = replace(
        snapshot, nodes=tuple(replace(view, marked_for_deletion=True) if view.key in going else view for view in views)
    )
    expecting = _nominated(taken, indexes, now, options.provisioning)
    context = DisruptionContext(now, nominated=expecting)
    problem = DisruptionProblem(taken, context, options)
    limited = decide_disruption(problem, indexes)
    free = decide_without_budgets(problem, indexes)
    openings = tuple(_budget_statuses(taken, free.commands, now))
    return DisruptionPreview(
        taken,
        now,
        limited,
        free,
        openings,
        assumed_consolidatable=tuple(sorted(assumed)),
        tainted_for_disruption=tuple(sorted(going)),
        nominated=tuple(sorted(expecting)),
        consolidate_after_ends=_consolidate_after_ends(taken, pools),
        options=options,
    )


def _consolidate_after_ends(snapshot: ClusterSnapshot, pools: Mapping[str, NodePool]) -> Mapping[str, datetime]:
    """Ends of consolidateAfter periods that still run, of nodes that nothing else about the NodePool excludes."""
    waiting = (
        view
        for view in snapshot.nodes
        if view.initialized and not view.marked_for_deletion and not is_consolidatable(view)
    )
    with_pools = ((view, pools[view.pool]) for view in waiting if view.managed and view.pool in pools)
    ends = ((view.key, consolidate_after_end(view, pool)) for view, pool in with_pools if consolidation_enabled(pool))
    return {key: end for key, end in ends if end is not None}


def _nominated(
    snapshot: ClusterSnapshot, indexes: Mapping[str, TypeIndex], now: datetime, options: SchedulingOptions
) -> frozenset[str]:
    """Nodes that waiting pods are going to be nominated to (DIS-005)."""
    plan = solve(build_problem(snapshot, indexes, now, options), indexes)
    return frozenset(
        placed_pods.node_key
        for placed_pods in plan.placed_on_existing
        if not all(map(is_virtual_pod, placed_pods.pods))
    )


def _budget_statuses(snapshot: ClusterSnapshot, commands: tuple[Command, ...], now: datetime) -> Iterator[BudgetStatus]:
    wanted = {(candidate.node_pool, command.reason) for command in commands for candidate in command.candidates}
    nodes = pool_node_counts(snapshot.nodes)
    for pool in snapshot.pools:
        name = pool.metadata.name
        for reason in DisruptionReason:
            if (name, reason) in wanted:
                yield budget_status(pool, disruption_rules(pool, snapshot.freeze), nodes[name], reason, now)


def _is_assumed_consolidatable(state_node: StateNode, pools: Mapping[str, NodePool], now: datetime) -> bool:
    """DIS-327, from the objects alone."""
    pool = pools.get(state_node.pool)
    if (
        pool is None
        or not state_node.managed
        or not state_node.initialized
        or is_consolidatable(state_node)
        or not consolidation_enabled(pool)
    ):
        return False
    until = consolidate_after_end(state_node, pool)
    return until is None or now >= until


def _marked_consolidatable(state_node: StateNode) -> StateNode:
    assert state_node.claim is not None
    others = tuple(condition for condition in state_node.claim.status.conditions if condition.type != "Consolidatable")
    conditions = (*others, Condition(type="Consolidatable", status="True", reason="Consolidatable"))
    return replace(
        state_node, claim=changed(state_node.claim, status=changed(state_node.claim.status, conditions=conditions))
    )


def _is_tainted(state_node: StateNode) -> bool:
    own_taints = state_node.node.spec.taints if state_node.node is not None else ()
    return any(taints.is_same_taint(taint, labels.DISRUPTED_TAINT) for taint in own_taints)


#: Any saving counts, and no node is too young.
_WITHOUT_THRESHOLDS = ConsolidationDefaults(
    0.0, timedelta(0), wait_for_rollouts=False, stabilization_window=timedelta(0)
)
_HASTY_ANNOTATIONS = {labels.MINIMUM_SAVING_RATIO: "0", labels.MINIMUM_NODE_AGE: "0s"}
_LIMITING_ANNOTATIONS = frozenset({labels.BUDGET_WINDOWS, labels.FREEZE, labels.FREEZE_UNTIL})


def decide_without_budgets(
    problem: DisruptionProblem, indexes: Mapping[str, TypeIndex], memory: DisruptionMemory | None = None
) -> DisruptionSolution:
    """What would be decided if no budget and no freeze limited anything. ``memory``: its packings may be shared."""
    snapshot = problem.snapshot
    free = replace(snapshot, pools=tuple(_unlimited(pool) for pool in snapshot.pools), freeze=None)
    return decide_disruption(replace(problem, snapshot=free), indexes, memory)


def budgets_allow_all(problem: DisruptionProblem) -> bool:
    """Whether budgets and freezes leave every node free to go, so that they change nothing about the decision."""
    snapshot = problem.snapshot
    budgets = RemainingBudgets(snapshot, problem.context.now)
    staying = Counter(node.pool for node in snapshot.nodes if node.managed and not node.marked_for_deletion)
    return all(
        budgets.remaining(pool, reason) >= number for pool, number in staying.items() for reason in DisruptionReason
    )


def decide_without_thresholds(
    problem: DisruptionProblem, indexes: Mapping[str, TypeIndex], memory: DisruptionMemory | None = None
) -> DisruptionSolution:
    """What would be decided if, beside budgets, nothing made consolidation wait or ask for a least saving.

    That is ``consolidateAfter``, thresholds, roll-outs and the stabilization window. ``memory``: its packings may be shared.
    """
    snapshot = problem.snapshot
    pools = tuple(_hasty(_unlimited(pool)) for pool in snapshot.pools)
    enabled = {pool.metadata.name for pool in pools if consolidation_enabled(pool)}
    nodes = tuple(
        _marked_consolidatable(node) if node.managed and node.initialized and node.pool in enabled else node
        for node in snapshot.nodes
    )
    free = replace(snapshot, pools=pools, nodes=nodes, freeze=None)
    options = replace(problem.options, consolidation=_WITHOUT_THRESHOLDS)
    return decide_disruption(replace(problem, snapshot=free, options=options), indexes, memory)


def _hasty(pool: NodePool) -> NodePool:
    """The NodePool without ``consolidateAfter`` and least savings, which Balanced would bring otherwise."""
    if not consolidation_enabled(pool):
        return pool
    notes = pool.metadata.annotations
    if is_balanced(pool) or not notes.keys().isdisjoint(_HASTY_ANNOTATIONS):
        notes = {**notes, **_HASTY_ANNOTATIONS}
    disruption = changed(pool.spec.disruption, consolidate_after="0s")
    return changed(
        pool, metadata=changed(pool.metadata, annotations=notes), spec=changed(pool.spec, disruption=disruption)
    )


def _unlimited(pool: NodePool) -> NodePool:
    notes = {key: value for key, value in pool.metadata.annotations.items() if key not in _LIMITING_ANNOTATIONS}
    disruption = changed(pool.spec.disruption, budgets=())
    return changed(
        pool, metadata=changed(pool.metadata, annotations=notes), spec=changed(pool.spec, disruption=disruption)
    )
