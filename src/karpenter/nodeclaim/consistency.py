"""Whether a node is what was bought: a machine that shows much less than its type promises is reported (OPS §1.10).

The first comparison is made when the node is initialised, the next ones every ten minutes. Nothing else follows from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from karpenter.api.core import Node
from karpenter.api.karpenter import NodeClaim
from karpenter.model import conditions, quantity
from karpenter.model.quantity import QuantityError
from karpenter.runtime.backoff_schedules import ReportSchedule
from karpenter.runtime.controller_context import ControllerContext
from karpenter.runtime.events import WARNING, ObjectEvent, involved_claim
from karpenter.runtime.nodeclaim_draft import NodeClaimDraft

#: How long a comparison holds (OPS-085).
SCAN_INTERVAL = timedelta(minutes=10)
#: The least part of a promised resource a node must show, in percent (OPS-086).
_MIN_CAPACITY_PERCENT = 90
_CONSISTENT_STATE_FOUND = "ConsistentStateFound"
_log = structlog.get_logger()


class NodeClaimConsistency:
    """Compares nodes with what was bought, and remembers when each is due again."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._next_scan: dict[str, tuple[str, datetime]] = {}

    def forget(self, name: str) -> None:
        """The claim is gone."""
        self._next_scan.pop(name, None)

    async def reconcile(self, draft: NodeClaimDraft) -> None:
        """Compare an initialised node with its claim, if it is time to."""
        nodes = self._context.state.nodes_by_provider_id(draft.claim.status.provider_id)
        if not draft.is_true("Initialized") or len(nodes) != 1:
            return
        uid = draft.claim.metadata.uid
        known, due = self._next_scan.get(draft.name, ("", draft.now))
        last = draft.condition(_CONSISTENT_STATE_FOUND)
        if last is None or known != uid or not draft.now < due <= draft.now + SCAN_INTERVAL:
            self._scan(draft, nodes[0])
            due = draft.now + SCAN_INTERVAL
            self._next_scan[draft.name] = uid, due
        else:
            draft.set_condition(
                _CONSISTENT_STATE_FOUND, last.status, last.reason, last.message
            )  # seen at this generation, too (OPS-101)
        draft.requeue_after((due - draft.now).total_seconds())

    def _scan(self, draft: NodeClaimDraft, node: Node) -> None:
        found = tuple(consistency_issues(node, draft.claim))
        for issue in found:
            _log.info("failed consistency check", issue=issue)
            about = involved_claim(draft.claim.metadata)
            self._context.events.publish(ObjectEvent(about, WARNING, "FailedConsistencyCheck", issue, (issue,)))
        if found:
            draft.set_condition(
                _CONSISTENT_STATE_FOUND, conditions.FALSE, "ConsistencyCheckFailed", "Consistency Check Failed"
            )
        else:
            draft.set_condition(_CONSISTENT_STATE_FOUND, conditions.TRUE)


def consistency_issues(node: Node, claim: NodeClaim) -> Iterator[str]:
    """What the node shows less of than it should, for each resource that was asked for (OPS-086, OPS-088)."""
    for name, requested in claim.spec.resources.requests.items():
        promised = claim.status.capacity.get(name, 0)
        shown = node.status.capacity.get(name, 0)
        try:
            wanted, expected, found = (quantity.parse_milli(value) for value in (requested, promised, shown))
        except QuantityError as error:
            yield f"resource {name} cannot be compared: {error}"
            continue
        if wanted and expected and 100 * found < _MIN_CAPACITY_PERCENT * expected:
            percent = f"{100 * found / expected:.1f}"
            yield f"expected {promised} of resource {name}, but found {shown} ({percent}% of expected)"


#: A Node may be away for a moment, and a machine that went with it is collected sooner than this (OPS-090).
_MISSING_NODE_GRACE_PERIOD = timedelta(minutes=5)


@dataclass(frozen=True)
class OwnershipIssue:
    """What is wrong, and how long it may be before it is said."""

    reason: str
    message: str
    grace_period: timedelta = timedelta()


class OwnershipIssueReporter:
    """Remembers what was said about which claim."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._schedules: dict[str, dict[str, ReportSchedule]] = {}

    def forget(self, name: str) -> None:
        """The claim is gone."""
        self._schedules.pop(name, None)

    async def reconcile(self, draft: NodeClaimDraft) -> None:
        """Say what is wrong, if it is time to."""
        found = {trouble.reason: trouble for trouble in self._issues(draft)}
        before = self._schedules.pop(draft.name, {})
        if found:
            self._schedules[draft.name] = {
                reason: self._report(draft, trouble, before.get(reason)) for reason, trouble in found.items()
            }

    def _report(self, draft: NodeClaimDraft, issue: OwnershipIssue, schedule: ReportSchedule | None) -> ReportSchedule:
        schedule = schedule or ReportSchedule(draft.now + issue.grace_period, ReportSchedule.first(draft.now).interval)
        if draft.now >= schedule.next_report_at:
            _log.error("nodeclaim needs attention", reason=issue.reason, error=issue.message)
            about = involved_claim(draft.claim.metadata)
            self._context.events.publish(ObjectEvent(about, WARNING, issue.reason, issue.message, (issue.message,)))
            schedule = schedule.after_report(draft.now)
        draft.requeue_after((schedule.next_report_at - draft.now).total_seconds())
        return schedule

    def _issues(self, draft: NodeClaimDraft) -> Iterator[OwnershipIssue]:
        provider_id = draft.claim.status.provider_id
        nodes = [node.metadata.name for node in self._context.state.nodes_by_provider_id(provider_id)]
        claims = [claim.metadata.name for claim in self._context.state.claims_by_provider_id(provider_id)]
        if len(nodes) > 1:
            text = f"Nodes {', '.join(nodes)} have the same provider ID {provider_id}; delete all but the one that runs"
            yield OwnershipIssue("MultipleNodesFound", text)
        if len(claims) > 1:
            text = (
                f"NodeClaims {', '.join(claims)} have the same provider ID {provider_id}; only one of them can be right"
            )
            yield OwnershipIssue("MultipleNodeClaimsFound", text)
        if not nodes and draft.is_true("Registered"):
            text = f"Node {draft.claim.status.node_name} is gone, and the machine {provider_id} is not; delete the NodeClaim"
            yield OwnershipIssue("NodeNotFound", text, _MISSING_NODE_GRACE_PERIOD)
