"""Which domains pods may go to: counts per domain, and the arithmetic on them (SCH §20).

Domains here are those wider than a host: zones, capacity types, racks. A pass places every pod that such a constraint concerns
into one `DomainCombination`, a value for each of its keys, and counts it in `Topology` at once. So no domain stays open that
later pods would have to guess (SCH-525 counts such pods everywhere or nowhere).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from karpenter.model.requirements import Requirement, Requirements
from karpenter.scheduling.failed_filters import DomainCounts
from karpenter.scheduling.topology.topology_domains import TopologyDomains
from karpenter.scheduling.topology.topology_groups import CountingGroups, TopologyGroup, TopologyMembership
from karpenter.state.topology_terms import TopologyTerm, TopologyType

#: A value for each key that matters to a group, in the order of its keys; None: the node lacks the label.
DomainCombination = tuple[str | None, ...]

_MAX_DOMAINS_SHOWN = 25


@dataclass(frozen=True, eq=False)
class DomainConstraints:
    """What one group asks of domains while some of its terms are active: per key, in the order of ``keys``.

    ``hard_requirements`` is what the pods require of nodes (strict in SCH-520). ``declared`` are the group's own topology groups,
    each with whether it selects the group's own pods; ``repelled_by`` are anti-affinities of others that select it.
    ``others_spread``: required spreads of others that select it. Where a pod that spreads so is planned, the group keeps within
    its skew: the order of binding is unknown, and kube-scheduler counts pods nominated to a node before they are bound.
    """

    keys: tuple[str, ...]
    hard_requirements: Requirements
    declared: tuple[tuple[TopologyGroup, bool], ...]
    repelled_by: tuple[TopologyGroup, ...]
    counted_by: tuple[TopologyGroup, ...]
    owned_anti_affinity: tuple[TopologyGroup, ...]
    others_spread: tuple[TopologyGroup, ...] = ()

    @cached_property
    def key_positions(self) -> Mapping[str, int]:
        """Where in a combination a key's value is."""
        return {key: position for position, key in enumerate(self.keys)}

    @cached_property
    def required_keys(self) -> frozenset[str]:
        """Keys of which a node must have the label. Anti-affinity requires none: a node without the label is in no domain."""
        anti_affinity = TopologyType.ANTI_AFFINITY
        return frozenset(
            constraint.topology_key
            for constraint, _ in self.declared
            if constraint.term.topology_type is not anti_affinity
        )

    @cached_property
    def affinity(self) -> tuple[TopologyGroup, ...]:
        """Affinity the group states."""
        return tuple(c for c, _ in self.declared if c.term.topology_type is TopologyType.AFFINITY)

    @cached_property
    def spreads(self) -> tuple[tuple[TopologyGroup, int], ...]:
        """The spreads that concern the group, each with the position of its key: its own, then those of others."""
        own = [c for c, _ in self.declared if c.term.topology_type is TopologyType.SPREAD]
        others = [c for c in self.counted_by if c.term.topology_type is TopologyType.SPREAD and c not in own]
        return tuple((c, self.key_positions[c.topology_key]) for c in (*own, *others))

    @cached_property
    def in_bulk(self) -> bool:
        """Whether any number of the pods may go to a combination that one of them may go to."""
        relations = {c.term.topology_type for c, _ in self.declared} - {TopologyType.AFFINITY}
        return not relations and not any(c.term.topology_type is TopologyType.SPREAD for c in self.counted_by)

    @cached_property
    def fills_level_at_once(self) -> bool:
        """Whether a pod in one combination leaves equally occupied ones open, so that all of these take a pod at once."""
        spreading = [itself for c, itself in self.declared if c.term.topology_type is TopologyType.SPREAD]
        return len(self.keys) == 1 and len(spreading) == len(self.declared) > 0 and all(spreading)

    @cached_property
    def closing(self) -> tuple[tuple[TopologyGroup, int, bool], ...]:
        """What may close domains to the group, each with the position of its key and whether it is a spread."""
        spread = TopologyType.SPREAD
        closing = (*self.repelled_by, *self.others_spread)
        return tuple((c, self.key_positions[c.topology_key], c.term.topology_type is spread) for c in closing)

    @cached_property
    def is_unconstrained(self) -> bool:
        """Whether no constraint ever closes a combination to the group."""
        return not self.declared and not self.repelled_by and not self.others_spread

    @cached_property
    def owned(self) -> tuple[TopologyGroup, ...]:
        """What its pods restrict for others: anti-affinity and spread that they require."""
        required = (c for c, _ in self.declared if c.required and c.term.topology_type is TopologyType.SPREAD)
        return (*self.owned_anti_affinity, *required)

    def combination_of(self, label_value: Callable[[str], str | None]) -> DomainCombination | None:
        """The combination of a node with these labels; None where it lacks a required one."""
        combination = tuple(label_value(key) for key in self.keys)
        values = zip(self.keys, combination, strict=True)
        return None if any(value is None and key in self.required_keys for key, value in values) else combination

    def as_requirements(self, combination: DomainCombination) -> Requirements:
        """The combination as requirements. Labels that a node must lack are checked where a node is chosen."""
        values = ((key, value) for key, value in zip(self.keys, combination, strict=True) if value is not None)
        return Requirements(Requirement(key, False, frozenset((value,))) for key, value in values)


