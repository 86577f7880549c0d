"""Filling one machine with pods of many classes, fast: the inner loop of the value packing.

Classes are bits of one integer. Which of them a machine could still take is a few ANDs: waiting, no more demanding than what is
free, able to live with the requirements so far, not shut out by rules. So a filling costs about as many steps as it puts classes
into the machine, however many are waiting.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Protocol

from karpenter.catalog.index import Axis, TypeSet
from karpenter.cluster.classes import HostPort
from karpenter.decide.provision.company import Constraint
from karpenter.decide.provision.hosting import Rules, Seats
from karpenter.decide.provision.templates import Template
from karpenter.model import resources as res
from karpenter.model.requirements import Requirements, compatible
from karpenter.model.resources import Resources

#: A set of demands: bit i stands for the one at position i.
Crowd = int
#: What a claim keeps to: its pool, and the reservation it draws from, if any.
Lane = tuple[str, str | None]
#: What a claim's requirements become when pods join, and the types that leaves them.
Joined = tuple[Requirements, TypeSet] | None


class Joining(Protocol):
    """How a class may join a claim: what it asks for and the types that hold one of its pods."""

    @property
    def template(self) -> Template:
        """The pool it is bought from."""

    @property
    def asked(self) -> Requirements:
        """What its pods ask of the node."""

    @property
    def types(self) -> TypeSet:
        """Types that could each hold one of them."""


class Started(Protocol):
    """A claim nobody is in yet. Its requirements are given as by ``Book.same``."""

    @property
    def template(self) -> Template:
        """Its pool."""

    @property
    def lane(self) -> Lane:
        """What it keeps to."""

    @property
    def requirements(self) -> Requirements:
        """What it offers."""

    @property
    def types(self) -> TypeSet:
        """What it may become."""


class Claimant(Protocol):
    """Pods of one class that want new machines."""

    @property
    def requests(self) -> Resources:
        """Requests of one pod."""

    @property
    def rules(self) -> Rules | None:
        """Who may share a machine with them."""


class Book:
    """What is known of the demands of a decision: numbers instead of mappings, sets instead of lists, answers remembered."""

    def __init__(self, demands: Sequence[Claimant]) -> None:
        names = sorted({name for demand in demands for name in demand.requests})
        self.names = tuple(names)
        self.needs = [
            tuple((names.index(name), amount) for name, amount in demand.requests.items() if amount > 0)
            for demand in demands
        ]
        self.rules = [demand.rules for demand in demands]
        self._cpu = Axis([demand.requests.get(res.CPU, 0) for demand in demands])
        self._memory = Axis([demand.requests.get(res.MEMORY, 0) for demand in demands])
        self._cpu_at = names.index(res.CPU) if res.CPU in names else -1
        self._memory_at = names.index(res.MEMORY) if res.MEMORY in names else -1
        self._alike: dict[object, Crowd] = {}
        self._ruled: list[object] = []
        for position, rules in enumerate(self.rules):
            ruled = _signature(rules)
            self._ruled.append(ruled)
            if ruled is not None:
                self._alike[ruled] = self._alike.get(ruled, 0) | 1 << position
        self._same: dict[Requirements, Requirements] = {}
        self._joined: dict[tuple[int, int, int], Joined] = {}
        self._possible: dict[tuple[int, int], TypeSet] = {}
        self._asking: dict[tuple[Lane, int], Crowd] = {}

    def asking_like(self, asked: Requirements, lane: Lane, joining: Sequence[Mapping[Lane, Joining]]) -> Crowd:
        """Demands that ask the same of nodes in a lane: what is shut to one is shut to all."""
        known = self.same(asked)
        key = (lane, id(known))
        if key not in self._asking:
            alike = [
                position
                for position, found in enumerate(joining)
                if lane in found and self.same(found[lane].asked) is known
            ]
            self._asking[key] = crowd_of(alike)
        return self._asking[key]

    def fitting(self, free: Sequence[int]) -> Crowd:
        """Demands that ask for no more CPU and memory than this."""
        found = -1
        if self._cpu_at >= 0:
            found = self._cpu.at_most(free[self._cpu_at])
        return found & self._memory.at_most(free[self._memory_at]) if self._memory_at >= 0 else found

    def shut_out_with(self, position: int) -> Crowd:
        """Demands that obey the same rules: where this one may sit no more, they may not either."""
        return self._alike.get(self._ruled[position], 1 << position)

    def same(self, requirements: Requirements) -> Requirements:
        """The one object that stands for all equal requirements, so that answers can be found by identity."""
        return self._same.setdefault(requirements, requirements)

    def joined(self, template: Template, requirements: Requirements, joining: Joining) -> Joined:
        """What one more class makes of a claim's requirements (given as by ``same``), None if it may not join."""
        asked = joining.asked
        if not asked:
            return requirements, joining.types
        key = (id(template), id(requirements), id(joining))
        if key not in self._joined:
            self._joined[key] = self._join(template, requirements, joining)
        return self._joined[key]

    def _join(self, template: Template, requirements: Requirements, joining: Joining) -> Joined:
        if not compatible(requirements, joining.asked, template.index.well_known):
            return None
        narrowed = self.same(requirements.intersect(joining.asked))
        return narrowed, joining.types & self.possible(template, narrowed)

    def possible(self, template: Template, requirements: Requirements) -> TypeSet:
        """Types of the template that meet the requirements (given as by ``same``) and can be bought under them."""
        key = (id(template), id(requirements))
        known = self._possible.get(key)
        if known is None:
            index = template.index
            known = self._possible[key] = template.types & index.matching(requirements) & index.buyable(requirements)
        return known


