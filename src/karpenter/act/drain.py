"""The end of a Node: cordon, drain, let the instance go, then let the Node go (DIS §17.2)."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import msgspec
import structlog

from karpenter.act.draft import Draft
from karpenter.act.events import WARNING, Happening, about_node
from karpenter.act.evict import Evictor, first_tier, is_forced
from karpenter.act.finalise import INSTANCE_POLL_SECONDS, mark_terminating, rfc3339
from karpenter.act.patching import difference
from karpenter.act.world import World
from karpenter.api.core import Node, Pod
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE, NODE_CLAIM
from karpenter.kube.errors import Conflict, NotFound
from karpenter.model import conditions, labels, pods, taints
from karpenter.providers.contract import InstanceNotFound

#: How often a draining node is looked at (DIS-038), and the shortest drain: pods may still be arriving (DIS-524).
DRAIN_POLL_SECONDS = 1.0
SHORTEST_DRAIN = timedelta(seconds=5)
_log = structlog.get_logger()


def cordoned(node: Node) -> Node:
    """The Node closed to pods and load balancers (DIS-514)."""
    others = tuple(taint for taint in node.spec.taints if taint.key != labels.DISRUPTED_TAINT.key)
    marked = {**node.metadata.labels, labels.EXCLUDE_FROM_LOAD_BALANCERS: "karpenter"}
    return msgspec.structs.replace(
        node,
        metadata=msgspec.structs.replace(node.metadata, labels=marked),
        spec=msgspec.structs.replace(node.spec, taints=(*others, labels.DISRUPTED_TAINT)),
    )


def tainted(node: Node) -> Node:
    """The Node with the disruption taint, unless it has one already."""
    if any(taints.same(taint, labels.DISRUPTED_TAINT) for taint in node.spec.taints):
        return node
    return msgspec.structs.replace(
        node, spec=msgspec.structs.replace(node.spec, taints=(*node.spec.taints, labels.DISRUPTED_TAINT))
    )


class Drainer:
    """Takes deleting Nodes apart."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._evictor = Evictor(world)

    async def look(self, name: str) -> float | None:
        """One step of a Node's ending; seconds until the next look, None to wait for events."""
        node = self._world.state.node(name)
        if node is None or node.metadata.deletion_timestamp is None:
            return None
        if labels.TERMINATION_FINALIZER not in node.metadata.finalizers or not self._is_ours(node):
            return None
        claim = self._claim_of(node)
        context = {"NodeClaim": {"name": claim.metadata.name}} if claim else {}
        with structlog.contextvars.bound_contextvars(Node={"name": name}, **context):
            try:
                return await self._look(node, claim)
            except (NotFound, Conflict):
                return DRAIN_POLL_SECONDS

    def _claim_of(self, node: Node) -> NodeClaim | None:
        """The Node's claim; with several of one provider ID nobody can say which, so there is none (DIS-511)."""
        found = self._world.state.claims_of(node.spec.provider_id)
        return found[0] if len(found) == 1 else None

    def _is_ours(self, node: Node) -> bool:
        """Only nodes of a class the provider serves (DIS-510)."""
        served = {f"{kind.group}/{kind.name.lower()}" for kind in self._world.provider.node_class_kinds}
        return not served.isdisjoint(node.metadata.labels)

    async def _look(self, node: Node, claim: NodeClaim | None) -> float | None:
        if claim is not None and claim.metadata.deletion_timestamp is None:
            await self._world.kube.delete(NODE_CLAIM, claim.metadata.name, uid=claim.metadata.uid)
        if not conditions.is_true(node.status.conditions, "Ready") and await self._instance_missing(node):
            await self._release(node)
            return None
        await self._cordon(node)
        if not await self._drained(node, claim):
            return DRAIN_POLL_SECONDS
        if claim is not None and not await self._instance_ended(claim):
            return INSTANCE_POLL_SECONDS
        await self._release(node)
        return None

    async def _instance_missing(self, node: Node) -> bool:
        try:
            await self._world.provider.get(node.spec.provider_id)
        except InstanceNotFound:
            return True
        return False

    async def _cordon(self, node: Node) -> None:
        patch = difference(node, cordoned(node))
        if patch:
            await self._world.kube.patch(
                NODE, node.metadata.name, patch, resource_version=node.metadata.resource_version
            )
            taint = labels.DISRUPTED_TAINT
            _log.info(
                "tainted node",
                **{"taint.Key": taint.key, "taint.Value": taint.value, "taint.Effect": taint.effect},
            )

    # -- draining -------------------------------------------------------------------------------------------------------

    async def _drained(self, node: Node, claim: NodeClaim | None) -> bool:
        """Ask the next pods to go; whether none is left to wait for (DIS-520 to DIS-525)."""
        now = self._world.clock.now()
        bound = self._world.state.pods_on(node.metadata.name)
        waiting = [pod for pod in bound if pods.needs_draining(pod, now)]
        deadline = _deadline(claim)
        if deadline is not None:
            self._say_deadline(node, deadline)
        forced = [pod for pod in waiting if is_forced(pod, deadline, now)]
        rest = [pod for pod in waiting if pod not in forced]
        await asyncio.gather(*(self._evictor.evict(pod, node, deadline) for pod in (*forced, *first_tier(rest))))
        self._evictor.forget_old()
        if waiting:
            self._say_waiting(node, waiting)
        return await self._record(claim, done=not waiting)

    def _say_deadline(self, node: Node, deadline: datetime) -> None:
        """DIS-513"""
        text = f"All pods will be deleted by {rfc3339(deadline)}"
        about = about_node(node.metadata)
        self._world.events.publish(Happening(about, WARNING, "TerminationGracePeriodExpiring", text))

    def _say_waiting(self, node: Node, waiting: list[Pod]) -> None:
        text = f"Failed to drain node, {len(waiting)} pods are waiting to be evicted"
        about = about_node(node.metadata)
        self._world.events.publish(Happening(about, WARNING, "FailedDraining", text))

    async def _record(self, claim: NodeClaim | None, *, done: bool) -> bool:
        """Keep the claim's Drained condition; a drain shorter than five seconds may have missed pods."""
        if claim is None:
            return done
        draft = Draft(claim, self._world.clock.now())
        if draft.is_true("Drained"):
            return done
        current = draft.condition("Drained")
        since = current.last_transition_time if current else None
        finished = done and since is not None and draft.now - since >= SHORTEST_DRAIN
        if finished:
            draft.set("Drained", conditions.TRUE)
        elif current is None:
            draft.set("Drained", conditions.UNKNOWN, "Draining", "Draining")
        await draft.write(self._world)
        return finished

    async def _instance_ended(self, claim: NodeClaim) -> bool:
        try:
            await self._world.provider.delete(claim.status.provider_id)
        except InstanceNotFound:
            return True
        current = self._world.state.claim(claim.metadata.name)
        if current is not None:
            await mark_terminating(current, self._world)
        return False

    async def _release(self, node: Node) -> None:
        left = [name for name in node.metadata.finalizers if name != labels.TERMINATION_FINALIZER]
        await self._world.kube.patch(NODE, node.metadata.name, {"metadata": {"finalizers": left}})
        _log.info("deleted node")


def _deadline(claim: NodeClaim | None) -> datetime | None:
    """When the drain must end, as the claim's annotation says; None without one or when it does not parse."""
    text = claim.metadata.annotations.get(labels.TERMINATION_TIMESTAMP) if claim else None
    if not text:
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        _log.error("termination timestamp is not RFC 3339", timestamp=text)
        return None
