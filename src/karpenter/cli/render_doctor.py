"""The findings of ``karpenter doctor``: a table for people, a list of data for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TextIO

from rich.table import Table
from rich.text import Text

from karpenter.cli.render_common import SEARCHABLE_WIDTH, print_table
from karpenter.model.texts import count_text
from karpenter.providers.aws.doctor import DoctorFinding, FindingLevel

_LEVEL_MARKS = {FindingLevel.OK: "ok", FindingLevel.WARNING: "warn", FindingLevel.FAILURE: "FAIL"}


def write(findings: Sequence[DoctorFinding], out: TextIO) -> None:
    """One row per finding; below it what breaks and the fix, where something is wrong."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for finding in findings:
        table.add_row(_LEVEL_MARKS[finding.level], Text(f"{finding.check}: {finding.text}"))
        for label, text in (("breaks", finding.impact), ("fix", finding.fix)):
            if text:
                table.add_row("", Text(f"{label}: {text}"))
    print_table(table, out, SEARCHABLE_WIDTH)
    counts = Counter(finding.level for finding in findings)
    ok, warnings, failures = (counts[level] for level in (FindingLevel.OK, FindingLevel.WARNING, FindingLevel.FAILURE))
    out.write(f"{ok} ok, {count_text(warnings, 'warning')}, {count_text(failures, 'failure')}\n")


def document(findings: Sequence[DoctorFinding]) -> list[object]:
    """All findings as plain data."""
    return [asdict(finding) | {"level": finding.level.value} for finding in findings]