def _signature(rules: Rules | None) -> object:
    """Equal for demands that a filling machine shuts out together; None where that cannot be said, as company may come."""
    if rules is None or rules.near:
        return None
    ports: tuple[HostPort, ...] = rules.ports
    return (rules.spread, rules.apart, rules.repelled_by, rules.spared, ports, rules.exposed)


class Fill:
    """One machine of a given type while it is filled."""

    __slots__ = (
        "_book",
        "_founding",
        "_free",
        "_joining",
        "_lane",
        "_out",
        "_seats",
        "_target",
        "_template",
        "contents",
        "requirements",
        "types",
    )

    def __init__(
        self,
        book: Book,
        start: Started,
        target: int,
        joining: Sequence[Mapping[Lane, Joining]],
        founding: Container[Constraint],
    ) -> None:
        self._book = book
        template = start.template
        self._template = template
        self._lane = start.lane
        self._target = target
        self._joining = joining
        self._founding = founding
        free = res.subtract(template.index.types[target].allocatable, template.overhead_of(target))
        self._free = [free.get(name, 0) for name in book.names]
        self._seats = Seats(pool=template.name)
        self._out: Crowd = 0
        self.contents: dict[int, int] = {}
        self.requirements = start.requirements
        self.types = start.types

    def fill(self, waiting: Crowd, left: Sequence[int]) -> int:
        """Put in class after class, in their order, as many pods as go; how many were tried."""
        tried = 0
        crowd = waiting & self._book.fitting(self._free)
        while crowd:
            lowest = crowd & -crowd
            position = lowest.bit_length() - 1
            crowd ^= lowest
            tried += 1
            if self.add(position, left[position]):
                crowd &= self._book.fitting(self._free)
            crowd &= ~self._out
        return tried

    def add(self, position: int, wanted: int) -> int:
        """As many pods of a class as go in."""
        needs = self._book.needs[position]
        free = self._free
        count = wanted - self.contents.get(position, 0)
        for at, amount in needs:
            fitting = free[at] // amount
            if fitting < count:
                count = fitting
        if count <= 0:
            return 0
        rules = self._book.rules[position]
        if rules is not None:
            count = rules.room(self._seats, count, self._founding)
            if not count:
                self._out |= self._book.shut_out_with(position) if not rules.near else 0
                return 0
        if not self._join(position):
            return 0
        self.contents[position] = self.contents.get(position, 0) + count
        for at, amount in needs:
            free[at] -= amount * count
        if rules is not None:
            rules.take(self._seats, count)
        return count

    def _join(self, position: int) -> bool:
        joining = self._joining[position].get(self._lane)
        joined = self._book.joined(self._template, self.requirements, joining) if joining is not None else None
        if joined is None and joining is not None:
            self._out |= self._book.asking_like(joining.asked, self._lane, self._joining)
        if joined is None or not (self.types & joined[1]) >> self._target & 1:
            return False
        self.requirements = joined[0]
        self.types &= joined[1]
        return True


def crowd_of(positions: Sequence[int]) -> Crowd:
    """Positions as a set."""
    return reduce(or_, (1 << position for position in positions), 0)
