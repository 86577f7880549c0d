"""What a take-over of a running Karpenter does to its objects: a table for people, data for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TextIO

from rich.table import Table
from rich.text import Text

from karpenter.adoption.takeover_check import AdoptionFinding, Verdict
from karpenter.cli.render_common import SEARCHABLE_WIDTH, Json, print_table

_MARKS = {Verdict.COMPATIBLE: "ok", Verdict.DIFFERS: "differs", Verdict.CHANGE_FIRST: "CHANGE"}


def write(findings: Sequence[AdoptionFinding], out: TextIO) -> None:
    """One row per finding, below it what to do; then how many there are of each verdict."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for finding in findings:
        table.add_row(_MARKS[finding.verdict], Text(f"{finding.subject}: {finding.text}"))
        if finding.fix:
            table.add_row("", Text(f"do: {finding.fix}"))
    print_table(table, out, SEARCHABLE_WIDTH)
    counts = Counter(finding.verdict for finding in findings)
    numbers = ", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict)
    out.write(f"{numbers}\n" if findings else "no object of Karpenter's is there\n")


def document(findings: Sequence[AdoptionFinding]) -> Json:
    """All findings as plain data."""
    counts = Counter(finding.verdict for finding in findings)
    return {
        "findings": [asdict(finding) | {"verdict": finding.verdict.value} for finding in findings],
        "counts": {verdict.value: counts[verdict] for verdict in Verdict},
    }
