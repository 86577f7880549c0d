"""The findings of ``karpenter doctor``: a table for people, a list of data for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from io import StringIO

from rich.table import Table
from rich.text import Text

from karpenter.cli.render_common import SEARCHABLE_WIDTH, console_for, to_json
from karpenter.providers.aws.doctor import DoctorFinding, FindingLevel

_LEVEL_MARKS = {FindingLevel.OK: "ok", FindingLevel.WARNING: "warn", FindingLevel.FAILURE: "FAIL"}


def findings_page(findings: Sequence[DoctorFinding]) -> str:
    """One row per finding; below it what breaks and the fix, where something is wrong."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for finding in findings:
        table.add_row(_LEVEL_MARKS[finding.level], Text(f"{finding.check}: {finding.text}"))
        for label, text in (("breaks", finding.impact), ("fix", finding.fix)):
            if text:
                table.add_row("", Text(f"{label}: {text}"))
    out = StringIO()
    console_for(out, SEARCHABLE_WIDTH).print(table)
    counts = Counter(finding.level for finding in findings)
    ok, warnings, failures = (counts[level] for level in (FindingLevel.OK, FindingLevel.WARNING, FindingLevel.FAILURE))
    page = "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())
    return f"{page}{ok} ok, {warnings} warnings, {failures} failures\n"


def findings_json(findings: Sequence[DoctorFinding]) -> str:
    """All findings as a list."""
    return to_json([asdict(finding) for finding in findings])
