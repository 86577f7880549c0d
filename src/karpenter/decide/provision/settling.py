"""Where everybody goes: one round of the decision, kin by kin (SCH §9, §20).

A kin climbs down its ladder step by step. At each step its pods go to machines that exist, the rest becomes demand for new ones.
Kin that constraints wider than a host have to do with are sent pod by pod to cells, for each pod anew the least crowded that is
allowed; everything else goes in bulk. What is planned is written into the ledger at once, so that those who come later, or wait
for company, see it; who found no place tries again as long as anybody else did (SCH-233).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property, partial
from itertools import islice, product

from karpenter.api.core import Pod, Toleration
from karpenter.cluster.classes import HostPort, PodClass
from karpenter.cluster.snapshot import PodKey, age
from karpenter.cluster.terms import Relation, Term
from karpenter.cluster.volumes import Mounted
from karpenter.decide.obstacles import Blocked, Confined
from karpenter.decide.provision.company import (
    Chance,
    Company,
    Constraint,
    Counting,
    chance_to_count,
    counting_by,
    counts_on,
)
from karpenter.decide.provision.demand import Demand, Option
from karpenter.decide.provision.existing import OPEN, Field, Guest, Machine, MachineSet
from karpenter.decide.provision.hosting import Exposed, Rules, Seats, exposed_by, rules_of
from karpenter.decide.provision.market import Market, chance_of
from karpenter.decide.provision.templates import Template
from karpenter.decide.provision.topology import Asking, Cell, Domains, Ledger, asking_of
from karpenter.decide.provision.variants import Variant
from karpenter.model import resources as res
from karpenter.model.requirements import Requirements

#: Combinations of values looked at for a kin that several topology keys have to do with.
MOST_CELLS = 512


@dataclass(frozen=True, eq=False)
class Kin:
    """Waiting pods that nothing tells apart: one class, one company, volumes in the same places.

    ``variants`` is their ladder, ``pods`` in their turn; ``mounts`` is what those attach that have volumes. ``virtual``: they
    stand for room that a capacity buffer keeps free. ``stays``: its pods stay planned where the last pass had them, if they may.
    ``exposed``: the workload they are all of, if not all of it should be on one new machine.
    """

    pod_class: PodClass
    company: Company
    pods: tuple[Pod, ...]
    variants: tuple[Variant, ...]
    mounts: Mapping[PodKey, Mounted] = field(default_factory=dict)
    virtual: bool = False
    stays: bool = True
    exposed: Exposed | None = None


def priority(pod: Pod) -> int:
    """How important a pod is: its priority class as a number."""
    return pod.spec.priority or 0


def turn(pod: Pod) -> tuple[int, datetime, str, str, str]:
    """Sort key of pods that nothing else tells apart: the most important first, then the oldest."""
    return (-priority(pod), *age(pod))


def by_size(kin: Kin) -> tuple[bool, int, int, int, datetime, str, str, str]:
    """Kin in the reference's order (SCH-231): CPU, then memory, largest first, then whose pod is first in turn.

    Virtual pods come last, so that they never take the place of a real one (§25 Beyond).
    """
    requests = kin.pod_class.requests
    return (kin.virtual, -requests.get(res.CPU, 0), -requests.get(res.MEMORY, 0), *turn(kin.pods[0]))


#: A kin, a step of its ladder, a cell and which of its shops there: where demand for new machines stands.
Place = tuple[Kin, int, Cell, int]
#: What options depend on: the class, what it asks and tolerates of nodes, and a value for each of some keys.
_Wanted = tuple[PodClass, Requirements, tuple[Toleration, ...], tuple[str, ...], Cell]


@dataclass(frozen=True)
class Caps:
    """How many pods may be asked of new machines: by place, and of a kin at a step altogether. Without a cap, any number."""

    places: Mapping[Place, int] = field(default_factory=dict)
    totals: Mapping[tuple[Kin, int], int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.places or self.totals)

    def are_on(self, kin: Kin) -> bool:
        """Whether the kin may not ask as it likes."""
        return kin in self._kins

    @cached_property
    def _kins(self) -> frozenset[Kin]:
        return frozenset((*(place[0] for place in self.places), *(kin for kin, _ in self.totals)))


@dataclass(frozen=True, eq=False)
class Shop:
    """Ways to buy in a cell that come to the same for everybody else: ``counting`` says which constraints will count the pods.

    What they count must not hang on which pool a machine is bought from in the end. ``number``: its place among the cell's shops.
    """

    cell: Cell
    options: tuple[Option, ...]
    counting: Counting = field(default_factory=Counting)
    number: int = 0


@dataclass(frozen=True, eq=False)
class Standing:
    """Demand for new machines and the place it comes from."""

    demand: Demand
    place: Place

    @property
    def kin(self) -> Kin:
        """Whose pods they are."""
        return self.place[0]

    @property
    def step(self) -> int:
        """The step of their ladder."""
        return self.place[1]

    @property
    def is_last(self) -> bool:
        """Whether the kin has no step further down."""
        return self.step == len(self.kin.variants) - 1

    def last(self, count: int) -> tuple[Pod, ...]:
        """So many pods from its end."""
        return self.demand.pods[len(self.demand.pods) - count :]


@dataclass(frozen=True, eq=False)
class Failed:
    """Pods that stay waiting, and the last variant tried. ``obstacle`` is the constraint between pods that left no place, if it
    was one, as text and as data; ``confined``: the constraints that left only the domains the variant names; ``capped``: new
    machines could be had but for limits."""

    kin: Kin
    variant: Variant
    pods: tuple[Pod, ...]
    obstacle: str = ""
    capped: bool = False
    blocked: Blocked | None = None
    confined: tuple[Confined, ...] = ()


@dataclass(frozen=True, eq=False)
class Settled:
    """The outcome of a round; what exists remembers itself who was planned on it.

    ``satisfied`` are the affinities by host for which somebody is there already, so that no new machine may begin them.
    """

    standing: tuple[Standing, ...]
    failed: tuple[Failed, ...]
    satisfied: frozenset[Constraint] = frozenset()

    @property
    def needing(self) -> int:
        """How many pods need new machines."""
        return sum(len(item.demand.pods) for item in self.standing)


class _Manners:
    """What companies come to at one step of a ladder, worked out once for all kins alike."""

    def __init__(self) -> None:
        self._rules: dict[tuple[Company, tuple[Term, ...], tuple[HostPort, ...]], Rules | None] = {}
        self._asking: dict[tuple[Company, tuple[Term, ...], Requirements], Asking | None] = {}

    def rules(self, kin: Kin, variant: Variant) -> Rules | None:
        """What the kin asks of a single machine."""
        if not kin.company and not kin.pod_class.ports:
            return None
        key = (kin.company, variant.terms, kin.pod_class.ports)
        if key not in self._rules:
            self._rules[key] = rules_of(kin.pod_class, kin.company, variant.terms)
        return self._rules[key]

    def asking(self, kin: Kin, variant: Variant) -> Asking | None:
        """What the kin asks of wider domains."""
        if not kin.company:
            return None
        key = (kin.company, variant.terms, variant.firm)
        if key not in self._asking:
            self._asking[key] = asking_of(kin.company, variant.firm, variant.terms)
        return self._asking[key]


class _Step:
    """A kin at one step of its ladder, with all that does not change while it is placed."""

    def __init__(self, kin: Kin, number: int, field: Field, manners: _Manners) -> None:
        self.kin = kin
        self.number = number
        self.variant = kin.variants[number]
        self.rules: Rules | None = manners.rules(kin, self.variant)
        self.asking: Asking | None = manners.asking(kin, self.variant)
        self.guest = Guest(kin.pod_class, self.variant, self.rules, kin.mounts)
        self._field = field

    def stop_sparing(self) -> bool:
        """Heed others' spread no further than the scheduler does itself; whether that makes a difference."""
        if self.rules is None or not self.rules.spared:
            return False
        self.rules = replace(self.rules, spared=())
        self.guest = replace(self.guest, rules=self.rules)
        return True

    @cached_property
    def candidates(self) -> MachineSet:
        """Machines worth asking."""
        return self._field.candidates(self.guest)


