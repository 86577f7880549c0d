"""Why a node is not disrupted, as data: one class per kind of blocker, with its figures and without any text.

Decision, events, explanations and commands share it; ``blocker_messages`` makes the sentences. With a class per kind mypy finds a
kind that is not rendered. The decision takes a node's first blocker in the order of DIS §4, an explanation all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from karpenter.disruption.decide.blocker import Blocker, BlockerCategory
from karpenter.disruption.decide.budget_status import BudgetStatus
from karpenter.disruption.decide.move_blockers import (
    DriftBlocker,
    MoveBlocker,
    ReplacementExceedsLimits,
    SavingBelowThreshold,
    StaticPoolAtNodeLimit,
    StaticReservationsFull,
)
from karpenter.model import labels


class _NodeBlocker(Blocker):
    category = BlockerCategory.NODE


class _NodePoolBlocker(Blocker):
    category = BlockerCategory.NODE_POOL
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


@dataclass(frozen=True)
class SplitsGang(_NodePoolBlocker):
    """The node runs so many pods of a gang that the others, which run elsewhere, are of no use without them."""

    kind = "splits-gang"
    gang: str


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
    """``consolidateAfter`` of other nodes ends soon: the node waits, to be decided with them."""

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
    """Pods of two revisions of a workload exist, and the roll-out makes progress within its deadline."""

    kind = "rollout"
    category = BlockerCategory.ROLLOUT
    concerns_consolidation_only = True

    workload_kind: str
    namespace: str
    name: str


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
    | SplitsGang
)
DelayBlocker = ConsolidateAfterNotOver | WithinStabilizationWindow | NodeTooYoung | RolloutInProgress
RepairBlocker = RepairWithoutNodePool | NodeDoNotRepair | RepairWithoutGracePeriod | TooManyUnhealthy
PoolBlocker = BudgetExhausted | NodePoolFrozen
AllowanceBlocker = ReplacementExceedsLimits | StaticPoolAtNodeLimit | StaticReservationsFull | PoolBlocker
DisruptionBlocker = (
    (NodeBlocker | PodBlocker | ConsolidationBlocker | DelayBlocker | SavingBelowThreshold | MoveBlocker | DriftBlocker)
    | PoolBlocker
    | RepairBlocker
)
