"""Controllers that look again and again: each look says when the next one is due; a fault is told and tried again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from karpenter.kube.errors import KubeError
from karpenter.providers.aws.errors import AwsError
from karpenter.providers.contract import ProviderError

_FIRST_BACKOFF_SECONDS = 1.0
_LONGEST_BACKOFF_SECONDS = 60.0
_log = structlog.get_logger()

#: One round; seconds until the next. Raises ``ProviderError``, ``AwsError`` and ``KubeError``.
Look = Callable[[], Awaitable[float]]


async def rounds(name: str, look: Look, first_after_seconds: float = 0.0) -> None:
    """Look until cancelled, at growing distances while looks fail."""
    await asyncio.sleep(first_after_seconds)
    backoff = _FIRST_BACKOFF_SECONDS
    while True:
        try:
            pause = await look()
            backoff = _FIRST_BACKOFF_SECONDS
        except (ProviderError, AwsError, KubeError) as error:
            _log.error("Reconciler error", controller=name, error=str(error))
            pause, backoff = backoff, min(2 * backoff, _LONGEST_BACKOFF_SECONDS)
        await asyncio.sleep(pause)


def every(seconds: float, work: Callable[[], Awaitable[object]]) -> Look:
    """A look that does some work in even distances."""

    async def look() -> float:
        await work()
        return seconds

    return look
