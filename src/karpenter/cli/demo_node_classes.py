"""EC2NodeClasses in the demo's cluster: no controller there has an account on AWS, and their status says so."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from karpenter.api.ec2_node_class import EC2NodeClass
from karpenter.api.kinds import EC2_NODE_CLASS
from karpenter.kube.errors import NotFound
from karpenter.kube.informer import Informer
from karpenter.kube.protocol import Json, Kube
from karpenter.model.clock import Clock
from karpenter.model.conditions import find_condition

REASON = "SimulatedProvider"
MESSAGE = (
    "the demo has no account on AWS: NodePools of this class launch nothing here; use a KWOKNodeClass or karpenter plan"
)


async def report_ec2_classes(kube: Kube, clock: Clock) -> None:
    """Write the condition Ready of every EC2NodeClass that has none. Runs until cancelled."""
    fresh: asyncio.Queue[EC2NodeClass] = asyncio.Queue()

    def on_change(_old: EC2NodeClass | None, new: EC2NodeClass | None) -> None:
        if new is not None and find_condition(new.status.conditions, "Ready") is None:
            fresh.put_nowait(new)

    informer = Informer(kube, EC2_NODE_CLASS)
    informer.subscribe(on_change)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(informer.run())
        while True:
            await _report(kube, clock, await fresh.get())


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
