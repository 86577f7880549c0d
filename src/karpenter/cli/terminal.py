"""Writing to standard output, which may be closed before everything is said (``karpenter plan | head``)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer

#: What a shell reports for a process that a closed pipe ended.
CLOSED_PIPE_STATUS = 141


@contextmanager
def exit_on_closed_pipe() -> Iterator[None]:
    """Flush at the end; when nobody reads any more, end the process without a word."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Pointed nowhere, or the interpreter's own last flush complains.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(CLOSED_PIPE_STATUS)


def write_text(text: str) -> None:
    """Write a text, line by line: one large write into a pipe that closes half-way is taken for complete."""
    with exit_on_closed_pipe():
        sys.stdout.writelines(text.splitlines(keepends=True))


#: Exit codes: what was given is wrong; the cluster did not answer as it should.
WRONG_INPUT = 2
CLUSTER_UNREACHABLE = 1


def print_error(line: str) -> None:
    """One line beside the output."""
    print(line, file=sys.stderr)  # noqa: T201


def exit_with_error(line: str, exit_code: int) -> NoReturn:
    """End the command with a line about why."""
    print_error(line)
    raise typer.Exit(exit_code)
