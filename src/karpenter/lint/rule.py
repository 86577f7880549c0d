"""What a rule is, and what it finds: frozen data and a pure function."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from karpenter.lint.lint_input import LintInput
    from karpenter.lint.source_object import SourceObject


class Severity(StrEnum):
    """How bad a finding is, worst first: does not work; works otherwise than meant; worth knowing."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"

    @property
    def rank(self) -> int:
        """0 for the worst."""
        return list(Severity).index(self)


class Topic(StrEnum):
    """What rules are about, in the order of the reference."""

    OBJECTS = "Objects"
    BUDGETS = "Budgets and disruption"
    POOLS = "NodePools"
    NODE_CLASSES = "EC2NodeClasses"
    WORKLOADS = "Pods and workloads"
    MONITORING = "Dashboards and alerts"


@dataclass(frozen=True, slots=True)
class Match:
    """One place that a rule objects to: the object, the path of the field in it, and the sentence about it.

    ``line``: in texts within a field, such as a dashboard in a ConfigMap, the line of the file; 0 takes the line of the path.
    """

    where: SourceObject
    path: str
    message: str
    line: int = 0


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule. ``name`` is a few words in kebab case.

    ``summary`` says what it finds, ``reason`` what comes of it, ``fix`` what to do.
    """

    id: str
    name: str
    severity: Severity
    topic: Topic
    summary: str
    reason: str
    fix: str
    check: Callable[[LintInput], Iterable[Match]]


@dataclass(frozen=True, slots=True)
class LintFinding:
    """A match with its rule and its line, as it is printed. ``end_line`` is the last line of the field."""

    rule: Rule
    source: str
    line: int
    end_line: int
    subject: str
    path: str
    message: str

    @property
    def sort_key(self) -> tuple[str, int, str, str]:
        """By file, line, rule, sentence."""
        return (self.source, self.line, self.rule.id, self.message)
