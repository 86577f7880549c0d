"""What every wrapper around a cloud starts from: each call passes through unchanged. A wrapper overrides what it is about."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.kinds import Kind
from karpenter.api.meta import Wire
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.kube import write_fence
from karpenter.kube.write_fence import Fence
from karpenter.metrics import Metrics
from karpenter.metrics.controller_metrics import current_controller
from karpenter.model import labels
from karpenter.model.call_deadline import CallDeadline, call_deadline
from karpenter.model.repair_policies import RepairPolicy
from karpenter.providers.contract import (
    CloudProvider,
    HookPending,
    HookSatisfied,
    Instance,
    InstanceDrift,
    InstanceNotFound,
    InsufficientCapacity,
    NodeClassNotReady,
    ProviderError,
    RebootingProvider,
    RebootNotImplemented,
    RegistrationHook,
)


class CloudProviderDecorator:
    """A provider that is another one, call for call."""

    def __init__(self, provider: CloudProvider) -> None:
        self._provider = provider

    async def create(self, claim: NodeClaim) -> Instance:
        """Launch one instance for the claim."""
        return await self._provider.create(claim)

    async def delete(self, provider_id: str) -> None:
        """Ask for the instance to be terminated."""
        await self._provider.delete(provider_id)

    async def get(self, provider_id: str) -> Instance:
        """One instance."""
        return await self._provider.get(provider_id)

    async def list(self) -> tuple[Instance, ...]:
        """All instances of this cluster."""
        return await self._provider.list()

    async def instance_types(self, pool: NodePool) -> tuple[InstanceType, ...]:
        """Every instance type that the pool's node class could use."""
        return await self._provider.instance_types(pool)

    async def drift(self, claim: NodeClaim) -> InstanceDrift | None:
        """How the instance no longer matches its class."""
        return await self._provider.drift(claim)

    async def reboot(self, claim: NodeClaim, operation_id: str) -> None:
        """Restart the claim's instance, where the provider can."""
        await reboot_instance(self._provider, claim, operation_id)

    def repair_policies(self) -> tuple[RepairPolicy, ...]:
        """Node conditions that mean broken."""
        return self._provider.repair_policies()

    def registration_hooks(self) -> tuple[RegistrationHook, ...]:
        """What must be satisfied before a Node is opened to pods."""
        return self._provider.registration_hooks()

    @property
    def name(self) -> str:
        """Short name, the metric label ``provider``."""
        return self._provider.name

    @property
    def node_class_kinds(self) -> tuple[Kind[Wire], ...]:
        """Kinds of node classes the provider serves."""
        return self._provider.node_class_kinds


async def reboot_instance(provider: CloudProvider, claim: NodeClaim, operation_id: str) -> None:
    """Reboot through a provider that may not be able to. Raises as ``RebootingProvider.reboot`` does."""
    if not isinstance(provider, RebootingProvider):
        raise RebootNotImplemented
    await provider.reboot(claim, operation_id)


T = TypeVar("T")

#: How long one call may take: well above what clouds need, well below the time a claim has to launch (OPS-050).
CALL_TIMEOUT_SECONDS = 60.0


class TimeoutProvider(CloudProviderDecorator):
    """A provider that passes everything on and gives each call ``seconds``; later it is a ``ProviderError``."""

    def __init__(self, provider: CloudProvider, seconds: float = CALL_TIMEOUT_SECONDS) -> None:
        super().__init__(provider)
        self._seconds = seconds

    async def create(self, claim: NodeClaim) -> Instance:
        """Launch one instance for the claim."""
        return await _with_timeout(self._seconds, "launching an instance", self._provider.create(claim))

    async def delete(self, provider_id: str) -> None:
        """Ask for the instance to be terminated."""
        await _with_timeout(self._seconds, f"terminating instance {provider_id}", self._provider.delete(provider_id))

    async def get(self, provider_id: str) -> Instance:
        """One instance."""
        return await _with_timeout(self._seconds, f"reading instance {provider_id}", self._provider.get(provider_id))

    async def list(self) -> tuple[Instance, ...]:
        """All instances of this cluster."""
        return await _with_timeout(self._seconds, "listing instances", self._provider.list())

    async def instance_types(self, pool: NodePool) -> tuple[InstanceType, ...]:
        """Every instance type that the pool's node class could use."""
        return await _with_timeout(self._seconds, "reading instance types", self._provider.instance_types(pool))

    async def drift(self, claim: NodeClaim) -> InstanceDrift | None:
        """Why the instance no longer matches its class."""
        return await _with_timeout(
            self._seconds, "comparing an instance with its node class", self._provider.drift(claim)
        )

    async def reboot(self, claim: NodeClaim, operation_id: str) -> None:
        """Restart the claim's instance."""
        await _with_timeout(self._seconds, "rebooting an instance", super().reboot(claim, operation_id))

    def registration_hooks(self) -> tuple[RegistrationHook, ...]:
        """What must be satisfied before a Node is opened to pods, with bounded questions."""
        return tuple(_TimeoutHook(hook, self._seconds) for hook in self._provider.registration_hooks())


