"""Evaluates the CEL rules of our CRDs (``api.cel_rules``) against decoded JSON, as an API server does (API-035).

The rules of a kind form a tree of the shape of its schema, so that parts of an object without rules are not visited. A value
that is as it was is not judged again, and rules that name ``oldSelf`` hold in updates only (API-023). An expression that fails to
evaluate refuses the value (API-024), unless the schema already refuses a part of it: a missing field is reported once.

Beyond an API server, a rule about each entry of a list is evaluated once more per entry after it failed, to name the entry.

Cost: about 10 us per expression and 80 us to hand a value of ordinary size to the library; rules on plain texts, such as label
keys, are remembered by text. All expressions (about 80) compile in 8 ms. The library takes a third of a second to import, so it
is imported with the first rule to evaluate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, cast

from karpenter.api.cel_rules import CEL_RULES
from karpenter.api.validation_rule import ValidationRule
from karpenter.model import cel_library, structural_schema
from karpenter.model.structural_schema import ABSENT, Finding, Schema

if TYPE_CHECKING:
    import cel

_RULE_BY_TEXT: Mapping[tuple[str, str], ValidationRule] = {
    (rule.expression, rule.message): rule for rules in CEL_RULES.values() for rule in rules
}
_MAX_REMEMBERED_TEXTS = 65_536
#: What the evaluator raises for missing fields, wrong types and numbers out of range.
_EVALUATION_ERRORS = (RuntimeError, TypeError, ValueError, ArithmeticError, LookupError)


@dataclass(frozen=True, slots=True)
class RuleTree:
    """The rules on a value, and those below it by member or for the entries of a list or map."""

    schema: Schema
    rules: tuple[ValidationRule, ...]
    members: Mapping[str, RuleTree]
    entries: RuleTree | None

    @property
    def is_empty(self) -> bool:
        """Whether there is no rule on the value or below."""
        return not self.rules and not self.members and self.entries is None


def rule_tree(schema: Schema) -> RuleTree:
    """The rules of a structural schema that carries them as ``x-kubernetes-validations``."""
    texts = cast("list[Mapping[str, str]]", schema.get("x-kubernetes-validations", []))
    rules = tuple(_RULE_BY_TEXT[text["rule"], text["message"]] for text in texts)
    properties = cast("Mapping[str, Schema]", schema.get("properties", {}))
    members = {name: tree for name, part in properties.items() if not (tree := rule_tree(part)).is_empty}
    entry_schema = cast("Schema | None", schema.get("items", schema.get("additionalProperties")))
    entries = rule_tree(entry_schema) if entry_schema is not None else None
    return RuleTree(schema, rules, members, None if entries is None or entries.is_empty else entries)


def rule_findings(tree: RuleTree, value: object, path: str = "", old: object = ABSENT) -> Iterator[Finding]:
    """Every rule that ``value`` breaks, save in parts that are as they were in ``old``, which it replaces.

    Nulls must be pruned before: ``has`` takes a null for a value.
    """
    if structural_schema.is_unchanged(old, value):
        return
    yield from _findings_here(tree, value, path, old)
    if isinstance(value, dict):
        for name, part in value.items():
            below = tree.members.get(name, tree.entries)
            if below is not None:
                yield from rule_findings(
                    below, part, structural_schema.child_path(path, name), structural_schema.get_member(old, name)
                )
    elif isinstance(value, list) and tree.entries is not None:
        # None of our lists with rules has keys, so no entry is known to be as it was.
        for index, part in enumerate(value):
            yield from rule_findings(tree.entries, part, f"{path}[{index}]")


def _findings_here(tree: RuleTree, value: object, path: str, old: object) -> Iterator[Finding]:
    rules = [rule for rule in tree.rules if old is not ABSENT or not rule.is_transition_rule]
    if not rules:
        return
    for rule, holds in zip(rules, _verdicts(rules, value, old), strict=True):
        if holds or (holds is None and any(structural_schema.schema_findings(tree.schema, value, path))):
            continue
        yield from _broken(rule, value, path)


def _verdicts(rules: Sequence[ValidationRule], value: object, old: object) -> list[bool | None]:
    """Whether each rule holds; None where its expression cannot be evaluated."""
    if isinstance(value, str) and old is ABSENT:
        return [_holds_for_text(rule.expression, value) for rule in rules]
    context = _context({"self": value} if old is ABSENT else {"self": value, "oldSelf": old})
    return [_evaluate(rule.expression, context) for rule in rules]


@lru_cache(maxsize=_MAX_REMEMBERED_TEXTS)
def _holds_for_text(expression: str, text: str) -> bool | None:
    return _evaluate(expression, _context({"self": text}))


def _broken(rule: ValidationRule, value: object, path: str) -> Iterator[Finding]:
    """One finding, or one for each entry that breaks the rule."""
    if rule.item:
        entries = value.items() if isinstance(value, dict) else enumerate(cast("list[object]", value))
        for name, part in entries:
            key = name if isinstance(name, str) else part
            if not _evaluate(rule.item, _context({"self": value, "x": key})):
                here = structural_schema.child_path(path, name) if isinstance(name, str) else f"{path}[{name}]"
                yield _finding(rule, key, here)
    else:
        yield _finding(rule, value, path)


def _finding(rule: ValidationRule, value: object, path: str) -> Finding:
    about = value.get(rule.field) if rule.field and isinstance(value, dict) else value
    is_short = isinstance(about, str) or (bool(rule.field) and isinstance(about, list))
    shown = f" ({structural_schema.shown_value(about)})" if about and is_short else ""
    hint = f"; {rule.hint}" if rule.hint else ""
    place = structural_schema.child_path(path, rule.field) if rule.field else path
    return Finding(place, rule.code, f"{rule.message}{shown}{hint}")


def _context(variables: dict[str, object]) -> cel.Context | None:
    """The variables as the library holds them, None where it cannot. The conversion costs more than a rule: rules share it."""
    try:
        return cel_library.context(variables, {"lowerAscii": _lower_ascii})
    except _EVALUATION_ERRORS:
        return None


def _evaluate(expression: str, context: cel.Context | None) -> bool | None:
    if context is None:
        return None
    try:
        return _program(expression).execute(context) is True
    except _EVALUATION_ERRORS:
        return None


def _lower_ascii(text: object) -> str | None:
    """A function of the Kubernetes strings library. Of anything but a text it yields nothing, which no operator takes."""
    return text.lower() if isinstance(text, str) else None


@cache
def _program(expression: str) -> cel.Program:
    return cel_library.compile_expression(expression)
