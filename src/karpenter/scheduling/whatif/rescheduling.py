"""One snapshot, many questions: where would these bound pods go if their machines were gone (DIS §7)?

Disruption asks that of every machine and of many sets of machines. What all questions share is made once: templates and what they
sell, the machines with their bit sets, what bound pods mean to each other. A question then costs what its own pods cost, whatever
the size of the cluster. The steps are those of a provisioning decision, so a move is judged as its pods will be placed.

What is decided can be settled: its machines are gone and its pods where they were planned for every question that follows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from math import inf

from karpenter.api.core import Pod
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.instancetypes.type_sets import members
from karpenter.model import resources as res
from karpenter.scheduling import pod_eligibility
from karpenter.scheduling.demand import Demand, SchedulingNodeClaim
from karpenter.scheduling.equivalence_groups import EquivalenceGroup
from karpenter.scheduling.existing_nodes import ExistingNode, ExistingNodeIndex, NodeFitRequest, NodeSet
from karpenter.scheduling.pass_result import DemandCaps, UnschedulableGroup
from karpenter.scheduling.planned_nodeclaims import planned_claims
from karpenter.scheduling.scheduling_options import SchedulingOptions
from karpenter.scheduling.scheduling_pass import SchedulingPass
from karpenter.scheduling.scheduling_passes import SEARCH_ONLY_FROM, SchedulingPasses
from karpenter.scheduling.solution import NewNodeClaim, PlacedPods, UnschedulablePod
from karpenter.scheduling.solver import Solver
from karpenter.scheduling.topology.bound_pod_counts import (
    BoundPodCountsWithoutMoving,
    MutableBoundPodCounts,
)
from karpenter.scheduling.topology.topology_domains import TopologyDomains
from karpenter.scheduling.unschedulable_reasons import InvalidPod, NoRoom, UnschedulableReason
from karpenter.state.pod_counts import NamespacedLabels, counts_for_topology, namespaced_labels
from karpenter.state.pod_signature import PodSignature, PodSignatureCache
from karpenter.state.snapshot import ClusterSnapshot, PodGroup, PodKey, creation_order, pod_key
from karpenter.state.state_node import NO_NODE_USAGE, StateNode, build_state_node
from karpenter.state.virtual_pods import is_virtual_pod

#: Ways CPU is weighed against memory in bounds, beside each by itself; and how many bytes of memory weigh like a core.
_CPU_MEMORY_WEIGHTINGS = 12
_MEMORY_PER_CPU = 4.0 * 2**30
#: After so many moves the sets of machines by what is left are made anew; till then they hold some that are full by now.
_MOVES_UNTIL_REFRESH = 16
#: In which order machines are offered to pods: initialised ones first whatever it says.
NodeOrder = Callable[[StateNode], object]


_DEFAULT_OPTIONS = SchedulingOptions()


def _by_name(view: StateNode) -> object:
    return view.name


@dataclass(frozen=True, eq=False)
class ReschedulingResult:
    """Where pods would go. ``placed`` are those for machines that exist, ``bought`` machines for others, ``stranded`` the rest.

    ``uninitialised``: keys of machines among those that exist that are not ready for pods yet (DIS-165).
    """

    placements: tuple[PlacedPods, ...]
    new_claims: tuple[SchedulingNodeClaim, ...]
    unschedulable: tuple[UnschedulablePod, ...]
    uninitialized_nodes: frozenset[str]
    _demands: tuple[Demand, ...]
    _taken_names: Collection[str]

    @property
    def price_per_hour(self) -> float:
        """USD of the machines to buy, each at its cheapest offering."""
        return sum(claim.cheapest_offering.price_per_hour for claim in self.new_claims)

    def to_planned_claims(self, bought: Sequence[SchedulingNodeClaim] | None = None) -> tuple[NewNodeClaim, ...]:
        """The machines to buy as NodeClaims. ``bought``: the same ones with fewer types."""
        return planned_claims(self.new_claims if bought is None else bought, self._demands, self._taken_names)

    @cached_property
    def pods_on_existing(self) -> frozenset[PodKey]:
        """The pods for machines that exist."""
        return frozenset(pod_key(pod) for item in self.placements for pod in item.pods)


class ReschedulingBase:
    """The questions' common ground. ``order``: machines of equal standing in the order pods fill them, by name unless given."""

    def __init__(
        self,
        snapshot: ClusterSnapshot,
        indexes: Mapping[str, TypeIndex],
        now: datetime,
        options: SchedulingOptions = _DEFAULT_OPTIONS,
        order: NodeOrder = _by_name,
    ) -> None:
        self._solver = _ReschedulingSolver(snapshot, indexes, now, options, order)

    def place_on_existing(self, leaving: Iterable[Pod], gone: Iterable[str]) -> ReschedulingResult | None:
        """Where the pods go without a new machine, None if that cannot be. ``gone``: keys of machines that are not there."""
        return self._solver.place_on_existing(tuple(leaving), self._solver.node_set(gone), 0, {})

    def place_as_planned(
        self, leaving: Iterable[Pod], gone: Iterable[str], beside: Iterable[str], planned: Mapping[str, str]
    ) -> ReschedulingResult | None:
        """The same for pods that were planned somewhere, by uid: they go there if they may, and elsewhere if they may not.

        ``beside``: keys of closed machines that are open to these pods all the same.
        """
        return self._solver.place_on_existing(
            tuple(leaving), self._solver.node_set(gone), self._solver.node_set(beside), planned
        )

    def reschedule(self, leaving: Iterable[Pod], gone: Iterable[str], below: float = inf) -> ReschedulingResult | None:
        """Where the pods go, on machines that exist or new ones.

        None where it is plain that those to buy cost ``below`` USD per hour or more; nothing is packed then.
        """
        return self._solver.reschedule(tuple(leaving), self._solver.node_set(gone), below)

    def minimum_price(self, pods: Iterable[Pod]) -> float:
        """USD per hour that machines for these pods alone would cost at least, whatever the packing."""
        return self._solver.minimum_price(pods)

    def minimum_new_price(self, leaving: Iterable[Pod], gone: Iterable[str]) -> float:
        """USD per hour that new machines for those of the pods who find no room cost at least, whatever the packing."""
        return self._solver.minimum_new_price(tuple(leaving), self._solver.node_set(gone))

    def apply_move(
        self,
        placed: Iterable[PlacedPods],
        leaving: Iterable[Pod],
        gone: Iterable[str] = (),
        bought: Iterable[NewNodeClaim] = (),
    ) -> None:
        """From now on these machines are gone, ``leaving`` are away from where they were, and ``placed`` have moved in.

        ``bought`` are on their way with their pods; they take nobody else.
        """
        self._solver.apply_move(tuple(placed), tuple(leaving), self._solver.node_set(gone))
        self._solver.add_planned_claims(bought)

    def close_nodes(self, keys: Iterable[str]) -> None:
        """These machines take nobody any more, yet stay with the pods they have (DIS-166)."""
        self._solver.closed_nodes |= self._solver.node_set(keys)


