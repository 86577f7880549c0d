"""Removing machines that may go: taint, say why, delete the claim; its finalizer does the rest (DIS §12)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from datetime import timedelta

import msgspec
import structlog

from karpenter.act import counting
from karpenter.act.draft import Draft
from karpenter.act.drain import pods_on_node, tainted
from karpenter.act.events import NORMAL, Happening, about_claim, about_node, about_pool
from karpenter.act.patching import difference
from karpenter.act.world import World
from karpenter.api.core import Node
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE, NODE_CLAIM
from karpenter.cluster.nodes import NodeView
from karpenter.decide.disrupt import Blocked, Emptiness, Removal
from karpenter.kube.errors import Conflict, KubeError, NotFound
from karpenter.model import conditions, labels, pods, taints

#: How often a write that meets somebody else's is tried.
_TRIES = 3
#: How long a passing and a lasting obstacle is not said again (DIS-390, DIS-398).
_PASSING, _LASTING = timedelta(minutes=2), timedelta(minutes=15)
_log = structlog.get_logger()


class Disruptor:
    """Carries removals out, and undoes what an earlier process left half-done."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def remove(self, removals: Sequence[Removal]) -> int:
        """Remove machines without replacement; how many were. Those that fail are looked at again in the next pass."""
        if not removals:
            return 0
        _log.info("disrupting node(s)", **_command(removals))
        self._count(removals)
        done = await asyncio.gather(*(self._remove(removal) for removal in removals))
        return sum(done)

    def _count(self, removals: Sequence[Removal]) -> None:
        """One decision, counted as a whole and once for every NodePool it concerns (DIS-412, DIS-413)."""
        decided = {"decision": "delete", "reason": removals[0].reason.lower(), "consolidation_type": "empty"}
        metrics = self._world.metrics
        metrics.voluntary_disruption_decisions_total.labels(**decided).inc()
        for pool in {removal.pool for removal in removals}:
            metrics.voluntary_disruption_decisions_by_nodepool_total.labels(nodepool=pool, **decided).inc()

    def _count_failure(self, removal: Removal) -> None:
        self._world.metrics.voluntary_disruption_queue_failures_total.labels(
            decision="delete", reason=removal.reason.lower(), consolidation_type="empty"
        ).inc()

    async def _remove(self, removal: Removal) -> bool:
        """Mark, taint, make sure it is still empty, say why, delete. What stops half-way is unmarked and tidied later."""
        view = removal.view
        assert view.node is not None
        assert view.claim is not None
        name = view.claim.metadata.name
        self._world.state.mark(name)
        try:
            await self._taint(view.node)
            if await self._has_pods(view.node.metadata.name):
                self._world.state.unmark(name)
                return False
            await self._give_reason(view.claim, removal.reason)
            await self._world.kube.delete(NODE_CLAIM, name, uid=view.claim.metadata.uid)
        except NotFound:
            # Its Node or the claim went by itself. If the claim is still there, it must not stay marked for ever.
            self._world.state.unmark(name)
            return False
        except KubeError as error:
            self._world.state.unmark(name)
            self._count_failure(removal)
            _log.error(
                "failed terminating nodes while executing a disruption command",
                NodeClaim={"name": name},
                error=str(error),
            )
            return False
        pool = self._world.state.pool(removal.pool)
        policy = pool.spec.disruption.consolidation_policy if pool is not None else ""
        counting.disrupted(self._world, view.claim, counting.snake_case(removal.reason), policy)
        text = f"Disrupting Node: {removal.reason}"
        self._world.events.publish(
            Happening(about_node(view.node.metadata), NORMAL, "DisruptionTerminating", text, (removal.reason,)),
            Happening(about_claim(view.claim.metadata), NORMAL, "DisruptionTerminating", text, (removal.reason,)),
        )
        return True

    async def _taint(self, node: Node) -> None:
        """Close the node to new pods; a write by somebody else in between is no reason to give up (DIS-302)."""
        for _ in range(_TRIES):
            patch = difference(node, tainted(node))
            if not patch:
                return
            try:
                await self._world.kube.patch(
                    NODE, node.metadata.name, patch, resource_version=node.metadata.resource_version
                )
                return
            except Conflict:
                node = await self._world.kube.get(NODE, node.metadata.name)
        raise Conflict(f"node {node.metadata.name} keeps changing")

    async def _has_pods(self, node_name: str) -> bool:
        """Whether a pod has come meanwhile, asked of the API server itself: the watch may be behind, the taint is not."""
        return any(pods.needs_a_place(pod) for pod in await pods_on_node(self._world, node_name))

    async def _give_reason(self, claim: NodeClaim, reason: str) -> None:
        for _ in range(_TRIES):
            draft = Draft(claim, self._world.clock.now())
            draft.set("DisruptionReason", conditions.TRUE, reason, reason)
            try:
                await draft.write(self._world)
                return
            except Conflict:
                claim = await self._world.kube.get(NODE_CLAIM, claim.metadata.name)
        raise Conflict(f"nodeclaim {claim.metadata.name} keeps changing")

    def say(self, found: Emptiness) -> None:
        """Tell users why empty machines stay: on the machine, or on the pool when its budget is closed."""
        for item in found.blocked:
            if item.view.initialized:
                self._say_blocked(item)
        for name in found.closed_pools:
            pool = self._world.state.pool(name)
            if pool is not None:
                text = "No allowed disruptions for disruption reason Empty due to blocking budget"
                about = about_pool(pool.metadata)
                self._world.events.publish(
                    Happening(about, NORMAL, "DisruptionBlocked", text, ("Empty",), timedelta(minutes=1))
                )

    def _say_blocked(self, item: Blocked) -> None:
        subjects = [about_claim(item.view.claim.metadata)] if item.view.claim is not None else []
        if item.view.node is not None:
            subjects.append(about_node(item.view.node.metadata))
        reason, silence = ("Unconsolidatable", _LASTING) if item.lasting else ("DisruptionBlocked", _PASSING)
        for subject in subjects:
            self._world.events.publish(Happening(subject, NORMAL, reason, item.why, (item.why,), silence))

    async def tidy(self, views: Sequence[NodeView]) -> None:
        """Free machines an earlier process had chosen and never removed (DIS-054)."""
        for view in views:
            if _is_left_behind(view):
                await self._free(view)

    async def _free(self, view: NodeView) -> None:
        assert view.node is not None
        assert view.claim is not None
        kept = tuple(taint for taint in view.node.spec.taints if not taints.same(taint, labels.DISRUPTED_TAINT))
        freed = msgspec.structs.replace(view.node, spec=msgspec.structs.replace(view.node.spec, taints=kept))
        version = view.node.metadata.resource_version
        try:
            patch = difference(view.node, freed)
            if patch:
                await self._world.kube.patch(NODE, view.node.metadata.name, patch, resource_version=version)
            draft = Draft(view.claim, self._world.clock.now())
            draft.clear("DisruptionReason")
            await draft.write(self._world)
        except KubeError as error:
            _log.debug("freeing node failed", Node={"name": view.name}, error=str(error))


