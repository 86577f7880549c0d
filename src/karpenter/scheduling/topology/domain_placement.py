"""Placing the pods of one group pod by pod into domain combinations, the least occupied first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from karpenter.api.core import Pod
from karpenter.scheduling.equivalence_groups import GroupStep
from karpenter.scheduling.existing_nodes import ExistingNode, ExistingNodeIndex
from karpenter.scheduling.pass_result import DomainOrder
from karpenter.scheduling.pass_state import PassState
from karpenter.scheduling.topology.bound_pod_counts import node_counts
from karpenter.scheduling.topology.domain_options import DomainOptions, OptionGroup
from karpenter.scheduling.topology.topology import DomainCombination, DomainConstraints, combination_order
from karpenter.scheduling.topology.topology_groups import CountingGroups, counting_groups


class DomainNodes:
    """Existing nodes of one combination with the pods that may go to each, asked one at a time."""

    def __init__(self, state: PassState, step: GroupStep, candidates: Iterable[tuple[ExistingNode, list[Pod]]]) -> None:
        self._state = state
        self._step = step
        self._candidates = iter(candidates)
        self._current: tuple[ExistingNode, list[Pod]] | None = None

    def next_node(self) -> tuple[ExistingNode, list[Pod], int] | None:
        """The first node with room, the pods that may go there and how many of them fit; None when no node has room."""
        while True:
            if self._current is None:
                self._current = next(self._candidates, None)
                if self._current is None:
                    return None
            node, pods = self._current
            room = self._state.count_fitting(self._step, node, pods) if pods else 0
            if room:
                return node, pods, room
            self._current = None


class DomainPlacement:
    """The combinations of one group while its pods are placed. ``nodes``: by combination, nodes that may have room."""

    def __init__(
        self,
        state: PassState,
        domain_options: DomainOptions,
        step: GroupStep,
        constraints: DomainConstraints,
        combinations: tuple[DomainCombination, ...],
        nodes: dict[DomainCombination, DomainNodes],
    ) -> None:
        self._state = state
        self._topology = state.topology
        self._domain_options = domain_options
        self._step = step
        self._constraints = constraints
        self._combinations = combinations
        self._option_groups = domain_options.known_groups(step)
        self._nodes_by_combination = nodes
        self._is_unlimited = state.is_unlimited(step)

    def allowed_combinations(self) -> Sequence[DomainCombination]:
        """Combinations the next pod may go to, in `combination_order`."""
        if self._constraints.is_unconstrained:
            return self._combinations
        open_to = self._topology.open_domains(self._constraints) if self._constraints.declared else {}
        closed = self._topology.closed_domains(self._constraints) if self._constraints.closing else {}
        if not open_to and not closed:
            return self._combinations
        if len(self._constraints.keys) == 1:
            valid, barred = open_to.get(0), closed.get(0, ())
            return [
                each for each in self._combinations if (valid is None or each[0] in valid) and each[0] not in barred
            ]
        return [combination for combination in self._combinations if allows_combination(combination, open_to, closed)]

    def place_next(self, combinations: Sequence[DomainCombination]) -> bool:
        """Place the next pod on an existing node of the least occupied combination that has room; False where none has."""
        offers = self._nodes_with_room(combinations) if self._nodes_by_combination else {}
        if not offers:
            return False
        level = self._least_occupied(list(offers))
        for combination in (
            sorted(level, key=combination_order)
            if self._constraints.fills_level_at_once
            else [min(level, key=combination_order)]
        ):
            node, pods, room = offers[combination]
            if not pods:
                continue
            count = room if self._constraints.in_bulk else 1
            self._state.place_on_node(self._step, node, pods, count)
            self._record(combination, self._groups_counting_node(node), count)
        return True

    def _nodes_with_room(
        self, combinations: Iterable[DomainCombination]
    ) -> dict[DomainCombination, tuple[ExistingNode, list[Pod], int]]:
        """The next node with room of every combination that has one."""
        nodes: dict[DomainCombination, tuple[ExistingNode, list[Pod], int]] = {}
        for combination in combinations:
            if combination not in self._nodes_by_combination:
                continue
            offer = self._nodes_by_combination[combination].next_node()
            if offer is not None:
                nodes[combination] = offer
            else:
                del self._nodes_by_combination[combination]
        return nodes

    def _least_occupied(self, combinations: Sequence[DomainCombination]) -> list[DomainCombination]:
        if len(combinations) == 1:
            return [*combinations]
        occupancies = self._topology.occupancies(self._constraints, combinations)
        least = min(occupancies)
        return [
            combination for combination, occupancy in zip(combinations, occupancies, strict=True) if occupancy == least
        ]

    def request_next(self, combinations: Sequence[DomainCombination], pods: list[Pod]) -> bool:
        """Request new nodes for the next pods in the least occupied, then cheapest combination; False if there is none."""
        open_groups = {
            combination: option_group
            for combination in combinations
            if (option_group := self._open_option_group(combination)) is not None
        }
        if not open_groups:
            return False
        level = self._next_combinations(open_groups)
        requested = 0
        for combination in level:
            if not pods:
                break
            wanted = len(pods) if self._constraints.in_bulk else 1
            count = self._state.request_nodes(self._step, open_groups[combination], pods, wanted)
            self._record(combination, open_groups[combination].counting_groups, count)
            requested += count
        return requested > 0

    def _next_combinations(self, open_groups: Mapping[DomainCombination, OptionGroup]) -> Sequence[DomainCombination]:
        """Where the next pod goes; several combinations where each of them takes one."""
        order = self._state.domain_order
        if len(open_groups) == 1:
            return [*open_groups]
        prices = {combination: group.lowest_price for combination, group in open_groups.items()}
        differ = min(prices.values()) < max(prices.values())
        self._state.domain_prices_differ |= differ
        if order in (DomainOrder.LEAST_OCCUPIED, DomainOrder.BALANCED) or self._constraints.in_bulk:
            level = self._least_occupied(list(open_groups))
            # Equal ones stay in `combination_order`: `allowed_combinations` has it, and what is chosen of them keeps it.
            if differ or order is DomainOrder.BALANCED:
                level.sort(key=lambda each: (prices[each], self._requested_in(each)))
            return level if self._constraints.fills_level_at_once else level[:1]
        if order is DomainOrder.SCARCEST:
            level = self._least_occupied(list(open_groups))
            return [min(level, key=lambda each: (self._scarcity(each), prices[each], combination_order(each)))]
        by_price = order is DomainOrder.CHEAPEST
        return [min(open_groups, key=lambda each: self._order_of(each, prices[each], by_price=by_price))]

    def _order_of(
        self, combination: DomainCombination, price: float, *, by_price: bool
    ) -> tuple[float, float, tuple[int, ...], tuple[str, ...]]:
        new = float(not self._state.is_requested(self._step, combination))
        occupancy = self._topology.occupancy(self._constraints, combination)
        return (*((price, new) if by_price else (new, price)), occupancy, combination_order(combination))

    def _requested_in(self, combination: DomainCombination) -> int:
        return self._state.requested_in(self._step, combination)

    def _scarcity(self, combination: DomainCombination) -> int:
        """How many combinations have the values of this one: the fewer, the more do other pods depend on them."""
        return sum(self._combinations_by_value[position, value] for position, value in enumerate(combination))

    @cached_property
    def _combinations_by_value(self) -> Counter[tuple[int, str | None]]:
        sold = (each for each in self._combinations if self._domain_options.options_in(self._step, each))
        return Counter((position, value) for combination in sold for position, value in enumerate(combination))

    def _open_option_group(self, combination: DomainCombination) -> OptionGroup | None:
        """The first option group of a combination for which more nodes may be requested."""
        option_groups = self._option_groups.get(combination)
        if option_groups is None:
            option_groups = self._domain_options.option_groups_in(self._step, combination)
            self._option_groups[combination] = option_groups
        if self._is_unlimited:
            return option_groups[0] if option_groups else None
        for option_group in option_groups:
            if self._state.requestable_count(self._step, option_group):
                return option_group
        return None

    def best_for_affinity(
        self, pods: Sequence[Pod], combinations: Sequence[DomainCombination], nodes: ExistingNodeIndex
    ) -> list[DomainCombination]:
        """Where the first of pods that must be together goes: a combination that holds all, else the cheapest for a new node."""
        rooms = [(self._room_in(combination, pods, nodes), combination) for combination in combinations]
        holding = [combination for room, combination in rooms if room >= len(pods)]
        if holding:
            return holding[:1]
        launchable = [
            (option_group.lowest_price, combination)
            for combination in combinations
            if (option_group := self._open_option_group(combination)) is not None
        ]
        if launchable:
            return [
                min(
                    launchable,
                    key=lambda priced: (priced[0], self._requested_in(priced[1]), combination_order(priced[1])),
                )[1]
            ]
        return [max(rooms, key=lambda room: room[0])[1]] if rooms else []

    def _room_in(self, combination: DomainCombination, pods: Sequence[Pod], nodes: ExistingNodeIndex) -> int:
        """How many of the pods the existing nodes of a combination hold."""
        room = 0
        for node in nodes.nodes_in(self._domain_options.candidates_in(self._step, combination)):
            room += self._state.count_fitting(self._step, node, pods[room:])
            if room >= len(pods):
                break
        return room

    def _groups_counting_node(self, node: ExistingNode) -> CountingGroups:
        counted_by = self._constraints.counted_by
        if not node.view.launched:
            return counting_groups((group, node.counting_certainty(group.term.node_filter)) for group in counted_by)
        return CountingGroups(tuple(group for group in counted_by if node_counts(group.term.node_filter, node.view)))

    def _record(self, combination: DomainCombination, groups: CountingGroups, number: int) -> None:
        self._topology.record(self._constraints, combination, groups, number)


def allows_combination(
    combination: DomainCombination, open_to: Mapping[int, set[str | None]], closed: Mapping[int, set[str]]
) -> bool:
    """Whether every value of the combination is among the open and none among the closed domains."""
    if open_to and not all(combination[position] in domains for position, domains in open_to.items()):
        return False
    return not closed or not any(combination[position] in domains for position, domains in closed.items())
