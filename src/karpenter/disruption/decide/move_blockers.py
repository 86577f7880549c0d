"""Blockers of moves that were evaluated: what a consolidation or a replacement came to, with its figures."""

from __future__ import annotations

from dataclasses import dataclass

from karpenter.disruption.decide.blocker import Blocker, BlockerCategory
from karpenter.scheduling.unschedulable_reasons import UnschedulableReason


class _MoveBlocker(Blocker):
    category = BlockerCategory.MOVE
    concerns_consolidation_only = True


@dataclass(frozen=True)
class SavingBelowThreshold(Blocker):
    """No move can score what the NodePool requires: ``best`` is the score if nothing had to be launched."""

    kind = "saving-below-threshold"
    category = BlockerCategory.SAVING
    concerns_consolidation_only = True

    best: float
    minimum: float


@dataclass(frozen=True)
class SavingTooSmall(_MoveBlocker):
    """A move saves at most ``saving_per_hour``, less than the NodePools require for what it disrupts; both in USD."""

    kind = "saving-too-small"

    saving_per_hour: float
    minimum_per_hour: float


@dataclass(frozen=True)
class NotCheaper(_MoveBlocker):
    """Other nodes have no room for all pods; new ones for the rest cost at least ``replacement_price_per_hour`` in USD."""

    kind = "not-cheaper"

    price_per_hour: float
    replacement_price_per_hour: float


@dataclass(frozen=True)
class RoomWithinConsolidateAfter(_MoveBlocker):
    """The pods fit on other nodes (by name), but these take no pods while their own ``consolidateAfter`` is not over."""

    kind = "room-within-consolidate-after"

    nodes: tuple[str, ...]


@dataclass(frozen=True)
class MoveFailedRecently(_MoveBlocker):
    """The same move of a node failed a short while ago."""

    kind = "move-failed-recently"


@dataclass(frozen=True)
class PriceUnknown(_MoveBlocker):
    """The node's own price is unknown, so no replacement is known to be cheaper."""

    kind = "price-unknown"


@dataclass(frozen=True)
class SameTypeAgain(_MoveBlocker):
    """The replacement would be of the type the node has already."""

    kind = "same-type-again"


@dataclass(frozen=True)
class MinValuesUnmet(_MoveBlocker):
    """The cheaper instance types have too few values of these labels for minValues."""

    kind = "min-values"

    labels: tuple[str, ...]


@dataclass(frozen=True)
class SpotMinValuesUnmet(_MoveBlocker):
    """The instance types that are available as spot do not meet minValues."""

    kind = "spot-min-values"


@dataclass(frozen=True)
class SpotToSpotDisabled(_MoveBlocker):
    """Only another spot node would be cheaper, and the feature gate SpotToSpotConsolidation is off."""

    kind = "spot-to-spot-disabled"


@dataclass(frozen=True)
class TooFewSpotTypes(_MoveBlocker):
    """Replacing a spot node by a spot node needs more cheaper instance types than there are (DIS-203)."""

    kind = "too-few-spot-types"

    required: int
    available: int


@dataclass(frozen=True)
class StrandedPod:
    """A pod (``namespace/name``) that fits nowhere, and why."""

    pod: str
    reasons: tuple[UnschedulableReason, ...]


@dataclass(frozen=True)
class PodsUnschedulable(_MoveBlocker):
    """Pods of the node fit nowhere: the first few of them, and how many more there are."""

    kind = "pods-unschedulable"

    pods: tuple[StrandedPod, ...]
    others: int


@dataclass(frozen=True)
class NeedsUninitializedNode(_MoveBlocker):
    """A pod (``namespace/name``) fits only on a NodeClaim that is not initialized yet."""

    kind = "needs-uninitialized-node"

    pod: str
    node_claim: str


@dataclass(frozen=True)
class DriftedPodsUnplaceable(Blocker):
    """A drifted node cannot be replaced, since its pods have no other place."""

    kind = "drifted-pods-unplaceable"
    category = BlockerCategory.MOVE

    cause: PodsUnschedulable | NeedsUninitializedNode

    @property
    def identity(self) -> tuple[str, ...]:
        """That of the cause."""
        return (self.kind, *self.cause.identity)


@dataclass(frozen=True)
class ReplacementExceedsLimits(Blocker):
    """A replacement would exceed limits; ``resources`` names those that the NodePool's nodes exceed already."""

    kind = "replacement-exceeds-limits"
    category = BlockerCategory.MOVE

    node_pools: tuple[str, ...]
    resources: tuple[str, ...] = ()
    is_emptying: bool = False


@dataclass(frozen=True)
class StaticPoolAtNodeLimit(Blocker):
    """A replacement needs one node more than ``limits.nodes`` of the static NodePool allows (K15-214, K15-233)."""

    kind = "static-pool-at-node-limit"
    category = BlockerCategory.MOVE

    node_pool: str


@dataclass(frozen=True)
class StaticReservationsFull(Blocker):
    """All offerings of the static NodePool are reservations, and these are full (K15-324)."""

    kind = "static-reservations-full"
    category = BlockerCategory.MOVE

    node_pool: str


@dataclass(frozen=True)
class ReplacementsUnready(Blocker):
    """The last replacements in the NodePool were launched and did not become ready: one at a time is tried, after pauses."""

    kind = "replacements-unready"
    category = BlockerCategory.MOVE

    node_pool: str


SpotBlocker = SpotMinValuesUnmet | SpotToSpotDisabled | TooFewSpotTypes
ReplacementBlocker = (
    NotCheaper | PriceUnknown | SameTypeAgain | MinValuesUnmet | SpotBlocker | MoveFailedRecently | ReplacementsUnready
)
MoveBlocker = (
    SavingTooSmall | RoomWithinConsolidateAfter | ReplacementBlocker | PodsUnschedulable | NeedsUninitializedNode
)
DriftBlocker = (
    DriftedPodsUnplaceable
    | ReplacementExceedsLimits
    | StaticPoolAtNodeLimit
    | StaticReservationsFull
    | ReplacementsUnready
)
