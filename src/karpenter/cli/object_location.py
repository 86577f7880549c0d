"""Where an object stands in the input, and what is wrong there."""

from __future__ import annotations

from dataclasses import dataclass

from karpenter.cli.manifest_documents import ManifestDocument
from karpenter.model.structural_schema import Finding


@dataclass(frozen=True, slots=True)
class ObjectLocation:
    """An object in a document: its position among list items, its kind and name as far as they are known."""

    document: ManifestDocument
    item_path: str = ""
    kind: str = ""
    name: str = ""

    def problem_line(self, path: str, text: str) -> str:
        """A line for people: the source, the object, the field, the text."""
        who = f" ({' '.join(part for part in (self.kind, self.name) if part)})" if self.kind else ""
        where = ".".join(part for part in (self.item_path, path) if part)
        return (
            f"{self.document.source}: document {self.document.number}{who}: " + (f"{where}: " if where else "") + text
        )


@dataclass(frozen=True, slots=True)
class LocatedFinding:
    """A finding about an object of the input."""

    location: ObjectLocation
    finding: Finding

    @property
    def line(self) -> str:
        """For people."""
        return self.location.problem_line(self.finding.path, self.finding.message)
