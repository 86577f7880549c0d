"""Which domains pods may go to: counts per domain, and the arithmetic on them (SCH §20).

Domains here are those wider than a host: zones, capacity types, racks. A decision sends every pod that has to do with such a
constraint to one `Cell`, a value for each of its keys, and writes it into the `Ledger` at once. So nobody is planned into an open
choice that others would have to guess (SCH-525 counts such pods everywhere or nowhere).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from karpenter.catalog.index import TypeIndex, TypeSet
from karpenter.cluster.terms import NodeFilter, Relation, Term
from karpenter.decide.provision.company import Company, Constraint, Counting, Scene, tolerated
from karpenter.decide.provision.existing import OPEN, Field
from karpenter.decide.provision.templates import Template
from karpenter.model import labels
from karpenter.model.requirements import Op, Requirement, Requirements, compatible

#: A value for each key that matters to a kin, in the order of its keys; None: the node lacks the label.
Cell = tuple[str | None, ...]

_SHOWN_DOMAINS = 25


class Domains:
    """The domains there are, or could be bought (SCH §19.2)."""

    def __init__(self, scene: Scene, templates: Sequence[Template], field: Field) -> None:
        self._scene = scene
        self._field = field
        self._templates = templates
        self._known: dict[Term, frozenset[str]] = {}
        self._there: dict[tuple[str, NodeFilter | None], frozenset[str]] = {}
        self._to_come: dict[tuple[str, NodeFilter], frozenset[str]] = {}
        self._sold: dict[str, frozenset[str]] = {}
        self._sales: dict[int, dict[Requirements, TypeSet]] = {}
        self._lacking: dict[str, bool] = {}

    def known(self, term: Term) -> frozenset[str]:
        """The domains of nodes that a constraint counts, and of machines of that kind that pools could have (SCH-490 to SCH-492).

        As in kube-scheduler the constraint's own policies decide, not what its pods insist on besides (unlike SCH-547).
        """
        known = self._known.get(term)
        if known is None:
            known = self._known[term] = self._on_nodes(term) | self._coming(term)
        return known

    def _on_nodes(self, term: Term) -> frozenset[str]:
        place = (term.key, term.counted)
        known = self._there.get(place)
        if known is None:
            known = self._scene.values(term.key, term.counted)
            known = self._there[place] = known.union(self._on_their_way(term, known))
        return known

    def _on_their_way(self, term: Term, known: frozenset[str]) -> Iterator[str]:
        """Further domains of machines to be launched: their claims leave the label open, but their types have one value only."""
        for value, having in self._field.values(term.key).items():
            if value is not None and value != OPEN and value not in known:
                coming = (machine for machine in self._field.among(having) if not machine.view.launched)
                if any(machine.chance_to_count(term.counted) for machine in coming):
                    yield value

    def _coming(self, term: Term) -> frozenset[str]:
        if term.counted is None:
            return self.sold(term.key)
        place = (term.key, term.counted)
        known = self._to_come.get(place)
        if known is None:
            found = (self._offered(template, term.key, term.counted) for template in self._templates)
            known = self._to_come[place] = frozenset().union(*found)
        return known

    def _offered(self, template: Template, key: str, counted: NodeFilter) -> frozenset[str]:
        """The domains in which a pool could have machines that a constraint counts."""
        if not tolerated(counted, template.taints):
            return frozenset()
        if not all(key == labels.HOSTNAME or template.values(key) for key in counted.keys):
            return frozenset()
        if counted.alternatives is None:
            return template.values(key)
        return frozenset().union(*(self._offered_to(template, key, asked) for asked in counted.alternatives))

    def _offered_to(self, template: Template, key: str, asked: Requirements) -> frozenset[str]:
        """The domains in which a pool could have machines for pods that ask so, sold out or not."""
        index = template.index
        if not compatible(template.requirements, asked, index.well_known):
            return frozenset()
        requirements = template.requirements.intersect(asked)
        types = template.types & index.matching(requirements) & index.matching(asked)
        sales = [form for form, on in self._sales_of(index).items() if on & types and key in form]
        if sales:
            forms = [form.of(key).values for form in sales if compatible(requirements, form, index.well_known)]
            return frozenset().union(*forms)
        own = requirements.of(key)
        found = index.values(key, types) or (own.values if types and own.operator is Op.IN else ())
        return frozenset(value for value in found if own.allows(value))

    def _sales_of(self, index: TypeIndex) -> Mapping[Requirements, TypeSet]:
        """The ways machines are sold, each with the types sold so."""
        known = self._sales.get(id(index))
        if known is None:
            known = self._sales[id(index)] = {}
            for position, item in enumerate(index.types):
                for offering in item.offerings:
                    known[offering.requirements] = known.get(offering.requirements, 0) | 1 << position
        return known

    def sold(self, key: str) -> frozenset[str]:
        """The domains in which some pool could have a machine."""
        known = self._sold.get(key)
        if known is None:
            known = self._sold[key] = frozenset().union(*(template.values(key) for template in self._templates))
        return known

    def some_lack(self, key: str) -> bool:
        """Whether some pool has machines without the label."""
        known = self._lacking.get(key)
        if known is None:
            known = self._lacking[key] = any(not template.values(key) for template in self._templates)
        return known


@dataclass(frozen=True, eq=False)
class Asking:
    """What one kin asks of domains while some of its terms are active: per key, in the order of ``keys``.

    ``firm`` is what the pods insist on of nodes (strict in SCH-520); ``stated`` come with whether they mean the kin's own
    pods; ``repelled_by`` are the anti-affinities of others that mean it.
    """

    keys: tuple[str, ...]
    firm: Requirements
    stated: tuple[tuple[Constraint, bool], ...]
    repelled_by: tuple[Constraint, ...]
    met: tuple[Constraint, ...]
    owned: tuple[Constraint, ...]

    @cached_property
    def place(self) -> Mapping[str, int]:
        """Where in a cell a key's value is."""
        return {key: position for position, key in enumerate(self.keys)}

    @cached_property
    def required_keys(self) -> frozenset[str]:
        """Keys of which a node must have the label: where there is no domain, there is nobody to keep away from."""
        apart = Relation.ANTI_AFFINITY
        return frozenset(constraint.key for constraint, _ in self.stated if constraint.term.relation is not apart)

    @cached_property
    def affinity(self) -> tuple[Constraint, ...]:
        """Affinity the kin states."""
        return tuple(c for c, _ in self.stated if c.term.relation is Relation.AFFINITY)

    @cached_property
    def spreads(self) -> tuple[tuple[Constraint, int], ...]:
        """Whom the kin should keep even with, each with its key's place: its own constraints, then those of others."""
        own = [c for c, _ in self.stated if c.term.relation is Relation.SPREAD]
        others = [c for c in self.met if c.term.relation is Relation.SPREAD and c not in own]
        return tuple((c, self.place[c.key]) for c in (*own, *others))

    @cached_property
    def in_bulk(self) -> bool:
        """Whether any number of the pods may go to a cell that one of them may go to."""
        relations = {c.term.relation for c, _ in self.stated} - {Relation.AFFINITY}
        return not relations and not any(c.term.relation is Relation.SPREAD for c in self.met)

    @cached_property
    def by_level(self) -> bool:
        """Whether one pod in a cell leaves the other cells that are just as crowded open: they can be served at one go."""
        spreading = [itself for c, itself in self.stated if c.term.relation is Relation.SPREAD]
        return len(self.keys) == 1 and len(spreading) == len(self.stated) > 0 and all(spreading)

    @cached_property
    def is_free(self) -> bool:
        """Whether no constraint ever closes a cell to the kin."""
        return not self.stated and not self.repelled_by

    def pins(self, cell: Cell) -> Requirements:
        """The cell as requirements. What a node must lack is left to whoever chooses among nodes."""
        given = ((key, value) for key, value in zip(self.keys, cell, strict=True) if value is not None)
        return Requirements(Requirement(key, False, frozenset((value,))) for key, value in given)


