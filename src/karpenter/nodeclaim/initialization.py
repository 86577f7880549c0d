"""Initialization: a registered node becomes Initialized once it is Ready, has lost its startup taints and reports all requested
resources (OPS §1.5).

The condition names the first thing missing. If that lasts, an event and a log line report it, too: few users check the conditions
of a node that seems to run.
"""

from __future__ import annotations

import structlog

from karpenter.api.core import Node
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE
from karpenter.controller_context import ControllerContext
from karpenter.model import conditions, labels, taints
from karpenter.model import resources as res
from karpenter.model.clock import rfc3339
from karpenter.model.quantity import QuantityError
from karpenter.nodeclaim.subreconciler import NodeClaimSubreconciler
from karpenter.runtime.backoff_schedules import ReportSchedule
from karpenter.runtime.events import WARNING, ObjectEvent, involved_claim
from karpenter.runtime.nodeclaim_draft import NodeClaimDraft

_log = structlog.get_logger()


class NodeClaimInitialization(NodeClaimSubreconciler):
    """Sets ``Initialized`` on registered claims and labels their Nodes."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._report_schedules: dict[str, ReportSchedule] = {}

    def forget(self, name: str) -> None:
        """Drop the claim's report schedule."""
        self._report_schedules.pop(name, None)

    async def reconcile(self, draft: NodeClaimDraft) -> None:
        """Set Initialized to True, or to Unknown with the first thing missing as its reason (OPS-040). Raises ``KubeError``."""
        if draft.is_true(conditions.REBOOTING):
            return  # the reboot decides when the node may initialize again (K15-383)
        if draft.is_true(conditions.INITIALIZED) or not draft.is_true(conditions.REGISTERED):
            self.forget(draft.name)
            return
        nodes = self._context.state.nodes_by_provider_id(draft.claim.status.provider_id)
        missing = initialization_blocker(nodes, draft.claim) or self._missing_driver(nodes[0], draft.claim)
        if missing is not None:
            draft.set_condition(conditions.INITIALIZED, conditions.UNKNOWN, *missing)
            self._report_blocked(draft, *missing)
            return
        node = nodes[0]
        if node.metadata.labels.get(labels.INITIALIZED) != "true":
            patch = {"metadata": {"labels": {labels.INITIALIZED: "true"}}}
            await self._context.kube.patch(NODE, node.metadata.name, patch)
        draft.set_condition(conditions.INITIALIZED, conditions.TRUE)
        draft.after_write(lambda: _log.info("initialized nodeclaim", allocatable=dict(node.status.allocatable)))

    def _missing_driver(self, node: Node, claim: NodeClaim) -> tuple[str, str] | None:
        """The first driver of claimed devices that has not published its pool on the Node (OPS-040, row 6)."""
        devices = self._context.state.devices
        drivers = claim.metadata.annotations.get(labels.REQUESTED_DRA_DRIVERS, "")
        if not devices.is_enabled or not drivers:
            return None
        named = (driver.strip() for driver in drivers.split(","))
        driver = devices.unpublished_driver((each for each in named if each), node.metadata.name)
        if not driver:
            return None
        return "DRADriverPoolsNotPublished", f'DRA driver "{driver}" has not published a complete resource pool'

    def _report_blocked(self, draft: NodeClaimDraft, reason: str, message: str) -> None:
        registered = draft.condition(conditions.REGISTERED)
        since = (registered.last_transition_time if registered is not None else None) or draft.now
        schedule = self._report_schedules.get(draft.name) or ReportSchedule.first(since)
        if draft.now >= schedule.next_report_at:
            _log.error("initialization is held up", since=rfc3339(since), reason=reason, error=message)
            text = f"Node is registered since {rfc3339(since)} and not initialized: {message}"
            involved = involved_claim(draft.claim.metadata)
            self._context.events.publish(ObjectEvent(involved, WARNING, "FailedInitialization", text, (text,)))
            schedule = schedule.after_report(draft.now)
        self._report_schedules[draft.name] = schedule
        draft.requeue_after((schedule.next_report_at - draft.now).total_seconds())


def initialization_blocker(nodes: tuple[Node, ...], claim: NodeClaim) -> tuple[str, str] | None:
    """Reason and message of the first thing that keeps the claim from being initialized, None when nothing does."""
    if len(nodes) != 1:
        return "NodeNotFound", "Node not registered with cluster"
    node = nodes[0]
    if not conditions.is_true(node.status.conditions, conditions.READY):
        return "NodeNotReady", "Node status is NotReady"
    for expected in claim.spec.startup_taints:
        if any(taints.is_same_taint(taint, expected.as_taint()) for taint in node.spec.taints):
            return "StartupTaintsExist", f'StartupTaint "{taints.taint_text(expected.as_taint())}" still exists'
    for taint in node.spec.taints:
        if taints.is_ephemeral(taint):
            return "KnownEphemeralTaintsExist", f'KnownEphemeralTaint "{taints.taint_text(taint)}" still exists'
    return _unregistered_resource(node, claim)


def _unregistered_resource(node: Node, claim: NodeClaim) -> tuple[str, str] | None:
    try:
        allocatable = res.parse_resources(node.status.allocatable)
        requests = res.parse_resources(claim.spec.resources.requests)
    except QuantityError as error:
        return "ResourceNotRegistered", f"Resources cannot be compared: {error}"
    for name, amount in requests.items():
        if amount and not allocatable.get(name):
            return "ResourceNotRegistered", f'Resource "{name}" was requested but not registered'
    return None