def _is_left_behind(view: NodeView) -> bool:
    """Whether a machine that stays carries the taint or the condition of a removal nobody pursues."""
    node, claim = view.node, view.claim
    if node is None or claim is None or view.leaving or not view.initialized:
        return False
    if node.metadata.deletion_timestamp is not None:
        return False
    is_tainted = any(taints.same(taint, labels.DISRUPTED_TAINT) for taint in node.spec.taints)
    return is_tainted or conditions.find(claim.status.conditions, "DisruptionReason") is not None


def _command(removals: Sequence[Removal]) -> dict[str, object]:
    """What a removal's log line carries (DIS-431)."""
    identity = str(uuid.uuid4())
    reason = removals[0].reason
    nodes = ", ".join(removal.view.name for removal in removals)
    pools = ",".join(sorted({removal.pool for removal in removals}))
    return {
        "command": f"{reason}/{identity}: delete: nodepools=[{pools}]: [{nodes}]",
        "command-id": identity,
        "reason": reason,
        "decision": "delete",
        "disrupted-node-count": len(removals),
        "replacement-node-count": 0,
        "pod-count": 0,
        "disrupted-nodes": [_described(removal.view) for removal in removals],
        "replacement-nodes": [],
    }


def _described(view: NodeView) -> dict[str, object]:
    found = view.node.metadata.labels if view.node else {}
    return {
        "Node": {"name": view.node.metadata.name if view.node else ""},
        "NodeClaim": {"name": view.key},
        "capacity-type": found.get(labels.CAPACITY_TYPE, ""),
        "instance-type": found.get(labels.INSTANCE_TYPE, ""),
    }
