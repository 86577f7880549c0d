"""Problem files: a scheduling problem with its solution as JSON, to be solved again elsewhere (docs/design/problem-files.md).

A file is one JSON object with the members ``format``, ``recordedBy`` (version of Karpenter), ``problem`` and ``solution``. The
same problem gives the same bytes. Everything is written once: pods are a table by ``namespace/name`` and everything else refers
to it, catalogs are a list and NodePools refer to it by position, and so are the requirements of a catalog. What is derived for
speed (bit sets, indexes, pod signatures) is not written: reading derives it again. A number says which pod groups share a
signature.

``solution_bytes`` is the canonical form that a replay compares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from importlib.metadata import version
from typing import Any

import msgspec

from karpenter.api.core import Pod
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.model.requirements import Requirement, Requirements
from karpenter.scheduling.data_codec import DataCodec, DataError, Form, Json, SharedValues
from karpenter.scheduling.problem import InstanceTypeCatalog, Problem
from karpenter.scheduling.scheduling_options import SchedulingOptions
from karpenter.scheduling.solution import Solution
from karpenter.scheduling.unschedulable_reasons import NearestFit, UnschedulableReason
from karpenter.state.pod_counts import NamespacedLabels, namespaced_labels
from karpenter.state.pod_signature import PodSignature, PodSignatureCache
from karpenter.state.snapshot import ClusterSnapshot, PodGroup

#: What this module writes, and the only thing it reads.
FORMAT = "karpenter.sh/problem/v1"
#: The lower bound comes from a linear program: its last digits differ between builds of the solver.
_BOUND_DIGITS = 9

_encoder = msgspec.json.Encoder()


class ProblemFileError(ValueError):
    """The file does not hold a problem that can be solved here. The text is one line."""


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
    pods = _PodTable()
    snapshot = _snapshot_codec(pods).encode(problem.snapshot, ClusterSnapshot)
    document = {
        "format": FORMAT,
        "recordedBy": version("karpenter"),
        "problem": {
            "now": problem.now.isoformat(),
            "options": _PLAIN.encode(problem.options, SchedulingOptions),
            **_encoded_catalogs(problem.catalogs),
            "snapshot": snapshot,
            "pods": pods.by_key,
        },
        "solution": _encoded_solution(solution, pods),
    }
    return _encoder.encode(document) + b"\n"


def read_problem(content: bytes) -> RecordedProblem:
    """What a file holds. Raises `ProblemFileError`."""
    try:
        document = msgspec.json.decode(content)
    except msgspec.DecodeError as error:
        raise ProblemFileError(f"not a problem file: {error}") from None
    found = document.get("format") if isinstance(document, dict) else None
    if found != FORMAT:
        raise ProblemFileError(f"not a problem file: format is {found!r}, expected {FORMAT!r}")
    try:
        return _recorded(_Members(document))
    except DataError as error:
        raise ProblemFileError(f"not a problem file: {error}") from None


def solution_bytes(problem: Problem, solution: Solution) -> bytes:
    """The solution of a problem in the form that a replay compares."""
    pods = _PodTable()
    _snapshot_codec(pods).encode(problem.snapshot, ClusterSnapshot)
    return _encoder.encode(_encoded_solution(solution, pods))


class _SolutionCodec:
    """The form of solutions: thousands of pods may stay unscheduled for the same reasons, so these are tables."""

    def __init__(self, pods: _PodTable, reasons: Sequence[Json] = (), nearest_fits: Sequence[Json] = ()) -> None:
        self._reasons = SharedValues(_PLAIN, UnschedulableReason, reasons)
        self._nearest_fits = SharedValues(_PLAIN, NearestFit, nearest_fits)
        self.codec = DataCodec(
            {
                Pod: pods.form,
                Requirements: _requirements_form(_PLAIN),
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


def _encoded_solution(solution: Solution, pods: _PodTable) -> Json:
    return _SolutionCodec(pods).encode(solution)


def _decoded_solution(described: _Members, pods: _PodTable) -> Solution:
    codec = _SolutionCodec(pods, described.items("reasons"), described.items("nearestFits")).codec
    solution: Solution = described.decode("content", codec, Solution)
    return solution


class _Members:
    """The members of an object, each of which must be there."""

    def __init__(self, data: Json, path: str = "") -> None:
        if not isinstance(data, dict):
            raise DataError("expected an object", (path,))
        self._data = data
        self._path = path

    def __getitem__(self, name: str) -> Json:
        if name not in self._data:
            raise DataError(f"{name} is missing", (self._path,))
        return self._data[name]

    def items(self, name: str) -> list[Json]:
        """A member that is an array."""
        found = self[name]
        if not isinstance(found, list):
            raise DataError("expected an array", (f"{self._path}.{name}",))
        return found

    def decode(self, name: str, codec: DataCodec, hint: Any) -> Any:
        """A member as a value."""
        try:
            return codec.decode(self[name], hint)
        except DataError as error:
            raise error.within(f"{self._path}.{name}") from None


def _recorded(document: _Members) -> RecordedProblem:
    described = _Members(document["problem"], ".problem")
    pods = _PodTable(described.decode("pods", _PLAIN, Mapping[str, Pod]))
    problem = Problem(
        snapshot=described.decode("snapshot", _snapshot_codec(pods), ClusterSnapshot),
        catalogs=_decoded_catalogs(described),
        now=described.decode("now", _PLAIN, datetime),
        options=described.decode("options", _PLAIN, SchedulingOptions),
    )
    solution = _decoded_solution(_Members(document["solution"], ".solution"), pods)
    return RecordedProblem(problem, solution, document.decode("recordedBy", _PLAIN, str))


# -- what is written in a way of its own ----------------------------------------------------------------------------------


def _requirements_form(codec: DataCodec) -> Form:
    """Requirements as a list in their order."""
    return Form(
        lambda value: codec.encode(value.values(), tuple[Requirement, ...]),
        lambda data: Requirements(codec.decode(data, tuple[Requirement, ...])),
    )


#: Of values without pods.
_PLAIN = DataCodec({Requirements: _requirements_form(DataCodec({}))})


class _PodTable:
    """Pods by ``namespace/name``. Different objects of one name get further keys, which only invented clusters need."""

    def __init__(self, by_key: Mapping[str, Pod] = {}) -> None:
        self.by_key: dict[str, Pod] = dict(by_key)
        self._keys: dict[int, str] = {}
        self.form = Form(self._key_of, self._pod)

    def _key_of(self, pod: Pod) -> str:
        key = self._keys.get(id(pod))
        if key is None:
            plain = key = f"{pod.metadata.namespace}/{pod.metadata.name}"
            number = 1
            while self.by_key.setdefault(key, pod) != pod:
                number += 1
                key = f"{plain}#{number}"
            self._keys[id(pod)] = key
        return key

    def _pod(self, key: Json) -> Pod:
        pod = self.by_key.get(key) if isinstance(key, str) else None
        if pod is None:
            raise DataError(f"there is no pod {key!r}")
        return pod


class _PodGroups:
    """Pod groups as their pods and the number of their signature: equal numbers mean the same signature."""

    def __init__(self, pods: _PodTable) -> None:
        self._pods = DataCodec({Pod: pods.form})
        self._numbers: dict[PodSignature, int] = {}
        self._signatures: dict[int, PodSignature] = {}
        self.form = Form(self._encode, self._decode)

    def _encode(self, group: PodGroup) -> Json:
        number = self._numbers.setdefault(group.signature, len(self._numbers))
        return {"signature": number, "pods": self._pods.encode(group.pods, tuple[Pod, ...])}

    def _decode(self, data: Json) -> PodGroup:
        members = _Members(data)
        pods: tuple[Pod, ...] = members.decode("pods", self._pods, tuple[Pod, ...])
        number = members.decode("signature", _PLAIN, int)
        if not pods:
            raise DataError("a pod group without pods")
        try:
            signature = self._signatures.get(number) or PodSignatureCache().signature_of(pods[0])
        except ValueError as error:
            raise DataError(str(error)) from None
        self._signatures[number] = signature
        return PodGroup(signature, namespaced_labels(pods[0]), pods)


def _encoded_labels(value: NamespacedLabels) -> Json:
    return [value.namespace, dict(value.labels)]


def _decoded_labels(data: Json) -> NamespacedLabels:
    return NamespacedLabels(*_PLAIN.decode(data, tuple[str, Mapping[str, str]]))


def _snapshot_codec(pods: _PodTable) -> DataCodec:
    return DataCodec(
        {
            Pod: pods.form,
            PodGroup: _PodGroups(pods).form,
            NamespacedLabels: Form(_encoded_labels, _decoded_labels),
            Requirements: _requirements_form(_PLAIN),
        }
    )


# -- catalogs ---------------------------------------------------------------------------------------------------------------


def _encoded_catalogs(catalogs: Mapping[str, InstanceTypeCatalog]) -> dict[str, Json]:
    distinct = list({id(catalog): catalog for catalog in catalogs.values()}.values())
    positions = {id(catalog): position for position, catalog in enumerate(distinct)}
    return {
        "catalogOfNodePool": {name: positions[id(catalog)] for name, catalog in catalogs.items()},
        "catalogs": [_encoded_catalog(catalog) for catalog in distinct],
    }


def _encoded_catalog(catalog: InstanceTypeCatalog) -> Json:
    requirements = SharedValues(_PLAIN, Requirement)
    described = _catalog_codec(requirements).encode(catalog.instance_types, tuple[InstanceType, ...])
    return {
        "wellKnownLabels": sorted(catalog.well_known_labels),
        "requirements": requirements.rows,
        "instanceTypes": described,
    }


def _catalog_codec(shared: SharedValues) -> DataCodec:
    """Types and offerings share most of their requirements."""
    requirements = DataCodec({Requirement: shared.form})
    return DataCodec({Requirements: _requirements_form(requirements)})


def _decoded_catalogs(described: _Members) -> Mapping[str, InstanceTypeCatalog]:
    catalogs = [
        _decoded_catalog(_Members(data, f".problem.catalogs[{position}]"))
        for position, data in enumerate(described.items("catalogs"))
    ]
    positions: Mapping[str, int] = described.decode("catalogOfNodePool", _PLAIN, Mapping[str, int])
    if any(not 0 <= position < len(catalogs) for position in positions.values()):
        raise DataError("a catalog that is not there", (".problem.catalogOfNodePool",))
    return {name: catalogs[position] for name, position in positions.items()}


def _decoded_catalog(described: _Members) -> InstanceTypeCatalog:
    codec = _catalog_codec(SharedValues(_PLAIN, Requirement, described.items("requirements")))
    return InstanceTypeCatalog(
        described.decode("instanceTypes", codec, tuple[InstanceType, ...]),
        frozenset(described.decode("wellKnownLabels", _PLAIN, tuple[str, ...])),
    )
