"""Node repair of release 1.14, behind LEGACY_NODE_REPAIR (K15-046, K15-270): deletes NodeClaims whose Node is unhealthy for too
long, unless too many are unhealthy at once (DIS §16). Repair is a way to disrupt nodes now (``disruption.decide.repair``).

The provider defines which conditions are unhealthy (``CloudProvider.repair_policies``). The drain that follows gets a deadline
in the past, so it waits for no pod: nothing on an unhealthy node runs reliably.

A repair cannot be taken back, so three things stop it: too many unhealthy nodes in the pool (DIS-384); too many in the cluster,
because many small pools would each replace their nodes when the network of the control plane fails; and, for conditions of Nodes
from before its start, the first minutes of a process, because a restored etcd shows those of the day of the backup until kubelets
have reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

import structlog

from karpenter.api.core import Node
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE_CLAIM
from karpenter.api.meta import Condition
from karpenter.controller_context import ControllerContext
from karpenter.kube.errors import NotFound
from karpenter.kube.protocol import JsonObject
from karpenter.model import labels
from karpenter.model.clock import parse_annotation_time, rfc3339
from karpenter.model.repair_policies import RepairAction, RepairPolicy, trusted_from
from karpenter.runtime import nodeclaim_deletion
from karpenter.runtime.events import WARNING, InvolvedObject, ObjectEvent, involved_claim, involved_node, involved_pool

#: The share of a pool's nodes and of all nodes that may be unhealthy, in percent, rounded up; above it nothing is repaired.
_MAX_UNHEALTHY_PERCENT = 20
#: Requeue delay while repair is blocked (DIS-043), and interval of the event that reports it.
_BLOCKED_REQUEUE_SECONDS = 300.0
_BLOCKED_DEDUPE_TIMEOUT = timedelta(minutes=15)
_log = structlog.get_logger()


class NodeHealthReconciler:
    """Reconciles Nodes by name."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._started_at = context.clock.now()

    async def reconcile(self, name: str) -> float | None:
        """Delete the claim if repair is due; returns seconds until the next pass, None for events only. Raises ``KubeError``."""
        node = self._context.state.node(name)
        claim = self._claim_of(node) if node is not None else None
        if node is None or claim is None:
            return None
        policies = legacy_policies(self._context.provider.repair_policies())
        due_condition = first_due_condition(node, policies, self._started_at)
        if due_condition is None:
            return None
        due, condition = due_condition
        now = self._context.clock.now()
        if now < due:
            return (due - now).total_seconds()
        pool = claim.metadata.labels.get(labels.NODE_POOL, "")
        scope = self._scope_with_too_many_unhealthy(pool, policies)
        if scope:
            self._publish_blocked(node, claim, scope)
            return _BLOCKED_REQUEUE_SECONDS
        with structlog.contextvars.bound_contextvars(NodeClaim={"name": claim.metadata.name}):
            await self._delete_claim(claim, condition, now)
        return None

    def _claim_of(self, node: Node) -> NodeClaim | None:
        """The Node's only claim, if it is managed and not being deleted (DIS-382)."""
        claims = self._context.state.claims_by_provider_id(node.spec.provider_id)
        if (
            len(claims) != 1
            or claims[0].metadata.deletion_timestamp is not None
            or not self._context.is_managed(claims[0])
        ):
            return None
        return claims[0]

    def _scope_with_too_many_unhealthy(self, pool: str, policies: Iterable[RepairPolicy]) -> str:
        """Where too many Nodes are unhealthy, for any duration: the pool (DIS-384), the cluster, or nowhere (empty)."""
        nodes = [
            (state_node.pool, state_node.node) for state_node in self._context.state.state_nodes() if state_node.node
        ]
        policy_list = tuple(policies)
        if pool and _are_too_many_unhealthy([node for owner, node in nodes if owner == pool], policy_list):
            return f"nodepool {pool}"
        return "the cluster" if _are_too_many_unhealthy([node for _, node in nodes], policy_list) else ""

    def _publish_blocked(self, node: Node, claim: NodeClaim, scope: str) -> None:
        text = f"More than {_MAX_UNHEALTHY_PERCENT}% nodes are unhealthy in {scope}"
        involved_objects: list[InvolvedObject] = [involved_node(node.metadata), involved_claim(claim.metadata)]
        node_pool = self._context.state.pool(claim.metadata.labels.get(labels.NODE_POOL, ""))
        if node_pool is not None:
            involved_objects.append(involved_pool(node_pool.metadata))
        self._context.events.publish(
            *(
                ObjectEvent(involved, WARNING, "NodeRepairBlocked", text, (), _BLOCKED_DEDUPE_TIMEOUT)
                for involved in involved_objects
            )
        )

    async def _delete_claim(self, claim: NodeClaim, condition: Condition, now: datetime) -> None:
        """Set the drain deadline to now, then delete the claim (DIS-385)."""
        name = claim.metadata.name
        try:
            deadline = parse_annotation_time(claim.metadata.annotations.get(labels.TERMINATION_TIMESTAMP, ""))
            if deadline is None or deadline > now:
                text = rfc3339(now)
                patch: JsonObject = {"metadata": {"annotations": {labels.TERMINATION_TIMESTAMP: text}}}
                await self._context.kube.patch(NODE_CLAIM, name, patch)
                _log.info("annotated nodeclaim", **{labels.TERMINATION_TIMESTAMP: text})
            await self._context.kube.delete(NODE_CLAIM, name, uid=claim.metadata.uid)
        except NotFound:
            return
        _log.info("deleting unhealthy node")
        nodeclaim_deletion.count_disrupted(self._context, claim, "unhealthy")
        nodeclaim_deletion.count_unhealthy(self._context, claim, condition.type, "forceful")


def legacy_policies(policies: Iterable[RepairPolicy]) -> tuple[RepairPolicy, ...]:
    """The policies that this controller knows: those that replace (K15-270)."""
    return tuple(policy for policy in policies if policy.action is RepairAction.REPLACE)


def first_due_condition(
    node: Node, policies: Iterable[RepairPolicy], started_at: datetime
) -> tuple[datetime, Condition] | None:
    """The unhealthy condition that is due for repair first, and when (DIS-383); None if there is none.

    ``started_at``: what a Node from before says may be out of date for a while after it, unless it changed since.
    """
    policy_list = tuple(policies)
    due = [
        (max(changed_at + policy.toleration, trusted_from(node, changed_at, started_at)), condition)
        for condition in node.status.conditions
        for policy in policy_list
        if policy.matches(condition) and (changed_at := condition.last_transition_time) is not None
    ]
    return min(due, key=lambda entry: entry[0], default=None)


def _are_too_many_unhealthy(nodes: Sequence[Node], policies: tuple[RepairPolicy, ...]) -> bool:
    unhealthy = sum(
        any(policy.matches(condition) for condition in node.status.conditions for policy in policies) for node in nodes
    )
    return unhealthy > -(-_MAX_UNHEALTHY_PERCENT * len(nodes) // 100)
