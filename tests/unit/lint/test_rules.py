"""Every rule finds what its example shows, at its line; the mended one has neither that finding nor any error or warning."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from karpenter.lint.rule import Rule
from karpenter.lint.rule_page import FINDING_MARK, read_example
from karpenter.lint.rules import RULES


def test_there_are_at_least_forty_rules_with_ids_and_names_of_their_own() -> None:
    assert len(RULES) >= 40
    assert len({rule.id for rule in RULES}) == len({rule.name for rule in RULES}) == len(RULES)
    assert [rule.id for rule in RULES] == sorted(rule.id for rule in RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.id}-{rule.name}")
def test_a_rule_finds_the_bad_example_at_its_line_and_not_the_good_one(
    rule: Rule, lint: Callable[..., Result], tmp_path: Path
) -> None:
    example = read_example(rule)
    bad, good = tmp_path / "bad.yaml", tmp_path / "good.yaml"
    bad.write_text(example.bad)
    good.write_text(example.good)
    marked = [number for number, line in enumerate(example.bad.splitlines(), 1) if line.endswith(FINDING_MARK)]
    assert len(marked) == 1
    assert _places(lint("-f", bad, "-o", "json"), rule) == [(str(bad), marked[0], rule.severity.value)]
    mended = lint("-f", good, "-o", "json", "--fail-on", "warning")
    assert (_places(mended, rule), mended.exit_code) == ([], 0), mended.output


def _places(result: Result, rule: Rule) -> list[tuple[str, int, str]]:
    assert result.exit_code in (0, 1), result.output
    found = json.loads(result.stdout)["findings"]
    return [(each["file"], each["line"], each["severity"]) for each in found if each["rule"] == rule.id]
