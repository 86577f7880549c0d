"""Disruption problem files: a disruption problem with its solution as JSON (docs/design/problem-files.md).

The parts are those of scheduling problem files. A command names its candidates by key: they are nodes of the snapshot. The
recorded solution contains the IDs of the commands, so a replay shows that they are derived from what was decided.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version

from karpenter.api.core import Pod
from karpenter.disruption.decide.candidates import DisruptionContext
from karpenter.disruption.decide.disruption_problem import DisruptionOptions, DisruptionProblem, DisruptionSolution
from karpenter.model.requirements import Requirements
from karpenter.scheduling.data_codec import DataCodec, DataError, Form, Json
from karpenter.scheduling.problem import InstanceTypes
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
from karpenter.state.snapshot import ClusterSnapshot
from karpenter.state.state_node import StateNode

DISRUPTION_FORMAT = "karpenter.sh/disruption-problem/v1"


@dataclass(frozen=True)
class RecordedDisruption:
    """What a file holds. ``instance_types`` is by NodePool name; ``recorded_by`` is the version of Karpenter that wrote it."""

    problem: DisruptionProblem
    instance_types: Mapping[str, InstanceTypes]
    solution: DisruptionSolution
    recorded_by: str

    @property
    def solution_bytes(self) -> bytes:
        """The recorded solution in its canonical form."""
        return disruption_solution_bytes(self.problem, self.solution)


def write_disruption_problem(
    problem: DisruptionProblem, instance_types: Mapping[str, InstanceTypes], solution: DisruptionSolution
) -> bytes:
    """A problem and its solution as the content of a file."""
    pods = PodTable()
    snapshot = snapshot_codec(pods).encode(problem.snapshot, ClusterSnapshot)
    codec = _decision_codec(pods, problem.snapshot.nodes)
    document = {
        "format": DISRUPTION_FORMAT,
        "recordedBy": version("karpenter"),
        "problem": {
            "context": codec.encode(problem.context, DisruptionContext),
            "options": PLAIN_CODEC.encode(problem.options, DisruptionOptions),
            **encoded_instance_types(instance_types),
            "snapshot": snapshot,
            "pods": pods.by_key,
        },
        "solution": _encoded_solution(solution, codec),
    }
    return file_content(document)


def read_disruption_problem(content: bytes) -> RecordedDisruption:
    """What a file holds. Raises `ProblemFileError`."""
    return read_recorded(content, DISRUPTION_FORMAT, _recorded)


def disruption_solution_bytes(problem: DisruptionProblem, solution: DisruptionSolution) -> bytes:
    """The solution of a problem in the form that a replay compares."""
    pods = PodTable()
    snapshot_codec(pods).encode(problem.snapshot, ClusterSnapshot)
    return canonical_bytes(_encoded_solution(solution, _decision_codec(pods, problem.snapshot.nodes)))


def _encoded_solution(solution: DisruptionSolution, codec: DataCodec) -> Json:
    return {
        "commandIds": [command.command_id for command in solution.commands],
        "content": codec.encode(solution, DisruptionSolution),
    }


def _recorded(document: Members) -> RecordedDisruption:
    described = Members(document["problem"], ".problem")
    pods = PodTable(described.decode("pods", PLAIN_CODEC, Mapping[str, Pod]))
    snapshot: ClusterSnapshot = described.decode("snapshot", snapshot_codec(pods), ClusterSnapshot)
    codec = _decision_codec(pods, snapshot.nodes)
    context = described.decode("context", codec, DisruptionContext)
    problem = DisruptionProblem(snapshot, context, described.decode("options", PLAIN_CODEC, DisruptionOptions))
    solution: DisruptionSolution = Members(document["solution"], ".solution").decode(
        "content", codec, DisruptionSolution
    )
    return RecordedDisruption(
        problem, decoded_instance_types(described), solution, document.decode("recordedBy", PLAIN_CODEC, str)
    )


def _decision_codec(pods: PodTable, nodes: Sequence[StateNode]) -> DataCodec:
    """The form of contexts and solutions: state nodes are named by their key."""
    by_key = {node.key: node for node in nodes}

    def state_node(key: Json) -> StateNode:
        node = by_key.get(key) if isinstance(key, str) else None
        if node is None:
            raise DataError(f"there is no node {key!r}")
        return node

    return DataCodec(
        {
            Pod: pods.form,
            StateNode: Form(lambda node: node.key, state_node),
            Requirements: requirements_form(PLAIN_CODEC),
        }
    )
