"""Objects under conversion: what an input object has become so far."""

from __future__ import annotations

from dataclasses import dataclass, field

from karpenter.conversion.json_fields import Json, object_field, text_field
from karpenter.conversion.notes import Note, NoteList


@dataclass(frozen=True, slots=True)
class InputObject:
    """An object as it was read: ``origin`` says where, such as ``pools.yaml:2``."""

    origin: str
    content: Json
    #: Corrections made while the object was read.
    notes: tuple[Note, ...] = ()


@dataclass(slots=True)
class Draft:
    """One object of the output, and the kubelet configuration of the older NodePool it was."""

    origin: str
    #: API version and kind of the input object.
    api_version: str
    kind: str
    content: Json
    notes: NoteList
    kubelet: Json = field(default_factory=dict)
    #: Of a kind that is not converted: skipped or passed through.
    is_foreign: bool = False

    @property
    def name(self) -> str:
        """The object's name; the prefix of it where a server makes it."""
        metadata = object_field(self.content, "metadata", "")
        return text_field(metadata, "name") or text_field(metadata, "generateName")

    def is_a(self, kind: str) -> bool:
        """Whether it becomes an object of this kind."""
        return self.is_converted and self.content.get("kind") == kind

    @property
    def is_converted(self) -> bool:
        """Whether its content is an object of ``v1`` by now."""
        return not (self.is_foreign or self.notes.failed)
