"""Why a node is not disrupted, as data: one class per kind of blocker, with its figures and without any text.

Decision, events, explanations and the command line share this vocabulary; ``blocker_messages`` is the only place that makes
sentences of it. A class per kind, and not one class with a kind and a mapping of figures, so that the type checker finds a
kind that is not rendered, or a figure that is missing.

The decision takes the first blocker of a node, in the order of DIS §4; an explanation takes all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from enum import StrEnum
from typing import ClassVar

from karpenter.disruption.decide.budget_status import BudgetStatus
from karpenter.scheduling.unschedulable_reasons import UnschedulableReason


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
        """Kind and figures: blockers of one node with equal identities are reported once."""
        return (self.kind, *(str(getattr(self, each.name)) for each in fields(self) if each.name != "until"))


# -- the node ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NodeUnmanaged(Blocker):
    """The node has no NodeClaim."""

    kind = "node-unmanaged"
    category = BlockerCategory.NODE


@dataclass(frozen=True)
class NodeMissing(Blocker):
    """The NodeClaim has no Node."""

    kind = "node-missing"
    category = BlockerCategory.NODE


@dataclass(frozen=True)
class NodeNotInitialized(Blocker):
    """The node is still starting."""

    kind = "node-not-initialized"
    category = BlockerCategory.NODE


@dataclass(frozen=True)
class NodeDeleting(Blocker):
    """The node is deleted already, or about to be."""

    kind = "node-deleting"
    category = BlockerCategory.NODE


@dataclass(frozen=True)
class NodeNominated(Blocker):
    """Pending pods are expected on the node."""

    kind = "node-nominated"
    category = BlockerCategory.NODE


@dataclass(frozen=True)
class NodeDoNotDisrupt(Blocker):
    """The node has the annotation karpenter.sh/do-not-disrupt."""

    kind = "node-do-not-disrupt"
    category = BlockerCategory.NODE


@dataclass(frozen=True)
class NodePoolLabelMissing(Blocker):
    """The node does not say which NodePool it belongs to."""

    kind = "nodepool-label-missing"
    category = BlockerCategory.NODE


@dataclass(frozen=True)
class NodePoolMissing(Blocker):
    """The node's NodePool does not exist."""

    kind = "nodepool-missing"
    category = BlockerCategory.NODE

    node_pool: str


@dataclass(frozen=True)
class NodePoolWithoutTypes(Blocker):
    """No instance type of the node's NodePool is known."""

    kind = "nodepool-without-instance-types"
    category = BlockerCategory.NODE

    node_pool: str


# -- its pods ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PodDoNotDisrupt(Blocker):
    """A pod (``namespace/name``) has the annotation karpenter.sh/do-not-disrupt."""

    kind = "pod-do-not-disrupt"
    category = BlockerCategory.POD

    pod: str


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
class NodePoolStatic(Blocker):
    """The NodePool has a fixed number of replicas."""

    kind = "nodepool-static"
    category = BlockerCategory.NODE_POOL
    concerns_consolidation_only = True

    node_pool: str


@dataclass(frozen=True)
class ConsolidationDisabled(Blocker):
    """``consolidateAfter`` of the NodePool is Never."""

    kind = "consolidation-disabled"
    category = BlockerCategory.NODE_POOL
    concerns_consolidation_only = True

    node_pool: str


@dataclass(frozen=True)
class OnlyWhenEmpty(Blocker):
    """The NodePool consolidates empty nodes only, and this one has pods."""

    kind = "only-when-empty"
    category = BlockerCategory.NODE_POOL
    concerns_consolidation_only = True

    node_pool: str


@dataclass(frozen=True)
class HoldsBufferPods(Blocker):
    """The node is headroom of capacity buffers, for this many virtual pods."""

    kind = "holds-buffer-pods"
    category = BlockerCategory.NODE_POOL
    concerns_consolidation_only = True

    count: int


@dataclass(frozen=True)
class InstanceTypeUnknown(Blocker):
    """The node's instance type is not among those of its NodePool, so it has no price."""

    kind = "instance-type-unknown"
    category = BlockerCategory.NODE_POOL
    concerns_consolidation_only = True

    instance_type: str


@dataclass(frozen=True)
class NodeLabelMissing(Blocker):
    """The node lacks a label that its price depends on."""

    kind = "node-label-missing"
    category = BlockerCategory.NODE_POOL
    concerns_consolidation_only = True

    label: str


@dataclass(frozen=True)
class HostsController(Blocker):
    """This controller runs on the node."""

    kind = "hosts-controller"
    category = BlockerCategory.NODE_POOL
    concerns_consolidation_only = True


# -- delays -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ConsolidateAfterNotOver(Blocker):
    """Pods came or went within the NodePool's ``consolidateAfter``."""

    kind = "consolidate-after"
    category = BlockerCategory.CONSOLIDATE_AFTER
    concerns_consolidation_only = True

    consolidate_after: str


