"""Removing machines that may go: taint, say why, delete the claim; its finalizer does the rest (DIS §12)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import structlog

from karpenter.act.draft import Draft
from karpenter.act.drain import tainted
from karpenter.act.events import NORMAL, Happening, about_claim, about_node
from karpenter.act.patching import difference
from karpenter.act.world import World
from karpenter.api.kinds import NODE, NODE_CLAIM
from karpenter.cluster.nodes import NodeView
from karpenter.decide.disrupt import Blocked, Removal
from karpenter.kube.errors import KubeError, NotFound
from karpenter.model import conditions, labels, taints

_log = structlog.get_logger()


class Disruptor:
    """Carries removals out, and undoes what an earlier process left half-done."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def remove(self, removals: Sequence[Removal]) -> int:
        """Remove machines without replacement; how many were. Those that fail are looked at again in the next pass."""
        if not removals:
            return 0
        _log.info(
            "disrupting node(s)",
            **{
                "reason": removals[0].reason,
                "decision": "delete",
                "disrupted-node-count": len(removals),
                "replacement-node-count": 0,
                "pod-count": 0,
                "disrupted-nodes": [_described(removal.view) for removal in removals],
            },
        )
        done = await asyncio.gather(*(self._remove(removal) for removal in removals))
        return sum(done)

    async def _remove(self, removal: Removal) -> bool:
        view = removal.view
        assert view.node is not None
        assert view.claim is not None
        name = view.claim.metadata.name
        self._world.state.mark(name)
        try:
            await self._taint(view)
            draft = Draft(view.claim, self._world.clock.now())
            draft.set("DisruptionReason", conditions.TRUE, removal.reason, removal.reason)
            await draft.write(self._world)
            await self._world.kube.delete(NODE_CLAIM, name, uid=view.claim.metadata.uid)
        except NotFound:
            # Its Node or the claim went by itself. If the claim is still there, it must not stay marked for ever.
            self._world.state.unmark(name)
            return False
        except KubeError as error:
            self._world.state.unmark(name)
            _log.error(
                "failed terminating nodes while executing a disruption command",
                NodeClaim={"name": name},
                error=str(error),
            )
            return False
        text = f"Disrupting Node: {removal.reason}"
        self._world.events.publish(
            Happening(about_node(view.node.metadata), NORMAL, "DisruptionTerminating", text, (removal.reason,)),
            Happening(about_claim(view.claim.metadata), NORMAL, "DisruptionTerminating", text, (removal.reason,)),
        )
        return True

    async def _taint(self, view: NodeView) -> None:
        assert view.node is not None
        patch = difference(view.node, tainted(view.node))
        if patch:
            version = view.node.metadata.resource_version
            await self._world.kube.patch(NODE, view.node.metadata.name, patch, resource_version=version)

    def say_blocked(self, blocked: Sequence[Blocked]) -> None:
        """Tell users why empty machines stay."""
        for item in blocked:
            about = [about_claim(item.view.claim.metadata)] if item.view.claim is not None else []
            if item.view.node is not None:
                about.append(about_node(item.view.node.metadata))
            for subject in about:
                self._world.events.publish(Happening(subject, NORMAL, "DisruptionBlocked", item.why, (item.why,)))

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


def _described(view: NodeView) -> dict[str, object]:
    found = view.node.metadata.labels if view.node else {}
    return {
        "Node": {"name": view.node.metadata.name if view.node else ""},
        "NodeClaim": {"name": view.key},
        "capacity-type": found.get(labels.CAPACITY_TYPE, ""),
        "instance-type": found.get(labels.INSTANCE_TYPE, ""),
    }
