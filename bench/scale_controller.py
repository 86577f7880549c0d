"""A controller on a large cluster, with a cloud in which nothing happens: ``python -m bench.scale_controller KUBECONFIG``.

Prints one line of JSON when its caches are filled: ``{"filled_seconds": …, "snapshot_seconds": [first, second, third]}``, the
latter of CPU, and for each line that it reads the longest time between two renewals of its lease since the last, in seconds.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from datetime import UTC, datetime

from bench.lease_watch import LeaseWatch
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.kinds import KWOK_NODE_CLASS, Kind
from karpenter.api.meta import Wire
from karpenter.instancetypes import ec2_packaged_types
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.kube import config
from karpenter.manager import Manager, ManagerOptions
from karpenter.model.clock import SystemClock
from karpenter.model.repair_policies import RepairPolicy
from karpenter.providers.contract import Instance, InstanceDrift, InstanceNotFound, ProviderError
from karpenter.runtime import logging
from karpenter.settings import Settings
from karpenter.state import ClusterState

_POLL_SECONDS = 0.01


class StillCloud:
    """A cloud that has an instance for every NodeClaim and sells nothing."""

    name = "still"

    def __init__(self) -> None:
        self.state = ClusterState()
        self._types = ec2_packaged_types.packaged_instance_types()

    @property
    def node_class_kinds(self) -> tuple[Kind[Wire], ...]:
        return (KWOK_NODE_CLASS,)  # type: ignore[return-value]  # kinds are read only, so one of a class is one of its base

    async def create(self, claim: NodeClaim) -> Instance:
        raise ProviderError("this cloud sells nothing")

    async def delete(self, provider_id: str) -> None:
        raise ProviderError("this cloud takes nothing back")

    async def get(self, provider_id: str) -> Instance:
        found = self.state.claim_by_provider_id(provider_id)
        if found is None:
            raise InstanceNotFound(provider_id)
        return _instance(found)

    async def list(self) -> tuple[Instance, ...]:
        return tuple(map(_instance, self.state.claims()))

    async def instance_types(self, pool: NodePool) -> tuple[InstanceType, ...]:
        return self._types

    async def drift(self, claim: NodeClaim) -> InstanceDrift | None:
        return None

    def repair_policies(self) -> tuple[RepairPolicy, ...]:
        return ()

    def registration_hooks(self) -> tuple[()]:
        return ()


def _instance(claim: NodeClaim) -> Instance:
    return Instance(claim.status.provider_id, claim.metadata.name, {}, {}, {}, datetime.now(UTC))


async def _main(kubeconfig: str) -> None:
    logging.configure("error", sys.stderr)
    started = time.monotonic()
    cloud, connection = StillCloud(), config.load(kubeconfig)
    lease = LeaseWatch(connection)
    await lease.elected()
    async with config.connect(connection) as client:
        manager = Manager(client, cloud, SystemClock(), Settings(), ManagerOptions())
        cloud.state = manager.state
        work = asyncio.create_task(manager.run())
        while manager.informers.unready() or not manager.state.pools():
            await asyncio.sleep(_POLL_SECONDS)
        filled = time.monotonic() - started
        taken = []
        for _ in range(3):
            begun = time.thread_time()
            manager.state.snapshot()
            taken.append(time.thread_time() - begun)
        print(json.dumps({"filled_seconds": filled, "snapshot_seconds": taken}), flush=True)
        answering = asyncio.create_task(_answer(lease))
        await asyncio.gather(work, answering)


async def _answer(lease: LeaseWatch) -> None:
    while await asyncio.to_thread(sys.stdin.readline):
        print(lease.longest_seconds(), flush=True)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1]))
