"""Which pods share a new machine: the packings, and the one engine they are made of.

A packing opens one claim at a time, fills it with class after class (the classes in the reference's order, SCH-231) and closes
it. Filling is arithmetic on counts; when the filled pattern can be repeated it is repeated at once, so the work depends on the
number of different machines, not of pods.

* ``largest``: a claim grows as long as any type holds its pods, as the reference does; the largest machine that fills is bought.
* ``value``: for every type worth considering, fill it and ask what its pods would be worth bought one by one; the type with
  the most worth per dollar is taken. Worth considering are types no other type beats on price and on every resource.

Weight order is law: a class only joins claims of pools as heavy as the heaviest that can take it; among equals price decides.
Limits are reserved as claims close (SCH-384), a node counting as one (its Beyond).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from karpenter.api.core import Pod
from karpenter.catalog.index import Prices, TypeSet, members
from karpenter.cluster.classes import PodClass
from karpenter.decide.provision.existing import most_copies
from karpenter.decide.provision.templates import Template, relaxed_min_values
from karpenter.decide.provision.variants import Variant
from karpenter.model import resources as res
from karpenter.model.requirements import Requirements, compatible
from karpenter.model.resources import Resources

#: Types a claim of a limited pool keeps, cheapest first: what it may grow to is what its limit has to reserve.
KEPT_UNDER_LIMITS = 60
#: Types the value packing fills per machine; the rest are worse by price and shape than one of these.
TARGETS = 48


@dataclass(frozen=True, eq=False)
class Option:
    """A legal way to buy for a class: one variant of it on one template. ``types`` could each hold one such pod."""

    variant: Variant
    template: Template
    types: TypeSet


@dataclass(frozen=True, eq=False)
class Demand:
    """Pods of one class that need new machines. ``options`` in legal preference order, never empty."""

    pod_class: PodClass
    pods: tuple[Pod, ...]
    options: tuple[Option, ...]

    @property
    def requests(self) -> Resources:
        """Requests of one pod."""
        return self.pod_class.requests

    def joining(self, template: Template) -> Option | None:
        """How the class may join a claim of this template: only of the heaviest pools it has, in its first variant."""
        first = self.options[0]
        if template.weight != first.template.weight:
            return None
        return next((o for o in self.options if o.template is template and o.variant is first.variant), None)


@dataclass(frozen=True, eq=False)
class Claim:
    """A claim being filled. ``types`` hold everything in it; ``contents`` counts pods by demand position."""

    template: Template
    requirements: Requirements
    types: TypeSet
    requests: Resources
    contents: tuple[tuple[int, int], ...] = ()
    min_values_relaxed: bool = False

    @property
    def prices(self) -> Prices:
        """Cheapest offerings the claim accepts."""
        return self.template.index.prices(self.requirements)

    @property
    def price(self) -> float:
        """USD per hour of the cheapest type that holds the claim's pods."""
        prices = self.prices
        return prices.offering[prices.cheapest(self.types)].price_per_hour


@dataclass(frozen=True)
class Packing:
    """The outcome of one packing. ``left`` counts pods by demand position for which nothing could be bought any more."""

    name: str
    claims: tuple[Claim, ...]
    left: Mapping[int, int]
    prices: float

    @property
    def badness(self) -> tuple[int, float, int]:
        """Smaller is better: pods left over, then price, then number of machines."""
        return (sum(self.left.values()), round(self.prices, 9), len(self.claims))


@dataclass
class _Limits:
    """What is left of each pool's limits; pools without limits are absent."""

    remaining: dict[str, dict[str, int]]

    def affordable(self, template: Template, types: TypeSet) -> TypeSet:
        left = self.remaining.get(template.name)
        if left is None:
            return types
        if left.get(res.NODES, res.ONE) < res.ONE:
            return 0
        return types & template.index.within({name: amount for name, amount in left.items() if name != res.NODES})

    def reserve(self, claim: Claim) -> None:
        left = self.remaining.get(claim.template.name)
        if left is not None:
            most = largest_capacity(claim.template, claim.types)
            for name in left:
                left[name] -= res.ONE if name == res.NODES else most.get(name, 0)


#: Chooses and fills a claim for the class at a position, from one option and its affordable types, given what is left.
_Choice = Callable[[int, Option, TypeSet, Sequence[int]], Claim | None]


def largest_capacity(template: Template, types: TypeSet) -> Resources:
    """The most of each resource any of the types brings."""
    return res.maximum(template.index.types[position].capacity for position in members(types))


