"""Node repair: a machine whose Node has been broken for too long is replaced, unless too many are broken at once (DIS §16).

What counts as broken says the cloud (``CloudProvider.repair_policies``). The drain that follows does not wait for anybody:
whatever is on a broken machine is not running.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

import structlog

from karpenter.act import counting
from karpenter.act.events import WARNING, About, Happening, about_claim, about_node, about_pool
from karpenter.act.world import World
from karpenter.api.core import Node
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE_CLAIM
from karpenter.api.meta import Condition
from karpenter.kube.errors import NotFound
from karpenter.kube.protocol import JsonObject
from karpenter.model import labels
from karpenter.model.clock import rfc3339
from karpenter.providers.contract import RepairPolicy

#: So large a part of a pool's nodes, in percent and rounded up, may be broken; beyond that something else is wrong (DIS-384).
_MOST_PERCENT = 20
#: How soon to look again while too many are broken (DIS-043), and how long that is not said again.
_BLOCKED_SECONDS = 300.0
_SILENCE = timedelta(minutes=15)
_log = structlog.get_logger()


class Repairer:
    """Looks at Nodes by name."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def look(self, name: str) -> float | None:
        """Replace the Node's machine if it is time; seconds until the next look, None to wait for news. Raises ``KubeError``."""
        node = self._world.state.node(name)
        claim = self._claim_of(node) if node is not None else None
        if node is None or claim is None:
            return None
        policies = self._world.provider.repair_policies()
        broken = first_due(node.status.conditions, policies)
        if broken is None:
            return None
        due, condition = broken
        now = self._world.clock.now()
        if now < due:
            return (due - now).total_seconds()
        pool = claim.metadata.labels.get(labels.NODE_POOL, "")
        if self._too_many(pool, policies):
            self._say_blocked(node, claim, pool)
            return _BLOCKED_SECONDS
        with structlog.contextvars.bound_contextvars(NodeClaim={"name": claim.metadata.name}):
            await self._replace(claim, condition, now)
        return None

    def _claim_of(self, node: Node) -> NodeClaim | None:
        """The Node's only claim, if it is ours and there to stay (DIS-382)."""
        found = self._world.state.claims_of(node.spec.provider_id)
        if len(found) != 1 or found[0].metadata.deletion_timestamp is not None or not self._world.manages(found[0]):
            return None
        return found[0]

    def _too_many(self, pool: str, policies: Iterable[RepairPolicy]) -> bool:
        """Whether too many Nodes of the pool (without one: of the cluster) are broken, for however short a time (DIS-384)."""
        nodes = [view.node for view in self._world.state.views() if view.node is not None and pool in ("", view.pool)]
        known = tuple(policies)
        broken = sum(
            any(_matches(item, policy) for item in node.status.conditions for policy in known) for node in nodes
        )
        return broken > -(-_MOST_PERCENT * len(nodes) // 100)

    def _say_blocked(self, node: Node, claim: NodeClaim, pool: str) -> None:
        scope = f"nodepool {pool}" if pool else "the cluster"
        text = f"More than {_MOST_PERCENT}% nodes are unhealthy in {scope}"
        subjects: list[About] = [about_node(node.metadata), about_claim(claim.metadata)]
        found = self._world.state.pool(pool)
        if found is not None:
            subjects.append(about_pool(found.metadata))
        self._world.events.publish(
            *(Happening(about, WARNING, "NodeRepairBlocked", text, (), _SILENCE) for about in subjects)
        )

    async def _replace(self, claim: NodeClaim, condition: Condition, now: datetime) -> None:
        """Let the drain end now, then delete the claim (DIS-385)."""
        name = claim.metadata.name
        try:
            if not _is_past(claim.metadata.annotations.get(labels.TERMINATION_TIMESTAMP, ""), now):
                text = rfc3339(now)
                patch: JsonObject = {"metadata": {"annotations": {labels.TERMINATION_TIMESTAMP: text}}}
                await self._world.kube.patch(NODE_CLAIM, name, patch)
                _log.info("annotated nodeclaim", **{labels.TERMINATION_TIMESTAMP: text})
            await self._world.kube.delete(NODE_CLAIM, name, uid=claim.metadata.uid)
        except NotFound:
            return
        _log.info("deleting unhealthy node")
        counting.disrupted(self._world, claim, "unhealthy")
        own = claim.metadata.labels
        self._world.metrics.nodeclaims_unhealthy_disrupted_total.labels(
            condition=counting.snake_case(condition.type),
            nodepool=own.get(labels.NODE_POOL, ""),
            capacity_type=own.get(labels.CAPACITY_TYPE, ""),
            image_id=claim.status.image_id,
        ).inc()


def first_due(found: Iterable[Condition], policies: Iterable[RepairPolicy]) -> tuple[datetime, Condition] | None:
    """Of the conditions that mean broken the one that is due first, and when (DIS-383); None where there is none."""
    known = tuple(policies)
    due = [
        (item.last_transition_time + policy.toleration, item)
        for item in found
        for policy in known
        if _matches(item, policy) and item.last_transition_time is not None
    ]
    return min(due, key=lambda entry: entry[0], default=None)


def _matches(condition: Condition, policy: RepairPolicy) -> bool:
    return (condition.type, condition.status) == (policy.condition_type, policy.condition_status)


def _is_past(text: str, now: datetime) -> bool:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return False
    return moment.tzinfo is not None and moment <= now
