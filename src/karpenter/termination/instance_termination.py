"""What the cloud does about machines on their way out, asked at most every five seconds each (DIS-503, DIS-512, DIS-545).

Objects change more often than machines end, and every change wakes a look; without a pace of its own each of them would be a call
to the cloud.
"""

from __future__ import annotations

import asyncio

from karpenter.model import conditions
from karpenter.providers.contract import InstanceNotFound, ProviderError
from karpenter.runtime.backoff_schedules import MessageThrottle
from karpenter.runtime.controller_context import ControllerContext
from karpenter.runtime.nodeclaim_draft import NodeClaimDraft

#: How often the cloud is asked about one machine (DIS-039).
INSTANCE_POLL_SECONDS = 5.0
_MIN_WAIT_SECONDS = 0.001
_INSTANCE_TERMINATING = "InstanceTerminating"


class InstanceTermination:
    """Asks the cloud, and remembers of each machine when it was asked and what went wrong."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._message_throttle = MessageThrottle()
        self._checked_at: dict[str, float] = {}
        self._terminated_at: dict[str, float] = {}
        self._errors: dict[str, ProviderError] = {}

    def forget(self, provider_id: str) -> None:
        """Nobody waits for the machine any more."""
        for memory in (self._checked_at, self._terminated_at, self._errors):
            memory.pop(provider_id, None)
        self._message_throttle.forget(provider_id)

    def last_error(self, provider_id: str) -> ProviderError | None:
        """What the cloud answered last instead of an answer."""
        return self._errors.get(provider_id)

    async def is_missing(self, provider_id: str) -> bool:
        """Whether the cloud says that the machine does not exist; a cloud that cannot tell does not say so."""
        if _seconds_until_next_call(self._checked_at, provider_id) > 0:
            return False
        self._checked_at[provider_id] = asyncio.get_running_loop().time()
        try:
            await self._context.provider.get(provider_id)
        except InstanceNotFound:
            return True
        except ProviderError as fault:
            self._errors[provider_id] = fault
        else:
            self._errors.pop(provider_id, None)
        return False

    async def terminate(self, draft: NodeClaimDraft, provider_id: str) -> float:
        """Have the claim's machine ended; seconds until to ask again, 0 once it is gone.

        The draft tells by its condition InstanceTerminating that the cloud was asked. Raises ``ProviderError``, then the
        condition says what the cloud answered.
        """
        left = _seconds_until_next_call(self._terminated_at, provider_id)
        if left > 0:
            draft.set_condition(_INSTANCE_TERMINATING, conditions.TRUE)
            return left
        try:
            await self._context.provider.delete(provider_id)
        except InstanceNotFound:
            return 0.0
        except ProviderError as fault:
            self._errors[provider_id] = fault
            self._record_error(draft, provider_id, fault)
            raise
        self._errors.pop(provider_id, None)
        self._terminated_at[provider_id] = asyncio.get_running_loop().time()
        draft.set_condition(_INSTANCE_TERMINATING, conditions.TRUE)
        return INSTANCE_POLL_SECONDS

    def _record_error(self, draft: NodeClaimDraft, provider_id: str, error: ProviderError) -> None:
        known = draft.condition(_INSTANCE_TERMINATING)
        text = self._message_throttle.text_to_write(
            provider_id, known.message if known is not None else "", str(error), draft.now
        )
        draft.set_condition(
            _INSTANCE_TERMINATING, known.status if known is not None else conditions.UNKNOWN, "DeletionFailed", text
        )


def _seconds_until_next_call(called_at: dict[str, float], provider_id: str) -> float:
    """Seconds until a machine may be asked about again."""
    if provider_id not in called_at:
        return 0.0
    left = called_at[provider_id] + INSTANCE_POLL_SECONDS - asyncio.get_running_loop().time()
    # A rest below what clocks can tell is none: coming back after it would find it still there, and so on for ever.
    return left if left > _MIN_WAIT_SECONDS else 0.0
