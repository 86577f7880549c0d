"""NodePool conditions and counters: whether a pool makes sense, whether its class is there, how much it holds (API §13.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec
import structlog

from karpenter.act.patching import difference
from karpenter.act.world import World
from karpenter.api.karpenter import NodeClassReference, NodePool
from karpenter.api.kinds import NODE_POOL
from karpenter.api.meta import Condition
from karpenter.cluster.nodes import NodeView
from karpenter.kube.errors import Conflict, KubeError, NotFound
from karpenter.model import conditions, validation
from karpenter.model import resources as res

_log = structlog.get_logger()
_COUNTED = (res.CPU, res.MEMORY, res.PODS, res.EPHEMERAL_STORAGE, res.NODES)


@dataclass(frozen=True)
class NodeClassState:
    """What readiness reads of a node class."""

    conditions: tuple[Condition, ...]
    deleting: bool


#: Finds a node class; None when it does not exist.
FindNodeClass = Callable[[NodeClassReference], NodeClassState | None]


class PoolKeeper:
    """Keeps the status of NodePools. ``find_class`` looks a node class up."""

    def __init__(self, world: World, find_class: FindNodeClass) -> None:
        self._world = world
        self._find_class = find_class

    async def look(self, name: str) -> float | None:
        """Bring one pool's conditions up to date."""
        pool = self._world.state.pool(name)
        if pool is None or not self._world.manages(pool):
            return None
        owner = conditions.owner(conditions.NODE_POOL, pool.metadata, self._world.clock.now())
        found = conditions.put(pool.status.conditions, validated(pool), owner)
        found = conditions.put(found, self._class_ready(pool), owner)
        return await self._write(pool, msgspec.structs.replace(pool.status, conditions=found))

    async def count(self) -> None:
        """Write what every pool's machines add up to (API-645)."""
        views = self._world.state.views()
        for pool in self._world.state.pools():
            if self._world.manages(pool):
                counted = counters(pool.metadata.name, views)
                nodes = counted[res.NODES] // res.ONE
                status = msgspec.structs.replace(pool.status, resources=res.to_wire(counted), nodes=nodes)
                try:
                    await self._write(pool, status)
                except KubeError as error:
                    # The next count tries again; the other pools are counted now.
                    _log.error("counting pool failed", NodePool={"name": pool.metadata.name}, error=str(error))

    async def _write(self, pool: NodePool, status: object) -> float | None:
        after = msgspec.structs.replace(pool, status=status)
        patch = difference(pool, after)
        if not patch:
            return None
        try:
            await self._world.kube.patch(
                NODE_POOL,
                pool.metadata.name,
                patch,
                subresource="status",
                resource_version=pool.metadata.resource_version,
            )
        except NotFound:
            return None
        except Conflict:
            return 0.2
        return None

    def _class_ready(self, pool: NodePool) -> Condition:
        """API-641."""
        state = self._find_class(pool.spec.template.spec.node_class_ref)
        if state is None:
            return _not_ready("NodeClassNotFound", "NodeClass not found on cluster")
        if state.deleting:
            return _not_ready("NodeClassTerminating", "NodeClass is Terminating")
        ready = conditions.find(state.conditions, "Ready")
        if ready is None or ready.status == conditions.UNKNOWN:
            return _not_ready("NodeClassReadinessUnknown", "Node Class Readiness Unknown")
        if ready.status == conditions.FALSE:
            return _not_ready(ready.reason, ready.message)
        return Condition(type="NodeClassReady", status=conditions.TRUE)


def _not_ready(reason: str, message: str) -> Condition:
    return Condition(type="NodeClassReady", status=conditions.FALSE, reason=reason, message=message)


def validated(pool: NodePool) -> Condition:
    """The ValidationSucceeded condition of a pool (API §2.3)."""
    findings = validation.runtime(pool)
    if not findings:
        return Condition(type="ValidationSucceeded", status=conditions.TRUE)
    text = "; ".join(str(finding) for finding in findings)
    return Condition(
        type="ValidationSucceeded", status=conditions.FALSE, reason="NodePoolValidationFailed", message=text
    )


def counters(pool: str, views: tuple[NodeView, ...]) -> Mapping[str, int]:
    """Capacity of the pool's machines that stay, with zeros for what users always look for, and their number."""
    own = [view for view in views if view.pool == pool and view.claim is not None and not view.leaving]
    total = res.add(dict.fromkeys(_COUNTED, 0), *(view.capacity for view in own))
    total[res.NODES] = len(own) * res.ONE
    return total
