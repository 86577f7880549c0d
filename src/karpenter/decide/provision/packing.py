"""Which pods share a new machine: the packings, and the one engine they are made of.

A packing opens one claim at a time, fills it with class after class (the classes in the reference's order, SCH-231) and closes
it. Filling is arithmetic on counts; when the filled pattern can be repeated it is repeated at once, so the work depends on the
number of different machines, not of pods.

* ``classic``: a claim grows as long as any type holds its pods, as the reference does; the largest machine that fills is bought.
* ``value``: for every type worth considering, fill it and ask what its pods would be worth bought one by one; the type with
  the most worth per dollar is taken. Worth considering are types no other type beats on price and on every resource. Its work
  is bounded by ``STEPS``; what is still left then is bought the way of ``classic``.
* ``priced``: machines that the search proposes, as far as rules and limits agree to them; the rest goes the way of ``value``.

Weight order is law: a class only joins claims of pools as heavy as the heaviest that can take it within what limits leave; among
equals price decides. Limits are reserved as claims close (SCH-384), a node counting as one (its Beyond).
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from karpenter.catalog.index import Prices, TypeSet
from karpenter.decide.provision.company import Constraint
from karpenter.decide.provision.demand import Bounds, Claim, Demand, Option, Packing
from karpenter.decide.provision.filling import Book, Fill, Lane, crowd_of
from karpenter.decide.provision.hosting import Seats
from karpenter.decide.provision.limits import affordable, largest_capacity
from karpenter.decide.provision.search.parts import parted
from karpenter.decide.provision.search.search import Pattern, search
from karpenter.decide.provision.search.shapes import Ask, Kind, shapes_of
from karpenter.decide.provision.templates import Template, relaxed_min_values
from karpenter.decide.worth import Worth
from karpenter.model import resources as res
from karpenter.model.resources import Resources

#: Types a claim of a limited pool keeps, cheapest first: what it may grow to is what its limit has to reserve.
KEPT_UNDER_LIMITS = 60
#: Types the value packing fills per machine; the rest are worse by price and shape than one of these.
TARGETS = 24
FEWER_TARGETS = 4
#: Up to so many demands as many types are filled as said above.
MANY_DEMANDS = 100
#: All of them are filled for so many machines, then again each time the number of machines has doubled.
THOROUGH = 8
#: So often the value packing asks whether a class goes into a machine; a thousand pods, no two alike, stay well below.
STEPS = 400_000


class _Run:
    """One packing under way: pods left by demand, what is left of limits, and the options those still allow."""

    def __init__(
        self,
        demands: Sequence[Demand],
        bounds: Bounds,
        *,
        relax_min_values: bool,
    ) -> None:
        self.founding = Founding(bounds.satisfied)
        self.left = [len(demand.pods) for demand in demands]
        self.limits = {pool: dict(amounts) for pool, amounts in bounds.limits.items()}
        self._units = dict(bounds.units)
        #: What is left of the work the packing may do, and how often each type was chosen so far.
        self.steps = STEPS
        self.chosen: Counter[int] = Counter()
        self._asked = 0
        self._relax = relax_min_values
        self._demands = demands
        templates = {option.template.name: option.template for demand in demands for option in demand.options}
        self._limited = {name: template for name, template in templates.items() if name in self.limits}
        self._within = {name: affordable(template, self.limits[name]) for name, template in self._limited.items()}
        self._allow()

    def allowed(self, position: int) -> tuple[tuple[Option, TypeSet], ...]:
        """Options of the heaviest pools the class can still be bought from, with their affordable types."""
        return self._allowed[position]

    def joining(self, position: int, lane: Lane) -> Option | None:
        """How the class may join a claim of this lane, if it may."""
        return self.joined[position].get(lane)

    def within(self, template: Template) -> TypeSet | None:
        """Types the pool's limits still allow; None when it has no limits."""
        return self._within.get(template.name)

    def targets(self, worthwhile: Sequence[int]) -> Sequence[int]:
        """The types to fill for the next machine: now and then all, else few that were chosen before; none without work left."""
        self._asked += 1
        if self.steps <= 0:
            return ()
        if self._asked <= THOROUGH or not self._asked & (self._asked - 1):
            return worthwhile
        often = sorted(worthwhile, key=lambda target: -self.chosen[target])
        return often[: _fewer(FEWER_TARGETS, len(self._demands))]

    def take(self, claim: Claim, most_times: int = sys.maxsize) -> int:
        """Commit as many claims like this as its pods and limits suggest, at most so many; how many."""
        most = largest_capacity(claim.template, claim.types) if claim.template.name in self.limits else {}
        times = min(most_times, *(self.left[position] // count for position, count in claim.contents))
        if self.founding.close([self._demands[position] for position, _ in claim.contents]):
            times = 1
        if claim.template.name in self.limits:
            times = min(times, self._affordable_times(claim.template, most))
        if claim.reservation is not None:
            times = min(times, self._units[claim.reservation])
        for position, count in claim.contents:
            self.left[position] -= count * times
        self._spend(claim.template, most, times)
        self._draw(claim.reservation, times)
        return times

    def _draw(self, reservation: str | None, times: int) -> None:
        """Take units of a reservation; one that is used up sells nothing more."""
        if reservation is not None:
            self._units[reservation] -= times
            if not self._units[reservation]:
                self._allow()

    def _affordable_times(self, template: Template, most: Resources) -> int:
        """How many such claims limits allow while they rule out no further type; at least the one that was chosen."""
        left = self.limits[template.name]
        times = []
        for name, amount in left.items():
            spent = res.ONE if name == res.NODES else most.get(name, 0)
            if spent > 0:
                needed = res.ONE if name == res.NODES else template.index.largest_within(name, amount)
                times.append((amount - needed) // spent + 1)
        return max(1, min(times, default=sum(self.left)))

    def _spend(self, template: Template, most: Resources, times: int) -> None:
        """Take from limits what the claims may become at most (SCH-384)."""
        if template.name not in self.limits:
            return
        left = self.limits[template.name]
        for name in left:
            left[name] -= times * (res.ONE if name == res.NODES else most.get(name, 0))
        within = affordable(template, left)
        if within != self._within[template.name]:
            self._within[template.name] = within
            self._allow()

    def give_up(self, seed: int) -> int:
        """Nothing can be bought for the class any more; how many of its pods are left out."""
        count, self.left[seed] = self.left[seed], 0
        return count

    def await_company(self, seed: int) -> None:
        """Note who still waits, now that all before the seed are served; to be called before a machine is opened for it."""
        self.waiting = [
            position for position in range(len(self.left)) if self.left[position] and self._joins(position, seed)
        ]
        self.crowd = crowd_of(self.waiting)
        self._needy = [position for position in self.waiting if self._demands[position].near]

    def _joins(self, position: int, seed: int) -> bool:
        """Whether a class may still be put into machines: those before the seed only where they wait for company."""
        return position >= seed or bool(self._demands[position].near)

    def companions(self, seed: int) -> list[int]:
        """Waiting classes that can only be where the seed's pods are."""
        own = self._demands[seed]
        if not self._needy or own.rules is None:
            return []
        return [
            position
            for position in self._needy
            if position != seed and any(c in own.rules.met for c, _ in self._demands[position].near)
        ]

    def can_begin(self, position: int) -> bool:
        """Whether pods of the class may be the first on a machine."""
        return all(itself and constraint in self.founding for constraint, itself in self._demands[position].near)

    def _allow(self) -> None:
        self._allowed = [self._heaviest(demand) for demand in self._demands]
        self.joined = [{option.lane: option for option, _ in found} for found in self._allowed]

    def _heaviest(self, demand: Demand) -> tuple[tuple[Option, TypeSet], ...]:
        found: list[tuple[Option, TypeSet]] = []
        for option in demand.options:
            if found and found[0][0].template.weight != option.template.weight:
                break
            if option.reservation is not None and self._units.get(option.reservation, 0) <= 0:
                continue
            types = option.types & self._within.get(option.template.name, option.types)
            if types and (self._relax or option.diverse(types)):
                found.append((option, types))
        return tuple(found)


class Founding:
    """The affinities by host that a machine may still begin: none where somebody is already, and each only once."""

    def __init__(self, satisfied: Iterable[Constraint]) -> None:
        self._begun = set(satisfied)

    def __contains__(self, constraint: object) -> bool:
        return constraint not in self._begun

    def close(self, inside: Iterable[Demand]) -> bool:
        """A machine with these is settled; whether it began an affinity, so that no second one may be like it."""
        found = {c for demand in inside for c in (demand.rules.met if demand.rules is not None else ())} - self._begun
        wanted = {c for demand in inside for c, itself in demand.near if itself}
        self._begun |= found
        return bool(found & wanted)


_TINY = 1e-9

#: Chooses and fills a claim for the class at a position, from one option and its affordable types.
_Choice = Callable[[int, Option, TypeSet, _Run], Claim | None]


class Packer:
    """Packs one set of demands, in the order of SCH-231; every call starts afresh.

    ``relax_min_values``: policy BestEffort (SCH-364).
    """

    def __init__(self, demands: Sequence[Demand], bounds: Bounds, *, relax_min_values: bool, worth: Worth) -> None:
        self._valued = worth
        self._demands = demands
        self._bounds = bounds
        self._relax = relax_min_values
        self._book = Book(demands)
        self._breadth = _fewer(TARGETS, len(demands))
        self._targets: dict[tuple[int, TypeSet, int], list[int]] = {}
        self._worths: dict[tuple[int, int], float] = {}
        self._known_prices: dict[tuple[int, int], Prices] = {}
        self._resources = sorted({name for demand in demands for name in demand.requests})
        self._worth = [self._worth_of(demand) for demand in demands]
        self._likeness = _likeness(demands)
        self._most = [demand.most_on_one for demand in demands]

    # -- the two packings -----------------------------------------------------------------------------------------------

    def classic(self) -> Packing:
        """Every claim grows while any type holds it."""
        return self._pack("classic", self._grown)

    def value(self) -> Packing:
        """Every claim is the one whose pods are worth most per dollar."""
        return self._pack("value", self._most_valuable)

    def priced(self) -> Packing:
        """The machines the search for cheap ones proposes; what it leaves goes the way of `value`.

        Reservations come first: what is paid for already is not searched for.
        """
        run = _Run(self._demands, self._bounds, relax_min_values=self._relax)
        claims = self._reserved(run)
        within = {
            option.template.name: run.within(option.template) for demand in self._demands for option in demand.options
        }
        waiting = {at: [option for option, _ in run.allowed(at)] for at, count in enumerate(run.left) if count}
        for part in parted(waiting):
            shapes = shapes_of(
                Ask(
                    self._demands, part, run.left, run.allowed, within, self._book, self._valued, strict=not self._relax
                )
            )
            if shapes is not None:
                for pattern in search(shapes).patterns:
                    claims += self._realised(shapes.groups, shapes.kinds[pattern.kind], pattern, run)
        return self._packed("priced", run, claims, self._most_valuable)

    def _pack(self, name: str, choose: _Choice) -> Packing:
        return self._packed(name, _Run(self._demands, self._bounds, relax_min_values=self._relax), [], choose)

    def _packed(self, name: str, run: _Run, claims: list[Claim], choose: _Choice) -> Packing:
        """Machines for all who are left, beside those claimed already."""
        stuck: dict[int, int] = {}
        for seed in range(len(self._demands)):
            while run.left[seed] and run.can_begin(seed):
                run.await_company(seed)
                claim = self._open(seed, run, choose)
                if claim is None:
                    stuck[seed] = run.give_up(seed)
                else:
                    claims += [claim] * run.take(claim)
        stuck |= {position: count for position, count in enumerate(run.left) if count}
        return Packing(name, tuple(claims), stuck, self._valued.of(claim.cheapest for claim in claims), run.limits)

    def _open(self, seed: int, run: _Run, choose: _Choice) -> Claim | None:
        """The next claim for the first waiting class: from the heaviest pools that limits allow, equals competing.

        Of pools alike the first is asked for all: the others would answer the same.
        """
        chosen: list[Claim] = []
        asked: set[tuple[int, TypeSet | None, str | None]] = set()
        for option, types in run.allowed(seed):
            likeness = (self._likeness[option.template.name], run.within(option.template), option.reservation)
            claim = choose(seed, option, types, run) if likeness not in asked else None
            asked.add(likeness)
            if claim is not None:
                chosen.append(self._closed(claim, run))
        if not chosen:
            return None
        cost = self._valued.of_one
        return min(chosen, key=lambda claim: cost(claim.cheapest) / max(self._worth_in(claim.contents), _TINY))

    def _closed(self, claim: Claim, run: _Run) -> Claim:
        """Under limits a claim keeps only its cheapest types and those minValues need."""
        if run.within(claim.template) is None:
            return claim
        kept = 0
        for position in claim.template.index.cheapest(claim.requirements, claim.types, KEPT_UNDER_LIMITS):
            kept |= 1 << position
        return replace(claim, types=kept)

    # -- what the search proposes -----------------------------------------------------------------------------------------

    def _reserved(self, run: _Run) -> list[Claim]:
        """Machines from reservations, as long as they are what a class buys first."""
        claims: list[Claim] = []
        for seed in range(len(self._demands)) if self._bounds.units else ():
            while (
                run.left[seed] and run.can_begin(seed) and any(o.reservation is not None for o, _ in run.allowed(seed))
            ):
                run.await_company(seed)
                claim = self._open(seed, run, self._most_valuable)
                if claim is None or claim.reservation is None:
                    break
                claims += [claim] * run.take(claim)
        return claims

    def _realised(self, groups: Sequence[Sequence[int]], kind: Kind, pattern: Pattern, run: _Run) -> Iterator[Claim]:
        """The machines of a pattern with pods of actual classes in them, as far as rules and limits agree."""
        times = pattern.times
        while times > 0:
            contents = _served(groups, pattern, run.left, self._most)
            claim = self._proposed(contents, kind, run) if contents else None
            apart = any(run.left[at] > self._most[at] for at, _ in contents)
            taken = run.take(claim, 1 if apart else times) if claim is not None else 0
            if claim is None or not taken:
                return
            times -= taken
            yield from [claim] * taken

    def _proposed(self, contents: Sequence[tuple[int, int]], kind: Kind, run: _Run) -> Claim | None:
        """A machine of this kind with these pods, or those of them that may be there."""
        first = next(((o, types) for o, types in run.allowed(contents[0][0]) if o.lane == kind.lane), None)
        if first is None:
            return None
        start = self._start(*first)
        fill = Fill(self._book, start, kind.target, run.joined, run.founding)
        for position, count in contents:
            fill.add(position, count)
        if not fill.contents:
            return None
        filled = replace(start, requirements=fill.requirements, types=fill.types, contents=tuple(fill.contents.items()))
        claim = self._right_sized(filled)
        if not claim.types or not claim.template.index.diverse(claim.requirements, claim.types):
            return None
        return self._closed(claim, run)

    # -- choosing a claim -------------------------------------------------------------------------------------------------

    def _start(self, option: Option, types: TypeSet) -> Claim:
        template = option.template
        requirements = option.requirements
        relaxed = self._relax and not template.index.diverse(requirements, types)
        if relaxed:
            requirements = relaxed_min_values(requirements, template.index, types)
        return Claim(template, self._book.same(requirements), types, {}, (), relaxed, option.reservation)

    def _grown(self, seed: int, option: Option, types: TypeSet, run: _Run) -> Claim | None:
        claim, seats = self._start(option, types), Seats(pool=option.template.name)
        roomy = claim.template.index.most(types)
        for position, wanted in self._in_order(seed, run):
            if not self._could_join(position, claim, roomy):
                continue
            joining = run.joining(position, claim.lane)
            if joining is not None:
                seated = self._seated(position, seats, wanted, run)
                claim, count = self._grow(claim, joining, position, seated)
                self._take_seats(position, seats, count)
            if not claim.contents:
                return None
        return claim

    def _in_order(self, seed: int, run: _Run) -> Iterator[tuple[int, int]]:
        """Who goes into a machine, and how many at most: the seed first; where others can only be beside it, those next."""
        companions = run.companions(seed)
        first = 1 if companions else run.left[seed]
        yield seed, first
        for position in companions:
            yield position, run.left[position]
        for position in run.waiting:
            if position not in companions:
                yield position, run.left[position] - (first if position == seed else 0)

    def _could_join(self, position: int, claim: Claim, roomy: Resources) -> bool:
        """Whether one more pod is worth a closer look: it fits beside the claim's on a type with the most of everything."""
        held = claim.requests
        return all(
            amount + held.get(name, 0) <= roomy.get(name, 0)
            for name, amount in self._demands[position].requests.items()
            if amount
        )

    def _seated(self, position: int, seats: Seats, wanted: int, run: _Run) -> int:
        """How many pods of a class may still sit on a machine."""
        rules = self._demands[position].rules
        return wanted if rules is None else rules.room(seats, wanted, run.founding)

    def _take_seats(self, position: int, seats: Seats, count: int) -> None:
        rules = self._demands[position].rules
        if rules is not None and count:
            rules.take(seats, count)

    def _grow(self, claim: Claim, joining: Option, position: int, wanted: int) -> tuple[Claim, int]:
        """The claim with as many pods of one class as some type still holds, and how many those are."""
        joined = self._book.joined(claim.template, claim.requirements, joining) if wanted else None
        if joined is None:
            return claim, 0
        narrowed, types = joined[0], claim.types & joined[1]
        requests = self._demands[position].requests
        fitting = 0
        best: tuple[TypeSet, Resources] = (0, {})
        step = wanted
        while step:  # binary search for the largest count: halve the step until it fits, then add what still fits
            total = res.add(claim.requests, {n: a * (fitting + step) for n, a in requests.items()})
            held = types & claim.template.holding(total)
            if held and claim.template.index.diverse(narrowed, held):
                fitting += step
                best = (held, total)
                step = min(step, wanted - fitting)
            else:
                step //= 2
        if not fitting:
            return claim, 0
        grown = replace(
            claim,
            requirements=narrowed,
            types=best[0],
            requests=best[1],
            contents=_with(claim.contents, position, fitting),
        )
        return grown, fitting

    def _most_valuable(self, seed: int, option: Option, types: TypeSet, run: _Run) -> Claim | None:
        if self._demands[seed].near:
            return self._grown(seed, option, types, run)
        start = self._start(option, types)
        best: tuple[float, int, Claim] | None = None
        for target in run.targets(self._worthwhile(start)):
            claim = self._filled(seed, start, target, run)
            if claim is not None:
                cost = self._valued.of_one(self._prices(claim).offering[target])
                score = self._worth_in(claim.contents) / cost
                if best is None or score > best[0]:
                    best = (score, target, claim)
        if best is not None:
            run.chosen[best[1]] += 1
        claim = self._right_sized(best[2]) if best is not None else None
        if claim is None or not claim.template.index.diverse(claim.requirements, claim.types):
            return self._grown(seed, option, types, run)
        return claim

    def _filled(self, seed: int, start: Claim, target: int, run: _Run) -> Claim | None:
        """One machine of the target type, filled class by class; None when the first class does not go in."""
        fill = Fill(self._book, start, target, run.joined, run.founding)
        companions = run.companions(seed)
        if not fill.add(seed, 1 if companions else run.left[seed]):
            return None
        for position in companions:
            fill.add(position, run.left[position])
        waiting = run.crowd if companions else run.crowd & ~(1 << seed)
        run.steps -= 1 + fill.fill(waiting, run.left)
        contents = tuple(fill.contents.items())
        return replace(start, requirements=fill.requirements, types=fill.types, contents=contents)

    def _right_sized(self, claim: Claim) -> Claim:
        """The claim with every type that holds its pods; the cheapest is at most as dear as the one it was filled for."""
        total = res.add(
            *({n: a * count for n, a in self._demands[at].requests.items()} for at, count in claim.contents)
        )
        held = claim.types & claim.template.holding(total)
        return replace(claim, types=held, requests=total)

    # -- what is known once and asked often ---------------------------------------------------------------------------------

    def _worthwhile(self, claim: Claim) -> list[int]:
        """Types to consider for a claim: unbeaten by price and shape."""
        key = (id(claim.template), claim.types, id(claim.requirements))
        known = self._targets.get(key)
        if known is None:
            index = claim.template.index
            efficient = index.efficient(claim.types, self._valued.ranked(self._prices(claim)), self._resources)
            known = self._targets[key] = _spread(efficient, self._breadth)
        return known

    def _worth_of(self, demand: Demand) -> float:
        """USD per hour one pod costs on the machine that suits it best, were it full of its like."""
        option = demand.options[0]
        key = (id(demand.pod_class), id(option))
        known = self._worths.get(key)
        if known is None:
            claim = self._start(option, option.types)
            offering = self._prices(claim).offering
            known = self._worths[key] = min(
                (
                    self._valued.of_one(offering[position]) * _share(demand.requests, option.template, position)
                    for position in self._worthwhile(claim)
                ),
                default=0.0,
            )
        return known

    def _prices(self, claim: Claim) -> Prices:
        """Cheapest offerings the claim accepts, remembered by its requirements."""
        key = (id(claim.template), id(claim.requirements))
        known = self._known_prices.get(key)
        if known is None:
            known = self._known_prices[key] = claim.prices
        return known

    def _worth_in(self, contents: Sequence[tuple[int, int]]) -> float:
        return sum(self._worth[position] * count for position, count in contents)


def _likeness(demands: Sequence[Demand]) -> dict[str, int]:
    """Templates by name, those with equal numbers differing in nothing but their pools' names and limits."""
    templates = {option.template.name: option.template for demand in demands for option in demand.options}
    taken: dict[str, list[TypeSet]] = {name: [] for name in templates}
    for demand in demands:
        types: dict[str, TypeSet] = {}
        for option in demand.options:
            types.setdefault(option.template.name, option.types)
        for name, found in taken.items():
            found.append(types.get(name, 0))
    numbers: dict[object, int] = {}
    return {
        name: numbers.setdefault((template.alike, tuple(taken[name])), len(numbers))
        for name, template in templates.items()
    }


def _served(
    groups: Sequence[Sequence[int]], pattern: Pattern, left: Sequence[int], most: Sequence[int]
) -> list[tuple[int, int]]:
    """The pods of one machine of the pattern by class, those classes first that come first; as many as there still are.

    ``most``: of each class no more than so many go to one machine.
    """
    found: list[tuple[int, int]] = []
    for group, count in pattern.contents:
        members = [position for position in groups[group] if left[position]]
        if len(members) > 1:  # who needs more machines than others goes into each of them
            members.sort(key=lambda position: -(-left[position] // most[position]), reverse=True)
        for position in members:
            number = min(count, left[position], most[position])
            if number:
                found.append((position, number))
                count -= number
    return sorted(found)


def _with(contents: Sequence[tuple[int, int]], position: int, count: int) -> tuple[tuple[int, int], ...]:
    """The contents with so many more pods of one class."""
    return tuple({**dict(contents), position: dict(contents).get(position, 0) + count}.items())


def _share(requests: Resources, template: Template, position: int) -> float:
    allocatable = template.index.types[position].allocatable
    return max((amount / allocatable[name] for name, amount in requests.items() if amount > 0), default=0.0)


def _fewer(most: int, demands: int) -> int:
    """As many of something as the work allows: with many demands each machine is filled for fewer types, at least half."""
    return max(most // 2, min(most, most * MANY_DEMANDS // max(1, demands)))


def _spread(positions: Sequence[int], most: int) -> list[int]:
    """At most ``most`` of the positions, evenly spread from first to last."""
    if len(positions) <= most:
        return list(positions)
    return [positions[number * (len(positions) - 1) // (most - 1)] for number in range(most)]
