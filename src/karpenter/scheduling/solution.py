"""What a provisioning decision says: machines to buy, pods for machines that exist, pods left waiting and why.

A plan is a frozen value. Pods appear as objects: whoever carries the plan out needs their uid, whoever shows it their name.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from karpenter.api.core import Pod
from karpenter.api.karpenter import NodeClaim
from karpenter.instancetypes.instance_type import Offering
from karpenter.scheduling.unschedulable_reasons import NearestFit, PoolSkipReason, UnschedulableReason


@dataclass(frozen=True)
class NewNodeClaim:
    """A machine to buy: the NodeClaim to create, the pods it is for, and what it would cost now.

    ``instance_types`` are the names that hold its pods, cheapest first; ``cheapest`` is the offering of the first of them.
    """

    claim: NodeClaim
    node_pool: str
    instance_types: tuple[str, ...]
    cheapest_offering: Offering
    pods: tuple[Pod, ...]

    @property
    def name(self) -> str:
        """Name of the NodeClaim, derived from what it is for."""
        return self.claim.metadata.name

    @property
    def price_per_hour(self) -> float:
        """USD per hour of the cheapest offering."""
        return self.cheapest_offering.price_per_hour


@dataclass(frozen=True)
class PlacedPods:
    """Pods that fit on a machine that exists or is on its way. ``key`` names it for good, ``node`` as users know it now."""

    node_key: str
    node_name: str
    pods: tuple[Pod, ...]


@dataclass(frozen=True)
class UnschedulablePod:
    """A pod that stays waiting, with one reason per NodePool tried (or one about the pod itself).

    ``nearest`` is the smallest change under which it would be bought for, ``beside`` the machine that nearly has room for it
    (SCH-261 Beyond); None where there is no such thing.
    """

    pod: Pod
    reasons: tuple[UnschedulableReason, ...]
    nearest_fit: NearestFit | None = None
    nearest_node: NearestFit | None = None


@dataclass(frozen=True)
class SkippedNodePool:
    """A NodePool that took no part, and why; ``detail`` is what its own conditions say."""

    node_pool: str
    reason: PoolSkipReason
    detail: str = ""


@dataclass(frozen=True)
class ZoneBoundPods:
    """Pods that will be in one zone, whatever is bought; ``zone`` is ``none`` where none is left to them (SCH-668)."""

    zone: str
    pods: tuple[Pod, ...]


class ViolationCause(StrEnum):
    """Why a limit of exposure gave way."""

    TOGETHER = "Together"
    LIMITS = "Limits"
    NOTHING_ELSE = "NothingElse"


@dataclass(frozen=True)
class ExposureViolation:
    """More of something in one place than should be there: ``number`` instead of ``most``.

    ``subject`` is a workload or a NodePool (its spot machines), ``place`` a NodeClaim or a type and zone.
    """

    subject: str
    place: str
    actual: int
    limit: int
    cause: ViolationCause


@dataclass(frozen=True)
class UnreadableAnnotation:
    """An annotation of ours that nobody can read, so that the default holds: on what, its key, what is wrong."""

    subject: str
    annotation: str
    error: str


@dataclass(frozen=True)
class Solution:
    """The outcome of one provisioning decision. ``packing`` names the way of packing that won.

    ``zoned`` are the pods whose zone was settled beforehand; for all others several would do. ``lower_bound_per_hour`` is what
    the machines to buy would cost at the very least (USD), None where that is not known. ``conceded`` is what is more exposed
    than it should be, ``unreadable`` the wishes about that which cannot be read.
    """

    new_claims: tuple[NewNodeClaim, ...] = ()
    placed_on_existing: tuple[PlacedPods, ...] = ()
    unschedulable: tuple[UnschedulablePod, ...] = ()
    skipped_pools: tuple[SkippedNodePool, ...] = ()
    packing_heuristic: str = ""
    zone_bound: tuple[ZoneBoundPods, ...] = ()
    lower_bound_per_hour: float | None = 0.0
    exposure_violations: tuple[ExposureViolation, ...] = ()
    unreadable_annotations: tuple[UnreadableAnnotation, ...] = ()

    @property
    def price_per_hour(self) -> float:
        """USD per hour of all machines to buy, each at its cheapest offering."""
        return sum(claim.price_per_hour for claim in self.new_claims)

    @property
    def optimality_gap(self) -> float | None:
        """The share of the lower bound by which the machines to buy are dearer; None without a bound to compare with."""
        bound = self.lower_bound_per_hour
        return self.price_per_hour / bound - 1 if bound else None