@dataclass(frozen=True)
class OtherNodesSettling(Blocker):
    """``consolidateAfter`` of other nodes ends soon; the node waits for them, but no longer than ``settling_period``."""

    kind = "other-nodes-settling"
    category = BlockerCategory.CONSOLIDATE_AFTER
    concerns_consolidation_only = True

    settling_period: timedelta


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
class SavingTooSmall(Blocker):
    """A move saves at most ``saving_per_hour``, less than the NodePools require for what it disrupts; both in USD."""

    kind = "saving-too-small"
    category = BlockerCategory.MOVE
    concerns_consolidation_only = True

    saving_per_hour: float
    minimum_per_hour: float


@dataclass(frozen=True)
class NotCheaper(Blocker):
    """Other nodes have no room for all pods, and new nodes for the rest are not cheaper.

    They cost at least ``replacement_price_per_hour``, the node ``price_per_hour``, both in USD.
    """

    kind = "not-cheaper"
    category = BlockerCategory.MOVE
    concerns_consolidation_only = True

    price_per_hour: float
    replacement_price_per_hour: float


@dataclass(frozen=True)
class RoomWithinConsolidateAfter(Blocker):
    """The pods fit on other nodes (by name), but these take no pods while their own ``consolidateAfter`` is not over."""

    kind = "room-within-consolidate-after"
    category = BlockerCategory.MOVE
    concerns_consolidation_only = True

    nodes: tuple[str, ...]


@dataclass(frozen=True)
class MoveFailedRecently(Blocker):
    """The same move of a node failed a short while ago."""

    kind = "move-failed-recently"
    category = BlockerCategory.MOVE
    concerns_consolidation_only = True


@dataclass(frozen=True)
class PriceUnknown(Blocker):
    """The node's own price is unknown, so no replacement is known to be cheaper."""

    kind = "price-unknown"
    category = BlockerCategory.MOVE
    concerns_consolidation_only = True


@dataclass(frozen=True)
class SameTypeAgain(Blocker):
    """The replacement would be of the type the node has already."""

    kind = "same-type-again"
    category = BlockerCategory.MOVE
    concerns_consolidation_only = True


@dataclass(frozen=True)
class MinValuesUnmet(Blocker):
    """The cheaper instance types have too few values of these labels for minValues."""

    kind = "min-values"
    category = BlockerCategory.MOVE
    concerns_consolidation_only = True

    labels: tuple[str, ...]


@dataclass(frozen=True)
class SpotMinValuesUnmet(Blocker):
    """The instance types that are available as spot do not meet minValues."""

    kind = "spot-min-values"
    category = BlockerCategory.MOVE
    concerns_consolidation_only = True


@dataclass(frozen=True)
class SpotToSpotDisabled(Blocker):
    """Only another spot node would be cheaper, and the feature gate SpotToSpotConsolidation is off."""

    kind = "spot-to-spot-disabled"
    category = BlockerCategory.MOVE
    concerns_consolidation_only = True


@dataclass(frozen=True)
class TooFewSpotTypes(Blocker):
    """Replacing a spot node by a spot node needs more cheaper instance types than there are (DIS-203)."""

    kind = "too-few-spot-types"
    category = BlockerCategory.MOVE
    concerns_consolidation_only = True

    required: int
    available: int


@dataclass(frozen=True)
class StrandedPod:
    """A pod (``namespace/name``) that fits nowhere, and why."""

    pod: str
    reasons: tuple[UnschedulableReason, ...]


@dataclass(frozen=True)
class PodsUnschedulable(Blocker):
    """Pods of the node fit nowhere: the first few of them, and how many more there are."""

    kind = "pods-unschedulable"
    category = BlockerCategory.MOVE
    concerns_consolidation_only = True

    pods: tuple[StrandedPod, ...]
    others: int


@dataclass(frozen=True)
class NeedsUninitializedNode(Blocker):
    """A pod (``namespace/name``) fits only on a NodeClaim that is not initialized yet."""

    kind = "needs-uninitialized-node"
    category = BlockerCategory.MOVE
    concerns_consolidation_only = True

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


NodeBlocker = (
    NodeUnmanaged
    | NodeMissing
    | NodeNotInitialized
    | NodeDeleting
    | NodeNominated
    | NodeDoNotDisrupt
    | NodePoolLabelMissing
    | NodePoolMissing
    | NodePoolWithoutTypes
)
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
DelayBlocker = ConsolidateAfterNotOver | OtherNodesSettling | NodeTooYoung | RolloutInProgress
SpotBlocker = SpotMinValuesUnmet | SpotToSpotDisabled | TooFewSpotTypes
ReplacementBlocker = NotCheaper | PriceUnknown | SameTypeAgain | MinValuesUnmet | SpotBlocker | MoveFailedRecently
MoveBlocker = (
    SavingTooSmall | RoomWithinConsolidateAfter | ReplacementBlocker | PodsUnschedulable | NeedsUninitializedNode
)
DriftBlocker = DriftedPodsUnplaceable | ReplacementExceedsLimits
PoolBlocker = BudgetExhausted | NodePoolFrozen
DisruptionBlocker = (
    NodeBlocker | PodBlocker | ConsolidationBlocker | DelayBlocker | SavingBelowThreshold | MoveBlocker | DriftBlocker
) | PoolBlocker
