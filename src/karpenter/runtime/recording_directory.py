"""A directory of recordings: files of one kind, of which the oldest are deleted so that number and size stay bounded.

File names contain the time, so they sort by age; files with other names are left alone. Writing happens in a thread. A failure
is logged and has no other effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import structlog

MAX_FILES = 100
MAX_BYTES = 256 * 2**20
_SUFFIX = ".json"
_log = structlog.get_logger()


class RecordingDirectory:
    """Keeps the latest recordings of a kind; the directory is created with the first. File names begin with ``prefix``."""

    def __init__(self, directory: str, prefix: str, max_files: int = MAX_FILES, max_bytes: int = MAX_BYTES) -> None:
        self._directory = Path(directory)
        self._prefix = prefix
        self._max_files = max_files
        self._max_bytes = max_bytes

    async def record(self, at: datetime, content: Callable[[], bytes]) -> None:
        """Write a file, whose content is made in a thread."""
        await asyncio.to_thread(self._record, at, content)

    def _record(self, at: datetime, content: Callable[[], bytes]) -> None:
        try:
            self._write(f"{at:%Y%m%dT%H%M%S.%f}", content())
        except OSError as error:
            _log.error(f"cannot record the {self._kind}", directory=str(self._directory), error=str(error))

    @property
    def _kind(self) -> str:
        return f"{self._prefix} problem" if self._prefix != "problem" else "scheduling problem"

    def _write(self, time: str, content: bytes) -> None:
        if len(content) > self._max_bytes:
            _log.error(f"{self._kind} is too large to be recorded", bytes=len(content), limit=self._max_bytes)
            return
        self._directory.mkdir(parents=True, exist_ok=True)
        self._make_room(len(content))
        unfinished = self._directory / f".{self._prefix}-{time}"
        unfinished.write_bytes(content)
        unfinished.rename(self._directory / f"{self._prefix}-{time}{_SUFFIX}")

    def _make_room(self, size: int) -> None:
        """Delete the oldest files until one more of this size is within the bounds."""
        files = sorted(self._directory.glob(f"{self._prefix}-*{_SUFFIX}"))
        sizes = [file.stat().st_size for file in files]
        total, count = sum(sizes) + size, len(files) + 1
        for file, its_size in zip(files, sizes, strict=True):
            if count <= self._max_files and total <= self._max_bytes:
                return
            file.unlink()
            total, count = total - its_size, count - 1
