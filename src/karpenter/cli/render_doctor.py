"""A doctor's findings as a page for people, or as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from karpenter.providers.aws.doctor import Finding, Level

_MARKS = {Level.OK: "ok  ", Level.WARNING: "warn", Level.FAILURE: "FAIL"}


def page(findings: Sequence[Finding]) -> str:
    """One line for what is well; for the rest what breaks and what mends it too."""
    lines: list[str] = []
    for finding in findings:
        lines.append(f"{_MARKS[finding.level]}  {finding.check}: {finding.text}")
        if finding.breaks:
            lines.append(f"      breaks: {finding.breaks}")
        if finding.mend:
            lines.append(f"      mend:   {finding.mend}")
    counts = Counter(finding.level for finding in findings)
    lines.append(
        f"{counts[Level.OK]} well, {counts[Level.WARNING]} to look at, {counts[Level.FAILURE]} that do not work"
    )
    return "\n".join(lines) + "\n"


def as_json(findings: Sequence[Finding]) -> str:
    """All findings as a list."""
    return json.dumps([asdict(finding) for finding in findings], indent=2) + "\n"
