"""What a suite's run came to: read from the report Ginkgo writes, rendered as the table in the documents."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from conformance.suites import VACUOUS

_NANOSECONDS_PER_SECOND = 10**9


class Outcome(StrEnum):
    """How a spec ended."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    VACUOUS = "asserts nothing"


_OUTCOMES = {"passed": Outcome.PASSED, "skipped": Outcome.SKIPPED, "pending": Outcome.SKIPPED}


@dataclass(frozen=True)
class Spec:
    """A spec of a suite: its text with the containers it stands in, its outcome, duration and, if it failed, why."""

    group: str
    text: str
    outcome: Outcome
    seconds: float
    failure: str = ""
    output: str = ""

    @property
    def is_behind_failure(self) -> bool:
        """Whether it did not run because another spec of its ordered container failed before it."""
        return self.outcome is Outcome.SKIPPED and "earlier spec in an ordered container failed" in self.failure


def read_report(content: bytes) -> tuple[Spec, ...]:
    """The specs of a Ginkgo JSON report, in their order; those that the filter left out are not among them."""
    reports = json.loads(content)
    entries = (entry for report in reports for entry in report["SpecReports"] or ())
    return tuple(_spec(entry) for entry in entries if entry["LeafNodeType"] == "It" and _ran(entry))


def _ran(entry: Mapping[str, object]) -> bool:
    return entry["State"] != "skipped" or bool(entry.get("Failure"))


def _spec(entry: Mapping[str, object]) -> Spec:
    text = str(entry["LeafNodeText"])
    groups: list[str] = entry.get("ContainerHierarchyTexts") or []
    failure: Mapping[str, object] = entry.get("Failure") or {}
    outcome = _OUTCOMES.get(str(entry["State"]), Outcome.FAILED)
    if outcome is Outcome.PASSED and text in VACUOUS:
        outcome = Outcome.VACUOUS
    seconds = int(str(entry["RunTime"])) / _NANOSECONDS_PER_SECOND
    message, output = str(failure.get("Message", "")), str(entry.get("CapturedGinkgoWriterOutput", ""))
    return Spec(" / ".join(groups), text, outcome, seconds, _first_line(message), output)


def _first_line(message: str) -> str:
    return next((line.strip() for line in message.splitlines() if line.strip()), "")


def counts_text(specs: Iterable[Spec]) -> str:
    """How many specs ended how, such as ``94 passed, 5 failed``."""
    counts = Counter(spec.outcome for spec in specs)
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in Outcome if counts[outcome]) or "no spec ran"


def markdown_page(title: str, specs: Iterable[Spec]) -> str:
    """A page with a table of the specs."""
    rows = tuple(specs)
    lines = [
        f"# {title}",
        "",
        f"{counts_text(rows)}.",
        "",
        "| Group | Spec | Outcome | Seconds |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {_cell(spec.group)} | {_cell(spec.text)} | {_cell(_outcome_text(spec))} | {spec.seconds:.0f} |"
        for spec in rows
    ]
    return "\n".join(lines) + "\n"


def _outcome_text(spec: Spec) -> str:
    return f"{spec.outcome}: {spec.failure}" if spec.failure else spec.outcome


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
