"""One problem, many questions: where would these bound pods go if their nodes were gone (DIS §7)?

Disruption asks that of every node and of many sets of nodes. `ReschedulingBase` prepares the problem once: templates and what
they sell, nodes with their bit sets, counts of bound pods. A `WhatIf` is a further problem on that base, and its answer is
returned as data: nothing of it stays on the base. A question costs what its own pods cost, whatever the size of the cluster. The
steps are those of a scheduling pass, so a move is judged as its pods will be placed.

A base never changes. What is decided gives another base (`after_move`, `with_closed_nodes`): in it the nodes are gone and the
pods are where they were planned. Both share what the move leaves as it was, so a move costs what its own pods cost, and two
courses of moves can be compared from one base.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from itertools import chain
from math import inf

from karpenter.api.core import Pod
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.instancetypes.type_sets import members
from karpenter.model import resources as res
from karpenter.model.requirements import Requirements
from karpenter.scheduling.decision_memory import DecisionMemory
from karpenter.scheduling.demand import Demand, Packing, SchedulingNodeClaim, sum_of_prices
from karpenter.scheduling.devices.type_devices import TypeDevices
from karpenter.scheduling.existing_nodes import ExistingNode, ExistingNodeIndex, NodeSet
from karpenter.scheduling.offerings.nodepool_templates import NodePoolTemplate
from karpenter.scheduling.offerings.remaining_capacity import RemainingLimits, limits_plus
from karpenter.scheduling.pass_result import DemandCaps, PassResult, PlannedPlacements, UnschedulableGroup
from karpenter.scheduling.planned_nodeclaims import planned_claims
from karpenter.scheduling.prepared_problem import PreparedProblem
from karpenter.scheduling.problem import Problem
from karpenter.scheduling.scheduling_pass import SchedulingPass
from karpenter.scheduling.scheduling_passes import SEARCH_ONLY_FROM, SchedulingPasses
from karpenter.scheduling.solution import NewNodeClaim, PlacedPods, UnschedulablePod
from karpenter.scheduling.topology.bound_pod_counts import BoundPodCounts, PodCountChanges
from karpenter.scheduling.topology.topology_domains import TopologyDomains
from karpenter.scheduling.unschedulable_reasons import InvalidPod, NoRoom, UnschedulableReason
from karpenter.scheduling.whatif.movers import Movers
from karpenter.scheduling.whatif.price_bounds import PriceBounds
from karpenter.scheduling.whatif.refused_nodes import RefusedNodes, RefusedOptions
from karpenter.scheduling.workload_exposure import ExposedWorkloads
from karpenter.state.pod_counts import NamespacedLabels, namespaced_labels
from karpenter.state.pod_signature import PodSignature
from karpenter.state.snapshot import PodGroup, creation_order
from karpenter.state.state_node import NO_NODE_USAGE, build_state_node
from karpenter.state.virtual_pods import is_virtual_pod

#: After so many moves the sets of nodes by what is free are made anew; till then they hold some that are full by now.
_MOVES_UNTIL_REFRESH = 16


class LimitsPolicy(Enum):
    """How limits of NodePools count in a question (DIS-160, SCH-381)."""

    #: The removed nodes do not count, as in Karpenter: limits may be exceeded until they are gone.
    WITHOUT_REMOVED = auto()
    #: The removed nodes count until they are gone.
    WITH_REMOVED = auto()
    #: Limits do not count: for finding out whether they are what is in the way.
    IGNORED = auto()


@dataclass(frozen=True, eq=False)
class WhatIf:
    """A question: the ``removed`` nodes (by key) are gone; where do these pods go?

    ``reopened``: closed nodes that are open to these pods all the same. ``planned``: where pods (by uid) were planned before;
    they go there if they may, and elsewhere if they may not. ``max_price``: the answer is of no use where new nodes cost that
    much or more, in USD per hour. ``limits``: which limits of NodePools new nodes keep. ``refused``: the answer is of no use
    where a new node could be had like this.
    """

    pods: tuple[Pod, ...]
    removed: frozenset[str]
    reopened: frozenset[str] = frozenset()
    planned: Mapping[str, str] = field(default_factory=dict)
    max_price: float = inf
    limits: LimitsPolicy = LimitsPolicy.WITHOUT_REMOVED
    refused: Requirements | None = None


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
    _devices: TypeDevices | None = None

    @property
    def price_per_hour(self) -> float:
        """USD of the new nodes, each as its cheapest type."""
        return sum_of_prices(self.new_claims)

    def to_planned_claims(self, narrowed: Sequence[SchedulingNodeClaim] | None = None) -> tuple[NewNodeClaim, ...]:
        """The new nodes as NodeClaims. ``narrowed``: the same claims with fewer types."""
        claims = self.new_claims if narrowed is None else narrowed
        return planned_claims(claims, self._demands, self._taken_names, self._devices)

    def restricted_to(self, pods: Iterable[Pod]) -> ReschedulingResult:
        """The part of the answer that is about these pods, which share no new node with others; none is unschedulable."""
        uids = frozenset(pod.metadata.uid for pod in pods)
        planned = zip(self.new_claims, self.to_planned_claims(), strict=True)
        own = ((claim, _of_uids(new_claim.pods, uids)) for claim, new_claim in planned)
        placed = ((placed_pods, _of_uids(placed_pods.pods, uids)) for placed_pods in self.placements)
        placements = tuple(replace(placed_pods, pods=members) for placed_pods, members in placed if members)
        return replace(
            self,
            placements=placements,
            new_claims=tuple(claim for claim, members in own if members),
            uninitialized_nodes=self.uninitialized_nodes & {placed_pods.node_key for placed_pods in placements},
            _demands=tuple(replace(demand, pods=_of_uids(demand.pods, uids)) for demand in self._demands),
        )


@dataclass(frozen=True)
class TooExpensive:
    """New nodes for the pods cost at least ``minimum_price``, in USD per hour, which is more than the question allows."""

    minimum_price: float


@dataclass(frozen=True, eq=False)
class _Preparation:
    """What all bases of one problem share. Caches in it hold derived data only."""

    prepared: PreparedProblem
    domains: TopologyDomains
    price_bounds: PriceBounds
    signatures: _SignaturesByUid
    taken_names: frozenset[str]
    refused_options: RefusedOptions = field(default_factory=RefusedOptions)


def prepare_rescheduling(
    problem: Problem,
    indexes: Mapping[str, TypeIndex],
    fill_order: Sequence[str] = (),
    memory: DecisionMemory | None = None,
) -> ReschedulingBase:
    """A base for questions about a problem. ``fill_order``: keys of nodes in the order pods fill them, initialized nodes first.

    Nodes it does not name come after those it names, by name.
    """
    prepared = PreparedProblem(problem, indexes, memory)
    rank = {key: position for position, key in enumerate(fill_order)}
    nodes = ExistingNodeIndex(
        sorted(
            prepared.existing_nodes.nodes,
            key=lambda n: (not n.view.initialized, rank.get(n.view.key, len(rank)), n.view.name),
        )
    )
    bound_pod_counts = BoundPodCounts(problem.snapshot)
    preparation = _Preparation(
        prepared,
        TopologyDomains(bound_pod_counts, prepared.templates, nodes),
        prepared.memory.price_bounds(prepared.templates),
        _SignaturesByUid(prepared.memory),
        frozenset(view.key for view in problem.snapshot.nodes),
    )
    return ReschedulingBase(preparation, nodes, bound_pod_counts, prepared.remaining_limits)


@dataclass(frozen=True, eq=False)
class ReschedulingBase:
    """A problem prepared for questions, with the moves that are decided so far (``prepare_rescheduling``)."""

    _preparation: _Preparation
    _nodes: ExistingNodeIndex
    _bound_pod_counts: BoundPodCounts
    _limits: RemainingLimits
    _closed: NodeSet = 0
    _moves_since_refresh: int = 0
    #: Movers by the identity of their pods, which are kept with them: several questions are about the pods of one node.
    _movers_by_pods: dict[tuple[int, ...], tuple[Sequence[Pod], Movers]] = field(default_factory=dict)
    #: Passes of questions without planned places, by movers, open nodes with room, limits: deletion and replacement share one.
    _passes: dict[tuple[int, NodeSet, LimitsPolicy, frozenset[str]], PassResult] = field(default_factory=dict)

    # -- questions --------------------------------------------------------------------------------------------------------

    def place_on_existing(self, question: WhatIf) -> ReschedulingResult | None:
        """Where the pods go without a new node; None if they do not all fit."""
        movers = self._movers(question.pods)
        if movers.ineligible:
            return None
        result = self._single_pass(question, self._remaining_nodes(question), movers)
        return None if result.demands or result.unschedulable else self._answer(result)

    def reschedule(self, question: WhatIf) -> ReschedulingResult | TooExpensive | RefusedNodes:
        """Where the pods go, on existing nodes or new ones. Nothing is packed where the answer would be of no use."""
        movers = self._movers(question.pods)
        nodes = self._remaining_nodes(question)
        minimum = self._minimum_price_of(question, movers, nodes) if question.max_price < inf else 0.0
        if minimum >= question.max_price:
            return TooExpensive(minimum)
        planned = PlannedPlacements(self._preparation.prepared.problem.snapshot.planned_nodes)
        limits = self._limits_for(question)
        first = self._single_pass(replace(question, planned={}), nodes, movers)
        if question.refused is not None and not limits and self._buys_refused(question.refused, first, movers):
            return RefusedNodes()
        context = self._preparation.prepared.pass_context(nodes, self._preparation.domains, planned, limits)
        passes = SchedulingPasses(context.with_known_pass(movers.groups, first))
        outcome = passes.best_outcome(movers.groups)
        searched = outcome.result.pods_needing_nodes >= SEARCH_ONLY_FROM
        packing = passes.cheapest_packing(outcome, None) if searched else passes.simplest_packing(outcome)
        failed = (pod for group in outcome.result.unschedulable for pod in _unschedulable_of(group))
        unpacked = _unpacked_pods(outcome.result, packing)
        return self._answer(outcome.result, packing.claims, (*movers.ineligible, *failed, *unpacked))

    def _buys_refused(self, refused: Requirements, result: PassResult, movers: Movers) -> bool:
        """Whether all pods find a place, some of them on new nodes, and each of these could be had in the refused way."""
        if result.unschedulable or movers.ineligible or any(group.membership for group in movers.groups):
            return False
        if self._preparation.prepared.devices is not None or self._answer(result).uninitialized_nodes:
            return False
        demands = (keyed_demand.demand for keyed_demand in result.demands)
        return self._preparation.refused_options.are_all(demands, refused)

    @property
    def has_limits(self) -> bool:
        """Whether any NodePool has limits."""
        return bool(self._limits)

    def minimum_new_price(self, question: WhatIf) -> float:
        """USD per hour that new nodes cost at least for those of the pods that find no room, whatever the packing."""
        return self._minimum_price_of(question, self._movers(question.pods), self._remaining_nodes(question))

    def minimum_price(self, pods: Iterable[Pod]) -> float:
        """USD per hour that nodes for these pods alone cost at least, whatever the packing."""
        signatures = self._preparation.signatures
        requests = (signed[0].requests for pod in pods if (signed := signatures.of(pod)) is not None)
        return self._preparation.price_bounds.of_resources(res.add(*requests))

    def _minimum_price_of(self, question: WhatIf, movers: Movers, nodes: ExistingNodeIndex) -> float:
        demands = self._single_pass(replace(question, planned={}), nodes, movers).demands
        return self._preparation.price_bounds.of_demands([keyed_demand.demand for keyed_demand in demands])

    def _single_pass(self, question: WhatIf, nodes: ExistingNodeIndex, movers: Movers) -> PassResult:
        if question.planned:
            return self._new_pass(question, nodes, movers)
        # Movers are kept as long as these results, so their identity stays theirs.
        open_nodes = nodes.all_nodes
        if not any(group.membership for group in movers.groups):
            open_nodes &= self._with_room_for(movers)
        key = (id(movers), open_nodes, question.limits, question.removed)
        if key not in self._passes:
            self._passes[key] = self._new_pass(question, nodes, movers)
        return self._passes[key]

    def _with_room_for(self, movers: Movers) -> NodeSet:
        """All nodes that could take one of the pods. What else is open makes no difference to pods without topology."""
        with_room = 0
        for group in movers.groups:
            with_room |= self._nodes.with_free(group.signature.requests)
        return with_room

    def _new_pass(self, question: WhatIf, nodes: ExistingNodeIndex, movers: Movers) -> PassResult:
        planned = question.planned
        keeping = PlannedPlacements(planned, nodes.all_nodes & nodes.position_set(planned.values()))
        options = self._preparation.prepared.purchase_options_within(self._limits_for(question))
        return SchedulingPass(nodes, options, self._preparation.domains, keeping, DemandCaps()).run(movers.groups)

    def _limits_for(self, question: WhatIf) -> RemainingLimits:
        """What is left of limits for the new nodes of a question."""
        if question.limits is LimitsPolicy.IGNORED:
            return {}
        if question.limits is LimitsPolicy.WITH_REMOVED or not self._limits:
            return self._limits
        return limits_plus(self._limits, self._counted_capacity(question.removed))

    def _counted_capacity(self, keys: Iterable[str]) -> Iterator[tuple[str, Mapping[str, int]]]:
        """What these nodes take of limits, by NodePool."""
        counted = self._preparation.prepared.counted_capacity
        return (counted[key] for key in keys if key in counted)

    def _limits_after(self, removed: Iterable[str], new_claims: Iterable[NewNodeClaim]) -> RemainingLimits:
        """What is left of limits when these nodes are gone and the new ones are there, each the largest it may become."""
        if not self._limits:
            return self._limits
        templates = {template.name: template for template in self._preparation.prepared.templates}
        limits = limits_plus(self._limits, self._counted_capacity(removed))
        added = (
            (claim.node_pool, _largest_capacity(templates[claim.node_pool], claim))
            for claim in new_claims
            if claim.node_pool in limits
        )
        return limits_plus(limits, ((pool, {name: -value for name, value in used.items()}) for pool, used in added))

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
        devices = self._preparation.prepared.devices
        used = [(placement.node.view, placement.pods) for placement in result.placements]
        return ReschedulingResult(
            placements=tuple(PlacedPods(view.key, view.name, pods) for view, pods in used),
            new_claims=claims,
            unschedulable=unschedulable,
            uninitialized_nodes=frozenset(view.key for view, _ in used if view.managed and not view.initialized),
            _demands=tuple(keyed_demand.demand for keyed_demand in result.demands) if claims else (),
            _taken_names=self._preparation.taken_names,
            _devices=None if devices is None else devices.types,
        )

    def _movers(self, pods: Sequence[Pod]) -> Movers:
        key = tuple(map(id, pods))
        if key not in self._movers_by_pods:
            self._movers_by_pods[key] = (pods, self._remembered_movers(pods))
        return self._movers_by_pods[key][1]

    def _remembered_movers(self, pods: Sequence[Pod]) -> Movers:
        """Those of an earlier decision, where they depend on nothing but the pods."""
        prepared = self._preparation.prepared
        workloads = prepared.exposed_workloads.restricted_to(pods)
        repelled = any(True for _ in self._bound_pod_counts.anti_affinity_terms)
        if workloads or repelled or not prepared.groups_depend_on_pods_alone:
            return self._new_movers(pods, workloads)
        return prepared.memory.movers(pods, prepared.preferences, lambda: self._new_movers(pods, workloads))

    def _new_movers(self, pods: Sequence[Pod], workloads: ExposedWorkloads) -> Movers:
        prepared = self._preparation.prepared
        groups, unreadable = self._preparation.signatures.grouped(pods)
        eligible = prepared.eligible_groups(prepared.default_spread.apply_to(groups), workloads, bound=True)
        leaving = PodCountChanges()
        for group in eligible.groups:
            for pod in group.pods:
                leaving.leave(group.signature, group.namespaced_labels, pod)
        own_labels = dict.fromkeys(group.namespaced_labels for group in eligible.groups)
        selecting = (self._bound_pod_counts.anti_affinity_selecting(each) for each in own_labels)
        counts = self._bound_pod_counts.without(leaving, dict.fromkeys(chain.from_iterable(selecting)))
        equivalent = prepared.equivalence_groups(eligible.groups, counts)
        return Movers(tuple(equivalent), (*unreadable, *eligible.ineligible))

    # -- what is decided ----------------------------------------------------------------------------------------------------

    def with_closed_nodes(self, keys: Iterable[str]) -> ReschedulingBase:
        """The base in which these nodes take no more pods, but keep those they have (DIS-166)."""
        return replace(self, _closed=self._closed | self._nodes.position_set(keys))

    def is_open(self, key: str) -> bool:
        """Whether a node takes pods."""
        position = self._nodes.position_set((key,))
        return bool(position) and not position & self._closed

    def with_limits_used(self, new_claims: Sequence[NewNodeClaim]) -> ReschedulingBase:
        """The base in which these claims, which are planned for other pods, count against limits."""
        return replace(self, _limits=self._limits_after((), new_claims), _passes={})

    def after_move(
        self,
        placed: Sequence[PlacedPods],
        leaving: Iterable[Pod],
        removed: Collection[str] = (),
        new_claims: Sequence[NewNodeClaim] = (),
    ) -> ReschedulingBase:
        """The base in which the removed nodes are gone, ``leaving`` are no longer where they were, and ``placed`` have moved in.

        ``new_claims`` are in flight with their pods; they take no others.
        """
        planned_nodes = {
            new_claim.name: build_state_node(None, new_claim.claim, NO_NODE_USAGE, marked=False)
            for new_claim in new_claims
        }
        nodes = self._nodes.with_nodes(self._changed_nodes(placed))
        moves_since_refresh = (self._moves_since_refresh + 1) % _MOVES_UNTIL_REFRESH
        return replace(
            self,
            _nodes=nodes if moves_since_refresh else nodes.with_free_updated(),
            _bound_pod_counts=self._bound_pod_counts.after(
                self._pod_count_changes(placed, leaving, new_claims), planned_nodes
            ),
            _limits=self._limits_after(removed, new_claims),
            _closed=self._closed | self._nodes.position_set(removed),
            _moves_since_refresh=moves_since_refresh,
            _movers_by_pods={},
            _passes={},
        )

    def _changed_nodes(self, placed: Iterable[PlacedPods]) -> Mapping[int, ExistingNode]:
        """The nodes that take pods, by position."""
        signatures = self._preparation.signatures
        changed: dict[int, ExistingNode] = {}
        for placed_pods in placed:
            for position in members(self._nodes.position_set((placed_pods.node_key,))):
                node = changed.get(position, self._nodes.nodes[position])
                requests = [signed[0].requests for pod in placed_pods.pods if (signed := signatures.of(pod))]
                changed[position] = node.with_bound_pods(placed_pods.pods, requests)
        return changed

    def _pod_count_changes(
        self, placed: Iterable[PlacedPods], leaving: Iterable[Pod], new_claims: Iterable[NewNodeClaim]
    ) -> PodCountChanges:
        """What a move changes for topology terms. Virtual pods do not count."""
        signatures = self._preparation.signatures
        changes = PodCountChanges()
        for pod in leaving:
            if (signed := signatures.of(pod)) is not None and not is_virtual_pod(pod):
                changes.leave(*signed, pod)
        arriving = [(new_claim.name, new_claim.pods) for new_claim in new_claims]
        arriving += [
            (node.node_name, placed_pods.pods)
            for placed_pods in placed
            for node in self._nodes.nodes_in(self._nodes.position_set((placed_pods.node_key,)))
        ]
        for node_name, pods in arriving:
            for pod in pods:
                if (signed := signatures.of(pod)) is not None and not is_virtual_pod(pod):
                    changes.arrive(*signed, node_name)
        return changes


class _SignaturesByUid:
    """Signatures and labels of pods, each derived once."""

    def __init__(self, memory: DecisionMemory) -> None:
        self._cache = memory.signatures
        self._by_uid, self._before = memory.signed_pods()
        self._unreadable: dict[str, UnschedulableReason] = {}

    def of(self, pod: Pod) -> tuple[PodSignature, NamespacedLabels] | None:
        """The signature and labels of a pod; None where its requests do not parse."""
        uid = pod.metadata.uid
        signed = self._by_uid.get(uid)
        if signed is None and uid not in self._unreadable:
            signed = self._before.get(uid)
            try:
                if signed is None or signed[0] is not pod:
                    signed = (pod, self._cache.signature_of(pod), namespaced_labels(pod))
                self._by_uid[uid] = signed
            except ValueError as error:
                signed = None
                self._unreadable[uid] = UnschedulableReason(InvalidPod((str(error),)))
        return None if signed is None else signed[1:]

    def grouped(self, pods: Iterable[Pod]) -> tuple[list[PodGroup], list[UnschedulablePod]]:
        """The pods in groups, and those whose requests do not parse."""
        groups: defaultdict[tuple[PodSignature, NamespacedLabels, bool], list[Pod]] = defaultdict(list)
        unreadable: list[UnschedulablePod] = []
        for pod in pods:
            signature_and_labels = self.of(pod)
            if signature_and_labels is None:
                unreadable.append(UnschedulablePod(pod, (self._unreadable[pod.metadata.uid],)))
            else:
                groups[(*signature_and_labels, is_virtual_pod(pod))].append(pod)
        alike = [
            PodGroup(signature, own_labels, tuple(sorted(alike_pods, key=creation_order)))
            for (signature, own_labels, _), alike_pods in groups.items()
        ]
        return alike, unreadable


def _of_uids(pods: Iterable[Pod], uids: Collection[str]) -> tuple[Pod, ...]:
    return tuple(pod for pod in pods if pod.metadata.uid in uids)


def _unschedulable_of(failed: UnschedulableGroup) -> Iterator[UnschedulablePod]:
    """Pods without a place, with the constraint that left none as the reason, if it was one."""
    reason = UnschedulableReason(failed.blocked or NoRoom())
    return (UnschedulablePod(pod, (reason,)) for pod in failed.pods)


def _unpacked_pods(result: PassResult, packing: Packing) -> Iterator[UnschedulablePod]:
    """Pods that limits leave without a new node."""
    reasons = (UnschedulableReason(NoRoom()),)
    for position, count in packing.unpacked.items():
        yield from (UnschedulablePod(pod, reasons) for pod in result.demands[position].last_pods(count))


def _largest_capacity(template: NodePoolTemplate, claim: NewNodeClaim) -> Mapping[str, int]:
    """The most a new node may take of the limits of its NodePool."""
    index = template.index
    return {**index.max_capacity(index.named(*claim.instance_types)), res.NODES: res.ONE_UNIT}
