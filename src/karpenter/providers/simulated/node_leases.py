"""Heartbeats of simulated instances: one lease per Node, as kubelets keep them, all renewed by one loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from karpenter.api.control_plane import Lease, LeaseSpec
from karpenter.api.core import Node
from karpenter.api.kinds import LEASE, NODE
from karpenter.api.meta import ObjectMeta, OwnerReference
from karpenter.kube.errors import AlreadyExists, KubeError, NotFound
from karpenter.kube.protocol import Kube
from karpenter.model.clock import Clock, rfc3339_micro

LEASE_NAMESPACE = "kube-node-lease"
_IN_FLIGHT = 8
_DURATION_SECONDS = 40


class NodeLeases:
    """Renews the leases of nodes. A cluster without the namespace has no use for them; a fault is waited out.

    ``report_failure`` gets the name of the node and the error.
    """

    def __init__(self, kube: Kube, clock: Clock, report_failure: Callable[[str, KubeError], None]) -> None:
        self._kube = kube
        self._clock = clock
        self._report_failure = report_failure

    async def renew(self, nodes: Iterable[Node]) -> None:
        """Renew, or create, the lease of every node; never raises ``KubeError``."""
        waiting = iter(tuple(nodes))

        async def work() -> None:
            for node in waiting:
                await self._renew(node)

        async with asyncio.TaskGroup() as group:
            for _ in range(_IN_FLIGHT):
                group.create_task(work())

    async def _renew(self, node: Node) -> None:
        name, now = node.metadata.name, rfc3339_micro(self._clock.now())
        try:
            await self._kube.patch(LEASE, name, {"spec": {"renewTime": now}}, LEASE_NAMESPACE)
        except NotFound:
            await self._create(node, now)
        except KubeError as fault:
            self._report_failure(name, fault)

    async def _create(self, node: Node, now: str) -> None:
        name, uid = node.metadata.name, node.metadata.uid
        owner = OwnerReference(api_version=NODE.api_version, kind=NODE.name, name=name, uid=uid)
        lease = Lease(
            metadata=ObjectMeta(name=node.metadata.name, namespace=LEASE_NAMESPACE, owner_references=(owner,)),
            spec=LeaseSpec(
                holder_identity=node.metadata.name, lease_duration_seconds=_DURATION_SECONDS, renew_time=now
            ),
        )
        try:
            await self._kube.create(LEASE, lease)
        except (AlreadyExists, NotFound):
            return
        except KubeError as fault:
            self._report_failure(node.metadata.name, fault)

    async def remove(self, name: str) -> None:
        """Remove the lease of an instance that is gone. Raises ``KubeError``."""
        try:
            await self._kube.delete(LEASE, name, LEASE_NAMESPACE)
        except NotFound:
            return
