"""A cloud whose calls are timed and whose refusals are counted, whatever cloud it is (OPS-470, OPS-471).

Everything passes through unchanged, answers and errors. One answer is no error although it is raised: that an instance is gone,
when its deletion was asked for. Every deletion ends with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.catalog.types import InstanceType
from karpenter.providers.contract import (
    CloudProvider,
    Drift,
    Instance,
    InstanceNotFound,
    InsufficientCapacity,
    NodeClassNotReady,
)
from karpenter.providers.passing import PassingProvider
from karpenter.telemetry import Metrics
from karpenter.telemetry.controllers import current_controller

T = TypeVar("T")

#: What the label ``error`` calls a kind of error; other kinds leave it empty (OPS-225 to OPS-230).
_NAMES: tuple[tuple[type[Exception], str], ...] = (
    (InstanceNotFound, "NodeClaimNotFoundError"),
    (InsufficientCapacity, "InsufficientCapacityError"),
    (NodeClassNotReady, "NodeClassNotReadyError"),
)


class MeasuredProvider(PassingProvider):
    """A provider that counts what it is asked and passes it on."""

    def __init__(self, provider: CloudProvider, metrics: Metrics) -> None:
        super().__init__(provider)
        self._metrics = metrics

    async def create(self, claim: NodeClaim) -> Instance:
        """Buy one machine for the claim."""
        return await self._timed("Create", self._provider.create(claim))

    async def delete(self, provider_id: str) -> None:
        """Ask for the machine to go; that it is gone is the answer everybody waits for, not an error."""
        await self._timed("Delete", self._provider.delete(provider_id), InstanceNotFound)

    async def get(self, provider_id: str) -> Instance:
        """One machine."""
        return await self._timed("Get", self._provider.get(provider_id))

    async def list(self) -> tuple[Instance, ...]:
        """All machines of this cluster."""
        return await self._timed("List", self._provider.list())

    async def instance_types(self, pool: NodePool) -> tuple[InstanceType, ...]:
        """Everything the pool's class could use."""
        return await self._timed("GetInstanceTypes", self._provider.instance_types(pool))

    async def drift(self, claim: NodeClaim) -> Drift | None:
        """Why the machine no longer matches its class."""
        return await self._timed("IsDrifted", self._provider.drift(claim))

    async def _timed(self, method: str, call: Awaitable[T], *expected: type[Exception]) -> T:
        own = {"controller": current_controller(), "method": method, "provider": self.name}
        now = asyncio.get_running_loop().time
        began = now()
        try:
            return await call
        except expected:
            raise
        except Exception as error:
            self._metrics.cloudprovider_errors_total.labels(**own, error=_name(error)).inc()
            raise
        finally:
            self._metrics.cloudprovider_duration_seconds.labels(**own).observe(now() - began)


def _name(error: Exception) -> str:
    return next((name for kind, name in _NAMES if isinstance(error, kind)), "")
