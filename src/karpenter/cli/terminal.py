"""Standard output, which may be closed early (``karpenter plan | head``), error lines and exit codes of all commands."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import NoReturn

import typer

#: What a shell reports for a process that a closed pipe ended.
CLOSED_PIPE_STATUS = 141


@contextmanager
def exit_on_closed_pipe() -> Iterator[None]:
    """Flush at the end; if the reader closed the pipe, end the process without an error message."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Pointed nowhere, or the interpreter's own last flush complains.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(CLOSED_PIPE_STATUS)


@contextmanager
def all_errors_as_failures() -> Iterator[None]:
    """End with 1 for wrong input, too: for commands that say something else with 2."""
    try:
        yield
    except CommandError as error:
        print_error(str(error))
        raise typer.Exit(FAILED) from error
    except typer.Exit as ended:
        raise typer.Exit(FAILED if ended.exit_code else 0) from ended


def write_text(text: str) -> None:
    """Write a text, line by line: one large write into a pipe that closes half-way is taken for complete."""
    with exit_on_closed_pipe():
        sys.stdout.writelines(text.splitlines(keepends=True))


#: Exit codes: the environment failed; wrong input; interrupted with Ctrl-C.
FAILED = 1
WRONG_INPUT = 2
INTERRUPTED = 130
#: Exit codes of plans, on request: there is something to launch or to disrupt; pods stay unschedulable.
CHANGES, UNSCHEDULABLE = 2, 3


class CommandError(Exception):
    """Ends the command: its text goes to standard error, one line."""

    exit_code = FAILED


class WrongInput(CommandError):
    """The user's input is wrong; the text says what, and how to fix it."""

    exit_code = WRONG_INPUT


_collected_lines: ContextVar[list[str] | None] = ContextVar("_collected_lines", default=None)


@contextmanager
def collected_errors() -> Iterator[list[str]]:
    """Collect what ``print_error`` would write: for callers that are no command, such as ``karpenter.python_api``."""
    lines: list[str] = []
    token = _collected_lines.set(lines)
    try:
        yield lines
    finally:
        _collected_lines.reset(token)


def check_writable(flag: str, path: Path) -> None:
    """Raises ``WrongInput`` where the file of an option cannot be written. Neither makes the file nor changes it."""
    file = path.resolve()  # of a link that leads nowhere only what it leads to is made
    is_new = not file.exists()
    try:
        file.open("ab").close()
    except OSError as error:
        raise WrongInput(f"{flag} {path}: cannot be written ({error.strerror})") from None
    if is_new:
        file.unlink()


def print_error(line: str) -> None:
    """Write a line to standard error, or collect it (``collected_errors``)."""
    lines = _collected_lines.get()
    if lines is None:
        print(_broken_for_terminal(line), file=sys.stderr)  # noqa: T201
    else:
        lines.append(line)


def _broken_for_terminal(text: str) -> str:
    """Broken between words where a person reads it; one line for everyone else, as for ``grep``."""
    if not sys.stderr.isatty():
        return text
    columns = shutil.get_terminal_size().columns
    return "\n".join(
        textwrap.fill(line, columns, break_long_words=False, break_on_hyphens=False, replace_whitespace=False)
        for line in text.split("\n")
    )


def exit_with_error(line: str, exit_code: int) -> NoReturn:
    """End the command with one line on standard error."""
    print_error(line)
    raise typer.Exit(exit_code)
