"""Loopback ports for servers of the tests, each given out once.

A port is chosen before the process that listens on it starts. Asking the kernel for any free port is not enough then: until
the process listens, the kernel gives the same port to a client's connection or to another test process. The ports here
lie below the range that Linux takes for clients, and all test processes of a user share one counter.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from tempfile import gettempdir

#: Below the clients' range (``net.ipv4.ip_local_port_range``: from 32768) and above what common servers listen on.
_PORTS = range(17_000, 32_000)


def free_port(counter: Path | None = None) -> int:
    """A port that no process listens on, on any address, and none of the last 15 000 callers got. ``OSError``: all are taken."""
    for port in _numbers(counter or Path(gettempdir(), f"karpenter-test-ports-{os.getuid()}")):
        if _is_free(port):
            return port
    raise OSError(errno.EADDRINUSE, f"all ports from {_PORTS.start} to {_PORTS.stop - 1} are taken")


def _numbers(counter: Path) -> Iterator[int]:
    """The next number, once round; the file keeps the last one."""
    for _ in _PORTS:
        with counter.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            number = int(file.read() or _PORTS.start - 1) + 1
            number = number if number in _PORTS else _PORTS.start
            file.truncate(0)
            file.write(str(number))
        yield number


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True