class Settling:
    """One round. ``planned`` says on which view the last pass placed a pod."""

    def __init__(
        self,
        field: Field,
        market: Market,
        domains: Domains,
        planned: Mapping[str, str],
        caps: Caps,
    ) -> None:
        self._field = field
        self._market = market
        self._domains = domains
        self._planned = planned
        self._caps = caps
        self._ledger = Ledger(domains)
        self.founding = Unmet(self._ledger)
        self._asked: dict[Place, list[Pod]] = {}
        #: How many pods of a kin ask for new machines at a step.
        self._asked_at: defaultdict[tuple[Kin, int], int] = defaultdict(int)
        self._options: dict[Place, tuple[tuple[Option, ...], Rules | None]] = {}
        #: Of each constraint by host, how many pods it means are asked of new machines.
        self._coming: defaultdict[Constraint, int] = defaultdict(int)
        #: And in which cells.
        self._cells_of: defaultdict[Constraint, set[tuple[tuple[str, str | None], ...]]] = defaultdict(set)
        self._manners = _Manners()
        self._steps: dict[tuple[Kin, int], _Step] = {}
        self._cells_for: dict[tuple[Asking, Requirements, MachineSet], tuple[Cell, ...]] = {}
        self._options_for: dict[_Wanted, tuple[Option, ...]] = {}
        self._known_pins: dict[tuple[tuple[str, ...], Cell], Requirements] = {}
        self._shops: dict[tuple[Asking, Cell, tuple[Option, ...]], tuple[Shop, ...]] = {}
        self._chances: dict[tuple[Constraint, Template, Requirements], Chance] = {}
        self._counting: dict[tuple[Asking, Template, Requirements], Counting] = {}
        for machine in field.machines:
            machine.start_over()

    def settle(self, kins: Sequence[Kin]) -> Settled:
        """Find a place for everybody."""
        waiting = self._kept_in_place(kins)
        out: dict[Kin, list[Pod]] = {}
        version = -1
        while waiting and version != self._ledger.version:
            version = self._ledger.version
            still: dict[Kin, list[Pod]] = {}
            for kin, pods in waiting.items():
                left = self._placed(kin, pods)
                if left and kin.company.stated:
                    still[kin] = left
                elif left:
                    out[kin] = left
            waiting = still
        failed = [self._failure(kin, left) for kin, left in self._placed_unsparingly({**out, **waiting}).items()]
        order = {kin: number for number, kin in enumerate(kins)}
        places = sorted(self._asked, key=lambda p: (order[p[0]], p[1], _name(p[2]), p[3]))
        near = {c for _, rules in self._options.values() if rules is not None for c, _ in rules.near}
        there = frozenset(c for c in near if c.numbers or self._ledger.planned(c) > self._coming[c])
        return Settled(tuple(self._standing(place) for place in places), tuple(failed), there)

    def _placed_unsparingly(self, left: Mapping[Kin, list[Pod]]) -> dict[Kin, list[Pod]]:
        """Who has no place but one that is right in one order of binding only gets that: waiting would be no better."""
        still: dict[Kin, list[Pod]] = {}
        for kin, pods in left.items():
            steps = [self._step(kin, number) for number in range(len(kin.variants))]
            relented = [step.stop_sparing() for step in steps]
            if any(relented):
                pods = self._placed(kin, pods)
            if pods:
                still[kin] = pods
        return still

    def _standing(self, place: Place) -> Standing:
        options, rules = self._options[place]
        rules = exposed_by(rules, place[0].exposed)
        return Standing(Demand(place[0].pod_class, tuple(self._asked[place]), options, rules), place)

    def _step(self, kin: Kin, number: int) -> _Step:
        known = self._steps.get((kin, number))
        if known is None:
            known = self._steps[kin, number] = _Step(kin, number, self._field, self._manners)
        return known

    # -- where the last pass planned them -------------------------------------------------------------------------------

    def _kept_in_place(self, kins: Sequence[Kin]) -> dict[Kin, list[Pod]]:
        """Pods the last pass planned on a machine stay planned there while it may have them; the rest is returned."""
        if not self._field.machines:
            return {kin: list(kin.pods) for kin in kins}
        machine_of = {machine.view.key: machine for machine in self._field.machines}
        node_of = {machine.host: machine for machine in self._field.machines if machine.host}
        hinted: dict[Kin, dict[Machine, list[Pod]]] = {}
        left: dict[Kin, list[Pod]] = {}
        for kin in kins:
            stays = kin.stays and not kin.virtual
            left[kin] = [] if stays else list(kin.pods)
            for pod in kin.pods if stays else ():
                planned = machine_of.get(self._planned.get(pod.metadata.uid, ""))
                machine = planned or node_of.get(pod.status.nominated_node_name)
                if machine is None:
                    left[kin].append(pod)
                else:
                    hinted.setdefault(kin, {}).setdefault(machine, []).append(pod)
        self._keep_all(hinted)
        for kin, by_machine in hinted.items():
            rest = [pod for pods in by_machine.values() for pod in pods]
            left[kin] = sorted((*left[kin], *rest), key=turn) if rest else left[kin]
        return {kin: pods for kin, pods in left.items() if pods}

    def _keep_all(self, hinted: Mapping[Kin, Mapping[Machine, list[Pod]]]) -> None:
        """Again and again while somebody found a place: who goes where may hang on who went before."""
        version = -1
        while version != self._ledger.version:
            version = self._ledger.version
            for kin, by_machine in hinted.items():
                for number in range(len(kin.variants)):
                    self._keep(self._step(kin, number), by_machine)

    def _keep(self, step: _Step, by_machine: Mapping[Machine, list[Pod]]) -> None:
        if step.asking is None:
            for machine, pods in by_machine.items():
                self._fill(step, machine, pods)
            return
        asking = step.asking
        offered: defaultdict[Cell, list[tuple[Machine, list[Pod]]]] = defaultdict(list)
        for machine, pods in by_machine.items():
            cell = _cell_of(machine, asking) if pods else None
            if cell is not None:
                offered[cell].append((machine, pods))
        sources = {cell: _Source(self, step, found) for cell, found in offered.items()}
        cells = _Cells(self, step, asking, tuple(offered), sources)
        while cells.seat_next(cells.allowed()):
            pass

    # -- one kin ----------------------------------------------------------------------------------------------------------

    def _placed(self, kin: Kin, pods: list[Pod]) -> list[Pod]:
        """The pods left when the whole ladder has been tried."""
        for number in range(len(kin.variants)):
            step = self._step(kin, number)
            pods = self._placed_in_bulk(step, pods) if step.asking is None else self._placed_in_cells(step, pods)
            if not pods:
                break
        return pods

    def _placed_in_bulk(self, step: _Step, pods: list[Pod]) -> list[Pod]:
        pods = list(pods)
        for machine in self._hosts(step, step.candidates, pods):
            if not pods:
                return []
            self._fill(step, machine, pods)
        options = self._market.options(step.kin.pod_class, step.variant) if pods else ()
        if options:
            self.ask(step, Shop((), options), pods, len(pods))
        return pods

    def _hosts(self, step: _Step, candidates: MachineSet, pods: Sequence[Pod]) -> Iterable[Machine]:
        """Machines to fill, in order; pods that must share one host with the first of them choose that with care."""
        found = self._field.among(candidates)
        rules = step.rules
        if rules is None or not any(itself and c in self.founding for c, itself in rules.near):
            return found
        rooms = [(machine.room(step.guest, pods, self.founding), machine) for machine in found]
        best, host = max(rooms, key=lambda item: item[0], default=(0, None))
        options = self._market.options(step.kin.pod_class, step.variant)
        if host is None or best < min(len(pods), _most_on_one(step.kin.pod_class, options)):
            return ()
        return (host,)

    def _fill(self, step: _Step, machine: Machine, pods: list[Pod]) -> None:
        """As many pods as fit from the list's front."""
        count = machine.room(step.guest, pods, self.founding) if pods else 0
        if count:
            self.seat(step, machine, pods, count)

    def seat(self, step: _Step, machine: Machine, pods: list[Pod], count: int) -> None:
        """Plan the first pods of the list on a machine that has room for them."""
        machine.take(step.guest, pods[:count])
        del pods[:count]
        self._ledger.met(step.kin.company, count)

    def ask(self, step: _Step, shop: Shop, pods: list[Pod], wanted: int) -> int:
        """Ask for new machines for so many pods of the list's front, as far as allowed; for how many it was."""
        count = min(wanted, self.askable(step, shop))
        if count:
            place = (step.kin, step.number, shop.cell, shop.number)
            self._asked.setdefault(place, []).extend(pods[:count])
            self._asked_at[step.kin, step.number] += count
            self._options[place] = (shop.options, step.rules)
            del pods[:count]
            self._ledger.met(step.kin.company, count)
            if step.rules is not None and step.rules.met:
                self._note_coming(step.rules.met, _values(step, shop.cell), count)
        return count

    def _note_coming(self, met: Iterable[Constraint], values: tuple[tuple[str, str | None], ...], count: int) -> None:
        for constraint in met:
            self._coming[constraint] += count
            self._cells_of[constraint].add(values)

    def _comes(self, constraint: Constraint, step: _Step, cell: Cell) -> bool:
        """Whether somebody the constraint means may come to a machine of this cell."""
        own = dict(_values(step, cell))
        return any(all(own.get(key, value) == value for key, value in there) for there in self._cells_of[constraint])

    def askable(self, step: _Step, shop: Shop) -> int:
        """How many more may be asked of new machines there."""
        for constraint, itself in step.rules.near if step.rules is not None else ():
            if not self._comes(constraint, step, shop.cell) and not (itself and constraint in self.founding):
                return 0
        if not self._caps:
            return len(step.kin.pods)
        place = (step.kin, step.number, shop.cell, shop.number)
        here = self._caps.places.get(place, len(step.kin.pods)) - len(self._asked.get(place, ()))
        total = self._caps.totals.get((step.kin, step.number))
        if total is not None:
            here = min(here, total - self._asked_at[step.kin, step.number])
        return max(0, here)

    # -- cells ------------------------------------------------------------------------------------------------------------

    def _placed_in_cells(self, step: _Step, pods: list[Pod]) -> list[Pod]:
        assert step.asking is not None
        asking, pods = step.asking, list(pods)
        found = self._cells(step, asking)
        sources = {
            cell: _Source(self, step, ((machine, pods) for machine in self._machines_in(step, cell, pods)))
            for cell in (found if step.candidates else ())
        }
        cells = _Cells(self, step, asking, found, sources)
        while pods:
            allowed = cells.allowed()
            if asking.affinity and len(allowed) > 1 and self._is_first(asking):
                allowed = cells.foundable(pods, allowed)
            if not (cells.seat_next(allowed) or cells.ask_next(allowed, pods)):
                break
        return pods

    def _is_first(self, asking: Asking) -> bool:
        """Whether pods like these are to be kept together and none is anywhere yet."""
        return any(
            itself and c.term.relation is Relation.AFFINITY and c in self.founding for c, itself in asking.stated
        )

    def _cells(self, step: _Step, asking: Asking) -> tuple[Cell, ...]:
        """Combinations of values the pods could go to, on machines that exist or could be bought."""
        key = (asking, step.variant.requirements, step.candidates)
        known = self._cells_for.get(key)
        if known is None:
            known = self._cells_for[key] = tuple(self._combined(step, asking))
        return known

    def _combined(self, step: _Step, asking: Asking) -> Iterator[Cell]:
        per_key: list[list[str | None]] = []
        for key in asking.keys:
            asked = step.variant.requirements.of(key)
            there = {value for value, found in self._field.values(key).items() if found & step.candidates}
            if self._domains.some_lack(key):
                there.add(None)
            if key in asking.required_keys:
                there.discard(None)
            there = {value for value in there if value is None or asked.allows(value)} - {OPEN}
            sold: set[str | None] = {value for value in self._domains.sold(key) if asked.allows(value)}
            per_key.append(sorted(there | sold, key=lambda value: value or ""))
        return islice(product(*per_key), MOST_CELLS if len(per_key) > 1 else None)

    def _machines_in(self, step: _Step, cell: Cell, pods: Sequence[Pod]) -> Iterator[Machine]:
        """Machines of a cell, in the order they are tried."""
        yield from self._hosts(step, self._worth_asking(step, cell), pods)

    def _worth_asking(self, step: _Step, cell: Cell) -> MachineSet:
        assert step.asking is not None
        found = step.candidates
        for key, value in zip(step.asking.keys, cell, strict=True):
            found &= self._field.values(key).get(value, 0)
        return found

    def room_in(self, step: _Step, cell: Cell, pods: Sequence[Pod]) -> int:
        """How many of the pods the machines of a cell hold."""
        room = 0
        for machine in self._field.among(self._worth_asking(step, cell)):
            room += machine.room(step.guest, pods[room:], self.founding)
            if room >= len(pods):
                break
        return room

    def options_in(self, step: _Step, cell: Cell) -> tuple[Option, ...]:
        """Ways to buy in a cell; a label a machine has to lack is one its pool never gives."""
        assert step.asking is not None
        key = (step.kin.pod_class, step.variant.requirements, step.variant.tolerations, step.asking.keys, cell)
        known = self._options_for.get(key)
        if known is None:
            pinned = self._market.pinned(step.variant, self._pins(step.asking, cell))
            options = self._market.options(step.kin.pod_class, pinned)
            lacking = [key for key, value in zip(step.asking.keys, cell, strict=True) if value is None]
            if lacking:
                found = (option for option in options if not any(option.template.values(key) for key in lacking))
                options = tuple(found)
            known = self._options_for[key] = options
        return known

    def _pins(self, asking: Asking, cell: Cell) -> Requirements:
        """The cell as requirements, one object for all who look at it."""
        key = (asking.keys, cell)
        known = self._known_pins.get(key)
        if known is None:
            known = self._known_pins[key] = asking.pins(cell)
        return known

    def shops_in(self, step: _Step, cell: Cell) -> tuple[Shop, ...]:
        """The shops of a cell, those of the heaviest pools first."""
        assert step.asking is not None
        options = self.options_in(step, cell)
        key = (step.asking, cell, options)
        known = self._shops.get(key)
        if known is None:
            known = self._shops[key] = self._told_apart(step.asking, cell, options)
        return known

    def _told_apart(self, asking: Asking, cell: Cell, options: tuple[Option, ...]) -> tuple[Shop, ...]:
        if len(options) == 1:
            return (Shop(cell, options, self._counted(asking, options[0])),)
        found: dict[Counting, list[Option]] = {}
        for option in options:
            found.setdefault(self._counted(asking, option), []).append(option)
        each = enumerate(found.items())
        return tuple(Shop(cell, tuple(alike), counting, number) for number, (counting, alike) in each)

    def _counted(self, asking: Asking, option: Option) -> Counting:
        """The constraints that will count pods on a machine bought so."""
        key = (asking, option.template, option.asked)
        known = self._counting.get(key)
        if known is None:
            known = self._counting[key] = counting_by((c, self._chance(c, option)) for c in asking.met)
        return known

    def _chance(self, constraint: Constraint, option: Option) -> Chance:
        key = (constraint, option.template, option.asked)
        known = self._chances.get(key)
        if known is None:
            pool, meets = option.template, partial(chance_of, option)
            known = chance_to_count(constraint.term.counted, pool.taints, pool.values, meets)
            self._chances[key] = known
        return known

    @property
    def ledger(self) -> Ledger:
        """Who is where by now."""
        return self._ledger

    @property
    def market(self) -> Market:
        """What can be bought."""
        return self._market

    # -- why not ----------------------------------------------------------------------------------------------------------

    def _failure(self, kin: Kin, pods: Sequence[Pod]) -> Failed:
        number = len(kin.variants) - 1
        step = self._step(kin, number)
        capped = self._caps.are_on(kin)
        options = self._market.options(kin.pod_class, step.variant)
        if options and capped and not any(option.template.pool.spec.limits for option in options):
            # Only limits and affinity by host leave pods out of a packing.
            near = [constraint for constraint, _ in step.rules.near] if step.rules is not None else []
            return self._failed_by(near[0], step, tuple(pods)) if near else Failed(kin, step.variant, tuple(pods))
        if not options or capped:
            return Failed(kin, step.variant, tuple(pods), capped=capped)
        return self._blocked(step, tuple(pods))

    def _reachable(self, asking: Asking, key: str) -> set[str | None]:
        """What a label may be on a machine to be bought for the kin."""
        lacking = key not in asking.required_keys and self._domains.some_lack(key)
        return {*self._domains.sold(key), *((None,) if lacking else ())}

    def _blocked(self, step: _Step, pods: tuple[Pod, ...]) -> Failed:
        """Machines could be bought, so it is company that keeps the pods waiting."""
        kin, asking = step.kin, step.asking
        if asking is not None:
            open_to, closed = self._ledger.open_to(asking), self._ledger.closed(asking)
            for constraint, _ in asking.stated:
                domains = open_to[asking.place[constraint.key]]
                if not domains & self._reachable(asking, constraint.key):
                    return self._failed_by(constraint, step, pods, domains)
            allowed = [c for c in self._cells(step, asking) if _allows(c, open_to, closed)]
            for cell in allowed:
                if not self.options_in(step, cell):
                    pinned = self._market.pinned(step.variant, asking.pins(cell))
                    return Failed(kin, pinned, pods, confined=_confined(asking, cell))
            for constraint in asking.repelled_by:
                if self._ledger.owners(constraint) and not allowed:
                    return self._failed_by(constraint, step, pods)
        found = step.rules.obstacle(Seats(), self.founding) if step.rules is not None else None
        return self._failed_by(found, step, pods) if found is not None else Failed(kin, step.variant, pods)

    def _failed_by(
        self, constraint: Constraint, step: _Step, pods: tuple[Pod, ...], domains: Iterable[str | None] = ()
    ) -> Failed:
        """The constraint left no place but domains where nothing can be bought; as data, with where its pods are."""
        firm, own = step.variant.firm, constraint in step.kin.company.stated.values()
        if constraint.by_host:
            counts = constraint.numbers if own else constraint.owners
        else:
            counts = self._ledger.numbers(constraint) if own else self._ledger.owners(constraint)
        there = {domain: number for domain, number in sorted(counts.items()) if number}
        closed = tuple(sorted(domain for domain in domains if domain is not None))
        blocked = Blocked(constraint.term.relation, constraint.key, own, firm.of(constraint.key), there, closed)
        return Failed(step.kin, step.variant, pods, self._ledger.obstacle(constraint, firm), blocked=blocked)


