"""Records disruption problems of a running controller as files that ``karpenter replay`` decides again."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from karpenter.disruption.decide.disruption_problem import DisruptionProblem, DisruptionSolution
from karpenter.disruption.decide.disruption_problem_file import write_disruption_problem
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.runtime.recording_directory import MAX_BYTES, MAX_FILES, RecordingDirectory
from karpenter.scheduling.problem import instance_types_of


class DisruptionRecorder:
    """Keeps the latest disruption problems in a directory."""

    def __init__(self, directory: str, max_files: int = MAX_FILES, max_bytes: int = MAX_BYTES) -> None:
        self._files = RecordingDirectory(directory, "disruption", max_files, max_bytes)

    async def record(
        self, problem: DisruptionProblem, indexes: Mapping[str, TypeIndex], solution: DisruptionSolution
    ) -> None:
        """Write one problem, unless it has neither a candidate nor a pending command."""
        if any(solution.eligible_nodes.values()) or problem.context.pending_commands:
            content = partial(write_disruption_problem, problem, instance_types_of(indexes), solution)
            await self._files.record(problem.context.now, content)
