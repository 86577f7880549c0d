"""Where log lines go: the standard streams and files, several at once, and somewhere to say that one of them failed.

A disk that is full or a pipe that nobody reads any more is no reason to stop: the line is lost there and written elsewhere.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from karpenter.control.logging import Stream

_STANDARD = ("stdout", "stderr")


class OutputError(Exception):
    """Nothing can be written there; the message says where and why."""


def check(path: str) -> None:
    """Raise ``OutputError`` where a path cannot be written to. Nothing is created."""
    if path in _STANDARD:
        return
    file = Path(path)
    if file.is_dir():
        raise OutputError(f"{path} is a folder")
    if not file.parent.is_dir():
        raise OutputError(f"{path} cannot be written: there is no folder {file.parent}")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise OutputError(f"{path} cannot be written: this user may not")


def opened(path: str) -> Stream:
    """The stream of a path (``stdout``, ``stderr`` or a file, which grows). Raises ``OutputError``."""
    match path:
        case "stdout":
            return sys.stdout
        case "stderr":
            return sys.stderr
    try:
        return Path(path).open("a", encoding="utf-8")
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror}") from error


class Output:
    """Writes to several streams. That one failed is told to ``errors``, once until it works again."""

    def __init__(self, streams: Sequence[Stream], errors: Sequence[Stream]) -> None:
        self._streams = streams
        self._errors = errors
        self._failing: set[int] = set()

    def write(self, text: str, /) -> int:
        """Write to every stream that takes it."""
        for number, stream in enumerate(self._streams):
            try:
                stream.write(text)
                stream.flush()
                self._failing.discard(number)
            except (OSError, ValueError) as error:
                self._complain(number, error)
        return len(text)

    def flush(self) -> None:
        """Nothing is held back."""

    def _complain(self, number: int, error: Exception) -> None:
        if number in self._failing:
            return
        self._failing.add(number)
        for stream in self._errors:
            try:
                stream.write(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} a log line could not be written: {error}\n")
                stream.flush()
            except (OSError, ValueError):
                continue