def _confined(asking: Asking, cell: Cell) -> tuple[Confined, ...]:
    """The kin's own constraints with the values the cell has for them; of one that means it, where it states none."""
    stated = [constraint for constraint, _ in asking.stated] or [*asking.repelled_by]
    found = {(c.term.relation, c.key): cell[asking.place[c.key]] for c in stated}
    return tuple(Confined(relation, key, domain) for (relation, key), domain in found.items() if domain is not None)


class Unmet:
    """The affinity constraints nobody satisfies yet, so that the first of their own kind may begin (SCH-555)."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def __contains__(self, constraint: object) -> bool:
        return isinstance(constraint, Constraint) and not self._ledger.is_met(constraint)


class _Source:
    """Machines of one cell with the pods that may go to each, asked as they are needed."""

    def __init__(self, settling: Settling, step: _Step, offered: Iterable[tuple[Machine, list[Pod]]]) -> None:
        self._settling = settling
        self._step = step
        self._offered = iter(offered)
        self._current: tuple[Machine, list[Pod]] | None = None

    def next(self) -> tuple[Machine, list[Pod], int] | None:
        """The first machine with room, the pods that may go there and how many of them fit; None when there is none any more."""
        while True:
            if self._current is None:
                self._current = next(self._offered, None)
                if self._current is None:
                    return None
            machine, pods = self._current
            room = machine.room(self._step.guest, pods, self._settling.founding) if pods else 0
            if room:
                return machine, pods, room
            self._current = None


class _Cells:
    """A kin's cells while its pods are sent there, one after another."""

    def __init__(
        self, settling: Settling, step: _Step, asking: Asking, cells: tuple[Cell, ...], sources: dict[Cell, _Source]
    ) -> None:
        self._settling = settling
        self._ledger = settling.ledger
        self._step = step
        self._asking = asking
        self._cells = cells
        self._shops: dict[Cell, tuple[Shop, ...]] = {}
        #: Where machines may still have room.
        self._sources = sources

    def allowed(self) -> Sequence[Cell]:
        """Cells the next pod may go to."""
        if self._asking.is_free:
            return self._cells
        open_to, closed = self._ledger.open_to(self._asking), self._ledger.closed(self._asking)
        return [cell for cell in self._cells if _allows(cell, open_to, closed)]

    def seat_next(self, cells: Sequence[Cell]) -> bool:
        """Plan the next pod on a machine of the least crowded cell that has one; False where none has."""
        offers = self._offers(cells) if self._sources else {}
        if not offers:
            return False
        level = self._lowest(list(offers))
        for cell in sorted(level, key=_name) if self._asking.by_level else [min(level, key=_name)]:
            machine, pods, room = offers[cell]
            if not pods:
                continue
            count = room if self._asking.in_bulk else 1
            self._settling.seat(self._step, machine, pods, count)
            self._record(cell, self._counting_on(machine), count)
        return True

    def _offers(self, cells: Iterable[Cell]) -> dict[Cell, tuple[Machine, list[Pod], int]]:
        """The next machine with room of every cell that has one."""
        found: dict[Cell, tuple[Machine, list[Pod], int]] = {}
        for cell in cells:
            offer = self._sources[cell].next() if cell in self._sources else None
            if offer is not None:
                found[cell] = offer
            else:
                self._sources.pop(cell, None)
        return found

    def _lowest(self, cells: Sequence[Cell]) -> list[Cell]:
        """The least crowded of the cells."""
        if len(cells) == 1:
            return [*cells]
        crowding = [self._crowding(cell) for cell in cells]
        least = min(crowding)
        return [cell for cell, crowded in zip(cells, crowding, strict=True) if crowded == least]

    def ask_next(self, cells: Sequence[Cell], pods: list[Pod]) -> bool:
        """Ask for new machines for the next pods in the least crowded, then cheapest cell; False where none can be had."""
        settling, step = self._settling, self._step
        shops = {cell: shop for cell in cells if (shop := self._open_in(cell)) is not None}
        if not shops:
            return False
        level = self._lowest(list(shops))
        if len(level) > 1:
            price = settling.market.price
            level.sort(key=lambda cell: (price(shops[cell].options), _name(cell)))
        asked = 0
        for cell in level if self._asking.by_level else level[:1]:
            if not pods:
                break
            count = settling.ask(step, shops[cell], pods, len(pods) if self._asking.in_bulk else 1)
            self._record(cell, shops[cell].counting, count)
            asked += count
        return asked > 0

    def _open_in(self, cell: Cell) -> Shop | None:
        """The first shop of a cell where more may be asked for."""
        known = self._shops.get(cell)
        if known is None:
            known = self._shops[cell] = self._settling.shops_in(self._step, cell)
        return next((shop for shop in known if self._settling.askable(self._step, shop)), None)

    def foundable(self, pods: Sequence[Pod], cells: Sequence[Cell]) -> list[Cell]:
        """Where the first of pods that must stay together should go: one cell that holds them all, or the cheapest to buy in."""
        settling, step = self._settling, self._step
        roomy = [(settling.room_in(step, cell, pods), cell) for cell in cells]
        holding = [cell for room, cell in roomy if room >= len(pods)]
        if holding:
            return holding[:1]
        buyable = [
            (settling.market.price(shop.options), cell) for cell in cells if (shop := self._open_in(cell)) is not None
        ]
        if buyable:
            return [min(buyable, key=lambda item: (item[0], _name(item[1])))[1]]
        return [max(roomy, key=lambda item: item[0])[1]] if roomy else []

    def _crowding(self, cell: Cell) -> tuple[int, ...]:
        return self._ledger.crowding(self._asking, cell)

    def _counting_on(self, machine: Machine) -> Counting:
        view = machine.view
        if not view.launched:
            return counting_by((c, machine.chance_to_count(c.term.counted)) for c in self._asking.met)
        return Counting(tuple(c for c in self._asking.met if counts_on(c.term.counted, view)))

    def _record(self, cell: Cell, counting: Counting, number: int) -> None:
        self._ledger.record(self._asking, cell, counting, number)