class _TimeoutHook:
    """A hook whose questions end."""

    def __init__(self, hook: RegistrationHook, seconds: float) -> None:
        self._hook = hook
        self._seconds = seconds

    @property
    def name(self) -> str:
        """What conditions and log lines call it."""
        return self._hook.name

    async def check(self, claim: NodeClaim) -> HookSatisfied | HookPending:
        """Whether the claim's instance may be registered."""
        return await _with_timeout(self._seconds, f"asking hook {self.name}", self._hook.check(claim))


async def _with_timeout(seconds: float, what: str, call: Coroutine[Any, Any, T]) -> T:
    """The call's result. Waiting for a rate limit or a connection does not count (``call_deadline``)."""
    deadline: CallDeadline | None = None
    try:
        async with call_deadline(seconds) as deadline:
            return await call
    except TimeoutError as error:
        if deadline is None or not deadline.expired:
            raise
        raise ProviderError(f"{what} took longer than {seconds:g} s") from error


R = TypeVar("R")


class ProviderNotLeading(ProviderError):
    """The cloud was not asked, or its answer not awaited: this process does not lead, or not any more."""


class LeaderOnlyProvider(CloudProviderDecorator):
    """A provider whose instances are launched and ended through a fence. All else passes."""

    def __init__(self, provider: CloudProvider, fence: Fence) -> None:
        super().__init__(provider)
        self._fence = fence

    async def create(self, claim: NodeClaim) -> Instance:
        """Launch one instance for the claim."""
        return await self._through_fence(lambda: self._provider.create(claim))

    async def delete(self, provider_id: str) -> None:
        """Ask for the instance to be terminated."""
        await self._through_fence(lambda: self._provider.delete(provider_id))

    async def reboot(self, claim: NodeClaim, operation_id: str) -> None:
        """Restart the claim's instance."""
        await self._through_fence(lambda: super(LeaderOnlyProvider, self).reboot(claim, operation_id))

    async def _through_fence(self, call: Callable[[], Awaitable[R]]) -> R:
        try:
            return await self._fence.run(call)
        except write_fence.WriteFenced as error:
            raise ProviderNotLeading(str(error)) from error


M = TypeVar("M")

#: What the label ``error`` calls a kind of error (OPS-225 to OPS-230), and all other kinds (K15-462).
_UNKNOWN_ERROR = "unknown"
_ERROR_NAMES: tuple[tuple[type[Exception], str], ...] = (
    (InstanceNotFound, "NodeClaimNotFoundError"),
    (InsufficientCapacity, "InsufficientCapacityError"),
    (NodeClassNotReady, "NodeClassNotReadyError"),
)


class MetricsProvider(CloudProviderDecorator):
    """A provider that counts what it is asked and passes it on."""

    def __init__(self, provider: CloudProvider, metrics: Metrics) -> None:
        super().__init__(provider)
        self._metrics = metrics

    async def create(self, claim: NodeClaim) -> Instance:
        """Launch one instance for the claim."""
        return await self._measure("Create", self._provider.create(claim), pool=_pool_of(claim))

    async def delete(self, provider_id: str) -> None:
        """Request the deletion of the instance. ``InstanceNotFound`` is its expected end and not counted as an error."""
        await self._measure("Delete", self._provider.delete(provider_id), InstanceNotFound)

    async def get(self, provider_id: str) -> Instance:
        """One instance."""
        return await self._measure("Get", self._provider.get(provider_id))

    async def list(self) -> tuple[Instance, ...]:
        """All instances of this cluster."""
        return await self._measure("List", self._provider.list())

    async def instance_types(self, pool: NodePool) -> tuple[InstanceType, ...]:
        """Every instance type that the pool's node class could use."""
        return await self._measure("GetInstanceTypes", self._provider.instance_types(pool), pool=pool.metadata.name)

    async def drift(self, claim: NodeClaim) -> InstanceDrift | None:
        """Why the instance no longer matches its class."""
        return await self._measure("IsDrifted", self._provider.drift(claim), pool=_pool_of(claim))

    async def reboot(self, claim: NodeClaim, operation_id: str) -> None:
        """Restart the claim's instance."""
        await self._measure("Reboot", super().reboot(claim, operation_id), pool=_pool_of(claim))

    async def _measure(self, method: str, call: Awaitable[M], *expected: type[Exception], pool: str = "") -> M:
        own = {"controller": current_controller(), "method": method, "provider": self.name}
        now = asyncio.get_running_loop().time
        began = now()
        try:
            return await call
        except expected:
            raise
        except Exception as error:
            self._metrics.cloudprovider_errors_total.labels(**own, error=_error_name(error), nodepool=pool).inc()
            raise
        finally:
            self._metrics.cloudprovider_duration_seconds.labels(**own).observe(now() - began)


def _error_name(error: Exception) -> str:
    return next((name for kind, name in _ERROR_NAMES if isinstance(error, kind)), _UNKNOWN_ERROR)


def _pool_of(claim: NodeClaim) -> str:
    return claim.metadata.labels.get(labels.NODE_POOL, "")
