"""Why a node is not disrupted, as data: one class per kind of blocker, with its figures and without any text.

Decision, events, explanations and commands share it; ``blocker_messages`` makes the sentences. With a class per kind mypy finds a
kind that is not rendered. The decision takes a node's first blocker in the order of DIS §4, an explanation all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import ClassVar

from karpenter.disruption.decide.budget_status import BudgetStatus
from karpenter.model import labels
from karpenter.scheduling.unschedulable_reasons import UnschedulableReason

_FIGURES_THAT_CHANGE = frozenset(
    {"until", "saving_per_hour", "minimum_per_hour", "price_per_hour", "replacement_price_per_hour", "nodes"}
)


class BlockerCategory(StrEnum):
    """What a blocker is about."""

    NODE = "node"
    POD = "pod"
    NODE_POOL = "pool"
    CONSOLIDATE_AFTER = "consolidate-after"
    NODE_AGE = "node-age"
    ROLLOUT = "rollout"
    SAVING = "saving"
    MOVE = "move"
    BUDGET = "budget"
    FREEZE = "freeze"


@dataclass(frozen=True)
class Blocker:
    """Base of all blockers.

    ``kind`` names the class outside the program. ``concerns_consolidation_only``: it rules out consolidation or emptiness, not
    every disruption, so it is published as Unconsolidatable instead of DisruptionBlocked (DIS-398). ``until``: when it ends by
    itself, if known.
    """

    kind: ClassVar[str]
    category: ClassVar[BlockerCategory]
    concerns_consolidation_only: ClassVar[bool] = False

    until: datetime | None = field(default=None, kw_only=True)

    @property
    def identity(self) -> tuple[str, ...]:
        """Kind and lasting figures: blockers of one node with equal identities are reported once."""
        return (self.kind, *(str(value) for name, value in vars(self).items() if name not in _FIGURES_THAT_CHANGE))


class _NodeBlocker(Blocker):
    category = BlockerCategory.NODE


class _NodePoolBlocker(Blocker):
    category = BlockerCategory.NODE_POOL
    concerns_consolidation_only = True


class _MoveBlocker(Blocker):
    category = BlockerCategory.MOVE
    concerns_consolidation_only = True


# -- the node ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NodeUnmanaged(_NodeBlocker):
    """The node has no NodeClaim."""

    kind = "node-unmanaged"


@dataclass(frozen=True)
class NodeMissing(_NodeBlocker):
    """The NodeClaim has no Node."""

    kind = "node-missing"


@dataclass(frozen=True)
class NodeNotInitialized(_NodeBlocker):
    """The node is still starting."""

    kind = "node-not-initialized"

    is_registered: bool = True


@dataclass(frozen=True)
class NodeRebooting(_NodeBlocker):
    """Node repair reboots the node (K15-202)."""

    kind = "node-rebooting"


@dataclass(frozen=True)
class NodeDeleting(_NodeBlocker):
    """The node is deleted already, or about to be."""

    kind = "node-deleting"


@dataclass(frozen=True)
class NodeNominated(_NodeBlocker):
    """Pending pods are expected on the node."""

    kind = "node-nominated"


@dataclass(frozen=True)
class NodeDoNotDisrupt(_NodeBlocker):
    """The node has an annotation that forbids it: karpenter.sh/do-not-disrupt, or Cluster Autoscaler's."""

    kind = "node-do-not-disrupt"

    annotation: str = labels.DO_NOT_DISRUPT


@dataclass(frozen=True)
class NodePoolLabelMissing(_NodeBlocker):
    """The node does not say which NodePool it belongs to."""

    kind = "nodepool-label-missing"


@dataclass(frozen=True)
class NodePoolMissing(_NodeBlocker):
    """The node's NodePool does not exist."""

    kind = "nodepool-missing"

    node_pool: str


@dataclass(frozen=True)
class NodePoolWithoutTypes(_NodeBlocker):
    """No instance type of the node's NodePool is known."""

    kind = "nodepool-without-instance-types"

    node_pool: str


# -- its pods ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PodDoNotDisrupt(Blocker):
    """A pod (``namespace/name``) has an annotation that forbids it: karpenter.sh/do-not-disrupt, or Cluster Autoscaler's."""

    kind = "pod-do-not-disrupt"
    category = BlockerCategory.POD

    pod: str
    annotation: str = labels.DO_NOT_DISRUPT


@dataclass(frozen=True)
class PdbExhausted(Blocker):
    """A PodDisruptionBudget (``namespace/name``) allows no eviction now."""

    kind = "pdb-exhausted"
    category = BlockerCategory.POD

    pdb: str


@dataclass(frozen=True)
class MultiplePdbs(Blocker):
    """Several PodDisruptionBudgets select one pod, so the eviction API refuses to evict it."""

    kind = "multiple-pdbs"
    category = BlockerCategory.POD

    pdbs: tuple[str, ...]


# -- its NodePool, and what consolidation needs to know ---------------------------------------------------------------------


@dataclass(frozen=True)
class NodePoolStatic(_NodePoolBlocker):
    """The NodePool has a fixed number of replicas."""

    kind = "nodepool-static"

    node_pool: str


@dataclass(frozen=True)
class ConsolidationDisabled(_NodePoolBlocker):
    """``consolidateAfter`` of the NodePool is Never."""

    kind = "consolidation-disabled"

    node_pool: str


@dataclass(frozen=True)
class OnlyWhenEmpty(_NodePoolBlocker):
    """The NodePool consolidates empty nodes only, and this one has pods."""

    kind = "only-when-empty"

    node_pool: str


