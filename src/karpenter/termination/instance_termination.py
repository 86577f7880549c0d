"""Instance termination: at most one provider call per instance every five seconds (DIS-503, DIS-512, DIS-545).

Every change of a terminating object triggers a pass, far more often than instances terminate. Without this limit every pass would
call the provider. Node termination and NodeClaim termination share one ``InstanceTermination``.
"""

from __future__ import annotations

import asyncio

from karpenter.controller_context import ControllerContext
from karpenter.model import conditions
from karpenter.providers.contract import InstanceNotFound, ProviderError
from karpenter.runtime.backoff_schedules import MessageThrottle
from karpenter.runtime.nodeclaim_draft import NodeClaimDraft

#: Interval between provider calls for one instance (DIS-039).
INSTANCE_POLL_SECONDS = 5.0
_MIN_WAIT_SECONDS = 0.001


class InstanceTermination:
    """Calls the provider; caches per instance the time of the last calls and the last error."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._message_throttle = MessageThrottle()
        self._checked_at: dict[str, float] = {}
        self._terminated_at: dict[str, float] = {}
        self._errors: dict[str, ProviderError] = {}
        self._lookup_errors: dict[str, ProviderError] = {}

    def forget(self, provider_id: str) -> None:
        """The termination of the instance is complete."""
        for cache in (self._checked_at, self._terminated_at, self._errors, self._lookup_errors):
            cache.pop(provider_id, None)
        self._message_throttle.forget(provider_id)

    def last_error(self, provider_id: str) -> ProviderError | None:
        """The provider error of the last call, None if it succeeded."""
        return self._errors.get(provider_id)

    def lookup_error(self, provider_id: str) -> ProviderError | None:
        """Why the last ``is_missing`` got no answer from the cloud; None if it got one."""
        return self._lookup_errors.get(provider_id)

    async def is_missing(self, provider_id: str) -> bool:
        """Whether the cloud reports that the instance does not exist; False after an error and between two calls."""
        if _seconds_until_next_call(self._checked_at, provider_id) > 0:
            return False
        self._checked_at[provider_id] = asyncio.get_running_loop().time()
        try:
            await self._context.provider.get(provider_id)
        except InstanceNotFound:
            return True
        except ProviderError as error:
            self._lookup_errors[provider_id] = error
        else:
            self._lookup_errors.pop(provider_id, None)
        return False

    async def terminate(self, draft: NodeClaimDraft, provider_id: str) -> float:
        """Terminate the claim's instance; returns seconds until the next call, 0 once the instance is gone.

        Sets the draft's condition InstanceTerminating. Raises ``ProviderError`` after writing its text to the condition.
        """
        remaining = _seconds_until_next_call(self._terminated_at, provider_id)
        if remaining > 0:
            draft.set_condition(conditions.INSTANCE_TERMINATING, conditions.TRUE)
            return remaining
        try:
            await self._context.provider.delete(provider_id)
        except InstanceNotFound:
            return 0.0
        except ProviderError as error:
            self._errors[provider_id] = error
            self._record_error(draft, provider_id, error)
            raise
        self._errors.pop(provider_id, None)
        self._terminated_at[provider_id] = asyncio.get_running_loop().time()
        draft.set_condition(conditions.INSTANCE_TERMINATING, conditions.TRUE)
        return INSTANCE_POLL_SECONDS

    def _record_error(self, draft: NodeClaimDraft, provider_id: str, error: ProviderError) -> None:
        condition = draft.condition(conditions.INSTANCE_TERMINATING)
        text = self._message_throttle.text_to_write(
            provider_id, condition.message if condition is not None else "", str(error), draft.now
        )
        draft.set_condition(
            conditions.INSTANCE_TERMINATING,
            condition.status if condition is not None else conditions.UNKNOWN,
            "DeletionFailed",
            text,
        )


def _seconds_until_next_call(called_at: dict[str, float], provider_id: str) -> float:
    """Seconds until the next provider call for the instance is allowed."""
    if provider_id not in called_at:
        return 0.0
    remaining = called_at[provider_id] + INSTANCE_POLL_SECONDS - asyncio.get_running_loop().time()
    # Ignore a rest below timer resolution: a requeue that short could fire before it has passed, again and again.
    return remaining if remaining > _MIN_WAIT_SECONDS else 0.0
