"""The end of a Node: cordon, drain, let the instance go, then let the Node go (DIS §17.2)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
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
from karpenter.api.kinds import NODE, NODE_CLAIM, POD
from karpenter.kube.errors import Conflict, KubeError, NotFound
from karpenter.kube.protocol import JsonObject
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


async def pods_on_node(world: World, node_name: str) -> tuple[Pod, ...]:
    """Pods bound to a node as the API server says it, not as a watch that may be behind.

    Raises ``KubeError``, also when one of them cannot be read: what cannot be read may not be taken for absent.
    """
    listing = await world.kube.list(POD, field_selector=f"spec.nodeName={node_name}")
    if listing.rejected:
        raise KubeError(f"a pod on node {node_name} cannot be read: {listing.rejected[0].error}")
    return listing.items


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
        claim = self._claim_of(node)
        if labels.TERMINATION_FINALIZER not in node.metadata.finalizers or not self._is_ours(node, claim):
            return None
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

    def _is_ours(self, node: Node, claim: NodeClaim | None) -> bool:
        """Only nodes of a class the provider serves (DIS-510), as their label or their claim says."""
        if claim is not None and self._world.manages(claim):
            return True
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
        bound: Sequence[Pod] = self._world.state.pods_on(node.metadata.name)
        waiting = [pod for pod in bound if pods.needs_draining(pod, now)]
        if not waiting and self._is_long_enough(claim, now):
            bound = await pods_on_node(self._world, node.metadata.name)
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

    @staticmethod
    def _is_long_enough(claim: NodeClaim | None, now: datetime) -> bool:
        """Whether the drain may end now (DIS-524), so that it is worth asking the API server itself who is still there."""
        drained = conditions.find(claim.status.conditions, "Drained") if claim is not None else None
        if claim is None or (drained is not None and drained.status == conditions.TRUE):
            return True
        since = drained.last_transition_time if drained is not None else None
        return since is not None and now - since >= SHORTEST_DRAIN

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
        finished = done and self._is_long_enough(claim, draft.now)
        if finished:
            draft.set("Drained", conditions.TRUE)
        elif draft.condition("Drained") is None:
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
        version = node.metadata.resource_version
        patch: JsonObject = {"metadata": {"finalizers": left}}
        await self._world.kube.patch(NODE, node.metadata.name, patch, resource_version=version)
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
