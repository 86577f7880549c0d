"""What a disruption decision takes and returns: frozen data on both sides, no callables and no live state.

The prepared instance types (``TypeIndex``) are derived from instance types and caches of their own, shared between decisions.
They are handed in beside the problem.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from karpenter.disruption.decide.candidates import BlockedNode, CandidateChecks, DisruptionContext
from karpenter.disruption.decide.command import Command, DisruptionReason
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.model.consolidation_thresholds import LEAN_CONSOLIDATION, ConsolidationDefaults
from karpenter.model.repair_policies import RepairPolicies
from karpenter.scheduling.decision_memory import DecisionMemory
from karpenter.scheduling.scheduling_options import SchedulingOptions
from karpenter.state.snapshot import ClusterSnapshot


@dataclass(frozen=True)
class DisruptionOptions:
    """Settings of a decision: those of provisioning, the feature gate SpotToSpotConsolidation (DIS-200), default thresholds.

    ``empty_first``: a drifted node is emptied before its replacement where both together would exceed limits.
    ``repair``: what makes a node broken; None while node repair is off. ``terminate_first_drift`` and ``terminate_first_repair``:
    a node that nothing can replace before it is gone goes first (K15-320).
    """

    provisioning: SchedulingOptions = field(default_factory=SchedulingOptions)
    spot_to_spot: bool = False
    consolidation: ConsolidationDefaults = LEAN_CONSOLIDATION
    empty_first: bool = False
    repair: RepairPolicies | None = None
    terminate_first_drift: bool = False
    terminate_first_repair: bool = False


@dataclass(frozen=True)
class DisruptionProblem:
    """Everything one decision depends on, except the prepared instance types, which callers cache between decisions."""

    snapshot: ClusterSnapshot
    context: DisruptionContext
    options: DisruptionOptions = DisruptionOptions()


@dataclass(frozen=True)
class DisruptionSolution:
    """The outcome of a decision.

    ``commands`` together respect budgets and can be executed at the same time, most urgent first. ``blocked_nodes``: nodes that
    stay, each blocker once. ``closed_pools``: by reason, NodePools that have candidates but whose budgets allow nothing at all,
    each with the field that sets the limit (DIS-149). ``eligible_nodes``: by reason, how many nodes would be disrupted if no
    budget limited it (DIS-414).
    """

    commands: tuple[Command, ...] = ()
    blocked_nodes: tuple[BlockedNode, ...] = ()
    closed_pools: Mapping[DisruptionReason, Mapping[str, str]] = field(default_factory=dict)
    eligible_nodes: Mapping[DisruptionReason, int] = field(default_factory=dict)


@dataclass(frozen=True)
class PreparedDisruption:
    """A problem with what every method needs to work on it: prepared instance types by NodePool, and the candidate checks.

    ``memory``: what decisions before it left.
    """

    problem: DisruptionProblem
    indexes: Mapping[str, TypeIndex]
    checks: CandidateChecks
    memory: DecisionMemory

    @property
    def snapshot(self) -> ClusterSnapshot:
        """The cluster."""
        return self.problem.snapshot

    @property
    def context(self) -> DisruptionContext:
        """What the decision depends on beside the cluster."""
        return self.problem.context


def prepare(
    problem: DisruptionProblem, indexes: Mapping[str, TypeIndex], memory: DecisionMemory | None = None
) -> PreparedDisruption:
    """Make a problem ready for the methods; costs one pass over its PodDisruptionBudgets."""
    counts_cpu_surplus = problem.options.provisioning.objective.counts_cpu_surplus
    checks = CandidateChecks(problem.snapshot, indexes, problem.context, counts_cpu_surplus=counts_cpu_surplus)
    return PreparedDisruption(problem, indexes, checks, memory or DecisionMemory())
