"""The last moment to hold a request back: after every wait of ours, right before it is sent.

Whoever lets a task write may leave a check with it; the client asks it then. It narrows what a process that is stopped for long
can still send when it wakes up to the one request it was sending; nothing in user space can narrow that further.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

_check: ContextVar[Callable[[], None] | None] = ContextVar("check", default=None)


def check_before_sending(check: Callable[[], None]) -> None:
    """Have requests of this task pass a check, which raises what the caller is to get."""
    _check.set(check)


def ask() -> None:
    """Pass the check of this task, if it has one."""
    check = _check.get()
    if check is not None:
        check()