def _allows(cell: Cell, open_to: Mapping[int, set[str | None]], closed: Mapping[int, set[str]]) -> bool:
    """Whether every value of the cell is among the open and none among the closed ones."""
    return all(cell[place] in domains for place, domains in open_to.items()) and not any(
        cell[place] in domains for place, domains in closed.items()
    )


def _values(step: _Step, cell: Cell) -> tuple[tuple[str, str | None], ...]:
    """A cell's values with their keys."""
    return tuple(zip(step.asking.keys, cell, strict=True)) if step.asking is not None else ()


def _name(cell: Cell) -> tuple[str, ...]:
    return tuple(value or "" for value in cell)


def _cell_of(machine: Machine, asking: Asking) -> Cell | None:
    """The cell a machine is in; None while that is open, or where it lacks a label it would need."""
    cell = tuple(machine.value(key) for key in asking.keys)
    lacking = any(value is None and key in asking.required_keys for key, value in zip(asking.keys, cell, strict=True))
    return None if lacking or OPEN in cell else cell


def _most_on_one(pod_class: PodClass, options: Sequence[Option]) -> int:
    """How many pods of a class the largest machine to be had would hold."""
    most = 0
    for option in options:
        step = 1 << 16
        while step:
            requests = {name: amount * (most + step) for name, amount in pod_class.requests.items()}
            if option.types & option.template.holding(requests):
                most += step
            else:
                step //= 2
    return most