class _ReschedulingSolver(Solver):
    """A decision about pods that are bound, made again and again."""

    def __init__(
        self,
        snapshot: ClusterSnapshot,
        indexes: Mapping[str, TypeIndex],
        now: datetime,
        options: SchedulingOptions,
        order: NodeOrder,
    ) -> None:
        super().__init__(snapshot, indexes, now, options)
        ordered = sorted(self._existing_nodes.nodes, key=lambda m: (not m.view.initialized, order(m.view)))
        self._all_existing_nodes = ExistingNodeIndex(ordered)
        self._node_bit = {machine.view.key: 1 << at for at, machine in enumerate(ordered)}
        self._bound_pod_counts = MutableBoundPodCounts(snapshot)
        self._domains = TopologyDomains(self._bound_pod_counts, self._templates, self._all_existing_nodes)
        self._classes = PodSignatureCache()
        self._signature_by_uid: dict[str, tuple[PodSignature, NamespacedLabels]] = {}
        self._taken_names = frozenset(view.key for view in snapshot.nodes)
        self._unreadable_by_uid: dict[str, UnschedulableReason] = {}
        self.closed_nodes: NodeSet = 0
        self._moves_since_refresh = 0

    def node_set(self, keys: Iterable[str]) -> NodeSet:
        """The machines of these names."""
        found = 0
        for key in keys:
            found |= self._node_bit.get(key, 0)
        return found

    # -- questions --------------------------------------------------------------------------------------------------------

    def place_on_existing(
        self, leaving: Sequence[Pod], gone: NodeSet, beside: NodeSet, planned: Mapping[str, str]
    ) -> ReschedulingResult | None:
        """See ``Prepared.elsewhere`` and ``Prepared.as_planned``."""
        kins = self._equivalence_groups_of(leaving)
        if self._unschedulable_pods:
            return None
        with _RemainingNodes(self, gone, beside) as part:
            part.include(self.node_set(planned.values()))
            settled = SchedulingPass(part, self._purchase_options, self._domains, planned, DemandCaps()).run(kins)
            if settled.demands or settled.unschedulable:
                return None
            return self._rescheduling_result(part, (), (), ())

    def reschedule(self, leaving: Sequence[Pod], gone: NodeSet, below: float) -> ReschedulingResult | None:
        """See ``Prepared.moved``."""
        kins = self._equivalence_groups_of(leaving)
        with _RemainingNodes(self, gone) as part:
            if below < inf and self._minimum_price_of_groups(kins, part) >= below:
                return None
            self._existing_nodes = part
            rounds = SchedulingPasses(self._pass_context(self._domains))
            outcome = rounds.best_outcome(kins)
            settled = outcome.result
            is_many = settled.pods_needing_nodes >= SEARCH_ONLY_FROM
            packing = rounds.cheapest_packing(outcome, None) if is_many else rounds.simplest_packing(outcome)
            self._unschedulable_pods += [item for failed in settled.unschedulable for item in _unschedulable_of(failed)]
            demands = tuple(item.demand for item in settled.demands)
            return self._rescheduling_result(part, packing.claims, demands, self._unschedulable_pods)

    def minimum_new_price(self, leaving: Sequence[Pod], gone: NodeSet) -> float:
        """See ``Prepared.least_beside``."""
        kins = self._equivalence_groups_of(leaving)
        with _RemainingNodes(self, gone) as part:
            return self._minimum_price_of_groups(kins, part)

    def _minimum_price_of_groups(self, groups: Sequence[EquivalenceGroup], remaining: _RemainingNodes) -> float:
        """USD per hour that new machines for those who find no room cost at least.

        Each of them needs a machine that holds it, and together they need so much of every resource: whatever the packing.
        """
        standing = (
            SchedulingPass(remaining, self._purchase_options, self._domains, {}, DemandCaps()).run(groups).demands
        )
        if not standing:
            return 0.0
        total = res.add(*({n: a * len(s.demand.pods) for n, a in s.demand.requests.items()} for s in standing))
        single = max(min(option.lowest_price for option in s.demand.options) for s in standing)
        return max(single, self._minimum_price_of_resources(total))

    def minimum_price(self, pods: Iterable[Pod]) -> float:
        """See ``Prepared.least_price``."""
        known = (look[0].requests for pod in pods if (look := self._signature_and_labels(pod)) is not None)
        return self._minimum_price_of_resources(res.add(*known))

    def _minimum_price_of_resources(self, total: Mapping[str, int]) -> float:
        return max((_weighted_amount(total, weights) * rate for weights, rate in self._cheapest_rates), default=0.0)

    @cached_property
    def _cheapest_rates(self) -> tuple[tuple[Mapping[str, float], float], ...]:
        """Ways to weigh resources against each other, each with USD per hour for a unit where it is cheapest.

        However pods are packed, their machines cost at least what their requests weigh at that price: every way is a bound.
        """
        names = {name for template in self._templates for kind in template.index.types for name in kind.allocatable}
        ways: list[Mapping[str, float]] = [{name: 1.0} for name in sorted(names)]
        ways += [
            {res.CPU: part / _CPU_MEMORY_WEIGHTINGS, res.MEMORY: (1 - part / _CPU_MEMORY_WEIGHTINGS) / _MEMORY_PER_CPU}
            for part in range(1, _CPU_MEMORY_WEIGHTINGS)
        ]
        return tuple((weights, rate) for weights in ways if (rate := self._cheapest_rate(weights)) < inf)

    def _cheapest_rate(self, weights: Mapping[str, float]) -> float:
        rates: list[float] = []
        for template in self._templates:
            prices = template.index.prices(template.requirements)
            for position in members(template.types & prices.available_types):
                weight = _weighted_amount(template.index.types[position].allocatable, weights)
                if weight > 0:
                    rates.append(prices.cheapest_offering[position].price_per_hour / weight)
        return min(rates, default=inf)

    def _rescheduling_result(
        self,
        remaining: _RemainingNodes,
        bought: tuple[SchedulingNodeClaim, ...],
        demands: tuple[Demand, ...],
        stranded: Iterable[UnschedulablePod],
    ) -> ReschedulingResult:
        used = [machine for machine in remaining.nodes if machine.planned_pods]
        return ReschedulingResult(
            placements=tuple(PlacedPods(m.view.key, m.view.name, tuple(m.planned_pods)) for m in used),
            new_claims=bought,
            unschedulable=tuple(stranded),
            uninitialized_nodes=frozenset(m.view.key for m in used if m.view.managed and not m.view.initialized),
            _demands=demands,
            _taken_names=self._taken_names,
        )

    def _equivalence_groups_of(self, leaving: Iterable[Pod]) -> list[EquivalenceGroup]:
        self._unschedulable_pods = []
        leaving = [*leaving]
        self._exposed_workloads.restrict_to(leaving)
        groups = self._default_spread.apply_to(self._groups(leaving))
        served = self._eligible_groups(
            groups, pod_eligibility.ineligibility_reasons_of_bound, pod_eligibility.volume_reasons_of_bound
        )
        return self._equivalence_groups(
            served,
            BoundPodCountsWithoutMoving(
                self._bound_pod_counts, [(item.signature, item.namespaced_labels, item.pods) for item in served]
            ),
        )

    def _groups(self, leaving: Iterable[Pod]) -> Iterator[PodGroup]:
        groups: defaultdict[tuple[PodSignature, NamespacedLabels, bool], list[Pod]] = defaultdict(list)
        for pod in leaving:
            known = self._signature_and_labels(pod)
            if known is None:
                self._unschedulable_pods.append(UnschedulablePod(pod, (self._unreadable_by_uid[pod.metadata.uid],)))
            else:
                groups[(*known, is_virtual_pod(pod))].append(pod)
        for (pod_class, face, _), items in groups.items():
            yield PodGroup(pod_class, face, tuple(sorted(items, key=creation_order)))

    def _signature_and_labels(self, pod: Pod) -> tuple[PodSignature, NamespacedLabels] | None:
        """The pod's class and look, None where its requests cannot be read; worked out once."""
        uid = pod.metadata.uid
        known = self._signature_by_uid.get(uid)
        if known is None and uid not in self._unreadable_by_uid:
            try:
                known = self._signature_by_uid[uid] = (self._classes.signature_of(pod), namespaced_labels(pod))
            except ValueError as error:
                self._unreadable_by_uid[uid] = UnschedulableReason(InvalidPod((str(error),)))
        return known

    # -- what is decided ----------------------------------------------------------------------------------------------------

    def apply_move(self, placed: Sequence[PlacedPods], leaving: Sequence[Pod], gone: NodeSet) -> None:
        """See ``Prepared.settle``."""
        self.closed_nodes |= gone
        for pod in leaving:
            self._count_bound_pod(pod, pod.spec.node_name, -1)
        for item in placed:
            place = self._node_bit.get(item.node_key, 0)
            for at in members(place):
                machine = self._all_existing_nodes.nodes[at]
                machine.bind_pods(
                    item.pods, [known[0].requests for pod in item.pods if (known := self._signature_and_labels(pod))]
                )
                for pod in item.pods:
                    self._count_bound_pod(pod, machine.node_name, 1)
        self._moves_since_refresh += 1
        if self._moves_since_refresh >= _MOVES_UNTIL_REFRESH:
            self._moves_since_refresh = 0
            self._all_existing_nodes.refresh()

    def add_planned_claims(self, bought: Iterable[NewNodeClaim]) -> None:
        """See ``Prepared.settle``."""
        for planned in bought:
            self._bound_pod_counts.add_planned_node(
                planned.name, build_state_node(None, planned.claim, NO_NODE_USAGE, marked=False)
            )
            for pod in planned.pods:
                self._count_bound_pod(pod, planned.name, 1)

    def _count_bound_pod(self, pod: Pod, node: str, number: int) -> None:
        known = self._signature_and_labels(pod)
        if known is not None and not is_virtual_pod(pod) and (number > 0 or counts_for_topology(pod)):
            self._bound_pod_counts.add_pods(known[0], known[1], node, number)

    @property
    def all_existing_nodes(self) -> ExistingNodeIndex:
        """All machines."""
        return self._all_existing_nodes