class Packer:
    """Packs one set of demands; every call starts afresh. ``relax_min_values``: policy BestEffort (SCH-364)."""

    def __init__(
        self, demands: Sequence[Demand], limits: Mapping[str, Mapping[str, int]], *, relax_min_values: bool
    ) -> None:
        self._demands = demands
        self._limits = limits
        self._relax = relax_min_values
        self._feasible: dict[tuple[int, Requirements], TypeSet] = {}
        self._joined: dict[tuple[int, Requirements, Requirements], Requirements | None] = {}
        self._targets: dict[tuple[int, TypeSet, Requirements], list[int]] = {}
        self._resources = sorted({name for demand in demands for name in demand.requests})
        self._worth = [self._worth_of(demand) for demand in demands]

    # -- the two packings -----------------------------------------------------------------------------------------------

    def largest(self) -> Packing:
        """Every claim grows while any type holds it."""
        return self._pack("largest", self._grown)

    def value(self) -> Packing:
        """Every claim is the one whose pods are worth most per dollar."""
        return self._pack("value", self._most_valuable)

    def _pack(self, name: str, choose: _Choice) -> Packing:
        left = [len(demand.pods) for demand in self._demands]
        limits = _Limits({pool: dict(amounts) for pool, amounts in self._limits.items()})
        claims: list[Claim] = []
        stuck: dict[int, int] = {}
        for seed in range(len(self._demands)):
            while left[seed]:
                claim = self._open(seed, left, limits, choose)
                if claim is None:
                    stuck[seed], left[seed] = left[seed], 0
                    break
                for _ in range(self._repeats(claim, left, limits)):
                    claims.append(claim)
                    limits.reserve(claim)
                    for position, count in claim.contents:
                        left[position] -= count
        return Packing(name, tuple(claims), stuck, sum(claim.price for claim in claims))

    @staticmethod
    def _repeats(claim: Claim, left: Sequence[int], limits: _Limits) -> int:
        if claim.template.name in limits.remaining:
            return 1
        return min(left[position] // count for position, count in claim.contents)

    def _open(self, seed: int, left: Sequence[int], limits: _Limits, choose: _Choice) -> Claim | None:
        """The next claim for the first waiting class: from its first option that limits allow, equals competing."""
        chosen: list[Claim] = []
        rank: tuple[Variant, int] | None = None
        for option in self._demands[seed].options:
            if rank is not None and rank != (option.variant, option.template.weight):
                break
            types = limits.affordable(option.template, option.types)
            if types:
                claim = choose(seed, option, types, left)
                if claim is not None:
                    chosen.append(self._closed(claim, limits))
                    rank = (option.variant, option.template.weight)
        if not chosen:
            return None
        return min(chosen, key=lambda claim: claim.price / max(self._worth_in(claim), 1e-9))

    def _closed(self, claim: Claim, limits: _Limits) -> Claim:
        """Under limits a claim keeps only its cheapest types, unless minValues needs more."""
        if claim.template.name not in limits.remaining:
            return claim
        kept = 0
        for position in claim.prices.cheapest_first(claim.types)[:KEPT_UNDER_LIMITS]:
            kept |= 1 << position
        diverse = claim.template.index.diverse(claim.requirements, kept)
        return replace(claim, types=kept) if diverse else claim

    # -- choosing a claim -------------------------------------------------------------------------------------------------

    def _start(self, option: Option, types: TypeSet) -> Claim:
        template = option.template
        requirements = template.requirements.intersect(option.variant.requirements)
        relaxed = self._relax and not template.index.diverse(requirements, types)
        if relaxed:
            requirements = relaxed_min_values(requirements, template.index, types)
        return Claim(template, requirements, types, {}, (), relaxed)

    def _grown(self, seed: int, option: Option, types: TypeSet, left: Sequence[int]) -> Claim | None:
        claim = self._start(option, types)
        for position in range(seed, len(self._demands)):
            if left[position]:
                claim = self._grow(claim, position, left[position])
        return claim if claim.contents else None

    def _grow(self, claim: Claim, position: int, wanted: int) -> Claim:
        """The claim with as many pods of one class as some type still holds."""
        narrowed = self._narrowed(claim.template, claim.requirements, position)
        if narrowed is None:
            return claim
        types = claim.types & self._possible(claim.template, narrowed)
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
            return claim
        return replace(
            claim,
            requirements=narrowed,
            types=best[0],
            requests=best[1],
            contents=(*claim.contents, (position, fitting)),
        )

    def _most_valuable(self, seed: int, option: Option, types: TypeSet, left: Sequence[int]) -> Claim | None:
        start = self._start(option, types)
        best: tuple[float, Claim] | None = None
        for target in self._worthwhile(start):
            claim = self._filled(start, seed, target, left)
            if claim is not None:
                score = self._worth_in(claim) / claim.prices.offering[target].price_per_hour
                if best is None or score > best[0]:
                    best = (score, claim)
        claim = self._right_sized(best[1]) if best else None
        if claim is None or not claim.template.index.diverse(claim.requirements, claim.types):
            return self._grown(seed, option, types, left)
        return claim

    def _filled(self, start: Claim, seed: int, target: int, left: Sequence[int]) -> Claim | None:
        """One machine of the target type, filled class by class; None when the seed does not go in."""
        template = start.template
        free = dict(res.subtract(template.index.types[target].allocatable, template.overhead_of(target)))
        requirements, types = start.requirements, start.types
        contents: list[tuple[int, int]] = []
        for position in range(seed, len(self._demands)):
            if not left[position]:
                continue
            requests = self._demands[position].requests
            count = most_copies(requests, free, left[position])
            if count:
                narrowed = self._narrowed(template, requirements, position)
                possible = types & self._possible(template, narrowed) if narrowed is not None else 0
                if narrowed is not None and possible >> target & 1:
                    requirements, types = narrowed, possible
                    for name, amount in requests.items():
                        free[name] -= amount * count
                    contents.append((position, count))
            if position == seed and not contents:
                return None
        return replace(start, requirements=requirements, types=types, contents=tuple(contents))

    def _right_sized(self, claim: Claim) -> Claim:
        """The claim with every type that holds its pods; the cheapest is at most as dear as the one it was filled for."""
        total = res.add(
            *({n: a * count for n, a in self._demands[at].requests.items()} for at, count in claim.contents)
        )
        held = claim.types & claim.template.holding(total)
        return replace(claim, types=held, requests=total)

    # -- what is known once and asked often ---------------------------------------------------------------------------------

    def _narrowed(self, template: Template, requirements: Requirements, position: int) -> Requirements | None:
        """A claim's requirements once the class joins, None if it may not."""
        option = self._demands[position].joining(template)
        if option is None:
            return None
        asked = option.variant.requirements
        if not asked:
            return requirements
        key = (id(template), requirements, asked)
        if key not in self._joined:
            fits = compatible(requirements, asked, template.index.well_known)
            self._joined[key] = requirements.intersect(asked) if fits else None
        return self._joined[key]

    def _possible(self, template: Template, requirements: Requirements) -> TypeSet:
        """Types of the template that meet the requirements and can be bought under them."""
        key = (id(template), requirements)
        known = self._feasible.get(key)
        if known is None:
            index = template.index
            known = self._feasible[key] = template.types & index.matching(requirements) & index.buyable(requirements)
        return known

    def _worthwhile(self, claim: Claim) -> list[int]:
        """Types to consider for a claim: unbeaten by price and shape, and those minValues allow."""
        key = (id(claim.template), claim.types, claim.requirements)
        known = self._targets.get(key)
        if known is None:
            index = claim.template.index
            efficient = index.efficient(claim.types, index.prices(claim.requirements), self._resources)
            known = self._targets[key] = _spread(efficient, TARGETS)
        return known

    def _worth_of(self, demand: Demand) -> float:
        """USD per hour one pod costs on the machine that suits it best, were it full of its like."""
        option = demand.options[0]
        template = option.template
        requirements = template.requirements.intersect(option.variant.requirements)
        prices = template.index.prices(requirements)
        claim = Claim(template, requirements, self._possible(template, requirements), {})
        shares = (
            prices.offering[position].price_per_hour * _share(demand.requests, template, position)
            for position in self._worthwhile(claim)
            if option.types >> position & 1
        )
        return min(shares, default=0.0)

    def _worth_in(self, claim: Claim) -> float:
        return sum(self._worth[position] * count for position, count in claim.contents)


def _share(requests: Resources, template: Template, position: int) -> float:
    allocatable = template.index.types[position].allocatable
    return max((amount / allocatable[name] for name, amount in requests.items() if amount > 0), default=0.0)


def _spread(positions: Sequence[int], most: int) -> list[int]:
    """At most ``most`` of the positions, evenly spread from first to last."""
    if len(positions) <= most:
        return list(positions)
    return [positions[number * (len(positions) - 1) // (most - 1)] for number in range(most)]
