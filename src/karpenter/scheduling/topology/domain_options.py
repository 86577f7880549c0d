"""Which domain combinations a pod group may use, and what can be launched in each.

A domain combination has one value for each topology key that concerns the group. `DomainOptions` lists the combinations that
existing nodes have or NodePools sell, and splits the launch options of a combination into option groups: within one group every
option has its pods counted by the same topology groups, so the counts do not depend on which NodePool wins the packing.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice, product
from math import prod

from karpenter.api.scheduling_constraints import Toleration
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.instancetypes.type_sets import TypeSet
from karpenter.model.requirements import Op, Requirement, Requirements, compatible
from karpenter.scheduling.equivalence_groups import GroupStep
from karpenter.scheduling.existing_nodes import UNDECIDED, ExistingNodeIndex, NodeSet
from karpenter.scheduling.offerings.launch_options import LaunchOption, LaunchOptionIndex, lowest_price
from karpenter.scheduling.offerings.nodepool_templates import NodePoolTemplate
from karpenter.scheduling.topology.topology import DomainCombination, DomainConstraints, combination_order
from karpenter.scheduling.topology.topology_domains import TopologyDomains
from karpenter.scheduling.topology.topology_groups import (
    CountingCertainty,
    CountingGroups,
    TopologyGroup,
    counting_certainty,
    counting_groups,
)
from karpenter.state.pod_signature import PodSignature

#: Up to this many combinations of existing values are considered without checking which of them are sold.
MAX_COMBINATIONS_OF_VALUES = 512
#: Of more combinations than this that are sold, so many are considered, evenly spread.
MAX_DOMAIN_COMBINATIONS = 10_000
#: What launch options depend on: the signature, its node constraints and tolerations, and the combination with its keys.
_OptionsKey = tuple[PodSignature, Requirements, tuple[Toleration, ...], tuple[str, ...], DomainCombination]


def option_certainty(option: LaunchOption, asked: Requirements) -> CountingCertainty:
    """Whether a node launched by this option meets the requirements, whichever of its types and offerings it gets."""
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


def _sold_combinations(option: LaunchOption, constraints: DomainConstraints) -> Iterator[DomainCombination]:
    """The combinations in which an option sells a node now: value by value, so that nothing unsold is followed further."""
    template, index = option.template, option.template.index

    def descend(prefix: DomainCombination, requirements: Requirements, types: TypeSet) -> Iterator[DomainCombination]:
        if len(prefix) == len(constraints.keys):
            yield prefix
            return
        key = constraints.keys[len(prefix)]
        values = template.label_values(key)
        if not values and key not in constraints.required_keys:
            yield from descend((*prefix, None), requirements, types)
        asked = requirements.requirement_for(key)
        for value in sorted(value for value in values if asked.allows(value)):
            pinned = requirements.intersect(Requirements((Requirement(key, False, frozenset((value,))),)))
            left = types & index.matching(pinned) & index.with_available_offering(pinned)
            if left:
                yield from descend((*prefix, value), pinned, left)

    return descend((), option.requirements, option.types)


def _deciding_requirements(topology_group: TopologyGroup, option: LaunchOption) -> Iterator[Requirement]:
    """What a topology group asks of the nodes it counts, as far as nodes of the option may have it or not."""
    node_filter = topology_group.term.node_filter
    for alternative in (node_filter.node_alternatives or ()) if node_filter is not None else ():
        for requirement in alternative.values():
            if option_certainty(option, Requirements((requirement,))) is CountingCertainty.POSSIBLE:
                yield requirement


def _deciding_pins(option: LaunchOption, asked: Requirement) -> tuple[Requirement, ...]:
    """Requirements each of which decides whether a node of the option has what is asked."""
    if asked.key in option.template.index.well_known:
        bounded = asked.gte is not None or asked.lte is not None
        return (asked,) if bounded else (asked, Requirement(asked.key, not asked.complement, asked.values))
    held = option.requirements.requirement_for(asked.key)
    # Of several values of a custom label a NodeClaim gets the first (SCH-622), so this pin costs nothing.
    return (Requirement(asked.key, False, frozenset((min(held.values),))),) if held.operator is Op.IN else (asked,)


@dataclass(frozen=True, eq=False)
class OptionGroup:
    """Launch options in one domain combination whose pods are counted by the same topology groups (``counting_groups``).

    ``number`` is its position among the option groups of the combination.
    """

    combination: DomainCombination
    options: tuple[LaunchOption, ...]
    counting_groups: CountingGroups = field(default_factory=CountingGroups)
    number: int = 0

    @cached_property
    def lowest_price(self) -> float:
        """USD per hour of the cheapest node among the options."""
        return lowest_price(self.options)


class DomainOptions:
    """The domain combinations of pod groups and their launch options. Answers are remembered for one pass."""

    def __init__(
        self, existing_nodes: ExistingNodeIndex, launch_options: LaunchOptionIndex, domains: TopologyDomains
    ) -> None:
        self._existing_nodes = existing_nodes
        self._launch_options = launch_options
        self._domains = domains
        self._combinations: dict[tuple[DomainConstraints, Requirements, NodeSet], tuple[DomainCombination, ...]] = {}
        self._options: dict[_OptionsKey, tuple[LaunchOption, ...]] = {}
        self._requirements: dict[tuple[tuple[str, ...], DomainCombination], Requirements] = {}
        self._option_groups: dict[
            tuple[tuple[TopologyGroup, ...], DomainCombination, tuple[LaunchOption, ...]], tuple[OptionGroup, ...]
        ] = {}
        self._known_groups: dict[
            tuple[DomainConstraints | None, Requirements, tuple[Toleration, ...], PodSignature],
            dict[DomainCombination, tuple[OptionGroup, ...]],
        ] = {}
        self._certainties: dict[tuple[TopologyGroup, NodePoolTemplate, Requirements], CountingCertainty] = {}
        self._counting: dict[tuple[tuple[TopologyGroup, ...], NodePoolTemplate, Requirements], CountingGroups] = {}

    def combinations(self, step: GroupStep, constraints: DomainConstraints) -> tuple[DomainCombination, ...]:
        """Combinations of existing nodes and of nodes that can be launched."""
        key = (constraints, step.relaxation_step.requirements, step.candidates)
        combinations = self._combinations.get(key)
        if combinations is None:
            combinations = self._combinations[key] = tuple(self._build_combinations(step, constraints))
        return combinations

    def _build_combinations(self, step: GroupStep, constraints: DomainConstraints) -> Iterable[DomainCombination]:
        """All combinations of the values there are; where these are many, only combinations that exist or are sold."""
        values_by_key = self._values_by_key(step, constraints)
        if len(values_by_key) == 1 or prod(map(len, values_by_key)) <= MAX_COMBINATIONS_OF_VALUES:
            return product(*values_by_key)
        existing = self._existing_combinations(step, constraints)
        options = self._launch_options.options(step.group.signature, step.relaxation_step)
        sold = {combination for option in options for combination in _sold_combinations(option, constraints)}
        combinations = sorted(existing | sold, key=combination_order)
        stride = max(1, -(-len(combinations) // MAX_DOMAIN_COMBINATIONS))
        return combinations[::stride]

    def possible_combinations(
        self, step: GroupStep, constraints: DomainConstraints, open_to: Mapping[int, Container[str | None]]
    ) -> Iterator[DomainCombination]:
        """Combinations of the values there are, sold together or not, within the open domains; the first few of many."""
        values = [
            [value for value in values if position not in open_to or value in open_to[position]]
            for position, values in enumerate(self._values_by_key(step, constraints))
        ]
        return islice(product(*values), MAX_COMBINATIONS_OF_VALUES)

    def _values_by_key(self, step: GroupStep, constraints: DomainConstraints) -> list[list[str | None]]:
        values_by_key: list[list[str | None]] = []
        for key in constraints.keys:
            asked = step.relaxation_step.requirements.requirement_for(key)
            by_value = self._existing_nodes.by_label_value(key)
            present = {value for value, nodes in by_value.items() if nodes & step.candidates}
            if self._domains.some_lack_label(key):
                present.add(None)
            if key in constraints.required_keys:
                present.discard(None)
            present = {value for value in present if value is None or asked.allows(value)} - {UNDECIDED}
            sold: set[str | None] = {value for value in self._domains.of_new_nodes(key) if asked.allows(value)}
            values_by_key.append(sorted(present | sold, key=lambda value: value or ""))
        return values_by_key

    def _existing_combinations(self, step: GroupStep, constraints: DomainConstraints) -> set[DomainCombination]:
        """The combinations of existing nodes that could take a pod of the group."""
        combinations = (
            constraints.combination_of(node.label_value) for node in self._existing_nodes.nodes_in(step.candidates)
        )
        return {combination for combination in combinations if combination is not None and UNDECIDED not in combination}

    def candidates_in(self, step: GroupStep, combination: DomainCombination) -> NodeSet:
        """Existing nodes of a combination that could take a pod of the group."""
        assert step.domain_constraints is not None
        candidates = step.candidates
        for key, value in zip(step.domain_constraints.keys, combination, strict=True):
            candidates &= self._existing_nodes.by_label_value(key).get(value, 0)
        return candidates

    def options_in(self, step: GroupStep, combination: DomainCombination) -> tuple[LaunchOption, ...]:
        """Launch options in a combination. Where a label is absent there, only NodePools that never set the label sell."""
        assert step.domain_constraints is not None
        keys = step.domain_constraints.keys
        key = (
            step.group.signature,
            step.relaxation_step.requirements,
            step.relaxation_step.tolerations,
            keys,
            combination,
        )
        options = self._options.get(key)
        if options is None:
            pinned = self._launch_options.restricted_to(
                step.relaxation_step, self._combination_requirements(step.domain_constraints, combination)
            )
            options = self._launch_options.options(step.group.signature, pinned)
            absent = [key for key, value in zip(keys, combination, strict=True) if value is None]
            if absent:
                options = tuple(
                    option for option in options if not any(option.template.label_values(key) for key in absent)
                )
            self._options[key] = options
        return options

    def _combination_requirements(self, constraints: DomainConstraints, combination: DomainCombination) -> Requirements:
        """The combination as requirements: one object for all groups, because answers are found by identity."""
        key = (constraints.keys, combination)
        requirements = self._requirements.get(key)
        if requirements is None:
            requirements = self._requirements[key] = constraints.as_requirements(combination)
        return requirements

    def known_groups(self, step: GroupStep) -> dict[DomainCombination, tuple[OptionGroup, ...]]:
        """The option groups by combination as far as they are known: one mapping for all groups that have the same.

        Those are groups with the same constraints by domain that ask the same of nodes and fit on the same types.
        """
        constraints, relaxation_step = step.domain_constraints, step.relaxation_step
        alike = self._launch_options.first_alike(step.group.signature)
        key = (constraints, relaxation_step.requirements, relaxation_step.tolerations, alike)
        known = self._known_groups.get(key)
        if known is None:
            known = self._known_groups[key] = {}
        return known

    def option_groups_in(self, step: GroupStep, combination: DomainCombination) -> tuple[OptionGroup, ...]:
        """The option groups of a combination, those of the heaviest NodePools first."""
        assert step.domain_constraints is not None
        options = self.options_in(step, combination)
        key = (step.domain_constraints.counted_by, combination, options)
        option_groups = self._option_groups.get(key)
        if option_groups is None:
            option_groups = self._option_groups[key] = self._group_options(
                step.group.signature, step.domain_constraints, combination, options
            )
        return option_groups

    def _group_options(
        self,
        signature: PodSignature,
        constraints: DomainConstraints,
        combination: DomainCombination,
        options: Iterable[LaunchOption],
    ) -> tuple[OptionGroup, ...]:
        by_counting: dict[CountingGroups, list[LaunchOption]] = {}
        for option in options:
            decided = self._without_doubt(signature, constraints, option)
            by_counting.setdefault(self._groups_counting(constraints, decided), []).append(decided)
        groups = enumerate(by_counting.items())
        return tuple(OptionGroup(combination, tuple(alike), counting, at) for at, (counting, alike) in groups)

    def _without_doubt(
        self, signature: PodSignature, constraints: DomainConstraints, option: LaunchOption
    ) -> LaunchOption:
        """The option, pinned to labels by which it is certain which topology groups count its pods, where labels decide that.

        A pod that may count or not would crowd its domain and yet fill none, which blocks the spread of others.
        """
        tried: set[str] = set()
        while True:
            possible = self._groups_counting(constraints, option).possible
            if not possible:
                return option
            asked = next(
                (r for group in possible for r in _deciding_requirements(group, option) if r.key not in tried), None
            )
            if asked is None:
                return option
            tried.add(asked.key)
            pinned = [self._pinned(signature, option, requirement) for requirement in _deciding_pins(option, asked)]
            option = min(filter(None, pinned), key=lambda each: each.lowest_price, default=option)

    def _pinned(self, signature: PodSignature, option: LaunchOption, requirement: Requirement) -> LaunchOption | None:
        step = self._launch_options.restricted_to(option.relaxation_step, Requirements((requirement,)))
        options = self._launch_options.options(signature, step)
        return next((each for each in options if each.channel == option.channel), None)

    def _groups_counting(self, constraints: DomainConstraints, option: LaunchOption) -> CountingGroups:
        """The topology groups that will count pods on a node launched by the option."""
        key = (constraints.counted_by, option.template, option.pod_requirements)
        groups_counting = self._counting.get(key)
        if groups_counting is None:
            groups_counting = self._counting[key] = counting_groups(
                (group, self._counting_certainty(group, option)) for group in constraints.counted_by
            )
        return groups_counting

    def _counting_certainty(self, topology_group: TopologyGroup, option: LaunchOption) -> CountingCertainty:
        key = (topology_group, option.template, option.pod_requirements)
        certainty = self._certainties.get(key)
        if certainty is None:
            template, meets = option.template, partial(option_certainty, option)
            certainty = counting_certainty(
                topology_group.term.node_filter, template.taints, template.label_values, meets
            )
            self._certainties[key] = certainty
        return certainty

    def reachable_domains(self, constraints: DomainConstraints, key: str) -> set[str | None]:
        """Values that a label may have on a new node for the group."""
        may_lack = key not in constraints.required_keys and self._domains.some_lack_label(key)
        return {*self._domains.of_new_nodes(key), *((None,) if may_lack else ())}
