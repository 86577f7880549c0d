"""Runs the rules: matches become findings with lines, unless the manifest suppresses them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from karpenter.lint.lint_input import LintInput
from karpenter.lint.rule import LintFinding, Match, Rule
from karpenter.lint.suppressions import is_suppressed


@dataclass(frozen=True, slots=True)
class LintResult:
    """Findings by file and line, and how many were suppressed in the files."""

    findings: tuple[LintFinding, ...]
    suppressed: int = 0


def lint(lint_input: LintInput, rules: Iterable[Rule]) -> LintResult:
    """All findings of the rules, without those that the files themselves suppress."""
    findings: dict[LintFinding, None] = {}
    suppressed = 0
    for rule in rules:
        for match in rule.check(lint_input):
            if is_suppressed(match, rule.id):
                suppressed += 1
            else:
                findings[_finding(rule, match)] = None
    return LintResult(tuple(sorted(findings, key=lambda finding: finding.sort_key)), suppressed)


def _finding(rule: Rule, match: Match) -> LintFinding:
    span = match.where.span(match.path)
    first, last = (match.line, match.line) if match.line else (span.first, span.last)
    return LintFinding(rule, match.where.source, first, last, match.where.subject, match.path, match.message)