def asking_of(company: Company, firm: Requirements, active: Iterable[Term]) -> Asking | None:
    """What a kin asks of domains, None where no constraint wider than a host has to do with it."""
    stated = tuple(
        (company.stated[term], company.means_itself(company.stated[term])) for term in active if not term.by_host
    )
    own = {constraint for constraint, _ in stated}
    met = tuple(c for c in company.meant_by if not c.by_host and (c.required or c in own))
    if not stated and not met:
        return None
    return Asking(
        keys=tuple(sorted({c.key for c in met} | {c.key for c in own})),
        firm=firm,
        stated=stated,
        repelled_by=tuple(c for c in met if c.required and c.term.relation is Relation.ANTI_AFFINITY),
        met=met,
        owned=tuple(c for c in company.owned if not c.by_host),
    )


class Ledger:
    """Who is where by now: bound pods and those planned so far in this round."""

    def __init__(self, domains: Domains) -> None:
        self._domains = domains
        self._numbers: dict[Constraint, dict[str, int]] = {}
        self._owners: dict[Constraint, dict[str, int]] = {}
        self._planned: dict[Constraint, int] = {}
        #: By domain, how many of the pods planned may turn out not to count: they crowd it, but make no other seem emptier.
        self._unsure: dict[Constraint, dict[str, int]] = {}
        #: Of those planned, how many are on machines without the label.
        self._outside: dict[Constraint, int] = {}
        self._possible_to: dict[tuple[Constraint, Asking], tuple[str, ...]] = {}
        #: Grows with every pod written down: as long as it stands still, asking again is in vain.
        self.version = 0

    def numbers(self, constraint: Constraint) -> dict[str, int]:
        """Pods the constraint means, by domain."""
        known = self._numbers.get(constraint)
        if known is None:
            known = self._numbers[constraint] = dict(constraint.numbers)
        return known

    def owners(self, constraint: Constraint) -> dict[str, int]:
        """Pods that repel by the constraint, by domain."""
        known = self._owners.get(constraint)
        if known is None:
            known = self._owners[constraint] = dict(constraint.owners)
        return known

    def is_met(self, constraint: Constraint) -> bool:
        """Whether any pod it means is in some domain, bound or planned."""
        return bool(constraint.numbers) or self.planned(constraint) > self._outside.get(constraint, 0)

    def planned(self, constraint: Constraint) -> int:
        """How many of the pods it means are planned by now."""
        return self._planned.get(constraint, 0)

    def met(self, company: Company, number: int) -> None:
        """So many pods of a kin have been planned somewhere."""
        self.version += 1
        for constraint in company.meant_by:
            self._planned[constraint] = self._planned.get(constraint, 0) + number

    def record(self, asking: Asking, cell: Cell, counting: Counting, number: int) -> None:
        """So many pods of a kin go to a cell, where these of its constraints count them (SCH-525)."""
        for constraint in counting.perhaps:
            self._write(self._unsure.setdefault(constraint, {}), cell[asking.place[constraint.key]], number)
        for constraint in (*counting.surely, *counting.perhaps):
            self._write(self.numbers(constraint), cell[asking.place[constraint.key]], number)
            if cell[asking.place[constraint.key]] is None:
                self._outside[constraint] = self._outside.get(constraint, 0) + number
        for constraint in asking.owned:
            self._write(self.owners(constraint), cell[asking.place[constraint.key]], number)

    @staticmethod
    def _write(numbers: dict[str, int], domain: str | None, number: int) -> None:
        if domain is not None:
            numbers[domain] = numbers.get(domain, 0) + number

    # -- where a kin may go -------------------------------------------------------------------------------------------

    def closed(self, asking: Asking) -> dict[int, set[str]]:
        """Per key's place in a cell, the domains that anti-affinity of others closes to the kin."""
        found: dict[int, set[str]] = {}
        for constraint in asking.repelled_by:
            owned = {domain for domain, number in self.owners(constraint).items() if number}
            found.setdefault(asking.place[constraint.key], set()).update(owned)
        return found

    def open_to(self, asking: Asking) -> dict[int, set[str | None]]:
        """Per key's place in a cell, the domains the kin's own constraints leave for its next pod."""
        found: dict[int, set[str | None]] = {}
        founding = not any(self.is_met(c) for c in asking.affinity)
        for constraint, itself in asking.stated:
            place = asking.place[constraint.key]
            valid = self._valid(constraint, itself and (founding or constraint not in asking.affinity), asking)
            found[place] = found[place] & valid if place in found else valid
        return found

    def _valid(self, constraint: Constraint, itself: bool, asking: Asking) -> set[str | None]:
        match constraint.term.relation:
            case Relation.SPREAD:
                return self._even(constraint, itself, asking)
            case Relation.AFFINITY:
                return self._near(constraint, itself, asking.firm.of(constraint.key))
            case Relation.ANTI_AFFINITY:
                return self._apart(constraint, asking.firm.of(constraint.key))

    def _even(self, constraint: Constraint, itself: bool, asking: Asking) -> set[str | None]:
        """SCH-547, SCH-548: where one more keeps within the skew."""
        numbers = self.numbers(constraint)
        term = constraint.term
        mine = self._domains.known(term)
        unsure = self._unsure.get(constraint, {})
        least = min((numbers.get(domain, 0) - unsure.get(domain, 0) for domain in mine), default=0)
        if term.min_domains > len(mine):
            least = 0
        most = term.max_skew + least - itself
        return {domain for domain in self._possible(constraint, asking) if numbers.get(domain, 0) <= most}

    def _possible(self, constraint: Constraint, asking: Asking) -> tuple[str, ...]:
        """Of the domains that a spread counts those that the kin's pods may be in."""
        known = self._possible_to.get((constraint, asking))
        if known is None:
            firm = asking.firm.of(constraint.key)
            allowed = (domain for domain in self._domains.known(constraint.term) if firm.allows(domain))
            known = self._possible_to[constraint, asking] = tuple(allowed)
        return known

    def _near(self, constraint: Constraint, founds: bool, firm: Requirement) -> set[str | None]:
        """SCH-556: where such pods are; for the first of its own kind, if none is in any domain of its terms, anywhere."""
        numbers = self.numbers(constraint)
        found: set[str | None] = {domain for domain, number in numbers.items() if number and firm.allows(domain)}
        if found or not founds:
            return found
        return {d for d in self._domains.sold(constraint.key) | self._there(constraint) if firm.allows(d)}

    def _apart(self, constraint: Constraint, firm: Requirement) -> set[str | None]:
        """SCH-561: where no such pod is, or no domain at all."""
        numbers = self.numbers(constraint)
        everywhere = self._domains.sold(constraint.key) | self._there(constraint)
        return {None, *(domain for domain in everywhere if not numbers.get(domain, 0) and firm.allows(domain))}

    def _there(self, constraint: Constraint) -> frozenset[str]:
        return self._domains.known(Term(Relation.AFFINITY, constraint.key, constraint.term.whom))

    def crowding(self, asking: Asking, cell: Cell) -> tuple[int, ...]:
        """How many pods that the kin should keep even with are in a cell already; its own constraints count before others."""
        return tuple([self._number(constraint, cell[place]) for constraint, place in asking.spreads])

    def _number(self, constraint: Constraint, domain: str | None) -> int:
        """Pods in a domain; where there is none, as many as in the emptiest, so that it is no better and no worse."""
        numbers = self.numbers(constraint)
        return numbers.get(domain, 0) if domain is not None else min(numbers.values(), default=0)

    def obstacle(self, constraint: Constraint, firm: Requirements) -> str:
        """What users read when a constraint leaves no domain (SCH-523)."""
        numbers = self.numbers(constraint) if not constraint.by_host else dict(constraint.numbers)
        known = {*numbers, *(self._domains.known(constraint.term) if not constraint.by_host else ())}
        sold = self._domains.sold(constraint.key)
        shown = [f"{domain}: {numbers.get(domain, 0)}" for domain in sorted(known)]
        rest = len(shown) - _SHOWN_DOMAINS
        listed = ", ".join(shown[:_SHOWN_DOMAINS]) + (f" and {rest} other(s)" if rest > 0 else "")
        asked = firm.of(constraint.key)
        offered = Requirement(constraint.key, not sold, sold)
        return (
            f"unsatisfiable topology constraint for {constraint.term.relation}, key={constraint.key} "
            f"(counts = {listed}, podDomains = {asked}, nodeDomains = {offered}"
        )
