"""The page of a rule, from the rule itself: for the reference, for ``--explain`` and for SARIF."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources

from karpenter.lint.rule import Rule

#: Stands at the end of the line that a bad example is about.
FINDING_MARK = "# finding"
_FOLDER = "examples"


@dataclass(frozen=True, slots=True)
class RuleExample:
    """Manifests in which the rule finds something, at the line that ends in ``FINDING_MARK``, and corrected ones."""

    bad: str
    good: str


def read_example(rule: Rule) -> RuleExample:
    """The example of a rule, from the package."""
    folder = resources.files("karpenter.lint").joinpath(_FOLDER)
    bad, good = (folder.joinpath(f"{rule.id}.{side}.yaml").read_text(encoding="utf-8") for side in ("bad", "good"))
    return RuleExample(bad, good)


def rule_text(rule: Rule) -> str:
    """What the rule finds, what comes of it, what to do."""
    return f"{rule.summary} {rule.reason} {rule.fix}"


def rule_markdown(rule: Rule) -> str:
    """The page of a rule, without a heading of its own."""
    return "\n".join(_lines(rule))


def _lines(rule: Rule) -> Iterator[str]:
    example = read_example(rule)
    yield f"**{rule.severity}**. {rule.summary}\n"
    yield f"*Why:* {rule.reason}\n"
    yield f"*Fix:* {rule.fix}\n"
    yield f"```yaml\n{example.bad.rstrip()}\n```\n"
    yield f"Without the finding:\n\n```yaml\n{example.good.rstrip()}\n```\n"
