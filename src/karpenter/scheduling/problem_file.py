"""Problem files: a scheduling problem with its solution as JSON, to be solved again elsewhere (docs/design/problem-files.md).

A file is one JSON object with the members ``format``, ``recordedBy`` (version of Karpenter), ``problem`` and ``solution``. The
same problem gives the same bytes. `problem_file_parts` explains how the parts are written.

``solution_bytes`` is the canonical form that a replay compares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from importlib.metadata import version

from karpenter.api.core import Pod
from karpenter.model.requirements import Requirements
from karpenter.scheduling.data_codec import DataCodec, Json, SharedValues
from karpenter.scheduling.failed_filters import NearestFit
from karpenter.scheduling.problem import Problem
from karpenter.scheduling.problem_file_parts import (
    PLAIN_CODEC,
    Members,
    PodTable,
    canonical_bytes,
    decoded_instance_types,
    encoded_instance_types,
    file_content,
    read_recorded,
    requirements_form,
    snapshot_codec,
)
from karpenter.scheduling.scheduling_options import SchedulingOptions
from karpenter.scheduling.solution import Solution
from karpenter.scheduling.unschedulable_reasons import UnschedulableReason
from karpenter.state.snapshot import ClusterSnapshot

#: What this module writes, and the only thing it reads.
FORMAT = "karpenter.sh/problem/v1"
#: The lower bound comes from a linear program: its last digits differ between builds of the solver.
_BOUND_DIGITS = 9


@dataclass(frozen=True)
class RecordedProblem:
    """What a file holds. ``recorded_by`` is the version of Karpenter that wrote it."""

    problem: Problem
    solution: Solution
    recorded_by: str

    @property
    def solution_bytes(self) -> bytes:
        """The recorded solution in its canonical form."""
        return solution_bytes(self.problem, self.solution)


def write_problem(problem: Problem, solution: Solution) -> bytes:
    """A problem and its solution as the content of a file."""
    pods = PodTable()
    snapshot = snapshot_codec(pods).encode(problem.snapshot, ClusterSnapshot)
    document = {
        "format": FORMAT,
        "recordedBy": version("karpenter"),
        "problem": {
            "now": problem.now.isoformat(),
            "options": PLAIN_CODEC.encode(problem.options, SchedulingOptions),
            **encoded_instance_types(problem.instance_types),
            "snapshot": snapshot,
            "pods": pods.by_key,
        },
        "solution": _encoded_solution(solution, pods),
    }
    return file_content(document)


def read_problem(content: bytes) -> RecordedProblem:
    """What a file holds. Raises `ProblemFileError`."""
    return read_recorded(content, FORMAT, _recorded)


def solution_bytes(problem: Problem, solution: Solution) -> bytes:
    """The solution of a problem in the form that a replay compares."""
    pods = PodTable()
    snapshot_codec(pods).encode(problem.snapshot, ClusterSnapshot)
    return canonical_bytes(_encoded_solution(solution, pods))


class _SolutionCodec:
    """The form of solutions: thousands of pods may stay unscheduled for the same reasons, so these are tables."""

    def __init__(self, pods: PodTable, reasons: Sequence[Json] = (), nearest_fits: Sequence[Json] = ()) -> None:
        self._reasons = SharedValues(PLAIN_CODEC, UnschedulableReason, reasons)
        self._nearest_fits = SharedValues(PLAIN_CODEC, NearestFit, nearest_fits)
        self.codec = DataCodec(
            {
                Pod: pods.form,
                Requirements: requirements_form(PLAIN_CODEC),
                UnschedulableReason: self._reasons.form,
                NearestFit: self._nearest_fits.form,
            }
        )

    def encode(self, solution: Solution) -> Json:
        """The solution with its tables."""
        bound = solution.lower_bound_per_hour
        rounded = replace(solution, lower_bound_per_hour=None if bound is None else round(bound, _BOUND_DIGITS))
        content = self.codec.encode(rounded, Solution)
        return {"reasons": self._reasons.rows, "nearestFits": self._nearest_fits.rows, "content": content}


def _encoded_solution(solution: Solution, pods: PodTable) -> Json:
    return _SolutionCodec(pods).encode(solution)


def _decoded_solution(described: Members, pods: PodTable) -> Solution:
    codec = _SolutionCodec(pods, described.items("reasons"), described.items("nearestFits")).codec
    solution: Solution = described.decode("content", codec, Solution)
    return solution


def _recorded(document: Members) -> RecordedProblem:
    described = Members(document["problem"], ".problem")
    pods = PodTable(described.decode("pods", PLAIN_CODEC, Mapping[str, Pod]))
    problem = Problem(
        snapshot=described.decode("snapshot", snapshot_codec(pods), ClusterSnapshot),
        instance_types=decoded_instance_types(described),
        now=described.decode("now", PLAIN_CODEC, datetime),
        options=described.decode("options", PLAIN_CODEC, SchedulingOptions),
    )
    solution = _decoded_solution(Members(document["solution"], ".solution"), pods)
    return RecordedProblem(problem, solution, document.decode("recordedBy", PLAIN_CODEC, str))
