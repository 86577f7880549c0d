"""The solution of a scheduling problem: NodeClaims to create, pods placed on existing nodes, unschedulable pods with reasons.

A solution is frozen data. Pods appear as objects, because its executor needs their uid and its renderers their name.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from karpenter.api.core import Pod
from karpenter.api.karpenter import NodeClaim
from karpenter.instancetypes.instance_type import Offering
from karpenter.scheduling.failed_filters import NearestFit
from karpenter.scheduling.unschedulable_reasons import PoolSkipReason, UnschedulableReason

#: Relative error of the sums behind a lower bound; a price this close to it is equal to it.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class NewNodeClaim:
    """A NodeClaim to create, the pods it is for, and its price now.

    ``instance_types`` are the types that hold its pods, cheapest first; ``cheapest_offering`` is one of the first of them.
    ``cpu_surplus_per_hour``: USD for the CPU that its pods request beyond the baseline of that type (`cpu_surplus`).
    """

    claim: NodeClaim
    node_pool: str
    instance_types: tuple[str, ...]
    cheapest_offering: Offering
    pods: tuple[Pod, ...]
    cpu_surplus_per_hour: float = 0.0

    @property
    def name(self) -> str:
        """Name of the NodeClaim, derived from what it is for."""
        return self.claim.metadata.name

    @property
    def price_per_hour(self) -> float:
        """USD per hour of the cheapest offering."""
        return self.cheapest_offering.price_per_hour

    @property
    def cost_per_hour(self) -> float:
        """USD per hour of the cheapest offering, and of CPU beyond its baseline."""
        return self.price_per_hour + self.cpu_surplus_per_hour


@dataclass(frozen=True)
class PlacedPods:
    """Pods for an existing or in-flight node. ``node_key`` stays the same for its life, ``node_name`` is its name now.

    ``awaits_terminating_pods``: they do not fit before pods that are being deleted there have ended.
    """

    node_key: str
    node_name: str
    pods: tuple[Pod, ...]
    awaits_terminating_pods: bool = False


@dataclass(frozen=True)
class UnschedulablePod:
    """A pod that stays pending, with one reason per NodePool tried, or one about the pod itself.

    ``nearest_fit`` is the smallest set of changes with which a new node would take it, ``nearest_node`` the existing node that
    nearly has room for it (SCH-261 Beyond); None where there is none.
    """

    pod: Pod
    reasons: tuple[UnschedulableReason, ...]
    nearest_fit: NearestFit | None = None
    nearest_node: NearestFit | None = None


@dataclass(frozen=True)
class SkippedNodePool:
    """A NodePool that took no part, and why; ``detail`` is the text of its conditions."""

    node_pool: str
    reason: PoolSkipReason
    detail: str = ""


@dataclass(frozen=True)
class ZoneBoundPods:
    """Pods that can only be in one zone; ``zone`` is ``none`` where no zone is left (SCH-668)."""

    zone: str
    pods: tuple[Pod, ...]


class ViolationCause(StrEnum):
    """Why an exposure limit was relaxed."""

    TOGETHER = "Together"
    LIMITS = "Limits"
    PRICE = "Price"
    NOTHING_ELSE = "NothingElse"


class PackingFallback(StrEnum):
    """Why pods were packed the classic way where each should go to the new node with the fewest pods."""

    TOO_MUCH_WORK = "TooMuchWork"
    PODS_LEFT_OUT = "PodsLeftOut"


@dataclass(frozen=True)
class ExposureViolation:
    """An exposure limit that was relaxed: ``actual`` in one place instead of ``limit``.

    ``subject`` is a workload, a NodePool (its spot nodes) or the plan, ``place`` a NodeClaim or an instance type and zone.
    """

    subject: str
    place: str
    actual: int
    limit: int
    cause: ViolationCause


@dataclass(frozen=True)
class UnreadableAnnotation:
    """A Karpenter annotation that does not parse, so the default applies: its object, its key and the error."""

    subject: str
    annotation: str
    error: str


@dataclass(frozen=True)
class GangOutcome:
    """What became of a gang: ``placed`` of its pods get a place beside those ``running``.

    ``domain`` is where they are together, if it asks for that. ``is_complete``: it has at least its minimum; otherwise none of
    its pods gets a place.
    """

    gang: str
    minimum: int
    running: int
    placed: int
    is_complete: bool
    domain: str = ""


@dataclass(frozen=True)
class Solution:
    """The outcome of one scheduling pass. ``packing_heuristic`` names the packing that was cheapest.

    ``zone_bound`` are the pods that only one zone can hold. No packing of the new nodes costs less than ``lower_bound_per_hour``
    (USD), None where no bound is known. ``exposure_violations`` are the exposure limits that were relaxed,
    ``unreadable_annotations`` the annotations about exposure that do not parse. ``is_optimal``: it is proven that no plan has a
    lower objective. The plan costs ``node_share_cost_per_hour`` (USD) more because no new node has more than its share of the
    pods, or ``node_share_saving_per_hour`` less because one has. ``gangs``: what became of gangs, by name. ``packing_fallback``:
    why pods were not dealt as the packing ``fewest-pods`` deals them.
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
    is_optimal: bool = False
    node_share_cost_per_hour: float = 0.0
    node_share_saving_per_hour: float = 0.0
    gangs: tuple[GangOutcome, ...] = ()
    packing_fallback: PackingFallback | None = None

    @property
    def awaiting_terminating_pods(self) -> tuple[PlacedPods, ...]:
        """The pods that do not fit on their existing node before others there have ended."""
        return tuple(placed for placed in self.placed_on_existing if placed.awaits_terminating_pods)

    @property
    def price_per_hour(self) -> float:
        """USD per hour of all new nodes, each at its cheapest offering."""
        return sum(claim.price_per_hour for claim in self.new_claims)

    @property
    def cpu_surplus_per_hour(self) -> float:
        """USD per hour for the CPU that pods request beyond the baseline of burstable types."""
        return sum(claim.cpu_surplus_per_hour for claim in self.new_claims)

    @property
    def optimality_gap(self) -> float | None:
        """The share by which new nodes with their CPU cost more than the lower bound; None without a bound, 0 within rounding."""
        bound = self.lower_bound_per_hour
        if not bound:
            return None
        gap = (self.price_per_hour + self.cpu_surplus_per_hour) / bound - 1
        return 0.0 if abs(gap) < _ROUNDING else gap
