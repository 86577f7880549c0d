"""Label selectors: the structured form objects carry and the text form command lines and list calls use.

Both say the same thing in the end: a conjunction of small tests on a label mapping. The rule that surprises people is
kept in one place: a negative test (``NotIn``, ``!=``) holds for an object that lacks the label altogether.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping

from karpenter.api.meta import LabelSelector

Labels = Mapping[str, str]
#: A compiled selector.
LabelPredicate = Callable[[Labels], bool]

_KEY = r"[A-Za-z0-9][-A-Za-z0-9_./]*"
_VALUE = r"[-A-Za-z0-9_.]*"
_TERM = re.compile(
    rf"\s*(?:!\s*(?P<absent>{_KEY})"
    rf"|(?P<key>{_KEY})(?:\s*(?P<compare>==|=|!=)\s*(?P<value>{_VALUE})"
    r"|\s*(?P<order>[<>])\s*(?P<bound>[-+]?\d+)"
    rf"|\s+(?P<member>in|notin)\s*\((?P<values>[^()]*)\))?)\s*",
    re.ASCII,
)
_VALUE_GRAMMAR = re.compile(_VALUE, re.ASCII)
_NUMBER = re.compile(r"[-+]?\d+", re.ASCII)


class SelectorError(ValueError):
    """A text that is not a label selector. ``text`` is what was given."""

    def __init__(self, text: str, rest: str) -> None:
        super().__init__(
            f"{text!r} is not a label selector: cannot read {rest!r} "
            "(write terms such as a=b, a!=b, a in (b,c), a notin (b,c), a>1, a<1, a or !a, separated by commas)"
        )
        self.text = text


def selector_matches(selector: LabelSelector | None, labels: Labels) -> bool:
    """Whether the labels satisfy the selector. An absent selector matches nothing, an empty one everything.

    An unknown operator matches nothing, so that a selector from a newer API never catches too much.
    """
    if selector is None:
        return False
    for key, value in selector.match_labels.items():
        if labels.get(key) != value:
            return False
    return all(satisfies_expression(labels.get(e.key), e.operator, e.values) for e in selector.match_expressions)


def satisfies_expression(value: str | None, operator: str, values: Container[str]) -> bool:
    """Whether one label satisfies one expression of a selector; None is the label an object lacks."""
    match operator:
        case "In":
            return value is not None and value in values
        case "NotIn":
            return value is None or value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case _:
            return False


def parse_selector(text: str) -> LabelPredicate:
    """Compile a selector text such as ``a=b,c!=d,e in (x,y),!f,g,h>1``; empty text matches everything.

    Raises ``SelectorError``.
    """
    tests: list[LabelPredicate] = []
    position = 0
    while text[position:].strip():
        term = _TERM.match(text, position)
        ended = term is not None and (term.end() == len(text) or text[term.end()] == ",")
        if term is None or not ended:
            raise SelectorError(text, text[position:].strip())
        tests.append(_compiled_test(text, term))
        position = term.end() + 1
        if position == len(text):
            raise SelectorError(text, ",")
    return lambda labels: all(test(labels) for test in tests)


def _compiled_test(text: str, match: re.Match[str]) -> LabelPredicate:
    absent, key = match["absent"], match["key"]
    if absent is not None:
        return lambda labels: absent not in labels
    if match["compare"] is not None:
        value = match["value"]
        if match["compare"] == "!=":
            return lambda labels: labels.get(key) != value
        return lambda labels: labels.get(key) == value
    if match["order"] is not None:
        return _integer_comparison(key, match["order"], int(match["bound"]))
    if match["member"] is not None:
        values = _values(text, match["values"])
        if match["member"] == "notin":
            return lambda labels: labels.get(key) not in values
        return lambda labels: labels.get(key) in values
    return lambda labels: key in labels


def _integer_comparison(key: str, order: str, bound: int) -> LabelPredicate:
    """A comparison of whole numbers; a label that is none, or absent, does not satisfy it."""

    def in_order(labels: Labels) -> bool:
        value = labels.get(key, "")
        if _NUMBER.fullmatch(value) is None:
            return False
        return int(value) > bound if order == ">" else int(value) < bound

    return in_order


def _values(text: str, listed: str) -> frozenset[str]:
    values = [value.strip() for value in listed.split(",")]
    for value in values:
        if _VALUE_GRAMMAR.fullmatch(value) is None:
            raise SelectorError(text, value)
    return frozenset(values)
