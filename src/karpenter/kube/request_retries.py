"""Which failed requests are sent again, and when.

The criterion is whether the server may have carried the request out already. A caller that gets an error reads the current state
and decides again, so the client retries only what is certainly harmless:

===============================  =====================  ====================  =========
what came back                   get, list              create, patch,        evict
                                                        delete, bind
===============================  =====================  ====================  =========
no connection (RequestNotSent)   again                  again                 again
429: the server was too busy     again                  again                 no (1)
5xx, a broken or late answer     again                  no (2)                no
anything else                    no                     no                    no
===============================  =====================  ====================  =========

1. A 429 to an eviction mostly comes from a disruption budget. The caller waits for the budget.
2. It may have been done. A second create would answer AlreadyExists, a second patch at a version Conflict, a second delete
   NotFound or hit an object made since: the caller has to find out which. That holds for 503 and 504 too, which proxies
   give as well.

The server's Retry-After is obeyed. Watches are restarted by their informer (``informer``).

Writes are given up after ten seconds of waiting: the state on which the caller decided is outdated by then, and this process may
no longer be the leader (OPS-361).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from karpenter.kube import errors
from karpenter.model.backoff import Backoff

R = TypeVar("R")

_MAX_ATTEMPTS = 4
_BACKOFF = Backoff(0.5, 8.0)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """What is repeated (``errors``) and how long waiting may take in all."""

    retried_errors: tuple[type[errors.KubeError], ...]
    max_wait_seconds: float


READ_RETRIES = RetryPolicy((errors.TooManyRequests, errors.ServerUnavailable), max_wait_seconds=90.0)
WRITE_RETRIES = RetryPolicy((errors.TooManyRequests, errors.RequestNotSent), max_wait_seconds=10.0)
EVICTION_RETRIES = RetryPolicy((errors.RequestNotSent,), max_wait_seconds=10.0)


async def with_retries(send: Callable[[], Awaitable[R]], policy: RetryPolicy) -> R:
    """The result of ``send``, tried a few times, waiting longer each time or as long as the server asks. Raises ``KubeError``."""
    left = policy.max_wait_seconds
    for attempt in range(1, _MAX_ATTEMPTS):
        try:
            return await send()
        except policy.retried_errors as fault:
            wait = max(fault.retry_after_seconds, _BACKOFF.delay(attempt) * random.uniform(0.5, 1.0))
            if wait > left:
                raise
        left -= wait
        await asyncio.sleep(wait)
    return await send()
