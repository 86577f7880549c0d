"""Writing to standard output, which may be closed before everything is said (``karpenter plan | head``)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

#: What a shell reports for a process that a closed pipe ended.
CLOSED_PIPE = 141


@contextmanager
def to_whoever_reads() -> Iterator[None]:
    """Flush at the end; when nobody reads any more, end the process without a word."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Pointed nowhere, or the interpreter's own last flush complains.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(CLOSED_PIPE)


def emit(text: str) -> None:
    """Write a text, line by line: one large write into a pipe that closes half-way is taken for complete."""
    with to_whoever_reads():
        sys.stdout.writelines(text.splitlines(keepends=True))
