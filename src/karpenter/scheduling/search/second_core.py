"""Whether this process may use a second core: it has to be there, and a limit of the container has to leave time on it.

A container with a limit of one CPU may run on several cores, but two threads use up its time in half of each period (0.1 s). Then
all of its threads stand still until the next one, the leader election's, too.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from math import inf
from pathlib import Path

#: Quota and period in microseconds, as Linux writes them for a container: one file, or two before control groups version 2.
_QUOTA_FILES = (
    (Path("/sys/fs/cgroup/cpu.max"),),
    (Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us")),
)


@cache
def has_second_core() -> bool:
    """Whether a second thread may run beside the first one. It is the same for the life of the process."""
    present = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return present > 1 and _allowed_cores() >= 2


def _allowed_cores() -> float:
    for files in _QUOTA_FILES:
        with suppress(OSError):
            return cores_of_quota(" ".join(file.read_text() for file in files))
    return inf


def cores_of_quota(text: str) -> float:
    """The cores that ``quota period`` allows, such as 1.5 for ``150000 100000``; infinite without a limit."""
    quota, _, period = text.strip().partition(" ")
    try:
        allowed = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):  # "max", or a text that Linux does not write
        return inf
    return allowed if allowed > 0 else inf
