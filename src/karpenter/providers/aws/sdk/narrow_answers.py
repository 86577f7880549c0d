"""Answers of which only what is used is decoded.

botocore builds a value of everything that the description of an answer names. Of an instance this program reads a quarter. So
the description that botocore decodes with is narrowed to the members of the type that the answer is converted into. A botocore
that is built otherwise decodes everything, as before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import msgspec
from botocore.model import OperationModel, ServiceModel, ShapeResolver

_ShapeDefinition = Mapping[str, Any]


def narrow_answer(model: ServiceModel, operation: str, members: Mapping[str, object]) -> None:
    """Let the operation's answers have these members only, each with what its type reads of it."""
    operation_model = model.operation_model(operation)
    shapes = getattr(getattr(model, "_shape_resolver", None), "_shape_map", None)
    output = getattr(operation_model, "_operation_model", {}).get("output")
    if shapes is None or output is None or "output_shape" not in vars(type(operation_model)):
        return
    narrowed = _NarrowedShapes(shapes)
    reference = {**output, "shape": narrowed.structure(output["shape"], members)}
    operation_model.__dict__["output_shape"] = ShapeResolver(narrowed).resolve_shape_ref(reference)  # as it is cached


def restore_answer(model: ServiceModel, operation: str) -> None:
    """Let the operation's answers be whole again."""
    operation_model: OperationModel = model.operation_model(operation)
    operation_model.__dict__.pop("output_shape", None)


class _NarrowedShapes(dict[str, Any]):
    """Shapes by name: narrowed ones under names of their own, all others as they are."""

    def __init__(self, whole: Mapping[str, _ShapeDefinition]) -> None:
        super().__init__()
        self._whole = whole

    def __missing__(self, name: str) -> _ShapeDefinition:
        return self._whole[name]

    def structure(self, name: str, members: Mapping[str, object]) -> str:
        """The name of the structure with these members, by their types."""
        shape = self._whole[name]
        kept = {
            member: self._reference(reference, members[member])
            for member, reference in shape["members"].items()
            if member in members
        }
        return self._add(name, {**shape, "members": kept})

    def _reference(self, reference: _ShapeDefinition, of_type: object) -> _ShapeDefinition:
        struct = _struct_in(of_type)
        return reference if struct is None else {**reference, "shape": self._narrowed(reference["shape"], struct)}

    def _narrowed(self, name: str, struct: type[msgspec.Struct]) -> str:
        shape = self._whole[name]
        if shape["type"] == "list":
            return self._add(name, {**shape, "member": self._reference(shape["member"], struct)})
        if shape["type"] == "structure":
            return self.structure(name, {each.encode_name: each.type for each in msgspec.structs.fields(struct)})
        return name

    def _add(self, name: str, shape: _ShapeDefinition) -> str:
        own = f"{name}.{len(self)}"
        self[own] = shape
        return own


def _struct_in(of_type: object) -> type[msgspec.Struct] | None:
    """The struct in a type such as ``tuple[Struct, ...]`` or ``Struct | None``; None where there is no single one."""
    if isinstance(of_type, type) and issubclass(of_type, msgspec.Struct):
        return of_type
    structs = [found for part in get_args(of_type) if (found := _struct_in(part)) is not None]
    return structs[0] if len(structs) == 1 else None
