"""A cloud in which machines are bought and ended only while this process leads (OPS-361); see ``kube.fenced``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from karpenter.api.karpenter import NodeClaim
from karpenter.kube import fenced
from karpenter.kube.fenced import Fence
from karpenter.providers.contract import CloudProvider, Instance, ProviderError
from karpenter.providers.passing import PassingProvider

R = TypeVar("R")


class NotLeading(ProviderError):
    """The cloud was not asked, or its answer not awaited: this process does not lead, or not any more."""


class FencedProvider(PassingProvider):
    """A provider whose machines are bought and ended through a fence. All else passes."""

    def __init__(self, provider: CloudProvider, fence: Fence) -> None:
        super().__init__(provider)
        self._fence = fence

    async def create(self, claim: NodeClaim) -> Instance:
        """Buy one machine for the claim."""
        return await self._through(lambda: self._provider.create(claim))

    async def delete(self, provider_id: str) -> None:
        """Ask for the machine to go."""
        await self._through(lambda: self._provider.delete(provider_id))

    async def _through(self, call: Callable[[], Awaitable[R]]) -> R:
        try:
            return await self._fence.through(call)
        except fenced.NotLeading as error:
            raise NotLeading(str(error)) from error