def domain_constraints_of(
    membership: TopologyMembership, hard_requirements: Requirements, active: Iterable[TopologyTerm]
) -> DomainConstraints | None:
    """What a group asks of domains, None where no constraint wider than a host has to do with it."""
    declared = tuple(
        (membership.declared[term], membership.selects_itself(membership.declared[term]))
        for term in active
        if not term.is_hostname
    )
    own = {constraint for constraint, _ in declared}
    counted_by = tuple(c for c in membership.selected_by if not c.is_hostname and (c.required or c in own))
    if not declared and not counted_by:
        return None
    return DomainConstraints(
        keys=tuple(sorted({c.topology_key for c in counted_by} | {c.topology_key for c in own})),
        hard_requirements=hard_requirements,
        declared=declared,
        repelled_by=tuple(c for c in counted_by if c.required and c.term.topology_type is TopologyType.ANTI_AFFINITY),
        counted_by=counted_by,
        owned_anti_affinity=tuple(c for c in membership.inverse_anti_affinity if not c.is_hostname),
        others_spread=tuple(
            c for c in counted_by if c.required and c.term.topology_type is TopologyType.SPREAD and c not in own
        ),
    )


class Topology:
    """Pod counts by domain: bound pods and those placed so far in this pass."""

    def __init__(self, domains: TopologyDomains) -> None:
        self._domains = domains
        self._pod_counts: dict[TopologyGroup, dict[str, int]] = {}
        self._owner_counts: dict[TopologyGroup, dict[str, int]] = {}
        self._planned: dict[TopologyGroup, int] = {}
        #: By domain, how many of the pods planned may turn out not to count: they crowd it, but make no other seem emptier.
        self._uncertain_counts: dict[TopologyGroup, dict[str, int]] = {}
        #: Of those planned, how many are on nodes without the label.
        self._planned_without_label: dict[TopologyGroup, int] = {}
        self._possible_cache: dict[tuple[TopologyGroup, DomainConstraints], tuple[str, ...]] = {}
        self._counted: dict[TopologyGroup, frozenset[str]] = {}
        #: Grows with every pod written down: as long as it stands still, asking again is in vain.
        self.version = 0

    def pod_counts(self, constraint: TopologyGroup) -> dict[str, int]:
        """Pods the constraint means, by domain."""
        pod_count = self._pod_counts.get(constraint)
        if pod_count is None:
            pod_count = self._pod_counts[constraint] = dict(constraint.pod_counts)
        return pod_count

    def owner_counts(self, constraint: TopologyGroup) -> dict[str, int]:
        """Pods that repel by the constraint, by domain."""
        owner_count = self._owner_counts.get(constraint)
        if owner_count is None:
            owner_count = self._owner_counts[constraint] = dict(constraint.owner_counts)
        return owner_count

    def is_satisfied(self, constraint: TopologyGroup) -> bool:
        """Whether any pod it means is in some domain, bound or planned."""
        return bool(constraint.pod_counts) or self.planned_count(constraint) > self._planned_without_label.get(
            constraint, 0
        )

    def planned_count(self, constraint: TopologyGroup) -> int:
        """How many of the pods it means are planned by now."""
        return self._planned.get(constraint, 0)

    def count_planned(self, membership: TopologyMembership, number: int) -> None:
        """So many pods of a group have been planned somewhere."""
        self.version += 1
        for constraint in membership.selected_by:
            self._planned[constraint] = self._planned.get(constraint, 0) + number

    def record(
        self,
        constraints: DomainConstraints,
        combination: DomainCombination,
        counting_groups: CountingGroups,
        number: int,
    ) -> None:
        """So many pods of a group go to a combination, where these of its constraints count them (SCH-525)."""
        for constraint in counting_groups.possible:
            self._add_to_domain(
                self._uncertain_counts.setdefault(constraint, {}),
                combination[constraints.key_positions[constraint.topology_key]],
                number,
            )
        for constraint in (*counting_groups.certain, *counting_groups.possible):
            domain = combination[constraints.key_positions[constraint.topology_key]]
            self._add_to_domain(self.pod_counts(constraint), domain, number)
            if domain is None:
                self._planned_without_label[constraint] = self._planned_without_label.get(constraint, 0) + number
        for constraint in constraints.owned:
            self._add_to_domain(
                self.owner_counts(constraint), combination[constraints.key_positions[constraint.topology_key]], number
            )

    @staticmethod
    def _add_to_domain(numbers: dict[str, int], domain: str | None, number: int) -> None:
        if domain is not None:
            numbers[domain] = numbers.get(domain, 0) + number

    # -- where a group may go -------------------------------------------------------------------------------------------

    def closed_domains(self, constraints: DomainConstraints) -> dict[int, set[str]]:
        """Per key's place in a combination, the domains that anti-affinity or spread of others closes to the group."""
        domains_by_position: dict[int, set[str]] = {}
        for constraint, position, is_spread in constraints.closing:
            owners = self.owner_counts(constraint)
            closed = {domain for domain in owners if owners[domain]} if owners else None
            if closed and is_spread:
                most, counts = self._most_in_domain(constraint), self.pod_counts(constraint)
                closed = {domain for domain in closed if counts.get(domain, 0) >= most}
            if closed:
                domains_by_position.setdefault(position, set()).update(closed)
        return domains_by_position

    def open_domains(self, constraints: DomainConstraints) -> dict[int, set[str | None]]:
        """Per key's place in a combination, the domains the group's own constraints leave for its next pod."""
        domains_by_position: dict[int, set[str | None]] = {}
        affinity = constraints.affinity
        starts_affinity = not affinity or not any(self.is_satisfied(c) for c in affinity)
        for constraint, itself in constraints.declared:
            position = constraints.key_positions[constraint.topology_key]
            valid = self._valid_domains(
                constraint, itself and (starts_affinity or constraint not in affinity), constraints
            )
            domains_by_position[position] = (
                domains_by_position[position] & valid if position in domains_by_position else valid
            )
        return domains_by_position

    def _valid_domains(
        self, constraint: TopologyGroup, itself: bool, constraints: DomainConstraints
    ) -> set[str | None]:
        match constraint.term.topology_type:
            case TopologyType.SPREAD:
                return self._spread_domains(constraint, itself, constraints)
            case TopologyType.AFFINITY:
                return self._affinity_domains(
                    constraint, itself, constraints.hard_requirements.requirement_for(constraint.topology_key)
                )
            case TopologyType.ANTI_AFFINITY:
                return self._anti_affinity_domains(
                    constraint, constraints.hard_requirements.requirement_for(constraint.topology_key)
                )

    def _spread_domains(
        self, constraint: TopologyGroup, itself: bool, constraints: DomainConstraints
    ) -> set[str | None]:
        """SCH-547, SCH-548: where one more keeps within the skew."""
        counts, most = self.pod_counts(constraint), self._most_in_domain(constraint) - itself
        return {domain for domain in self._possible_domains(constraint, constraints) if counts.get(domain, 0) <= most}

    def _most_in_domain(self, constraint: TopologyGroup) -> int:
        """How many pods a spread allows in one domain while the others are as they are: max skew above the emptiest."""
        counted = self._counted.get(constraint)
        if counted is None:
            counted = self._counted[constraint] = self._domains.counted_domains(constraint.term)
        term = constraint.term
        if not counted or term.min_domains > len(counted):
            return term.max_skew
        counts, uncertain = self.pod_counts(constraint), self._uncertain_counts.get(constraint)
        if uncertain:
            return term.max_skew + min(counts.get(domain, 0) - uncertain.get(domain, 0) for domain in counted)
        return term.max_skew + min([counts.get(domain, 0) for domain in counted])

    def _possible_domains(self, constraint: TopologyGroup, constraints: DomainConstraints) -> tuple[str, ...]:
        """Of the domains that a spread counts those that the group's pods may be in."""
        possible_domains = self._possible_cache.get((constraint, constraints))
        if possible_domains is None:
            firm = constraints.hard_requirements.requirement_for(constraint.topology_key)
            allowed = (domain for domain in self._domains.counted_domains(constraint.term) if firm.allows(domain))
            possible_domains = self._possible_cache[constraint, constraints] = tuple(allowed)
        return possible_domains

    def _affinity_domains(self, constraint: TopologyGroup, starts_affinity: bool, firm: Requirement) -> set[str | None]:
        """SCH-556: where such pods are; for the first of its own kind, if none is in any domain of its terms, anywhere."""
        numbers = self.pod_counts(constraint)
        affinity_domains: set[str | None] = {
            domain for domain, number in numbers.items() if number and firm.allows(domain)
        }
        if affinity_domains or not starts_affinity:
            return affinity_domains
        return {
            d
            for d in self._domains.of_new_nodes(constraint.topology_key) | self._existing_domains(constraint)
            if firm.allows(d)
        }

    def _anti_affinity_domains(self, constraint: TopologyGroup, firm: Requirement) -> set[str | None]:
        """SCH-561: where no such pod is, or no domain at all."""
        numbers = self.pod_counts(constraint)
        everywhere = self._domains.of_new_nodes(constraint.topology_key) | self._existing_domains(constraint)
        return {None, *(domain for domain in everywhere if not numbers.get(domain, 0) and firm.allows(domain))}

    def _existing_domains(self, constraint: TopologyGroup) -> frozenset[str]:
        return self._domains.counted_domains(
            TopologyTerm(TopologyType.AFFINITY, constraint.topology_key, constraint.term.pod_selector)
        )

    def occupancy(self, constraints: DomainConstraints, combination: DomainCombination) -> tuple[int, ...]:
        """How many pods that the group spreads against are in a combination; its own constraints count before others'."""
        return self.occupancies(constraints, (combination,))[0]

    def occupancies(
        self, constraints: DomainConstraints, combinations: Iterable[DomainCombination]
    ) -> list[tuple[int, ...]]:
        """The same of several combinations."""
        counts = [(self.pod_counts(constraint), place) for constraint, place in constraints.spreads]
        return [
            tuple([_domain_count(numbers, combination[place]) for numbers, place in counts])
            for combination in combinations
        ]

    def known_domains(self, constraint: TopologyGroup) -> DomainCounts:
        """What users read of a constraint that leaves no domain (SCH-523)."""
        counts = self.pod_counts(constraint) if not constraint.is_hostname else dict(constraint.pod_counts)
        counted = self._domains.counted_domains(constraint.term) if not constraint.is_hostname else ()
        domains = sorted({*counts, *counted})
        shown = tuple((domain, counts.get(domain, 0)) for domain in domains[:_MAX_DOMAINS_SHOWN])
        of_new_nodes = self._domains.of_new_nodes(constraint.topology_key)
        node_domains = Requirement(constraint.topology_key, not of_new_nodes, of_new_nodes)
        return DomainCounts(shown, max(0, len(domains) - _MAX_DOMAINS_SHOWN), node_domains)


def _domain_count(numbers: Mapping[str, int], domain: str | None) -> int:
    """Pods in a domain; where there is none, as many as in the emptiest, so that it is no better and no worse."""
    return numbers.get(domain, 0) if domain is not None else min(numbers.values(), default=0)


class UnmetAffinity:
    """The affinity constraints that no pod satisfies yet, so that the first pod that selects itself may be placed (SCH-555)."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology

    def __contains__(self, constraint: object) -> bool:
        return isinstance(constraint, TopologyGroup) and not self._topology.is_satisfied(constraint)


def combination_order(combination: DomainCombination) -> tuple[str, ...]:
    """Sort key of combinations: absent values come first."""
    return tuple(value or "" for value in combination)
