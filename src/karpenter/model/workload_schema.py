"""Fields of pods and workloads that Kubernetes does not know, with what was probably meant.

An API server drops such fields, or refuses them where the client asks for strict validation. Objects are first decoded into types
that know all fields; only an object that fails is searched for what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import msgspec

from karpenter.model.structural_schema import METADATA_FIELDS, Finding, Schema, unknown_field_findings

_TABLE = "data/workload_fields.txt"
_METADATA = "metadata"
_LEAF: Schema = {}


def unknown_workload_fields(kind: str, data: bytes | msgspec.Raw) -> tuple[Finding, ...]:
    """Each unknown field of an object, status left out; none for kinds that the table does not have."""
    if kind not in _fields_by_type():
        return ()
    try:
        _strict_decoder(kind).decode(data)
    except msgspec.MsgspecError:
        return tuple(unknown_field_findings(_schema(kind), msgspec.json.decode(data)))
    return ()


@cache
def _fields_by_type() -> Mapping[str, Mapping[str, str]]:
    """The names of fields with their types: empty, ``Type`` or ``*Type`` for a list."""
    text = (Path(__file__).parents[1] / "api" / _TABLE).read_text(encoding="utf-8")
    lines = [line.partition(": ") for line in text.splitlines() if not line.startswith("#")]
    return {
        name: {field: of_type for field, _, of_type in (entry.partition(":") for entry in fields.split())}
        for name, _, fields in lines
    }


@cache
def _strict_decoder(kind: str) -> msgspec.json.Decoder[object]:
    return msgspec.json.Decoder(_strict_type(kind))


@cache
def _strict_type(name: str) -> type[msgspec.Struct]:
    """A type that decodes its known fields and fails on others. The contents of fields without a type stay undecoded."""
    fields = [
        (field, _annotation(field, of_type), msgspec.field(default=None))
        for field, of_type in _fields_by_type()[name].items()
    ]
    return msgspec.defstruct(f"Strict{name}", fields, forbid_unknown_fields=True, gc=False)


@cache
def _strict_metadata() -> type[msgspec.Struct]:
    fields = [(field, msgspec.Raw | None, msgspec.field(default=None)) for field in METADATA_FIELDS]
    return msgspec.defstruct("StrictObjectMeta", fields, forbid_unknown_fields=True, gc=False)


def _annotation(field: str, of_type: str) -> object:
    if field == _METADATA:
        return _strict_metadata() | None
    if not of_type:
        return msgspec.Raw | None
    if of_type.startswith("*"):
        return list[_strict_type(of_type[1:]) | None] | None  # type: ignore[misc]
    return _strict_type(of_type) | None


@cache
def _schema(name: str) -> Schema:
    """The same as a structural schema. The caller that walks the schema checks the metadata of the object itself."""
    return {"properties": {field: _field_schema(field, of_type) for field, of_type in _fields_by_type()[name].items()}}


def _field_schema(field: str, of_type: str) -> Schema:
    if of_type.startswith("*"):
        return {"items": _schema(of_type[1:])}
    if of_type:
        properties = dict(_schema(of_type)["properties"])  # type: ignore[call-overload]
        if _METADATA in properties:
            properties[_METADATA] = {"properties": dict.fromkeys(METADATA_FIELDS, _LEAF)}
        return {"properties": properties}
    return _LEAF