@dataclass(frozen=True)
class HoldsBufferPods(_NodePoolBlocker):
    """The node is headroom of capacity buffers, for this many virtual pods."""

    kind = "holds-buffer-pods"

    count: int


@dataclass(frozen=True)
class InstanceTypeUnknown(_NodePoolBlocker):
    """The node's instance type is not among those of its NodePool, so it has no price."""

    kind = "instance-type-unknown"

    instance_type: str


@dataclass(frozen=True)
class NodeLabelMissing(_NodePoolBlocker):
    """The node lacks a label that its price depends on."""

    kind = "node-label-missing"

    label: str


@dataclass(frozen=True)
class HostsController(_NodePoolBlocker):
    """This controller runs on the node."""

    kind = "hosts-controller"


# -- delays -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ConsolidateAfterNotOver(Blocker):
    """Pods came or went within the NodePool's ``consolidateAfter``."""

    kind = "consolidate-after"
    category = BlockerCategory.CONSOLIDATE_AFTER
    concerns_consolidation_only = True

    consolidate_after: str


@dataclass(frozen=True)
class WithinStabilizationWindow(Blocker):
    """``consolidateAfter`` of other nodes ends soon: they are decided with the node; ``until`` is the longest it waits."""

    kind = "stabilization-window"
    category = BlockerCategory.CONSOLIDATE_AFTER
    concerns_consolidation_only = True

    stabilization_window: timedelta


@dataclass(frozen=True)
class NodeTooYoung(Blocker):
    """The node is younger than the minimum age for consolidation."""

    kind = "node-too-young"
    category = BlockerCategory.NODE_AGE
    concerns_consolidation_only = True

    minimum_age: timedelta


@dataclass(frozen=True)
class RolloutInProgress(Blocker):
    """Pods of two revisions of a workload exist, and the roll-out makes progress; ``until`` is the end of its deadline."""

    kind = "rollout"
    category = BlockerCategory.ROLLOUT
    concerns_consolidation_only = True

    workload_kind: str
    namespace: str
    name: str


# -- moves that were evaluated ----------------------------------------------------------------------------------------------


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


# -- node repair ------------------------------------------------------------------------------------------------------------


class _RepairBlocker(Blocker):
    category = BlockerCategory.NODE


@dataclass(frozen=True)
class RepairWithoutNodePool(_RepairBlocker):
    """A node without NodePool is not repaired: nothing says what may replace it (K15-222)."""

    kind = "repair-without-nodepool"


@dataclass(frozen=True)
class NodeDoNotRepair(_RepairBlocker):
    """An annotation forbids the repair of the node (K15-225)."""

    kind = "node-do-not-repair"


@dataclass(frozen=True)
class RepairWithoutGracePeriod(_RepairBlocker):
    """Pods block the drain, and neither a policy nor the NodeClaim ends it (K15-226)."""

    kind = "repair-without-grace-period"


@dataclass(frozen=True)
class TooManyUnhealthy(_RepairBlocker):
    """Too many nodes of the NodePool are unhealthy, or of the cluster where it is empty (K15-228)."""

    kind = "too-many-unhealthy"

    node_pool: str
    percent: int


# -- budgets and freezes ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BudgetExhausted(Blocker):
    """The NodePool's budgets allow no further node for a reason."""

    kind = "budget"
    category = BlockerCategory.BUDGET

    status: BudgetStatus


@dataclass(frozen=True)
class NodePoolFrozen(Blocker):
    """A freeze covers the NodePool; ``freeze`` describes it."""

    kind = "freeze"
    category = BlockerCategory.FREEZE

    node_pool: str
    freeze: str


OwnNodeBlocker = (
    NodeUnmanaged | NodeMissing | NodeNotInitialized | NodeDeleting | NodeNominated | NodeDoNotDisrupt | NodeRebooting
)
NodePoolLookupBlocker = NodePoolLabelMissing | NodePoolMissing | NodePoolWithoutTypes
NodeBlocker = OwnNodeBlocker | NodePoolLookupBlocker
PodBlocker = PodDoNotDisrupt | PdbExhausted | MultiplePdbs
ConsolidationBlocker = (
    NodePoolStatic
    | ConsolidationDisabled
    | OnlyWhenEmpty
    | HoldsBufferPods
    | InstanceTypeUnknown
    | NodeLabelMissing
    | HostsController
)
DelayBlocker = ConsolidateAfterNotOver | WithinStabilizationWindow | NodeTooYoung | RolloutInProgress
SpotBlocker = SpotMinValuesUnmet | SpotToSpotDisabled | TooFewSpotTypes
ReplacementBlocker = NotCheaper | PriceUnknown | SameTypeAgain | MinValuesUnmet | SpotBlocker | MoveFailedRecently
MoveBlocker = (
    SavingTooSmall | RoomWithinConsolidateAfter | ReplacementBlocker | PodsUnschedulable | NeedsUninitializedNode
)
DriftBlocker = DriftedPodsUnplaceable | ReplacementExceedsLimits | StaticPoolAtNodeLimit | StaticReservationsFull
RepairBlocker = RepairWithoutNodePool | NodeDoNotRepair | RepairWithoutGracePeriod | TooManyUnhealthy
PoolBlocker = BudgetExhausted | NodePoolFrozen
AllowanceBlocker = ReplacementExceedsLimits | StaticPoolAtNodeLimit | StaticReservationsFull | PoolBlocker
DisruptionBlocker = (
    (NodeBlocker | PodBlocker | ConsolidationBlocker | DelayBlocker | SavingBelowThreshold | MoveBlocker | DriftBlocker)
    | PoolBlocker
    | RepairBlocker
)
