"""Node repair: a machine whose Node has been broken for too long is replaced, unless too many are broken at once (DIS §16).

What counts as broken says the cloud (``CloudProvider.repair_policies``). The drain that follows does not wait for anybody:
whatever is on a broken machine is not running.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

import structlog

from karpenter.api.core import Node
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE_CLAIM
from karpenter.api.meta import Condition
from karpenter.kube.errors import NotFound
from karpenter.kube.protocol import JsonObject
from karpenter.model import labels
from karpenter.model.clock import rfc3339
from karpenter.providers.contract import RepairPolicy
from karpenter.runtime import nodeclaim_deletion
from karpenter.runtime.controller_context import ControllerContext
from karpenter.runtime.events import WARNING, InvolvedObject, ObjectEvent, involved_claim, involved_node, involved_pool

#: So large a part of a pool's nodes, in percent and rounded up, may be broken; beyond that something else is wrong (DIS-384).
_MAX_UNHEALTHY_PERCENT = 20
#: How soon to look again while too many are broken (DIS-043), and how long that is not said again.
_BLOCKED_REQUEUE_SECONDS = 300.0
_BLOCKED_DEDUPE_TIMEOUT = timedelta(minutes=15)
_log = structlog.get_logger()


class NodeHealthReconciler:
    """Looks at Nodes by name."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context

    async def reconcile(self, name: str) -> float | None:
        """Replace the Node's machine if it is time; seconds until the next look, None to wait for news. Raises ``KubeError``."""
        node = self._context.state.node(name)
        claim = self._claim_of(node) if node is not None else None
        if node is None or claim is None:
            return None
        policies = self._context.provider.repair_policies()
        broken = first_due_condition(node.status.conditions, policies)
        if broken is None:
            return None
        due, condition = broken
        now = self._context.clock.now()
        if now < due:
            return (due - now).total_seconds()
        pool = claim.metadata.labels.get(labels.NODE_POOL, "")
        if self._are_too_many_unhealthy(pool, policies):
            self._publish_blocked(node, claim, pool)
            return _BLOCKED_REQUEUE_SECONDS
        with structlog.contextvars.bound_contextvars(NodeClaim={"name": claim.metadata.name}):
            await self._delete_claim(claim, condition, now)
        return None

    def _claim_of(self, node: Node) -> NodeClaim | None:
        """The Node's only claim, if it is ours and there to stay (DIS-382)."""
        found = self._context.state.claims_by_provider_id(node.spec.provider_id)
        if (
            len(found) != 1
            or found[0].metadata.deletion_timestamp is not None
            or not self._context.is_managed(found[0])
        ):
            return None
        return found[0]

    def _are_too_many_unhealthy(self, pool: str, policies: Iterable[RepairPolicy]) -> bool:
        """Whether too many Nodes of the pool (without one: of the cluster) are broken, for however short a time (DIS-384)."""
        nodes = [
            view.node for view in self._context.state.state_nodes() if view.node is not None and pool in ("", view.pool)
        ]
        known = tuple(policies)
        broken = sum(
            any(_matches(item, policy) for item in node.status.conditions for policy in known) for node in nodes
        )
        return broken > -(-_MAX_UNHEALTHY_PERCENT * len(nodes) // 100)

    def _publish_blocked(self, node: Node, claim: NodeClaim, pool: str) -> None:
        scope = f"nodepool {pool}" if pool else "the cluster"
        text = f"More than {_MAX_UNHEALTHY_PERCENT}% nodes are unhealthy in {scope}"
        subjects: list[InvolvedObject] = [involved_node(node.metadata), involved_claim(claim.metadata)]
        found = self._context.state.pool(pool)
        if found is not None:
            subjects.append(involved_pool(found.metadata))
        self._context.events.publish(
            *(ObjectEvent(about, WARNING, "NodeRepairBlocked", text, (), _BLOCKED_DEDUPE_TIMEOUT) for about in subjects)
        )

    async def _delete_claim(self, claim: NodeClaim, condition: Condition, now: datetime) -> None:
        """Let the drain end now, then delete the claim (DIS-385)."""
        name = claim.metadata.name
        try:
            if not _is_past_time(claim.metadata.annotations.get(labels.TERMINATION_TIMESTAMP, ""), now):
                text = rfc3339(now)
                patch: JsonObject = {"metadata": {"annotations": {labels.TERMINATION_TIMESTAMP: text}}}
                await self._context.kube.patch(NODE_CLAIM, name, patch)
                _log.info("annotated nodeclaim", **{labels.TERMINATION_TIMESTAMP: text})
            await self._context.kube.delete(NODE_CLAIM, name, uid=claim.metadata.uid)
        except NotFound:
            return
        _log.info("deleting unhealthy node")
        nodeclaim_deletion.count_disrupted(self._context, claim, "unhealthy")
        own = claim.metadata.labels
        self._context.metrics.nodeclaims_unhealthy_disrupted_total.labels(
            condition=nodeclaim_deletion.snake_case(condition.type),
            nodepool=own.get(labels.NODE_POOL, ""),
            capacity_type=own.get(labels.CAPACITY_TYPE, ""),
            image_id=claim.status.image_id,
        ).inc()


def first_due_condition(
    node_conditions: Iterable[Condition], policies: Iterable[RepairPolicy]
) -> tuple[datetime, Condition] | None:
    """Of the conditions that mean broken the one that is due first, and when (DIS-383); None where there is none."""
    known = tuple(policies)
    due = [
        (item.last_transition_time + policy.toleration, item)
        for item in node_conditions
        for policy in known
        if _matches(item, policy) and item.last_transition_time is not None
    ]
    return min(due, key=lambda entry: entry[0], default=None)


def _matches(condition: Condition, policy: RepairPolicy) -> bool:
    return (condition.type, condition.status) == (policy.condition_type, policy.condition_status)


def _is_past_time(text: str, now: datetime) -> bool:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return False
    return moment.tzinfo is not None and moment <= now
