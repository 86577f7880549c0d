"""Records scheduling problems of a running controller as files that ``karpenter replay`` solves again.

Off unless a directory is set. A problem is recorded after its plan has been executed.
"""

from __future__ import annotations

from functools import partial

from karpenter.runtime.recording_directory import MAX_BYTES, MAX_FILES, RecordingDirectory
from karpenter.scheduling.problem import Problem
from karpenter.scheduling.problem_file import write_problem
from karpenter.scheduling.solution import Solution


class ProblemRecorder:
    """Keeps the latest problems in a directory."""

    def __init__(self, directory: str, max_files: int = MAX_FILES, max_bytes: int = MAX_BYTES) -> None:
        self._files = RecordingDirectory(directory, "problem", max_files, max_bytes)

    async def record(self, problem: Problem, solution: Solution) -> None:
        """Write one problem, unless no pod waits or moves in it."""
        if problem.snapshot.pod_groups or solution != Solution(skipped_pools=solution.skipped_pools):
            await self._files.record(problem.now, partial(write_problem, problem, solution))
