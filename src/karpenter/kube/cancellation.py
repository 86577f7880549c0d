"""Tells whether a ``CancelledError`` means that the running task was cancelled, or something it waited for. Both raise it."""

from __future__ import annotations

import asyncio


def is_being_cancelled() -> bool:
    """Whether cancellation of the running task was requested."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
