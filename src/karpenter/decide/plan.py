"""What a provisioning decision says: machines to buy, pods for machines that exist, pods left waiting and why.

A plan is a frozen value. Pods appear as objects: whoever carries the plan out needs their uid, whoever shows it their name.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from karpenter.api.core import Pod
from karpenter.api.karpenter import NodeClaim
from karpenter.catalog.types import Offering
from karpenter.decide.obstacles import Miss
from karpenter.decide.reasons import Reason, Skip


@dataclass(frozen=True)
class PlannedClaim:
    """A machine to buy: the NodeClaim to create, the pods it is for, and what it would cost now.

    ``instance_types`` are the names that hold its pods, cheapest first; ``cheapest`` is the offering of the first of them.
    """

    claim: NodeClaim
    node_pool: str
    instance_types: tuple[str, ...]
    cheapest: Offering
    pods: tuple[Pod, ...]

    @property
    def name(self) -> str:
        """Name of the NodeClaim, derived from what it is for."""
        return self.claim.metadata.name

    @property
    def price_per_hour(self) -> float:
        """USD per hour of the cheapest offering."""
        return self.cheapest.price_per_hour


@dataclass(frozen=True)
class PlacedPods:
    """Pods that fit on a machine that exists or is on its way. ``key`` names it for good, ``node`` as users know it now."""

    key: str
    node: str
    pods: tuple[Pod, ...]


@dataclass(frozen=True)
class UnplacedPod:
    """A pod that stays waiting, with one reason per NodePool tried (or one about the pod itself).

    ``nearest`` is the smallest change under which it would be bought for, ``beside`` the machine that nearly has room for it
    (SCH-261 Beyond); None where there is no such thing.
    """

    pod: Pod
    reasons: tuple[Reason, ...]
    nearest: Miss | None = None
    beside: Miss | None = None


@dataclass(frozen=True)
class SkippedPool:
    """A NodePool that took no part, and why; ``detail`` is what its own conditions say."""

    node_pool: str
    reason: Skip
    detail: str = ""


@dataclass(frozen=True)
class ZonedPods:
    """Pods that will be in one zone, whatever is bought; ``zone`` is ``none`` where none is left to them (SCH-668)."""

    zone: str
    pods: tuple[Pod, ...]


class Why(StrEnum):
    """Why a limit of exposure gave way."""

    TOGETHER = "Together"
    LIMITS = "Limits"
    NOTHING_ELSE = "NothingElse"


@dataclass(frozen=True)
class Concession:
    """More of something in one place than should be there: ``number`` instead of ``most``.

    ``subject`` is a workload or a NodePool (its spot machines), ``place`` a NodeClaim or a type and zone.
    """

    subject: str
    place: str
    number: int
    most: int
    why: Why


@dataclass(frozen=True)
class Unreadable:
    """An annotation of ours that nobody can read, so that the default holds: on what, its key, what is wrong."""

    subject: str
    annotation: str
    fault: str


@dataclass(frozen=True)
class Plan:
    """The outcome of one provisioning decision. ``packing`` names the way of packing that won.

    ``zoned`` are the pods whose zone was settled beforehand; for all others several would do. ``lower_bound_per_hour`` is what
    the machines to buy would cost at the very least (USD), None where that is not known. ``conceded`` is what is more exposed
    than it should be, ``unreadable`` the wishes about that which cannot be read.
    """

    claims: tuple[PlannedClaim, ...] = ()
    existing: tuple[PlacedPods, ...] = ()
    unplaced: tuple[UnplacedPod, ...] = ()
    skipped_pools: tuple[SkippedPool, ...] = ()
    packing: str = ""
    zoned: tuple[ZonedPods, ...] = ()
    lower_bound_per_hour: float | None = 0.0
    conceded: tuple[Concession, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()

    @property
    def price_per_hour(self) -> float:
        """USD per hour of all machines to buy, each at its cheapest offering."""
        return sum(claim.price_per_hour for claim in self.claims)

    @property
    def gap(self) -> float | None:
        """The share of the lower bound by which the machines to buy are dearer; None without a bound to compare with."""
        bound = self.lower_bound_per_hour
        return self.price_per_hour / bound - 1 if bound else None
