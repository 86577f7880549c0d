"""The sentences for disruption blockers: the only place that makes text of them, for events, the command line and JSON.

Texts that Karpenter publishes as events are Karpenter's, byte for byte, because users alert on them.
One ``match`` per group of kinds; mypy reports a kind without a sentence.
"""

from __future__ import annotations

from typing import assert_never

from karpenter.disruption.decide import disruption_blockers, move_blockers
from karpenter.disruption.decide.budget_status import BudgetStatus
from karpenter.disruption.decide.command import DisruptionReason
from karpenter.disruption.decide.disruption_blockers import (
    AllowanceBlocker,
    ConsolidationBlocker,
    DelayBlocker,
    DisruptionBlocker,
    NodeBlocker,
    NodePoolLookupBlocker,
    OwnNodeBlocker,
    PodBlocker,
    RepairBlocker,
)
from karpenter.disruption.decide.move_blockers import MoveBlocker, ReplacementBlocker, StrandedPod
from karpenter.model import durations, labels
from karpenter.model.nodepool_budgets import UNLIMITED_DISRUPTIONS
from karpenter.scheduling.explain.reason_messages import reason_message


def blocker_message(blocker: DisruptionBlocker) -> str:
    """What keeps the node, as a sentence."""
    if isinstance(blocker, ConsolidationBlocker):
        return _consolidation_message(blocker)
    if isinstance(blocker, PodBlocker):
        return _pod_message(blocker)
    if isinstance(blocker, DelayBlocker):
        return _delay_message(blocker)
    if isinstance(blocker, AllowanceBlocker):
        return _allowance_message(blocker)
    return _node_or_move_message(blocker)


def _node_or_move_message(
    blocker: NodeBlocker
    | RepairBlocker
    | move_blockers.SavingBelowThreshold
    | move_blockers.DriftedPodsUnplaceable
    | MoveBlocker,
) -> str:
    match blocker:
        case move_blockers.SavingBelowThreshold(best, minimum):
            return f"Saving is worth at most {best:.2f} of what it disrupts, the NodePool asks for {minimum:g}"
        case move_blockers.DriftedPodsUnplaceable(cause):
            return f"Pods can't be rescheduled: {_move_message(cause)}"
    if isinstance(blocker, RepairBlocker):
        return _repair_message(blocker)
    if isinstance(blocker, NodePoolLookupBlocker):
        return _nodepool_message(blocker)
    if isinstance(blocker, OwnNodeBlocker):
        return _node_message(blocker)
    return _move_message(blocker)


def _node_message(blocker: OwnNodeBlocker) -> str:
    match blocker:
        case disruption_blockers.NodeUnmanaged():
            return "Node has no NodeClaim: it is not managed"
        case disruption_blockers.NodeMissing():
            return "Nodeclaim does not have an associated node"
        case disruption_blockers.NodeNotInitialized(is_registered):
            return "Node isn't initialized" if is_registered else "Node isn't initialized nor registered"
        case disruption_blockers.NodeRebooting():
            return "Node is rebooting"
        case disruption_blockers.NodeDeleting():
            return "Node is deleting or marked for deletion"
        case disruption_blockers.NodeNominated():
            return "Node is nominated for a pending pod"
        case disruption_blockers.NodeDoNotDisrupt(annotation):
            return f'Disruption is blocked through the "{annotation}" annotation'
        case _:
            assert_never(blocker)


def _nodepool_message(blocker: NodePoolLookupBlocker) -> str:
    match blocker:
        case disruption_blockers.NodePoolLabelMissing():
            return f"Node doesn't have required label (label={labels.NODE_POOL})"
        case disruption_blockers.NodePoolMissing(node_pool):
            return f"NodePool not found (NodePool={node_pool})"
        case disruption_blockers.NodePoolWithoutTypes(node_pool):
            return f"NodePool has no instance types that could be resolved (NodePool={node_pool})"
        case _:
            assert_never(blocker)


