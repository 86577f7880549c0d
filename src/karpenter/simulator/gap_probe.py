"""What keeps nodes that cost more than they need to, measured while a study runs: budgets, thresholds, care about spot risk.

*Budgets* and *thresholds* are differences between decisions about the same cluster. The first is made as it is, the second
without budgets and freezes, the third also without everything that makes consolidation wait or ask for a least saving. What the
second saves beyond the first is withheld by budgets, what the third saves beyond the second by thresholds. A difference counts
until the next measurement. Savings of moves count, not prices of nodes that stay: a node whose pods would need another one of its
kind costs nothing more for being kept. None of the three decisions knows which moves failed before, so what backoff withholds is
not there.

*Spot risk* is a difference at launch: between the offering that a node was launched as and the cheapest spot offering that its
NodePool allows and its NodeClaim fits on. It was passed over to spread spot nodes, or for its interruptions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from fractions import Fraction

from karpenter.api.core import Pod
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.disruption.decide.candidates import DisruptionContext
from karpenter.disruption.decide.command import Command, DisruptionReason
from karpenter.disruption.decide.consolidation_memory import DisruptionMemory
from karpenter.disruption.decide.disruption_decision import decide_disruption
from karpenter.disruption.decide.disruption_preview import (
    budgets_allow_all,
    decide_without_budgets,
    decide_without_thresholds,
)
from karpenter.disruption.decide.disruption_problem import DisruptionOptions, DisruptionProblem
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.instancetypes.type_sets import TypeSet
from karpenter.model import labels
from karpenter.model import resources as res
from karpenter.model.requirements import Requirements, requirements_from_labels, requirements_from_wire
from karpenter.provisioning.provisioner import PoolTypeIndexes
from karpenter.scheduling.decision_memory import DecisionMemory
from karpenter.simulation.run_history import InstanceLaunched, InstanceNotice
from karpenter.simulation.run_report import NANO, StepFunction, exact_usd
from karpenter.simulation.simulated_cluster import SimulatedCluster
from karpenter.simulator.idle_cost import NodeOccupancy
from karpenter.simulator.instance_bills import InstanceBill, usd
from karpenter.state.snapshot import ClusterSnapshot

#: Three decisions about so many nodes in all are made for the measurements of a study.
_MEASURED_NODES = 6_000
_OFFERED = (labels.INSTANCE_TYPE, labels.CAPACITY_TYPE)


@dataclass(frozen=True, slots=True)
class WithheldCost:
    """USD that nodes cost beyond what they had to, by what kept them."""

    budgets_usd: Fraction = Fraction(0)
    thresholds_usd: Fraction = Fraction(0)
    spot_risk_usd: Fraction = Fraction(0)


@dataclass(frozen=True, slots=True)
class WithheldSavings:
    """What consolidation would save at a moment, in nano-dollars per hour, but for budgets and for thresholds."""

    budgets: int
    thresholds: int


class ProbeMemory:
    """What one measurement leaves for the next. The packings of its three decisions are the same ones."""

    def __init__(self) -> None:
        packings = DecisionMemory()
        self.as_it_is = DisruptionMemory(packings)
        self.without_budgets = DisruptionMemory(packings)
        self.without_thresholds = DisruptionMemory(packings)


def withheld_savings(
    problem: DisruptionProblem, indexes: Mapping[str, TypeIndex], memory: ProbeMemory | None = None
) -> WithheldSavings:
    """Compare the decision with those that nothing limits. A decision that saves less without a limit withholds nothing.

    ``memory`` of earlier measurements saves time and changes nothing.
    """
    memory = memory or ProbeMemory()
    now = without_budgets = _saving(decide_disruption(problem, indexes, memory.as_it_is).commands)
    if not budgets_allow_all(problem):
        free = decide_without_budgets(problem, indexes, memory.without_budgets)
        without_budgets = max(now, _saving(free.commands))
    without_thresholds = max(
        without_budgets, _saving(decide_without_thresholds(problem, indexes, memory.without_thresholds).commands)
    )
    return WithheldSavings(without_budgets - now, without_thresholds - without_budgets)


def _saving(commands: Iterable[Command]) -> int:
    """Of nodes with pods: what empty nodes cost is a part of its own."""
    moves = (command for command in commands if command.reason is DisruptionReason.UNDERUTILIZED)
    return round(sum(command.saving_per_hour or 0.0 for command in moves) * NANO)


def spot_premium(
    claim: NodeClaim, pool: NodePool, index: TypeIndex, launched: Requirements, *, is_zone_given: bool
) -> int:
    """Nano-dollars per hour that a node costs more than the cheapest spot offering it could have been, 0 if none is cheaper.

    ``launched``: the type, zone and capacity type of the node. ``is_zone_given``: its pods may ask for a zone, so that only
    those of the NodeClaim count; otherwise spreading spot nodes is what took zones away from it.
    """
    chosen = (*_OFFERED, *(() if is_zone_given else (labels.ZONE,)))
    own = requirements_from_wire(claim.spec.requirements).without(chosen)
    allowed = requirements_from_wire(pool.spec.template.spec.requirements).intersect(own)
    spot = allowed.intersect(requirements_from_labels({labels.CAPACITY_TYPE: labels.SPOT}))
    if not spot.requirement_for(labels.CAPACITY_TYPE).allows(labels.SPOT):
        return 0
    fitting = index.matching(spot) & index.fitting(res.parse_resources(claim.spec.resources.requests))
    paid, least = _price(index, launched, index.matching(launched)), _price(index, spot, fitting)
    return max(0, paid - least) if paid is not None and least is not None else 0


def _price(index: TypeIndex, requirements: Requirements, types: TypeSet) -> int | None:
    prices = index.prices(requirements)
    cheapest = prices.cheapest(types)
    return round(prices.cheapest_offering[cheapest].price_per_hour * NANO) if cheapest >= 0 else None


@dataclass
class GapProbe:
    """Measures one running cluster. ``calls``: how often ``measure`` is going to be called at most."""

    cluster: SimulatedCluster
    options: DisruptionOptions
    calls: int
    _indexes: PoolTypeIndexes = field(init=False)
    _memory: ProbeMemory = field(default_factory=ProbeMemory)
    _budgets: StepFunction = field(default_factory=StepFunction)
    _thresholds: StepFunction = field(default_factory=StepFunction)
    _new: list[tuple[InstanceLaunched, bool]] = field(default_factory=list)
    _premiums: dict[str, int] = field(default_factory=dict)
    _nodes_allowed: Fraction = Fraction(0)
    _measured_revision: int = -1
    #: Uids of the pods that say anything about where they run.
    _placed_pods: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._indexes = PoolTypeIndexes(self.cluster.manager.context)
        self.cluster.history.subscribe(self._on_instance)
        pods = self.cluster.manager.informers.pods
        for pod in pods:
            self._on_pod(None, pod)
        pods.subscribe(self._on_pod)

    def _on_instance(self, notice: InstanceNotice) -> None:
        if isinstance(notice, InstanceLaunched):
            self._new.append((notice, self._is_zone_given(notice.record.claim_name)))

    def _is_zone_given(self, claim_name: str) -> bool:
        """Whether a pod that is planned on the node says anything about where it runs."""
        planned = self.cluster.state.planned_nodes
        return any(planned.get(uid) == claim_name for uid in self._placed_pods)

    def _on_pod(self, before: Pod | None, after: Pod | None) -> None:
        """Few pods say where they run, and all of them would be looked through for each node."""
        if after is not None and (labels.ZONE in after.spec.node_selector or after.spec.affinity is not None):
            self._placed_pods.add(after.metadata.uid)
        elif (pod := after or before) is not None:
            self._placed_pods.discard(pod.metadata.uid)

    async def measure(self) -> None:
        """Measure what nodes are kept for now. A large cluster is measured less often, and an unchanged one not again."""
        state = self.cluster.state
        self._nodes_allowed = min(
            self._nodes_allowed + Fraction(_MEASURED_NODES, self.calls), Fraction(_MEASURED_NODES)
        )
        is_due = bool(state.claims()) and self._nodes_allowed >= len(state.claims())
        if not self._new and not is_due:
            return
        indexes = await self._indexes.by_pool(state.pools())
        for launch, is_zone_given in self._new:
            self._premiums[launch.record.node_name] = self._premium(launch, indexes, is_zone_given=is_zone_given)
        self._new.clear()
        # Nothing waits from here on: the snapshot and the context belong together.
        if is_due and state.revision != self._measured_revision:
            self._nodes_allowed -= len(state.claims())
            self._measured_revision = state.revision
            self._measure_withheld(state.snapshot(), indexes)

    def _measure_withheld(self, snapshot: ClusterSnapshot, indexes: Mapping[str, TypeIndex]) -> None:
        now = self.cluster.clock.now()
        awaiting = self.cluster.manager.disruption.awaiting_validation
        context = DisruptionContext(
            now,
            nominated=self.cluster.state.nominated_nodes(now),
            in_command=frozenset(candidate.key for command in awaiting for candidate in command.candidates),
        )
        withheld = withheld_savings(DisruptionProblem(snapshot, context, self.options), indexes, self._memory)
        self._budgets.set(now, withheld.budgets)
        self._thresholds.set(now, withheld.thresholds)

    def _premium(self, launch: InstanceLaunched, indexes: Mapping[str, TypeIndex], *, is_zone_given: bool) -> int:
        record = launch.record
        claim = self.cluster.state.claim(record.claim_name)
        pool = self.cluster.state.pool(claim.metadata.labels.get(labels.NODE_POOL, "")) if claim is not None else None
        index = indexes.get(pool.metadata.name) if pool is not None else None
        if claim is None or pool is None or index is None:
            return 0
        launched = {
            labels.INSTANCE_TYPE: record.instance_type,
            labels.ZONE: record.zone,
            labels.CAPACITY_TYPE: record.capacity_type,
        }
        return spot_premium(claim, pool, index, requirements_from_labels(launched), is_zone_given=is_zone_given)

    def withheld_cost(
        self, start: datetime, end: datetime, bills: Iterable[InstanceBill], occupancy: NodeOccupancy
    ) -> WithheldCost:
        """What was withheld in a run. Times without pods belong to other parts of the gap."""
        premiums = (
            usd(self._premiums.get(bill.record.node_name, 0), occupancy.occupied(bill.record.node_name, bill.ended))
            for bill in bills
        )
        return WithheldCost(
            exact_usd(self._budgets.integral(start, end)),
            exact_usd(self._thresholds.integral(start, end)),
            sum(premiums, Fraction(0)),
        )
