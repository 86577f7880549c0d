"""EC2NodeClasses of the demo and their NodePools: no controller there has an account on AWS, and their status says so."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress

import msgspec

from karpenter.api.ec2_node_class import EC2NodeClass
from karpenter.api.karpenter import NodePool
from karpenter.api.kinds import EC2_NODE_CLASS, NODE_POOL
from karpenter.api.meta import Condition
from karpenter.kube.errors import NotFound
from karpenter.kube.informer import Informer
from karpenter.kube.protocol import Json, Kube
from karpenter.model.clock import Clock
from karpenter.model.conditions import (
    FALSE,
    NODE_CLASS_READY,
    READY,
    conditioned_object,
    find_condition,
    set_condition,
)
from karpenter.model.conditions import NODE_POOL as NODE_POOL_CONDITIONS
from karpenter.runtime.patching import merge_patch

REASON = "SimulatedProvider"
MESSAGE = (
    "the demo has no account on AWS: NodePools of this class launch nothing here; use a KWOKNodeClass or karpenter plan"
)


async def report_ec2_classes(kube: Kube, clock: Clock) -> None:
    """Write the condition Ready of EC2NodeClasses and of their NodePools where it says anything else. Runs until cancelled.

    Something else stands there when a NodePool of another class changes to an EC2NodeClass, and when an object brings its status.
    """
    fresh: asyncio.Queue[EC2NodeClass | NodePool] = asyncio.Queue()

    def on_class(_old: EC2NodeClass | None, new: EC2NodeClass | None) -> None:
        if new is not None and not _is_reported(new.status.conditions, READY):
            fresh.put_nowait(new)

    def on_pool(_old: NodePool | None, new: NodePool | None) -> None:
        if new is not None and _uses_ec2_class(new) and not _is_reported(new.status.conditions, NODE_CLASS_READY):
            fresh.put_nowait(new)

    classes, pools = Informer(kube, EC2_NODE_CLASS), Informer(kube, NODE_POOL)
    classes.subscribe(on_class)
    pools.subscribe(on_pool)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(classes.run())
        tasks.create_task(pools.run())
        while True:
            changed = await fresh.get()
            if isinstance(changed, NodePool):
                await _report_pool(kube, clock, changed)
            else:
                await _report(kube, clock, changed)


def _uses_ec2_class(pool: NodePool) -> bool:
    return EC2_NODE_CLASS.is_kind_of(pool.spec.template.spec.node_class_ref)


def _is_reported(conditions: Iterable[Condition], type_: str) -> bool:
    condition = find_condition(conditions, type_)
    return condition is not None and (condition.status, condition.reason) == (FALSE, REASON)


async def _report_pool(kube: Kube, clock: Clock, pool: NodePool) -> None:
    """What a controller says of a pool whose class is not ready: the controller of the demo manages no such pools."""
    owner = conditioned_object(NODE_POOL_CONDITIONS, pool.metadata, clock.now())
    not_ready = Condition(type=NODE_CLASS_READY, status=FALSE, reason=REASON, message=MESSAGE)
    status = msgspec.structs.replace(pool.status, conditions=set_condition(pool.status.conditions, not_ready, owner))
    with suppress(NotFound):  # deleted meanwhile
        patch = merge_patch(pool, msgspec.structs.replace(pool, status=status))
        await kube.patch(NODE_POOL, pool.metadata.name, patch, subresource="status")


async def _report(kube: Kube, clock: Clock, node_class: EC2NodeClass) -> None:
    condition: dict[str, Json] = {
        "type": "Ready",
        "status": "False",
        "reason": REASON,
        "message": MESSAGE,
        "lastTransitionTime": clock.now().isoformat(timespec="seconds").replace("+00:00", "Z"),
        "observedGeneration": node_class.metadata.generation,
    }
    patch: dict[str, Json] = {"status": {"conditions": [condition]}}
    with suppress(NotFound):  # deleted meanwhile
        await kube.patch(EC2_NODE_CLASS, node_class.metadata.name, patch, subresource="status")
