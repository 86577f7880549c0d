"""What the cloud does about machines on their way out, asked at most every five seconds each (DIS-503, DIS-512, DIS-545).

Objects change more often than machines end, and every change wakes a look; without a pace of its own each of them would be a call
to the cloud.
"""

from __future__ import annotations

import asyncio

from karpenter.act.draft import Draft
from karpenter.act.stuck import Messages
from karpenter.act.world import World
from karpenter.model import conditions
from karpenter.providers.contract import InstanceNotFound, ProviderError

#: How often the cloud is asked about one machine (DIS-039).
INSTANCE_POLL_SECONDS = 5.0
_SHORTEST_SECONDS = 0.001
_TERMINATING = "InstanceTerminating"


class Instances:
    """Asks the cloud, and remembers of each machine when it was asked and what went wrong."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._messages = Messages()
        self._looked_for: dict[str, float] = {}
        self._ended: dict[str, float] = {}
        self._faults: dict[str, ProviderError] = {}

    def forget(self, provider_id: str) -> None:
        """Nobody waits for the machine any more."""
        for memory in (self._looked_for, self._ended, self._faults):
            memory.pop(provider_id, None)
        self._messages.forget(provider_id)

    def fault(self, provider_id: str) -> ProviderError | None:
        """What the cloud answered last instead of an answer."""
        return self._faults.get(provider_id)

    async def is_missing(self, provider_id: str) -> bool:
        """Whether the cloud says that the machine does not exist; a cloud that cannot tell does not say so."""
        if _left(self._looked_for, provider_id) > 0:
            return False
        self._looked_for[provider_id] = asyncio.get_running_loop().time()
        try:
            await self._world.provider.get(provider_id)
        except InstanceNotFound:
            return True
        except ProviderError as fault:
            self._faults[provider_id] = fault
        else:
            self._faults.pop(provider_id, None)
        return False

    async def end(self, draft: Draft, provider_id: str) -> float:
        """Have the claim's machine ended; seconds until to ask again, 0 once it is gone.

        The draft tells by its condition InstanceTerminating that the cloud was asked. Raises ``ProviderError``, then the
        condition says what the cloud answered.
        """
        left = _left(self._ended, provider_id)
        if left > 0:
            draft.set(_TERMINATING, conditions.TRUE)
            return left
        try:
            await self._world.provider.delete(provider_id)
        except InstanceNotFound:
            return 0.0
        except ProviderError as fault:
            self._faults[provider_id] = fault
            self._record_fault(draft, provider_id, fault)
            raise
        self._faults.pop(provider_id, None)
        self._ended[provider_id] = asyncio.get_running_loop().time()
        draft.set(_TERMINATING, conditions.TRUE)
        return INSTANCE_POLL_SECONDS

    def _record_fault(self, draft: Draft, provider_id: str, fault: ProviderError) -> None:
        known = draft.condition(_TERMINATING)
        text = self._messages.settle(provider_id, known.message if known is not None else "", str(fault), draft.now)
        draft.set(_TERMINATING, known.status if known is not None else conditions.UNKNOWN, "DeletionFailed", text)


def _left(asked: dict[str, float], provider_id: str) -> float:
    """Seconds until a machine may be asked about again."""
    if provider_id not in asked:
        return 0.0
    left = asked[provider_id] + INSTANCE_POLL_SECONDS - asyncio.get_running_loop().time()
    # A rest below what clocks can tell is none: coming back after it would find it still there, and so on for ever.
    return left if left > _SHORTEST_SECONDS else 0.0
