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

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from math import inf

from karpenter.api.core import Pod
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.instancetypes.type_sets import members
from karpenter.model import resources as res
from karpenter.model.requirements import Requirements
from karpenter.scheduling.decision_memory import DecisionMemory, NewNodes
from karpenter.scheduling.demand import SchedulingNodeClaim
from karpenter.scheduling.existing_nodes import ExistingNode, ExistingNodeIndex, NodeSet
from karpenter.scheduling.offerings.launch_options import LaunchOptionIndex
from karpenter.scheduling.offerings.nodepool_templates import NodePoolTemplate
from karpenter.scheduling.offerings.remaining_capacity import RemainingLimits, limits_plus
from karpenter.scheduling.pass_result import DemandCaps, PassResult, PlannedPlacements
from karpenter.scheduling.prepared_problem import PreparedProblem
from karpenter.scheduling.problem import Problem
from karpenter.scheduling.scheduling_pass import SchedulingPass
from karpenter.scheduling.scheduling_passes import SEARCH_ONLY_FROM, SchedulingPasses
from karpenter.scheduling.solution import NewNodeClaim, PlacedPods, UnschedulablePod
from karpenter.scheduling.topology.bound_pod_counts import BoundPodCounts, PodCountChanges
from karpenter.scheduling.topology.topology_domains import TopologyDomains
from karpenter.scheduling.whatif.left_out_pods import unpacked_pods, unschedulable_of
from karpenter.scheduling.whatif.movers import Movers, workload_counts
from karpenter.scheduling.whatif.pass_facts import Host, PassFacts, facts_of, unready_hosts
from karpenter.scheduling.whatif.price_bounds import PriceBounds
from karpenter.scheduling.whatif.questions import (
    LimitsPolicy,
    ReschedulingResult,
    TooExpensive,
    UnreadyHosts,
    WhatIf,
)
from karpenter.scheduling.whatif.refused_nodes import RefusedNodes, RefusedOptions
from karpenter.scheduling.whatif.room_facts import RoomFacts
from karpenter.scheduling.whatif.signatures_by_uid import SignaturesByUid
from karpenter.scheduling.workload_exposure import ExposedWorkloads
from karpenter.state.state_node import NO_NODE_USAGE, build_state_node
from karpenter.state.virtual_pods import is_virtual_pod

#: After so many moves the sets of nodes by what is free are made anew; till then they hold some that are full by now.
_MOVES_UNTIL_REFRESH = 16


@dataclass(frozen=True, eq=False)
class _Preparation:
    """What all bases of one problem share. Caches in it hold derived data only."""

    prepared: PreparedProblem
    domains: TopologyDomains
    price_bounds: PriceBounds
    signatures: SignaturesByUid
    taken_names: frozenset[str]
    #: The launch options without limits of NodePools.
    unlimited: LaunchOptionIndex
    refused_options: RefusedOptions = field(default_factory=RefusedOptions)
    #: Numbers of nodes in keys of facts (`DecisionMemory`).
    node_numbers: dict[ExistingNode, int] = field(default_factory=dict)

    def room_facts(self, nodes: ExistingNodeIndex) -> RoomFacts:
        """What is known of questions to these nodes, which is nothing yet."""
        return RoomFacts(nodes, self.unlimited, self.prepared.memory, self.node_numbers)


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
        SignaturesByUid(prepared.memory),
        frozenset(view.key for view in problem.snapshot.nodes),
        prepared.launch_options_within({}),
    )
    room_facts = preparation.room_facts(nodes)
    return ReschedulingBase(preparation, nodes, room_facts, bound_pod_counts, prepared.remaining_limits)


