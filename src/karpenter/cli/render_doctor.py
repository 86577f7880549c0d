"""A doctor's findings as a page for people, or as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from karpenter.providers.aws.doctor import DoctorFinding, FindingLevel

_LEVEL_MARKS = {FindingLevel.OK: "ok  ", FindingLevel.WARNING: "warn", FindingLevel.FAILURE: "FAIL"}


def findings_page(findings: Sequence[DoctorFinding]) -> str:
    """One line for what is well; for the rest what breaks and what mends it too."""
    lines: list[str] = []
    for finding in findings:
        lines.append(f"{_LEVEL_MARKS[finding.level]}  {finding.check}: {finding.text}")
        if finding.impact:
            lines.append(f"      breaks: {finding.impact}")
        if finding.fix:
            lines.append(f"      mend:   {finding.fix}")
    counts = Counter(finding.level for finding in findings)
    lines.append(
        f"{counts[FindingLevel.OK]} well, {counts[FindingLevel.WARNING]} to look at, {counts[FindingLevel.FAILURE]} that do not work"
    )
    return "\n".join(lines) + "\n"


def findings_json(findings: Sequence[DoctorFinding]) -> str:
    """All findings as a list."""
    return json.dumps([asdict(finding) for finding in findings], indent=2) + "\n"
