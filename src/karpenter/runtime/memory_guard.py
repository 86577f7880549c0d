"""What the memory limit means here (OPS-321): near it the process cleans up, and says so when that does not help.

The reference's runtime collects its garbage more eagerly near a soft ceiling of 90 %. Here nearly everything is freed when its
last user lets go; what is left to do is to collect cycles and to hand back to the system what the allocator keeps. If the process
stays above the ceiling nevertheless, the operator needs a warning before the kernel kills the process.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import structlog

#: The soft ceiling, as a share of the limit, and what memory must fall below before it counts as passed again.
_CEILING_SHARE = 0.90
_RECOVERED_SHARE = 0.80
_CHECK_SECONDS = 10.0
#: Cleaning up stops everything for a moment, so not more often than this.
_CLEANUP_INTERVAL_SECONDS = 300.0
_STATM = Path("/proc/self/statm")
_MEBI = 2**20
_log = structlog.get_logger()


def resident_bytes() -> int:
    """Resident memory of this process; 0 where the system does not say."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def release_memory() -> None:
    """Collect what only refers to itself, and hand free memory back to the system."""
    gc.collect()
    return_free_memory()


def return_free_memory() -> None:
    """Hand back to the system what the allocator keeps; a start leaves it the texts of large answers, for instance."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


class MemoryGuard:
    """Checks the process's memory every ten seconds. ``limit_bytes`` is what it may use at most."""

    def __init__(
        self, limit_bytes: int, measure: Callable[[], int] = resident_bytes, clean: Callable[[], None] = release_memory
    ) -> None:
        self._limit = limit_bytes
        self._measure = measure
        self._clean = clean
        self._is_reported = False
        self._next_cleanup_at = 0.0

    async def reconcile(self) -> float:
        """Check; returns the seconds until the next check."""
        self.check()
        return _CHECK_SECONDS

    def check(self) -> None:
        """Clean up above the ceiling, and log an error when that did not help."""
        used = self._measure()
        if used < _RECOVERED_SHARE * self._limit:
            self._is_reported = False
        now = asyncio.get_running_loop().time()
        if used < _CEILING_SHARE * self._limit or now < self._next_cleanup_at:
            return
        self._clean()
        self._next_cleanup_at = now + _CLEANUP_INTERVAL_SECONDS
        used = self._measure()
        if used >= _CEILING_SHARE * self._limit and not self._is_reported:
            self._is_reported = True
            _log.error("memory is nearly used up", error=_over_limit_message(used, self._limit))


def _over_limit_message(used: int, limit: int) -> str:
    return (
        f"{used // _MEBI} MiB of the {limit // _MEBI} MiB in MEMORY_LIMIT are in use: raise the container's limit, "
        "or set DISABLE_CLUSTER_STATE_OBSERVABILITY=true"
    )
