"""Who was cancelled: the task that runs, or something it waited for. Both raise ``CancelledError``."""

from __future__ import annotations

import asyncio


def is_being_cancelled() -> bool:
    """Whether somebody asked the task that runs now to end."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