def _repair_message(blocker: RepairBlocker) -> str:
    match blocker:
        case disruption_blockers.RepairWithoutNodePool():
            return "Repair requires a NodePool to construct and budget a safe replacement"
        case disruption_blockers.NodeDoNotRepair():
            return f'Repair is blocked through the "{labels.DO_NOT_REPAIR}" annotation'
        case disruption_blockers.RepairWithoutGracePeriod():
            return "Repair requires a termination grace period to bypass blocking pods"
        case disruption_blockers.TooManyUnhealthy(node_pool, percent):
            scope = f'nodepool "{node_pool}"' if node_pool else "the cluster"
            return f"more than {percent}% of nodes in {scope} are unhealthy"
        case _:
            assert_never(blocker)


def _pod_message(blocker: PodBlocker) -> str:
    match blocker:
        case disruption_blockers.PodDoNotDisrupt(pod, annotation):
            return f'Pod has "{annotation}" annotation (Pod={pod})'
        case disruption_blockers.PdbExhausted(pdb):
            return f"PDB prevents pod evictions (PodDisruptionBudget=[{pdb}])"
        case disruption_blockers.MultiplePdbs(pdbs):
            return f"Eviction does not support multiple PDBs (PodDisruptionBudget(s)=[{' '.join(pdbs)}])"
        case _:
            assert_never(blocker)


def _delay_message(blocker: DelayBlocker) -> str:
    match blocker:
        case disruption_blockers.ConsolidateAfterNotOver(consolidate_after):
            return f"consolidateAfter {consolidate_after} since the last pod came or went is not over"
        case disruption_blockers.WithinStabilizationWindow(stabilization_window):
            length = durations.duration_text(stabilization_window)
            return f"Node waits for other nodes whose consolidateAfter ends within {length} of its own"
        case disruption_blockers.NodeTooYoung(minimum_age):
            age = durations.duration_text(minimum_age)
            return f"Node is younger than {age}, the least age at which it may be consolidated"
        case disruption_blockers.RolloutInProgress(kind, namespace, name):
            return f"{kind} {namespace}/{name} is being rolled out"
        case _:
            assert_never(blocker)


def _consolidation_message(blocker: ConsolidationBlocker) -> str:
    match blocker:
        case disruption_blockers.NodePoolStatic(node_pool):
            return f'NodePool "{node_pool}" is static'
        case disruption_blockers.ConsolidationDisabled(node_pool):
            return f'NodePool "{node_pool}" has consolidation disabled'
        case disruption_blockers.OnlyWhenEmpty(node_pool):
            return f'NodePool "{node_pool}" has non-empty consolidation disabled'
        case disruption_blockers.HoldsBufferPods(count):
            return f"Node is kept for {count} capacity buffer pod(s)"
        case disruption_blockers.InstanceTypeUnknown(instance_type):
            return f'Instance Type "{instance_type}" not found'
        case disruption_blockers.NodeLabelMissing(label):
            return f'Node does not have label "{label}"'
        case disruption_blockers.HostsController():
            return "The controller itself runs on this node"
        case disruption_blockers.SplitsGang(gang):
            return f"{gang} runs on this node and others, and is of no use without its pods here"
        case _:
            assert_never(blocker)


_SAVING_TOO_SMALL = "Consolidation would save too little for what it disrupts"
_NOT_CHEAPER = "Can't replace with a cheaper node"
_SHOWN_NODES = 5


def _move_message(blocker: MoveBlocker) -> str:
    match blocker:
        case move_blockers.SavingTooSmall(saving, minimum):
            return f"{_SAVING_TOO_SMALL}: at most {_price(saving)}, {_price(minimum)} are required"
        case move_blockers.RoomWithinConsolidateAfter(nodes):
            more = len(nodes) - _SHOWN_NODES
            names = ", ".join(nodes[:_SHOWN_NODES]) + (f" and {more} other(s)" if more > 0 else "")
            return f"Pods fit on other nodes only once consolidateAfter of these is over: {names}"
        case move_blockers.PodsUnschedulable(pods, others):
            names = "; ".join(map(_stranded_pod_text, pods))
            return f"not all pods would schedule, {names}" + (f" and {others} other(s)" if others else "")
        case move_blockers.NeedsUninitializedNode(pod, node_claim):
            return f"{pod} => would schedule against uninitialized nodeclaim/{node_claim}"
    return _replacement_message(blocker)


