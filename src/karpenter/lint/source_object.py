"""One object of a manifest with its place in a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from karpenter.api.meta import Wire
from karpenter.lint.source_map import LineSpan, SourceMap

Json = Mapping[str, object]
T = TypeVar("T", bound=Wire)


@dataclass(frozen=True, slots=True)
class SourceObject:
    """An object as it is written: no defaults are filled in.

    ``content`` is plain JSON, ``wire`` the decoded object of a kind we know; None where it is of another kind or does not decode.
    ``item_path`` is its place in a List, such as ``items[2]``.
    """

    source: str
    content: Json
    wire: Wire | None
    map: SourceMap
    item_path: str = ""

    @property
    def kind(self) -> str:
        """The kind; empty for files without, such as dashboards."""
        return _text(self.content.get("kind"))

    @property
    def name(self) -> str:
        """``namespace/name`` where a namespace is written, else the name."""
        namespace, name = (_text(self._metadata.get(key)) for key in ("namespace", "name"))
        return f"{namespace}/{name}" if namespace else name

    @property
    def namespace(self) -> str:
        """The namespace, ``default`` where none is written."""
        return _text(self._metadata.get("namespace")) or "default"

    @property
    def subject(self) -> str:
        """Kind and name for people."""
        return " ".join(part for part in (self.kind, self.name) if part)

    @property
    def annotations(self) -> Mapping[str, str]:
        """Its annotations, as far as they are texts."""
        written = self._metadata.get("annotations")
        members = written if isinstance(written, dict) else {}
        return {key: value for key, value in members.items() if isinstance(value, str)}

    @property
    def _metadata(self) -> Json:
        metadata = self.content.get("metadata")
        return metadata if isinstance(metadata, dict) else {}

    def span(self, path: str) -> LineSpan:
        """The lines of a field of the object."""
        return self.map.span(self._full_path(path))

    def comment(self, path: str) -> str:
        """What comments say about a field."""
        return self.map.comment(self._full_path(path))

    def has(self, path: str) -> bool:
        """Whether a field is written."""
        return self._full_path(path) in self.map.spans

    def _full_path(self, path: str) -> str:
        return ".".join(part for part in (self.item_path, path) if part)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
