"""Texts from files that other processes rewrite, such as tokens (by kubelets) and certificates (by their issuers).

Files are read again when the last read is ten seconds old: kubelets rewrite a token at four fifths of its life, ten minutes at
the least, so there is time enough. A file that is gone or empty for the moment, as in the middle of being rewritten,
keeps its last content.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

#: A text itself, or the file it lies in.
TextSource = bytes | Path

_RELOAD_SECONDS = 10.0


class SourceUnreadable(Exception):
    """A file that is needed cannot be read; the message says which and why."""


class ReloadedTexts:
    """The current texts of some sources, in their order."""

    def __init__(self, *sources: TextSource, now: Callable[[], float] = time.monotonic) -> None:
        self._sources = sources
        self._now = now
        self._texts: tuple[bytes, ...] | None = None
        self._read_at = 0.0

    def current(self) -> tuple[bytes, ...]:
        """What they say, at most ten seconds old. Raises ``SourceUnreadable`` for a file that could never be read."""
        if self._texts is None or self._now() - self._read_at >= _RELOAD_SECONDS:
            return self.reload()
        return self._texts

    def reload(self) -> tuple[bytes, ...]:
        """What they say this moment. Raises ``SourceUnreadable`` for a file that could never be read."""
        before = self._texts or (None,) * len(self._sources)
        self._texts = tuple(
            _read_source(source, previous) for source, previous in zip(self._sources, before, strict=True)
        )
        self._read_at = self._now()
        return self._texts


def _read_source(source: TextSource, previous: bytes | None) -> bytes:
    if isinstance(source, bytes):
        return source
    try:
        text = source.read_bytes().strip()
        complaint = "" if text else "it is empty"
    except OSError as error:
        text, complaint = b"", error.strerror or str(error)
    if text:
        return text
    if previous is None:
        raise SourceUnreadable(f"cannot read {source}: {complaint}")
    return previous