class _RemainingNodes(ExistingNodeIndex):
    """The field without some machines, for one question. Remembers who was asked, to leave them as they were found."""

    def __init__(self, moving: _ReschedulingSolver, gone: NodeSet, beside: NodeSet = 0) -> None:
        self._index = moving.all_existing_nodes
        self.all_nodes = self._index.all_nodes & ~(gone | moving.closed_nodes) | beside
        self._used_nodes: dict[ExistingNode, None] = {}

    def __enter__(self) -> _RemainingNodes:
        return self

    def __exit__(self, *_: object) -> None:
        for machine in self._used_nodes:
            machine.reset()

    def include(self, wanted: NodeSet) -> None:
        """Pods may be planned on these beforehand, as far as they are part of it."""
        for _ in self.nodes_in(wanted & self.all_nodes):
            pass

    @property
    def nodes(self) -> tuple[ExistingNode, ...]:  # type: ignore[override]
        """Those that were asked by now: nobody else can have been changed."""
        return tuple(self._used_nodes)

    def by_label_value(self, key: str) -> Mapping[str | None, NodeSet]:
        """See ``Field``."""
        return self._index.by_label_value(key)

    def candidates(self, request: NodeFitRequest) -> NodeSet:
        """See ``Field``."""
        return self._index.candidates(request) & self.all_nodes

    def nodes_in(self, candidates: NodeSet) -> Iterator[ExistingNode]:
        """See ``Field``."""
        for machine in self._index.nodes_in(candidates):
            self._used_nodes[machine] = None
            yield machine


def _weighted_amount(resources: Mapping[str, int], weights: Mapping[str, float]) -> float:
    return sum(resources.get(name, 0) * weight for name, weight in weights.items())


def _unschedulable_of(failed: UnschedulableGroup) -> Iterator[UnschedulablePod]:
    """Pods without a place; why is told by the constraint that left none, if it was one."""
    reason = UnschedulableReason(failed.blocked or NoRoom())
    return (UnschedulablePod(pod, (reason,)) for pod in failed.pods)
