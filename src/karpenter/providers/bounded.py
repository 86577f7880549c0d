"""A cloud whose calls end, whatever cloud it is: one that hangs must hold nobody up (OPS-733).

A call that is cut off may have done its work all the same. That costs nothing: create recognises its claim, delete is repeated
until the machine is gone, and the others only read (OPS-211, OPS-212).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.catalog.types import InstanceType
from karpenter.providers.contract import (
    CloudProvider,
    Drift,
    Instance,
    Pending,
    ProviderError,
    RegistrationHook,
    Satisfied,
)
from karpenter.providers.passing import PassingProvider

T = TypeVar("T")

#: How long one call may take: well above what clouds need, well below the time a claim has to launch (OPS-050).
CALL_SECONDS = 60.0


class BoundedProvider(PassingProvider):
    """A provider that passes everything on and gives each call ``seconds``; later it is a ``ProviderError``."""

    def __init__(self, provider: CloudProvider, seconds: float = CALL_SECONDS) -> None:
        super().__init__(provider)
        self._seconds = seconds

    async def create(self, claim: NodeClaim) -> Instance:
        """Buy one machine for the claim."""
        return await _within(self._seconds, "buying a machine", self._provider.create(claim))

    async def delete(self, provider_id: str) -> None:
        """Ask for the machine to go."""
        await _within(self._seconds, f"ending machine {provider_id}", self._provider.delete(provider_id))

    async def get(self, provider_id: str) -> Instance:
        """One machine."""
        return await _within(self._seconds, f"reading machine {provider_id}", self._provider.get(provider_id))

    async def list(self) -> tuple[Instance, ...]:
        """All machines of this cluster."""
        return await _within(self._seconds, "listing machines", self._provider.list())

    async def instance_types(self, pool: NodePool) -> tuple[InstanceType, ...]:
        """Everything the pool's class could use."""
        return await _within(self._seconds, "reading instance types", self._provider.instance_types(pool))

    async def drift(self, claim: NodeClaim) -> Drift | None:
        """Why the machine no longer matches its class."""
        return await _within(self._seconds, "comparing a machine with its class", self._provider.drift(claim))

    def registration_hooks(self) -> tuple[RegistrationHook, ...]:
        """What must be satisfied before a Node is opened to pods, with bounded questions."""
        return tuple(_BoundedHook(hook, self._seconds) for hook in self._provider.registration_hooks())


class _BoundedHook:
    """A hook whose questions end."""

    def __init__(self, hook: RegistrationHook, seconds: float) -> None:
        self._hook = hook
        self._seconds = seconds

    @property
    def name(self) -> str:
        """What conditions and log lines call it."""
        return self._hook.name

    async def ask(self, claim: NodeClaim) -> Satisfied | Pending:
        """Whether the claim's machine may be registered."""
        return await _within(self._seconds, f"asking hook {self.name}", self._hook.ask(claim))


async def _within(seconds: float, what: str, call: Coroutine[Any, Any, T]) -> T:
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await call
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise ProviderError(f"{what} took longer than {seconds:g} s") from error
