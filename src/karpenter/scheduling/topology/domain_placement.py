"""Placing the pods of one group pod by pod into domain combinations, the least occupied first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from karpenter.api.core import Pod
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.instancetypes.type_sets import TypeSet
from karpenter.model.requirements import Requirement, Requirements, compatible
from karpenter.scheduling.equivalence_groups import GroupStep
from karpenter.scheduling.existing_nodes import ExistingNode
from karpenter.scheduling.offerings.purchase_options import PurchaseOption
from karpenter.scheduling.topology.bound_pod_counts import node_counts
from karpenter.scheduling.topology.topology import DomainCombination, DomainConstraints, combination_order
from karpenter.scheduling.topology.topology_groups import CountingCertainty, CountingGroups, counting_groups

if TYPE_CHECKING:
    from karpenter.scheduling.scheduling_pass import SchedulingPass


def option_certainty(option: PurchaseOption, asked: Requirements) -> CountingCertainty:
    """Whether a machine bought so will be what somebody else asks of nodes, whichever of its types and offerings it is."""
    offered, index = option.requirements, option.template.index
    types = option.template.types & index.matching(offered)
    within = offered.intersect(asked)
    if not compatible(offered, asked, index.well_known) or not types & index.matching(
        within
    ) & index.with_available_offering(within):
        return CountingCertainty.NEVER
    return (
        CountingCertainty.CERTAIN
        if all(_option_implies(offered, requirement, index, types) for requirement in asked.values())
        else CountingCertainty.POSSIBLE
    )


def _option_implies(offered: Requirements, asked: Requirement, index: TypeIndex, types: TypeSet) -> bool:
    held = offered.requirement_for(asked.key)
    if asked.key not in index.well_known:
        return held.is_subset_of(asked) if asked.key in offered else asked.accepts_absent
    if not types & ~index.implying(held, asked):
        return True
    if asked.gte is not None or asked.lte is not None:
        return False
    otherwise = offered.intersect(Requirements((Requirement(asked.key, not asked.complement, asked.values),)))
    return not types & index.matching(otherwise) & index.with_available_offering(otherwise)


@dataclass(frozen=True, eq=False)
class OptionGroup:
    """Ways to buy in a cell that come to the same for everybody else: ``counting`` says which constraints will count the pods.

    What they count must not hang on which pool a machine is bought from in the end. ``number``: its place among the cell's shops.
    """

    combination: DomainCombination
    options: tuple[PurchaseOption, ...]
    counting_groups: CountingGroups = field(default_factory=CountingGroups)
    number: int = 0


class DomainNodes:
    """Machines of one cell with the pods that may go to each, asked as they are needed."""

    def __init__(
        self, scheduling_pass: SchedulingPass, step: GroupStep, offered: Iterable[tuple[ExistingNode, list[Pod]]]
    ) -> None:
        self._scheduling_pass = scheduling_pass
        self._step = step
        self._candidates = iter(offered)
        self._current: tuple[ExistingNode, list[Pod]] | None = None

    def next_node(self) -> tuple[ExistingNode, list[Pod], int] | None:
        """The first machine with room, the pods that may go there and how many of them fit; None when there is none any more."""
        while True:
            if self._current is None:
                self._current = next(self._candidates, None)
                if self._current is None:
                    return None
            machine, pods = self._current
            room = self._scheduling_pass.count_fitting(self._step, machine, pods) if pods else 0
            if room:
                return machine, pods, room
            self._current = None


class DomainPlacement:
    """A kin's cells while its pods are sent there, one after another."""

    def __init__(
        self,
        scheduling_pass: SchedulingPass,
        step: GroupStep,
        constraints: DomainConstraints,
        combinations: tuple[DomainCombination, ...],
        sources: dict[DomainCombination, DomainNodes],
    ) -> None:
        self._scheduling_pass = scheduling_pass
        self._topology = scheduling_pass.topology
        self._step = step
        self._constraints = constraints
        self._combinations = combinations
        self._option_groups: dict[DomainCombination, tuple[OptionGroup, ...]] = {}
        #: Where machines may still have room.
        self._nodes_by_combination = sources

    def allowed_combinations(self) -> Sequence[DomainCombination]:
        """Cells the next pod may go to."""
        if self._constraints.is_unconstrained:
            return self._combinations
        open_to, closed = (
            self._topology.open_domains(self._constraints),
            self._topology.closed_domains(self._constraints),
        )
        return [cell for cell in self._combinations if allows_combination(cell, open_to, closed)]

    def place_next(self, combinations: Sequence[DomainCombination]) -> bool:
        """Plan the next pod on a machine of the least crowded cell that has one; False where none has."""
        offers = self._nodes_with_room(combinations) if self._nodes_by_combination else {}
        if not offers:
            return False
        level = self._least_occupied(list(offers))
        for cell in (
            sorted(level, key=combination_order)
            if self._constraints.fills_level_at_once
            else [min(level, key=combination_order)]
        ):
            machine, pods, room = offers[cell]
            if not pods:
                continue
            count = room if self._constraints.in_bulk else 1
            self._scheduling_pass.place_on_node(self._step, machine, pods, count)
            self._record(cell, self._groups_counting_node(machine), count)
        return True

    def _nodes_with_room(
        self, combinations: Iterable[DomainCombination]
    ) -> dict[DomainCombination, tuple[ExistingNode, list[Pod], int]]:
        """The next machine with room of every cell that has one."""
        nodes: dict[DomainCombination, tuple[ExistingNode, list[Pod], int]] = {}
        for cell in combinations:
            offer = self._nodes_by_combination[cell].next_node() if cell in self._nodes_by_combination else None
            if offer is not None:
                nodes[cell] = offer
            else:
                self._nodes_by_combination.pop(cell, None)
        return nodes

    def _least_occupied(self, combinations: Sequence[DomainCombination]) -> list[DomainCombination]:
        """The least crowded of the cells."""
        if len(combinations) == 1:
            return [*combinations]
        crowding = [self._occupancy(cell) for cell in combinations]
        least = min(crowding)
        return [cell for cell, crowded in zip(combinations, crowding, strict=True) if crowded == least]

    def request_next(self, combinations: Sequence[DomainCombination], pods: list[Pod]) -> bool:
        """Ask for new machines for the next pods in the least crowded, then cheapest cell; False where none can be had."""
        settling, step = self._scheduling_pass, self._step
        shops = {cell: shop for cell in combinations if (shop := self._open_option_group(cell)) is not None}
        if not shops:
            return False
        level = self._least_occupied(list(shops))
        if len(level) > 1:
            price = settling.purchase_options.lowest_price
            level.sort(key=lambda cell: (price(shops[cell].options), combination_order(cell)))
        asked = 0
        for cell in level if self._constraints.fills_level_at_once else level[:1]:
            if not pods:
                break
            count = settling.request_nodes(step, shops[cell], pods, len(pods) if self._constraints.in_bulk else 1)
            self._record(cell, shops[cell].counting_groups, count)
            asked += count
        return asked > 0

    def _open_option_group(self, combination: DomainCombination) -> OptionGroup | None:
        """The first shop of a cell where more may be asked for."""
        option_groups = self._option_groups.get(combination)
        if option_groups is None:
            option_groups = self._option_groups[combination] = self._scheduling_pass.option_groups_in(
                self._step, combination
            )
        return next((shop for shop in option_groups if self._scheduling_pass.requestable_count(self._step, shop)), None)

    def best_for_affinity(
        self, pods: Sequence[Pod], combinations: Sequence[DomainCombination]
    ) -> list[DomainCombination]:
        """Where the first of pods that must stay together should go: one cell that holds them all, or the cheapest to buy in."""
        settling, step = self._scheduling_pass, self._step
        roomy = [(settling.capacity_in(step, cell, pods), cell) for cell in combinations]
        holding = [cell for room, cell in roomy if room >= len(pods)]
        if holding:
            return holding[:1]
        buyable = [
            (settling.purchase_options.lowest_price(shop.options), cell)
            for cell in combinations
            if (shop := self._open_option_group(cell)) is not None
        ]
        if buyable:
            return [min(buyable, key=lambda item: (item[0], combination_order(item[1])))[1]]
        return [max(roomy, key=lambda item: item[0])[1]] if roomy else []

    def _occupancy(self, combination: DomainCombination) -> tuple[int, ...]:
        return self._topology.occupancy(self._constraints, combination)

    def _groups_counting_node(self, node: ExistingNode) -> CountingGroups:
        view = node.view
        if not view.launched:
            return counting_groups(
                (c, node.counting_certainty(c.term.node_filter)) for c in self._constraints.counted_by
            )
        return CountingGroups(tuple(c for c in self._constraints.counted_by if node_counts(c.term.node_filter, view)))

    def _record(self, combination: DomainCombination, counting_groups: CountingGroups, number: int) -> None:
        self._topology.record(self._constraints, combination, counting_groups, number)


def allows_combination(
    combination: DomainCombination, open_to: Mapping[int, set[str | None]], closed: Mapping[int, set[str]]
) -> bool:
    """Whether every value of the cell is among the open and none among the closed ones."""
    return all(combination[place] in domains for place, domains in open_to.items()) and not any(
        combination[place] in domains for place, domains in closed.items()
    )
