"""Consistency of NodeClaim, Node and instance: problems are reported as a condition and as events, and nothing else (OPS §1.10).

``NodeClaimConsistency`` compares a node's capacity with that of its instance type, when the node is initialized and every ten
minutes after. ``OwnershipIssueReporter`` reports provider IDs that several objects share and Nodes that disappeared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from karpenter.api.core import Node
from karpenter.api.karpenter import NodeClaim
from karpenter.controller_context import ControllerContext
from karpenter.model import conditions, quantity
from karpenter.model.quantity import QuantityError
from karpenter.nodeclaim.subreconciler import NodeClaimSubreconciler
from karpenter.runtime.backoff_schedules import ReportSchedule
from karpenter.runtime.events import WARNING, ObjectEvent, involved_claim
from karpenter.runtime.nodeclaim_draft import NodeClaimDraft

#: Interval between two comparisons of a node (OPS-085).
SCAN_INTERVAL = timedelta(minutes=10)
#: The share of an expected resource that a node must report at least, in percent (OPS-086).
_MIN_CAPACITY_PERCENT = 90
_log = structlog.get_logger()


class NodeClaimConsistency(NodeClaimSubreconciler):
    """Compares the capacity of initialized nodes with the claim's."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._next_scan: dict[str, tuple[str, datetime]] = {}

    def forget(self, name: str) -> None:
        """Drop the time of the claim's next comparison."""
        self._next_scan.pop(name, None)

    async def reconcile(self, draft: NodeClaimDraft) -> None:
        """Compare an initialized node with its claim, if a comparison is due."""
        nodes = self._context.state.nodes_by_provider_id(draft.claim.status.provider_id)
        if not draft.is_true(conditions.INITIALIZED) or len(nodes) != 1:
            return
        uid = draft.claim.metadata.uid
        scanned_uid, due = self._next_scan.get(draft.name, ("", draft.now))
        condition = draft.condition(conditions.CONSISTENT_STATE_FOUND)
        if condition is None or scanned_uid != uid or not draft.now < due <= draft.now + SCAN_INTERVAL:
            self._scan(draft, nodes[0])
            due = draft.now + SCAN_INTERVAL
            self._next_scan[draft.name] = uid, due
        else:
            draft.set_condition(
                conditions.CONSISTENT_STATE_FOUND, condition.status, condition.reason, condition.message
            )  # only observes the current generation (OPS-101)
        draft.requeue_after((due - draft.now).total_seconds())

    def _scan(self, draft: NodeClaimDraft, node: Node) -> None:
        issues = tuple(consistency_issues(node, draft.claim))
        for issue in issues:
            _log.info("failed consistency check", issue=issue)
            involved = involved_claim(draft.claim.metadata)
            self._context.events.publish(ObjectEvent(involved, WARNING, "FailedConsistencyCheck", issue, (issue,)))
        if issues:
            draft.set_condition(
                conditions.CONSISTENT_STATE_FOUND,
                conditions.FALSE,
                "ConsistencyCheckFailed",
                "Consistency Check Failed",
            )
        else:
            draft.set_condition(conditions.CONSISTENT_STATE_FOUND, conditions.TRUE)


def consistency_issues(node: Node, claim: NodeClaim) -> Iterator[str]:
    """One message per requested resource of which the node reports too little (OPS-086, OPS-088)."""
    for name, requested in claim.spec.resources.requests.items():
        expected = claim.status.capacity.get(name, 0)
        reported = node.status.capacity.get(name, 0)
        try:
            amounts = map(quantity.parse_milli, (requested, expected, reported))
            requested_amount, expected_amount, reported_amount = amounts
        except QuantityError as error:
            yield f"resource {name} cannot be compared: {error}"
            continue
        if requested_amount and expected_amount and 100 * reported_amount < _MIN_CAPACITY_PERCENT * expected_amount:
            percent = f"{100 * reported_amount / expected_amount:.1f}"
            yield f"expected {expected} of resource {name}, but found {reported} ({percent}% of expected)"


#: A Node may be recreated soon, and garbage collection deletes a claim without instance sooner than this (OPS-090).
_MISSING_NODE_GRACE_PERIOD = timedelta(minutes=5)


@dataclass(frozen=True)
class OwnershipIssue:
    """A problem and how long it may last before it is reported."""

    reason: str
    message: str
    grace_period: timedelta = timedelta()


class OwnershipIssueReporter(NodeClaimSubreconciler):
    """Reports lasting ownership issues of claims, at growing intervals."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._schedules: dict[str, dict[str, ReportSchedule]] = {}

    def forget(self, name: str) -> None:
        """Drop the claim's report schedules."""
        self._schedules.pop(name, None)

    async def reconcile(self, draft: NodeClaimDraft) -> None:
        """Report the claim's issues that are due for a report."""
        issues = {issue.reason: issue for issue in self._issues(draft)}
        previous_schedules = self._schedules.pop(draft.name, {})
        if issues:
            self._schedules[draft.name] = {
                reason: self._report(draft, issue, previous_schedules.get(reason)) for reason, issue in issues.items()
            }

    def _report(self, draft: NodeClaimDraft, issue: OwnershipIssue, schedule: ReportSchedule | None) -> ReportSchedule:
        schedule = schedule or ReportSchedule(draft.now + issue.grace_period, ReportSchedule.first(draft.now).interval)
        if draft.now >= schedule.next_report_at:
            _log.error("nodeclaim needs attention", reason=issue.reason, error=issue.message)
            involved = involved_claim(draft.claim.metadata)
            self._context.events.publish(ObjectEvent(involved, WARNING, issue.reason, issue.message, (issue.message,)))
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
            names = ", ".join(claims)
            text = f"NodeClaims {names} have the same provider ID {provider_id}; only one of them can be right"
            yield OwnershipIssue("MultipleNodeClaimsFound", text)
        if not nodes and draft.is_true(conditions.REGISTERED):
            text = f"Node {draft.claim.status.node_name} is gone, and the instance {provider_id} is not; delete the NodeClaim"
            yield OwnershipIssue("NodeNotFound", text, _MISSING_NODE_GRACE_PERIOD)
