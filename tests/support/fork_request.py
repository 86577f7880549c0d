"""Started by the controller of a parallel run in place of Python: has a fork of the collector take its place.

It imports little and waits for the fork's end. Where no fork comes it becomes the worker that xdist would have started. See
``forked_workers``.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from typing import Final

#: What a fork answers when it has standard input and output.
TAKEN: Final = b"t"


def address(name: str) -> str:
    """Of the collector's socket, which has no file."""
    return f"\0{name}"


def main(name: str, arguments: list[str]) -> None:
    """Ask for a fork, and end with it; ``arguments`` are those of an ordinary worker."""
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the controller ends its workers
    with socket.socket(socket.AF_UNIX) as request:
        if _is_taken(request, name):
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, 0)
            os.dup2(nothing, 1)
            request.recv(1)
            return
    signal.signal(signal.SIGINT, interrupt)
    os.execv(sys.executable, [sys.executable, *arguments])


def _is_taken(request: socket.socket, name: str) -> bool:
    try:
        request.connect(address(name))
        socket.send_fds(request, [b"\0"], [0, 1])
        return request.recv(1) == TAKEN
    except OSError:
        return False


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