@dataclass(frozen=True, eq=False)
class ReschedulingBase:
    """A problem prepared for questions, with the moves that are decided so far (``prepare_rescheduling``)."""

    _preparation: _Preparation
    _nodes: ExistingNodeIndex
    _room_facts: RoomFacts
    _bound_pod_counts: BoundPodCounts
    _limits: RemainingLimits
    _closed: NodeSet = 0
    _moves_since_refresh: int = 0
    #: Movers by the identity of their tuple of pods, which is kept with them: several questions are about the pods of one node.
    _movers_by_pods: dict[int, tuple[tuple[Pod, ...], Movers]] = field(default_factory=dict)
    #: What is known of the questions asked so far.
    _known_questions: dict[WhatIf, PassFacts] = field(default_factory=dict)
    #: Passes of questions without planned places, by movers, by launch options, and by the open nodes that count.
    _passes: dict[tuple[Movers, LaunchOptionIndex, NodeSet], PassResult] = field(default_factory=dict)

    # -- questions --------------------------------------------------------------------------------------------------------

    def place_on_existing(self, question: WhatIf) -> ReschedulingResult | None:
        """Where the pods go without a new node; None if they do not all fit."""
        if question.planned:
            movers = self._movers(question.pods)
            result = None if movers.ineligible else self._planned_pass(question, movers)
            return None if result is None or result.demands or result.unschedulable else self._answer(result)
        facts = self._known(question)
        return None if facts.hosts is None else self._answer(self._pass(question, self._movers(question.pods)))

    def ready_hosts(self, question: WhatIf) -> tuple[Host, ...] | None:
        """The existing nodes that take the pods, wherever those were planned before.

        None if they do not all fit there, or if one of the nodes is not ready for them yet (DIS-165).
        """
        facts = self._known(question)
        return facts.hosts if facts.are_hosts_ready else None

    def reschedule(
        self, question: WhatIf, max_price: float = inf, refused: Requirements | None = None
    ) -> ReschedulingResult | TooExpensive | RefusedNodes | UnreadyHosts:
        """Where the pods go, on existing nodes or new ones.

        Nothing is packed where the answer would be of no use: new nodes cost ``max_price`` or more, in USD per hour, each of them
        could be had in the ``refused`` way, or the pods would have to wait for existing nodes.
        """
        refusal = self.refusal(question, max_price, refused)
        if refusal is not None:
            return refusal
        movers, limits = self._movers(question.pods), self._limits_for(question)
        nodes = self._nodes.subset(self._open_nodes(question))
        planned = PlannedPlacements(self._preparation.prepared.problem.snapshot.planned_nodes)
        context = self._preparation.prepared.pass_context(nodes, self._preparation.domains, planned, limits)
        passes = SchedulingPasses(context.with_known_pass(movers.groups, self._pass(question, movers)))
        outcome = passes.best_outcome(movers.groups)
        searched = outcome.result.pods_needing_nodes >= SEARCH_ONLY_FROM
        packing = passes.cheapest_packing(outcome, None) if searched else passes.simplest_packing(outcome)
        failed = (pod for group in outcome.result.unschedulable for pod in unschedulable_of(group))
        left_out = (*movers.ineligible, *failed, *unpacked_pods(outcome.result, packing))
        needs = self._needs(question)
        if needs is not None and not left_out:
            self._preparation.prepared.memory.remember_new_nodes(needs, packing.claims)
        return self._answer(outcome.result, packing.claims, left_out)

    def refusal(
        self, question: WhatIf, max_price: float = inf, refused: Requirements | None = None
    ) -> TooExpensive | RefusedNodes | UnreadyHosts | None:
        """Why a plan for new nodes would be of no use (`reschedule`); None if it might be."""
        facts = self._known(question)
        minimum = self._minimum_price(facts) if max_price < inf else 0.0
        if minimum >= max_price:
            return TooExpensive(minimum)
        limits = self._limits_for(question)
        if refused is not None and not limits and self._launches_refused(facts, refused):
            return RefusedNodes()
        is_limited = bool(limits or self._preparation.prepared.reservation_units)
        return None if is_limited and facts.demands else unready_hosts(self._movers(question.pods), facts)

    def known_new_nodes(self, question: WhatIf) -> NewNodes | None:
        """The new nodes of `reschedule`, if an earlier plan for the same needs gives them. All pods are placed then."""
        needs = self._needs(question)
        return None if needs is None else self._preparation.prepared.memory.known_new_nodes(needs)

    def _needs(self, question: WhatIf) -> object | None:
        """All that the new nodes of a plan depend on beside what is sold; None where they depend on more, or are not needed."""
        facts, prepared = self._known(question), self._preparation.prepared
        is_limited = bool(prepared.reservation_units or self._limits_for(question))
        if is_limited or not facts.demands or not facts.need_room_alone or facts.has_unplaced:
            return None
        demands = tuple((demand.signature, demand.count, demand.options) for demand in facts.demands)
        return demands, prepared.problem.options.packing_mode

    def _launches_refused(self, facts: PassFacts, refused: Requirements) -> bool:
        """Whether all pods find a place, some of them on new nodes, and each of these could be had in the refused way."""
        if refused not in facts.launches_refused:
            facts.launches_refused[refused] = self._would_launch_refused(facts, refused)
        return facts.launches_refused[refused]

    def _would_launch_refused(self, facts: PassFacts, refused: Requirements) -> bool:
        if facts.has_unplaced or facts.have_topology:
            return False
        if self._preparation.prepared.devices is not None or not facts.are_hosts_ready:
            return False
        return self._preparation.refused_options.are_all(facts.demands, refused)

    @property
    def has_limits(self) -> bool:
        """Whether any NodePool has limits."""
        return bool(self._limits)

    def minimum_new_price(self, question: WhatIf) -> float:
        """USD per hour that new nodes cost at least for those of the pods that find no room, whatever the packing."""
        return self._minimum_price(self._known(question))

    def minimum_price(self, question: WhatIf) -> float:
        """USD per hour that nodes for the pods of a question alone cost at least, whatever the packing."""
        known, movers = self._preparation.prepared.memory.prices_alone, self._movers(question.pods)
        price = known.get(movers)
        if price is None:
            signatures = self._preparation.signatures
            requests = (signed[0].requests for pod in question.pods if (signed := signatures.of(pod)) is not None)
            price = self._preparation.price_bounds.of_resources(res.add(*requests))
            known.put(movers, price)
        return price

    def may_fit_on(self, question: WhatIf, keys: frozenset[str]) -> bool:
        """Whether one of these nodes could take one of the pods, judged by free room alone."""
        movers = self._movers(question.pods)
        return movers.have_topology or bool(self._room_facts.with_room_for(movers) & self._nodes.known_set(keys))

    def _minimum_price(self, facts: PassFacts) -> float:
        if facts.minimum_price is None:
            facts.minimum_price = self._preparation.price_bounds.of_demands(facts.demands)
        return facts.minimum_price

    def kind_of(self, question: WhatIf) -> int | None:
        """The same number for questions about other nodes that have the same facts; None where that is not known.

        Such pods are as many of the same kinds, and need room alone, which the nodes that go have not got for a single one.
        """
        if self._limits or len(question.parts) != 1 or self._preparation.prepared.devices is not None:
            return None
        movers = self._movers(question.parts[0])
        if not movers.need_room_alone or question.planned or question.reopened:
            return None
        own = self._nodes.position_set(question.removed)
        return None if own & self._room_facts.with_room_for(movers) else self._room_facts.number_of(movers)

    # -- passes -----------------------------------------------------------------------------------------------------------

    def _known(self, question: WhatIf) -> PassFacts:
        """What follows from the pass of a question."""
        facts = self._known_questions.get(question)
        if facts is None:
            facts = self._known_questions[question] = self._facts(question)
        return facts

    def _facts(self, question: WhatIf) -> PassFacts:
        """What follows from the pass of a question, which is made only if that is not known."""
        options = self._options_for(question)
        parts = self._parts_that_need_room_alone(question)
        if not parts:
            movers = self._movers(question.pods)
            return facts_of(options, self._pass(question, movers), movers)
        removed = self._nodes.position_set(question.removed)
        return self._room_facts.of(parts, self._open_nodes(question), removed, options)

    def _parts_that_need_room_alone(self, question: WhatIf) -> list[Movers]:
        """The pods of a question part by part; none where they need more than room, or are to be kept apart."""
        prepared = self._preparation.prepared
        if prepared.devices is not None:
            return []
        if len(question.parts) == 1:
            movers = self._movers(question.parts[0])
            return [movers] if movers.need_room_alone else []
        if not self._groups_depend_on_pods_alone:
            return []
        parts = [self._movers(pods) for pods in question.parts]
        if not all(movers.need_room_alone and not movers.have_own_exposure for movers in parts):
            return []
        return [] if prepared.exposed_workloads.may_expose(workload_counts(parts)) else parts

    @cached_property
    def _groups_depend_on_pods_alone(self) -> bool:
        """Whether nothing of the cluster tells pods apart that look alike, such as anti-affinity of others."""
        repelled = any(True for _ in self._bound_pod_counts.anti_affinity_terms)
        return not repelled and self._preparation.prepared.groups_depend_on_pods_alone

    def _pass(self, question: WhatIf, movers: Movers) -> PassResult:
        """The pass of a question, without regard to where pods were planned before."""
        options = self._options_for(question)
        key = (movers, options, self._nodes_with_room(question, movers))
        if key not in self._passes:
            nodes = self._nodes.subset(self._open_nodes(question))
            scheduling_pass = SchedulingPass(
                nodes, options, self._preparation.domains, PlannedPlacements(), DemandCaps()
            )
            self._passes[key] = scheduling_pass.run(movers.groups)
        return self._passes[key]

    def _nodes_with_room(self, question: WhatIf, movers: Movers) -> NodeSet:
        """The open nodes that make a difference: pods without topology do not see nodes that have no room for them."""
        nodes = self._open_nodes(question)
        return nodes if movers.have_topology else nodes & self._room_facts.with_room_for(movers)

    def _planned_pass(self, question: WhatIf, movers: Movers) -> PassResult:
        """The pass in which pods stay where they were planned, if they may."""
        nodes, planned = self._nodes.subset(self._open_nodes(question)), question.planned
        keeping = PlannedPlacements(planned, nodes.all_nodes & nodes.position_set(planned.values()))
        options = self._options_for(question)
        return SchedulingPass(nodes, options, self._preparation.domains, keeping, DemandCaps()).run(movers.groups)

    def _options_for(self, question: WhatIf) -> LaunchOptionIndex:
        limits = self._limits_for(question)
        return self._preparation.prepared.launch_options_within(limits) if limits else self._preparation.unlimited

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

    def _open_nodes(self, question: WhatIf) -> NodeSet:
        """The nodes that are left and open to the pods of a question."""
        nodes = self._nodes.all_nodes & ~self._closed
        if question.reopened:
            nodes |= self._nodes.known_set(frozenset(question.reopened))
        return nodes & ~self._nodes.position_set(question.removed)

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

    def _movers(self, pods: tuple[Pod, ...]) -> Movers:
        known = self._movers_by_pods.get(id(pods))
        if known is None:
            known = self._movers_by_pods[id(pods)] = (pods, self._remembered_movers(pods))
        return known[1]

    def _remembered_movers(self, pods: Sequence[Pod]) -> Movers:
        """Those of an earlier decision, where they depend on nothing but the pods."""
        prepared = self._preparation.prepared
        known = prepared.memory.known_movers(pods, prepared.preferences) if self._groups_depend_on_pods_alone else None
        if known is not None and not self._may_have_exposed_workload(known):
            return known
        workloads = prepared.exposed_workloads.restricted_to(pods)
        if workloads or not self._groups_depend_on_pods_alone:
            return self._new_movers(pods, workloads)
        return prepared.memory.movers(pods, prepared.preferences, lambda: self._new_movers(pods, workloads))

    def _may_have_exposed_workload(self, movers: Movers) -> bool:
        workloads = self._preparation.prepared.exposed_workloads
        return movers.have_own_exposure or workloads.may_expose(movers.workload_counts)

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
        return replace(self, _closed=self._closed | self._nodes.position_set(keys), _known_questions={})

    def is_open(self, key: str) -> bool:
        """Whether a node takes pods."""
        position = self._nodes.position_set((key,))
        return bool(position) and not position & self._closed

    def with_limits_used(self, new_claims: Sequence[NewNodeClaim]) -> ReschedulingBase:
        """The base in which these claims, which are planned for other pods, count against limits."""
        return replace(self, _limits=self._limits_after((), new_claims), _known_questions={}, _passes={})

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
        nodes = nodes if moves_since_refresh else nodes.with_free_updated()
        return replace(
            self,
            _nodes=nodes,
            _room_facts=self._preparation.room_facts(nodes),
            _bound_pod_counts=self._bound_pod_counts.after(
                self._pod_count_changes(placed, leaving, new_claims), planned_nodes
            ),
            _limits=self._limits_after(removed, new_claims),
            _closed=self._closed | self._nodes.position_set(removed),
            _moves_since_refresh=moves_since_refresh,
            _movers_by_pods={},
            _known_questions={},
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


def _largest_capacity(template: NodePoolTemplate, claim: NewNodeClaim) -> Mapping[str, int]:
    """The most a new node may take of the limits of its NodePool."""
    index = template.index
    return {**index.max_capacity(index.named(*claim.instance_types)), res.NODES: res.ONE_UNIT}
