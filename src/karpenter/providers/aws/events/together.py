"""Doing several things side by side, all of them to the end, whatever becomes of the others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable


async def together(work: Iterable[Awaitable[None]]) -> None:
    """Wait for all of it, then raise what the first that failed raised."""
    for end in await asyncio.gather(*work, return_exceptions=True):
        if end is not None:
            raise end