def _allowance_message(blocker: AllowanceBlocker) -> str:
    match blocker:
        case move_blockers.ReplacementExceedsLimits():
            return _limits_message(blocker)
        case move_blockers.StaticPoolAtNodeLimit():
            return "Static NodePool is at its node limit and cannot stage a replacement"
        case move_blockers.StaticReservationsFull():
            return "Static NodePool's capacity reservations are full and cannot stage a replacement"
        case disruption_blockers.BudgetExhausted(status):
            return budget_message(status)
        case disruption_blockers.NodePoolFrozen(node_pool, freeze):
            return f'NodePool "{node_pool}" is {freeze}'
        case _:
            assert_never(blocker)


def _limits_message(blocker: move_blockers.ReplacementExceedsLimits) -> str:
    pools = " and ".join(f'NodePool "{name}"' for name in blocker.node_pools)
    if blocker.is_emptying:
        return f"{pools} is at its limits: another node is emptied first"
    if blocker.resources:
        return f"{pools} exceeds its limits on {', '.join(blocker.resources)}: no replacement may be created"
    return f"A replacement would exceed the limits of {pools}, even without this node"


def _replacement_message(blocker: ReplacementBlocker) -> str:
    match blocker:
        case move_blockers.NotCheaper(price, replacement_price):
            return (
                f"{_NOT_CHEAPER}, other nodes have no room for all of its pods and new nodes for the rest cost at least "
                f"{_price(replacement_price)}, this one costs {_price(price)}"
            )
        case move_blockers.MoveFailedRecently():
            return "The same move failed a short while ago, it is tried again later"
        case move_blockers.ReplacementsUnready(node_pool):
            return f'The last replacements in NodePool "{node_pool}" did not become ready: one at a time is tried, after pauses'
        case move_blockers.PriceUnknown():
            return f"{_NOT_CHEAPER}, the price of this one is not known"
        case move_blockers.SameTypeAgain():
            return f"{_NOT_CHEAPER}, the same node would be launched again"
        case move_blockers.MinValuesUnmet(keys):
            return f"{_NOT_CHEAPER}, minValues requirement is not met (label(s) {', '.join(keys)})"
        case move_blockers.SpotMinValuesUnmet():
            return f"{_NOT_CHEAPER}, minValues requirement is not met by spot capacity alone"
        case move_blockers.SpotToSpotDisabled():
            return "SpotToSpotConsolidation is disabled, can't replace a spot node with a spot node"
        case move_blockers.TooFewSpotTypes(required, available):
            return (
                f"SpotToSpotConsolidation requires {required} cheaper instance type options than the current candidate "
                f"to consolidate, got {available}"
            )
        case _:
            assert_never(blocker)


def _price(usd_per_hour: float) -> str:
    return f"${usd_per_hour:.4f}/h"


def _stranded_pod_text(stranded: StrandedPod) -> str:
    return f"{stranded.pod} => {'; '.join(map(reason_message, stranded.reasons))}"


# -- budgets ----------------------------------------------------------------------------------------------------------------


def budget_message(status: BudgetStatus) -> str:
    """What budgets allow now, as a sentence."""
    if status.allowed == UNLIMITED_DISRUPTIONS:
        return f'No budget of NodePool "{status.node_pool}" limits {status.reason.value}'
    if not status.allowed:
        return f'NodePool "{status.node_pool}" allows no node to go for {status.reason.value} now ({status.limited_by})'
    away = status.allowed - status.remaining
    return (
        f'NodePool "{status.node_pool}" allows {status.allowed} node(s) at a time for {status.reason.value}, '
        f"{away} of which are away already ({status.limited_by})"
    )


def closed_budget_message(reason: DisruptionReason, limited_by: str) -> str:
    """That a NodePool's budgets allow nothing at all for a reason, and which field says so (DIS-149)."""
    return f"No allowed disruptions for disruption reason {reason} due to blocking budget ({limited_by})"
