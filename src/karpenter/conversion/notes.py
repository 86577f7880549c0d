"""What a conversion says about an object: what it changed, what the owner should know, why it failed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class NoteLevel(StrEnum):
    """How much a note weighs: an error leaves the object out, a warning counts for ``--strict``, information does not."""

    ERROR = "ERROR"
    WARN = "WARN"
    INFO = "INFO"


@dataclass(frozen=True, slots=True)
class Note:
    """One note: about the field at ``path``, empty for the whole object."""

    level: NoteLevel
    path: str
    text: str


class NoteList:
    """Collects the notes about one object."""

    def __init__(self, notes: tuple[Note, ...] = ()) -> None:
        self._notes = list(notes)

    def warn(self, path: str, text: str) -> None:
        """Add a warning: the conversion changed what the owner wrote."""
        self._notes.append(Note(NoteLevel.WARN, path, text))

    def inform(self, path: str, text: str) -> None:
        """Add information: the object is converted as it stands, and may behave in a way worth knowing."""
        self._notes.append(Note(NoteLevel.INFO, path, text))

    def fail(self, path: str, text: str) -> None:
        """Add an error: the object cannot be converted."""
        self._notes.append(Note(NoteLevel.ERROR, path, text))

    @property
    def failed(self) -> bool:
        """Whether there is an error."""
        return any(note.level is NoteLevel.ERROR for note in self._notes)

    def frozen(self) -> tuple[Note, ...]:
        """All notes so far, in order."""
        return tuple(self._notes)


class NotConvertible(Exception):
    """Raised inside the conversion of one object that has no equivalent in ``v1``; ends in an error note."""

    def __init__(self, path: str, text: str) -> None:
        super().__init__(text)
        self.path = path
