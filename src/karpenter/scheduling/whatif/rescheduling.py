"""One problem, many questions: where would these bound pods go if their nodes were gone (DIS §7)?

Disruption asks that of every node and of many sets of nodes. `ReschedulingBase` prepares the problem once: templates and what
they sell, nodes with their bit sets, counts of bound pods. A `WhatIf` is a further problem on that base, and its answer is
returned as data: nothing of it stays on the base. A question costs what its own pods cost, whatever the size of the cluster. The
steps are those of a scheduling pass, so a move is judged as its pods will be placed.

What is decided is applied to the base (`apply_move`, `close_nodes`): then its nodes are gone and its pods where they were
planned for every question that follows. A base that copied itself for each move was considered; its counts of bound pods are as
large as the cluster, and no question needs an older base.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf

from karpenter.api.core import Pod
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.instancetypes.type_sets import members
from karpenter.model import resources as res
from karpenter.scheduling.demand import Demand, SchedulingNodeClaim
from karpenter.scheduling.equivalence_groups import EquivalenceGroup
from karpenter.scheduling.existing_nodes import ExistingNode, ExistingNodeIndex, NodeSet
from karpenter.scheduling.pass_result import DemandCaps, PassResult, PlannedPlacements, UnschedulableGroup
from karpenter.scheduling.planned_nodeclaims import planned_claims
from karpenter.scheduling.prepared_problem import PreparedProblem
from karpenter.scheduling.problem import Problem
from karpenter.scheduling.scheduling_pass import SchedulingPass
from karpenter.scheduling.scheduling_passes import SEARCH_ONLY_FROM, SchedulingPasses
from karpenter.scheduling.solution import NewNodeClaim, PlacedPods, UnschedulablePod
from karpenter.scheduling.topology.bound_pod_counts import BoundPodCountsWithoutMoving, MutableBoundPodCounts
from karpenter.scheduling.topology.topology_domains import TopologyDomains
from karpenter.scheduling.unschedulable_reasons import InvalidPod, NoRoom, UnschedulableReason
from karpenter.scheduling.whatif.price_bounds import PriceBounds
from karpenter.state.pod_counts import NamespacedLabels, counts_for_topology, namespaced_labels
from karpenter.state.pod_signature import PodSignature, PodSignatureCache
from karpenter.state.snapshot import PodGroup, PodKey, creation_order, pod_key
from karpenter.state.state_node import NO_NODE_USAGE, build_state_node
from karpenter.state.virtual_pods import is_virtual_pod

#: After so many moves the sets of nodes by what is free are made anew; till then they hold some that are full by now.
_MOVES_UNTIL_REFRESH = 16


@dataclass(frozen=True, eq=False)
class WhatIf:
    """A question: the ``removed`` nodes (by key) are gone; where do these pods go?

    ``reopened``: closed nodes that are open to these pods all the same. ``planned``: where pods (by uid) were planned before;
    they go there if they may, and elsewhere if they may not. ``max_price``: the answer is of no use where new nodes cost that
    much or more, in USD per hour.
    """

    pods: tuple[Pod, ...]
    removed: frozenset[str]
    reopened: frozenset[str] = frozenset()
    planned: Mapping[str, str] = field(default_factory=dict)
    max_price: float = inf


@dataclass(frozen=True, eq=False)
class ReschedulingResult:
    """Where pods would go: to existing nodes (``placements``) and new ones (``new_claims``); the rest is ``unschedulable``.

    ``uninitialized_nodes``: keys of those existing nodes among them that are not ready for pods yet (DIS-165).
    """

    placements: tuple[PlacedPods, ...]
    new_claims: tuple[SchedulingNodeClaim, ...]
    unschedulable: tuple[UnschedulablePod, ...]
    uninitialized_nodes: frozenset[str]
    _demands: tuple[Demand, ...]
    _taken_names: Collection[str]

    @property
    def price_per_hour(self) -> float:
        """USD of the new nodes, each at its cheapest offering."""
        return sum(claim.cheapest_offering.price_per_hour for claim in self.new_claims)

    def to_planned_claims(self, narrowed: Sequence[SchedulingNodeClaim] | None = None) -> tuple[NewNodeClaim, ...]:
        """The new nodes as NodeClaims. ``narrowed``: the same claims with fewer types."""
        return planned_claims(self.new_claims if narrowed is None else narrowed, self._demands, self._taken_names)

    @cached_property
    def pods_on_existing(self) -> frozenset[PodKey]:
        """The pods that go to existing nodes."""
        return frozenset(pod_key(pod) for placed_pods in self.placements for pod in placed_pods.pods)


@dataclass(frozen=True, eq=False)
class _Movers:
    """The pods of a question as equivalence groups, and those that cannot be planned for."""

    groups: tuple[EquivalenceGroup, ...]
    ineligible: tuple[UnschedulablePod, ...]


class ReschedulingBase:
    """A problem prepared for questions. ``fill_order``: keys of nodes in the order pods fill them, initialized nodes first.

    Nodes it does not name come after those it names, by name.
    """

    def __init__(self, problem: Problem, indexes: Mapping[str, TypeIndex], fill_order: Sequence[str] = ()) -> None:
        self._prepared = prepared = PreparedProblem(problem, indexes)
        rank = {key: position for position, key in enumerate(fill_order)}
        self._nodes = ExistingNodeIndex(
            sorted(
                prepared.existing_nodes.nodes,
                key=lambda n: (not n.view.initialized, rank.get(n.view.key, len(rank)), n.view.name),
            )
        )
        self._bound_pod_counts = MutableBoundPodCounts(problem.snapshot)
        self._domains = TopologyDomains(self._bound_pod_counts, prepared.templates, self._nodes)
        self._price_bounds = PriceBounds(prepared.templates)
        self._signatures = _SignaturesByUid()
        self._taken_names = frozenset(view.key for view in problem.snapshot.nodes)
        self._closed: NodeSet = 0
        self._moves_since_refresh = 0

    # -- questions --------------------------------------------------------------------------------------------------------

    def place_on_existing(self, question: WhatIf) -> ReschedulingResult | None:
        """Where the pods go without a new node; None if they do not all fit."""
        movers = self._movers(question.pods)
        if movers.ineligible:
            return None
        result = self._single_pass(self._remaining_nodes(question), movers, question.planned)
        return None if result.demands or result.unschedulable else self._answer(result)

    def reschedule(self, question: WhatIf) -> ReschedulingResult | None:
        """Where the pods go, on existing nodes or new ones.

        None where new nodes are sure to cost ``max_price`` or more; nothing is packed then.
        """
        movers = self._movers(question.pods)
        nodes = self._remaining_nodes(question)
        if question.max_price < inf and self._minimum_price_of(movers, nodes) >= question.max_price:
            return None
        planned = PlannedPlacements(self._prepared.problem.snapshot.planned_nodes)
        passes = SchedulingPasses(self._prepared.pass_context(nodes, self._domains, planned))
        outcome = passes.best_outcome(movers.groups)
        searched = outcome.result.pods_needing_nodes >= SEARCH_ONLY_FROM
        packing = passes.cheapest_packing(outcome, None) if searched else passes.simplest_packing(outcome)
        failed = (pod for group in outcome.result.unschedulable for pod in _unschedulable_of(group))
        return self._answer(outcome.result, packing.claims, (*movers.ineligible, *failed))

    def minimum_new_price(self, question: WhatIf) -> float:
        """USD per hour that new nodes cost at least for those of the pods that find no room, whatever the packing."""
        return self._minimum_price_of(self._movers(question.pods), self._remaining_nodes(question))

    def minimum_price(self, pods: Iterable[Pod]) -> float:
        """USD per hour that nodes for these pods alone cost at least, whatever the packing."""
        requests = (found[0].requests for pod in pods if (found := self._signatures.of(pod)) is not None)
        return self._price_bounds.of_resources(res.add(*requests))

    def _minimum_price_of(self, movers: _Movers, nodes: ExistingNodeIndex) -> float:
        demands = self._single_pass(nodes, movers, {}).demands
        return self._price_bounds.of_demands([keyed_demand.demand for keyed_demand in demands])

    def _single_pass(self, nodes: ExistingNodeIndex, movers: _Movers, planned: Mapping[str, str]) -> PassResult:
        keeping = PlannedPlacements(planned, nodes.all_nodes & nodes.position_set(planned.values()))
        options = self._prepared.purchase_options
        return SchedulingPass(nodes, options, self._domains, keeping, DemandCaps()).run(movers.groups)

    def _remaining_nodes(self, question: WhatIf) -> ExistingNodeIndex:
        """The nodes that are left and open to the pods of a question."""
        away = self._nodes.position_set(question.removed) | self._closed
        return self._nodes.subset(self._nodes.all_nodes & ~away | self._nodes.position_set(question.reopened))

    def _answer(
        self,
        result: PassResult,
        claims: tuple[SchedulingNodeClaim, ...] = (),
        unschedulable: tuple[UnschedulablePod, ...] = (),
    ) -> ReschedulingResult:
        used = [(placement.node.view, placement.pods) for placement in result.placements]
        return ReschedulingResult(
            placements=tuple(PlacedPods(view.key, view.name, pods) for view, pods in used),
            new_claims=claims,
            unschedulable=unschedulable,
            uninitialized_nodes=frozenset(view.key for view, _ in used if view.managed and not view.initialized),
            _demands=tuple(keyed_demand.demand for keyed_demand in result.demands) if claims else (),
            _taken_names=self._taken_names,
        )

    def _movers(self, pods: Sequence[Pod]) -> _Movers:
        prepared = self._prepared
        groups, unreadable = self._signatures.grouped(pods)
        workloads = prepared.exposed_workloads.restricted_to(pods)
        eligible = prepared.eligible_groups(prepared.default_spread.apply_to(groups), workloads, bound=True)
        counts = BoundPodCountsWithoutMoving(
            self._bound_pod_counts,
            [
                (eligible_pods.signature, eligible_pods.namespaced_labels, eligible_pods.pods)
                for eligible_pods in eligible.groups
            ],
        )
        equivalent = prepared.equivalence_groups(eligible.groups, counts)
        return _Movers(tuple(equivalent), (*unreadable, *eligible.ineligible))

    # -- what is decided ----------------------------------------------------------------------------------------------------

    def close_nodes(self, keys: Iterable[str]) -> None:
        """These nodes take no more pods, but keep those they have (DIS-166)."""
        self._closed |= self._nodes.position_set(keys)

    def apply_move(
        self,
        placed: Iterable[PlacedPods],
        leaving: Iterable[Pod],
        removed: Iterable[str] = (),
        new_claims: Iterable[NewNodeClaim] = (),
    ) -> None:
        """From now on the removed nodes are gone, ``leaving`` are no longer where they were, and ``placed`` have moved in.

        ``new_claims`` are on their way with their pods; they take no others.
        """
        self.close_nodes(removed)
        for pod in leaving:
            self._count_bound_pod(pod, pod.spec.node_name, -1)
        changed: dict[int, ExistingNode] = {}
        for placed_pods in placed:
            for position in members(self._nodes.position_set((placed_pods.node_key,))):
                node = changed.get(position, self._nodes.nodes[position])
                requests = [found[0].requests for pod in placed_pods.pods if (found := self._signatures.of(pod))]
                changed[position] = node.with_bound_pods(placed_pods.pods, requests)
                for pod in placed_pods.pods:
                    self._count_bound_pod(pod, node.node_name, 1)
        self._nodes = self._nodes.with_nodes(changed)
        self._moves_since_refresh += 1
        if self._moves_since_refresh >= _MOVES_UNTIL_REFRESH:
            self._moves_since_refresh = 0
            self._nodes = self._nodes.with_free_updated()
        self._add_planned_claims(new_claims)

    def _add_planned_claims(self, new_claims: Iterable[NewNodeClaim]) -> None:
        for planned in new_claims:
            self._bound_pod_counts.add_planned_node(
                planned.name, build_state_node(None, planned.claim, NO_NODE_USAGE, marked=False)
            )
            for pod in planned.pods:
                self._count_bound_pod(pod, planned.name, 1)

    def _count_bound_pod(self, pod: Pod, node: str, number: int) -> None:
        found = self._signatures.of(pod)
        if found is not None and not is_virtual_pod(pod) and (number > 0 or counts_for_topology(pod)):
            self._bound_pod_counts.add_pods(found[0], found[1], node, number)


class _SignaturesByUid:
    """Signatures and labels of pods, each derived once."""

    def __init__(self) -> None:
        self._cache = PodSignatureCache()
        self._by_uid: dict[str, tuple[PodSignature, NamespacedLabels]] = {}
        self._unreadable: dict[str, UnschedulableReason] = {}

    def of(self, pod: Pod) -> tuple[PodSignature, NamespacedLabels] | None:
        """The signature and labels of a pod; None where its requests do not parse."""
        uid = pod.metadata.uid
        found = self._by_uid.get(uid)
        if found is None and uid not in self._unreadable:
            try:
                found = self._by_uid[uid] = (self._cache.signature_of(pod), namespaced_labels(pod))
            except ValueError as error:
                self._unreadable[uid] = UnschedulableReason(InvalidPod((str(error),)))
        return found

    def grouped(self, pods: Iterable[Pod]) -> tuple[list[PodGroup], list[UnschedulablePod]]:
        """The pods in groups, and those whose requests do not parse."""
        groups: defaultdict[tuple[PodSignature, NamespacedLabels, bool], list[Pod]] = defaultdict(list)
        unreadable: list[UnschedulablePod] = []
        for pod in pods:
            found = self.of(pod)
            if found is None:
                unreadable.append(UnschedulablePod(pod, (self._unreadable[pod.metadata.uid],)))
            else:
                groups[(*found, is_virtual_pod(pod))].append(pod)
        alike = [
            PodGroup(signature, own_labels, tuple(sorted(alike_pods, key=creation_order)))
            for (signature, own_labels, _), alike_pods in groups.items()
        ]
        return alike, unreadable


def _unschedulable_of(failed: UnschedulableGroup) -> Iterator[UnschedulablePod]:
    """Pods without a place; why is told by the constraint that left none, if it was one."""
    reason = UnschedulableReason(failed.blocked or NoRoom())
    return (UnschedulablePod(pod, (reason,)) for pod in failed.pods)
