"""Records scheduling problems of a running controller as files that ``karpenter replay`` solves again.

Off unless a directory is set. The directory holds at most ``MAX_FILES`` files and ``MAX_BYTES`` bytes of them: the oldest are
deleted. File names contain the time of the pass, so they sort by age; files with other names are left alone. A problem is
recorded after its plan has been executed, in a thread. A failure is logged and has no other effect.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import structlog

from karpenter.scheduling.problem import Problem
from karpenter.scheduling.problem_file import write_problem
from karpenter.scheduling.solution import Solution

MAX_FILES = 100
MAX_BYTES = 256 * 2**20
_PREFIX, _SUFFIX = "problem-", ".json"
_log = structlog.get_logger()


class ProblemRecorder:
    """Keeps the latest problems in a directory, which is created when the first comes."""

    def __init__(self, directory: str, max_files: int = MAX_FILES, max_bytes: int = MAX_BYTES) -> None:
        self._directory = Path(directory)
        self._max_files = max_files
        self._max_bytes = max_bytes

    async def record(self, problem: Problem, solution: Solution) -> None:
        """Write one problem, unless no pod waits or moves in it."""
        if problem.snapshot.pod_groups or solution != Solution(skipped_pools=solution.skipped_pools):
            await asyncio.to_thread(self._record, problem, solution)

    def _record(self, problem: Problem, solution: Solution) -> None:
        try:
            self._write(f"{problem.now:%Y%m%dT%H%M%S.%f}", write_problem(problem, solution))
        except OSError as error:
            _log.error("cannot record the scheduling problem", directory=str(self._directory), error=str(error))

    def _write(self, time: str, content: bytes) -> None:
        if len(content) > self._max_bytes:
            _log.error("scheduling problem is too large to be recorded", bytes=len(content), limit=self._max_bytes)
            return
        self._directory.mkdir(parents=True, exist_ok=True)
        self._make_room(len(content))
        unfinished = self._directory / f".{_PREFIX}{time}"
        unfinished.write_bytes(content)
        unfinished.rename(self._directory / f"{_PREFIX}{time}{_SUFFIX}")

    def _make_room(self, size: int) -> None:
        """Delete the oldest files until one more of this size is within the bounds."""
        files = sorted(self._directory.glob(f"{_PREFIX}*{_SUFFIX}"))
        sizes = [file.stat().st_size for file in files]
        total, count = sum(sizes) + size, len(files) + 1
        for file, its_size in zip(files, sizes, strict=True):
            if count <= self._max_files and total <= self._max_bytes:
                return
            file.unlink()
            total, count = total - its_size, count - 1
