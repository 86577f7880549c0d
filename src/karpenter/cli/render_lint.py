"""The findings of ``karpenter lint``: lines for people, Markdown for pull requests, JSON and SARIF for programs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO
from urllib.parse import quote

from karpenter.cli.render_common import SEARCHABLE_WIDTH, Json, WidePage, console_for, markdown_cell, print_line
from karpenter.lint.linter import LintResult
from karpenter.lint.rule import LintFinding, Rule, Severity
from karpenter.lint.rule_page import rule_markdown, rule_text
from karpenter.model.texts import count_text

_SARIF_VERSION = "2.1.0"
_SARIF_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


@dataclass(frozen=True, slots=True)
class LintReport:
    """What is printed: the result, the rules that ran, and the program's version."""

    result: LintResult
    rules: tuple[Rule, ...]
    version: str


def write(report: LintReport, out: TextIO) -> None:
    """One line per finding, ``FILE:LINE: SEVERITY ID NAME: OBJECT: PATH: MESSAGE``, and a summary; wide pages say the fix."""
    console = console_for(out, SEARCHABLE_WIDTH)
    for finding in report.result.findings:
        rule = finding.rule
        place = f"{finding.source}:{finding.line}"
        print_line(console, f"{place}: {rule.severity} {rule.id} {rule.name}: {_sentence(finding)}")
        if isinstance(out, WidePage):
            print_line(console, f"  fix: {rule.fix}")
    print_line(console, summary(report))


def object_names(report: LintReport) -> list[str]:
    """The objects with findings, each once; for findings about no object the file."""
    return list(dict.fromkeys(finding.subject or finding.source for finding in report.result.findings))


def summary(report: LintReport) -> str:
    """Counts by severity, and what was suppressed."""
    counts = Counter(finding.rule.severity for finding in report.result.findings)
    said = ", ".join(count_text(counts[severity], severity.value) for severity in Severity if counts[severity])
    suppressed = f" ({report.result.suppressed} suppressed)" if report.result.suppressed else ""
    return f"{said or 'no findings'}{suppressed}"


def markdown(report: LintReport) -> str:
    """A table for a comment in a pull request."""
    if not report.result.findings:
        return f"**karpenter lint**: {summary(report)}\n"
    rows = [
        f"| {finding.rule.severity} | {finding.rule.id} {finding.rule.name} | `{finding.source}:{finding.line}` | "
        f"{markdown_cell(_sentence(finding))} |"
        for finding in report.result.findings
    ]
    head = [f"**karpenter lint**: {summary(report)}", "", "| severity | rule | place | finding |", "|---|---|---|---|"]
    return "".join(f"{line}\n" for line in (*head, *rows))


def document(report: LintReport) -> Json:
    """All findings as plain data."""
    return {
        "findings": [
            {
                "rule": finding.rule.id,
                "name": finding.rule.name,
                "severity": finding.rule.severity.value,
                "file": finding.source,
                "line": finding.line,
                "endLine": finding.end_line,
                "object": finding.subject,
                "path": finding.path,
                "message": finding.message,
                "fix": finding.rule.fix,
            }
            for finding in report.result.findings
        ],
        "suppressed": report.result.suppressed,
    }


def sarif(report: LintReport) -> Json:
    """SARIF 2.1.0, one run: https://docs.oasis-open.org/sarif/sarif/v2.1.0/."""
    driver: Json = {
        "name": "karpenter-lint",
        "version": report.version,
        "rules": [_sarif_rule(rule) for rule in report.rules],
    }
    positions = {rule.id: position for position, rule in enumerate(report.rules)}
    results = [_sarif_result(finding, positions[finding.rule.id]) for finding in report.result.findings]
    run: Json = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return {"$schema": _SARIF_SCHEMA, "version": _SARIF_VERSION, "runs": [run]}


def _sarif_rule(rule: Rule) -> Json:
    return {
        "id": rule.id,
        "name": rule.name,
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": rule_text(rule)},
        "help": {"text": rule_text(rule), "markdown": rule_markdown(rule)},
        "defaultConfiguration": {"level": rule.severity.value},
    }


def _sarif_result(finding: LintFinding, position: int) -> Json:
    region = {"startLine": finding.line, "endLine": finding.end_line}
    place: Json = {
        "physicalLocation": {"artifactLocation": {"uri": _uri(finding.source)}, "region": region},
    }
    if finding.subject:
        place["logicalLocations"] = [{"fullyQualifiedName": finding.subject, "kind": "object"}]
    return {
        "ruleId": finding.rule.id,
        "ruleIndex": position,
        "level": finding.rule.severity.value,
        "message": {"text": _sentence(finding)},
        "locations": [place],
    }


def _uri(source: str) -> str:
    """Relative to the working directory where the file is below it: code scanning shows only files of the repository."""
    path = Path(source)
    if path.is_absolute() and path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return path.as_uri() if path.is_absolute() else quote(path.as_posix())


def _sentence(finding: LintFinding) -> str:
    return ": ".join(part for part in (finding.subject, finding.path, finding.message) if part)
