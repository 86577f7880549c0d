"""What a check found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad it is: nothing to do, will hurt some day, does not work."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True)
class Finding:
    """What was looked at, how bad it is and what is the case; then what breaks, and the command or statement that mends it."""

    check: str
    level: Level
    text: str
    breaks: str = ""
    mend: str = ""


@dataclass(frozen=True)
class Check:
    """Findings of one name."""

    name: str

    def ok(self, text: str) -> Finding:
        """All is well."""
        return Finding(self.name, Level.OK, text)

    def warning(self, text: str, breaks: str, mend: str) -> Finding:
        """Something works, but not in all weathers."""
        return Finding(self.name, Level.WARNING, text, breaks, mend)

    def failure(self, text: str, breaks: str, mend: str) -> Finding:
        """Something does not work."""
        return Finding(self.name, Level.FAILURE, text, breaks, mend)
