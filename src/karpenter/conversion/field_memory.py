"""What a conversion between two versions of an object would lose, so that the way back restores it (API-713).

A conversion there and back that does not give the same ``spec`` has lost something. Each field that differs is remembered with
two values: the one that was lost, and the one that stands for it after the way back. The restoring conversion compares: where the
field still holds the second value, it was not changed, and the first one is put back. A field that a user changed stays changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from karpenter.conversion.json_fields import Json


class RememberedField(msgspec.Struct, frozen=True, omit_defaults=True):
    """A field of a ``spec``: absent values are left out of the JSON."""

    path: tuple[str, ...]
    #: What was lost.
    value: object = msgspec.UNSET
    #: What the way back makes of it.
    stands_for_it: object = msgspec.field(default=msgspec.UNSET, name="standsForIt")


@dataclass(frozen=True, slots=True)
class FieldMemory:
    """The fields of one ``spec`` that its other version cannot hold."""

    fields: tuple[RememberedField, ...]

    @staticmethod
    def of(spec: Json, there_and_back: Json) -> FieldMemory:
        """What differs between a ``spec`` and what became of it on the way there and back."""
        return FieldMemory(tuple(_differences(spec, there_and_back, ())))

    @staticmethod
    def read(text: str) -> FieldMemory:
        """From the value of an annotation; a text that is not one of ours remembers nothing."""
        try:
            return FieldMemory(msgspec.json.decode(text, type=tuple[RememberedField, ...]))
        except (msgspec.ValidationError, msgspec.DecodeError):
            return FieldMemory(())

    def text(self) -> str:
        """The value of an annotation; empty where there is nothing to remember."""
        return msgspec.json.encode(self.fields).decode() if self.fields else ""

    def restored(self, spec: Json) -> Json:
        """The ``spec`` with every remembered field that was not changed."""
        for field in self.fields:
            if field.path:
                spec = _with_restored(spec, field, field.path)
        return spec


def _differences(kept: Json, again: Json, path: tuple[str, ...]) -> Iterator[RememberedField]:
    for name in sorted(kept.keys() | again.keys()):
        before, after = kept.get(name, msgspec.UNSET), again.get(name, msgspec.UNSET)
        if isinstance(before, dict) and isinstance(after, dict):
            yield from _differences(before, after, (*path, name))
        elif before != after:
            yield RememberedField((*path, name), before, after)


def _with_restored(spec: Json, field: RememberedField, path: tuple[str, ...]) -> Json:
    name, *deeper = path
    present = spec.get(name, msgspec.UNSET)
    if deeper:
        if not isinstance(present, dict):
            return spec
        return {**spec, name: _with_restored(present, field, tuple(deeper))}
    if present != field.stands_for_it:
        return spec
    rest = {key: value for key, value in spec.items() if key != name}
    return rest if field.value is msgspec.UNSET else {**rest, name: field.value}
