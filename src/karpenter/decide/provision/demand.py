"""What a packing is made of: ways to buy, pods that want machines, claims being filled, and the outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from karpenter.api.core import Pod
from karpenter.catalog.index import Prices, TypeSet
from karpenter.catalog.types import Offering
from karpenter.cluster.classes import PodClass
from karpenter.decide.provision.company import Constraint
from karpenter.decide.provision.filling import Lane
from karpenter.decide.provision.hosting import Rules
from karpenter.decide.provision.templates import Template
from karpenter.decide.provision.variants import Variant
from karpenter.model.requirements import Requirements
from karpenter.model.resources import Resources


@dataclass(frozen=True)
class Bounds:
    """What packings keep to: what is left of each limited pool's limits, affinities by host that machines there already satisfy,
    and the units left of reservations."""

    limits: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    satisfied: frozenset[Constraint] = frozenset()
    units: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Option:
    """A legal way to buy for a class: one variant of it on one template. ``types`` could each hold one such pod.

    ``reservation``: the one it draws from, None for what is bought freely.
    """

    variant: Variant
    template: Template
    types: TypeSet
    reservation: str | None = None

    @property
    def lane(self) -> Lane:
        """What claims it may join keep to."""
        return (self.template.name, self.reservation)

    @property
    def asked(self) -> Requirements:
        """What the pods ask of the node."""
        return self.variant.requirements

    @cached_property
    def requirements(self) -> Requirements:
        """The pool's requirements with those of the pods."""
        return self.template.narrowed(self.variant.requirements)

    @cached_property
    def cheapest(self) -> float:
        """USD per hour of its cheapest type."""
        prices = self.template.index.prices(self.requirements)
        return prices.offering[prices.cheapest(self.types)].price_per_hour

    def diverse(self, types: TypeSet) -> bool:
        """Whether these types offer the pool's minValues."""
        return self.template.index.diverse(self.requirements, types)


@dataclass(frozen=True, eq=False)
class Demand:
    """Pods of one class that need new machines. ``options`` are of one variant, in the order of pools, never empty.

    ``rules`` say who may share a machine with whom; None where they do not care.
    """

    pod_class: PodClass
    pods: tuple[Pod, ...]
    options: tuple[Option, ...]
    rules: Rules | None = None

    @property
    def near(self) -> tuple[tuple[Constraint, bool], ...]:
        """Affinity by host: pods that must be on the same machine, and whether its own are among them."""
        return self.rules.near if self.rules is not None else ()

    @property
    def requests(self) -> Resources:
        """Requests of one pod."""
        return self.pod_class.requests

    @property
    def most_on_one(self) -> int:
        """No more of the pods than that should be on one machine, whichever it is."""
        exposed = self.rules.exposed if self.rules is not None else None
        return exposed.least if exposed is not None else len(self.pods)


@dataclass(frozen=True, eq=False)
class Claim:
    """A claim being filled. ``types`` hold everything in it; ``contents`` counts pods by demand position."""

    template: Template
    requirements: Requirements
    types: TypeSet
    requests: Resources
    contents: tuple[tuple[int, int], ...] = ()
    min_values_relaxed: bool = False
    reservation: str | None = None

    @property
    def lane(self) -> Lane:
        """The pool, and the reservation if it draws from one."""
        return (self.template.name, self.reservation)

    @cached_property
    def prices(self) -> Prices:
        """Cheapest offerings the claim accepts."""
        return self.template.index.prices(self.requirements)

    @property
    def cheapest(self) -> Offering:
        """How the cheapest type that holds the claim's pods is bought."""
        prices = self.prices
        return prices.offering[prices.cheapest(self.types)]


@dataclass(frozen=True)
class Packing:
    """The outcome of one packing. ``left`` counts pods by demand position for which limits leave nothing to buy.

    ``worth`` is what the claims are valued at (`decide.worth`), ``remaining`` what they leave of each limited pool's limits.
    """

    name: str
    claims: tuple[Claim, ...]
    left: Mapping[int, int]
    worth: float
    remaining: Mapping[str, Mapping[str, int]]

    @property
    def badness(self) -> tuple[int, float, int]:
        """Smaller is better: pods left over, then worth, then number of machines."""
        return (sum(self.left.values()), round(self.worth, 9), len(self.claims))
