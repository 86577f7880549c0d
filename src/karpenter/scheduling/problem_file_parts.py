"""The parts that all problem files share: pods, cluster snapshots and instance types as JSON (docs/design/problem-files.md).

Everything is written once: pods are a table by ``namespace/name`` and everything else refers to it, instance types are a list and
NodePools refer to it by position, and so are the requirements of types. What is derived for speed (bit sets, indexes, pod
signatures) is not written: reading derives it again. A number says which pod groups share a signature.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from karpenter.api.core import Pod
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.model.requirements import Requirement, Requirements
from karpenter.scheduling.data_codec import DataCodec, DataError, Form, Json, SharedValues
from karpenter.scheduling.problem import InstanceTypes
from karpenter.state.pod_counts import NamespacedLabels, namespaced_labels
from karpenter.state.pod_signature import PodSignature, PodSignatureCache
from karpenter.state.snapshot import PodGroup

R = TypeVar("R")

_encoder = msgspec.json.Encoder()


class ProblemFileError(ValueError):
    """The file does not hold a problem that can be solved here. The text is one line."""


class _Head(msgspec.Struct):
    format: Json = None


def recorded_format(content: bytes) -> Json:
    """The ``format`` of a problem file, whatever else is in it; None if there is none."""
    try:
        return msgspec.json.decode(content, type=_Head).format
    except msgspec.DecodeError:
        return None


def file_content(document: Mapping[str, Json]) -> bytes:
    """A document as the content of a file."""
    return canonical_bytes(document) + b"\n"


def canonical_bytes(data: Json) -> bytes:
    """JSON in the form that replays compare."""
    return _encoder.encode(data)


def read_recorded(content: bytes, expected_format: str, decode: Callable[[Members], R]) -> R:
    """What ``decode`` makes of a problem file of a format. Raises `ProblemFileError`."""
    document = _read_document(content, expected_format)
    try:
        return decode(document)
    except DataError as error:
        raise ProblemFileError(f"not a problem file: {error}") from None


def _read_document(content: bytes, expected_format: str) -> Members:
    try:
        document = msgspec.json.decode(content)
    except msgspec.DecodeError as error:
        raise ProblemFileError(f"not a problem file: {error}") from None
    format_of_file = document.get("format") if isinstance(document, dict) else None
    if format_of_file != expected_format:
        raise ProblemFileError(f"not a problem file: format is {format_of_file!r}, expected {expected_format!r}")
    return Members(document)


class Members:
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
        value = self[name]
        if not isinstance(value, list):
            raise DataError("expected an array", (f"{self._path}.{name}",))
        return value

    def decode(self, name: str, codec: DataCodec, hint: Any) -> Any:
        """A member as a value."""
        try:
            return codec.decode(self[name], hint)
        except DataError as error:
            raise error.within(f"{self._path}.{name}") from None


# -- what is written in a way of its own ----------------------------------------------------------------------------------


def requirements_form(codec: DataCodec) -> Form:
    """Requirements as a list in their order."""
    return Form(
        lambda value: codec.encode(value.values(), tuple[Requirement, ...]),
        lambda data: Requirements(codec.decode(data, tuple[Requirement, ...])),
    )


#: Of values without pods.
PLAIN_CODEC = DataCodec({Requirements: requirements_form(DataCodec({}))})


class PodTable:
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

    def __init__(self, pods: PodTable) -> None:
        self._pods = DataCodec({Pod: pods.form})
        self._numbers: dict[PodSignature, int] = {}
        self._signatures: dict[int, PodSignature] = {}
        self.form = Form(self._encode, self._decode)

    def _encode(self, group: PodGroup) -> Json:
        number = self._numbers.setdefault(group.signature, len(self._numbers))
        return {"signature": number, "pods": self._pods.encode(group.pods, tuple[Pod, ...])}

    def _decode(self, data: Json) -> PodGroup:
        members = Members(data)
        pods: tuple[Pod, ...] = members.decode("pods", self._pods, tuple[Pod, ...])
        number = members.decode("signature", PLAIN_CODEC, int)
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
    return NamespacedLabels(*PLAIN_CODEC.decode(data, tuple[str, Mapping[str, str]]))


def snapshot_codec(pods: PodTable) -> DataCodec:
    """The form of cluster snapshots, with their pods in a table."""
    return DataCodec(
        {
            Pod: pods.form,
            PodGroup: _PodGroups(pods).form,
            NamespacedLabels: Form(_encoded_labels, _decoded_labels),
            Requirements: requirements_form(PLAIN_CODEC),
        }
    )


# -- instance types ---------------------------------------------------------------------------------------------------------


def encoded_instance_types(instance_types: Mapping[str, InstanceTypes]) -> dict[str, Json]:
    """The members of a problem that describe its instance types."""
    distinct = list({id(types): types for types in instance_types.values()}.values())
    positions = {id(types): position for position, types in enumerate(distinct)}
    return {
        "catalogOfNodePool": {name: positions[id(types)] for name, types in instance_types.items()},
        "catalogs": [_encoded_types(types) for types in distinct],
    }


def _encoded_types(types: InstanceTypes) -> Json:
    requirements = SharedValues(PLAIN_CODEC, Requirement)
    described = _types_codec(requirements).encode(types.instance_types, tuple[InstanceType, ...])
    return {
        "wellKnownLabels": sorted(types.well_known_labels),
        "requirements": requirements.rows,
        "instanceTypes": described,
    }


def _types_codec(shared: SharedValues) -> DataCodec:
    """Types and offerings share most of their requirements."""
    requirements = DataCodec({Requirement: shared.form})
    return DataCodec({Requirements: requirements_form(requirements)})


def decoded_instance_types(described: Members) -> Mapping[str, InstanceTypes]:
    """The instance types by NodePool. Raises `DataError`."""
    instance_types = [
        _decoded_types(Members(data, f".problem.catalogs[{position}]"))
        for position, data in enumerate(described.items("catalogs"))
    ]
    positions: Mapping[str, int] = described.decode("catalogOfNodePool", PLAIN_CODEC, Mapping[str, int])
    if any(not 0 <= position < len(instance_types) for position in positions.values()):
        raise DataError("instance types that are not there", (".problem.catalogOfNodePool",))
    return {name: instance_types[position] for name, position in positions.items()}


def _decoded_types(described: Members) -> InstanceTypes:
    codec = _types_codec(SharedValues(PLAIN_CODEC, Requirement, described.items("requirements")))
    return InstanceTypes(
        described.decode("instanceTypes", codec, tuple[InstanceType, ...]),
        frozenset(described.decode("wellKnownLabels", PLAIN_CODEC, tuple[str, ...])),
    )
