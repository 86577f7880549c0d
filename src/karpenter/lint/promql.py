"""The series that a PromQL expression names, as far as it takes to see whether they exist: no grammar, only words.

Variables of Grafana (``$nodepool``, ``[[nodepool]]``) stand for anything, so a name that contains one is not checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_SERIES = re.compile(r"(?<![\w:$])karpenter_\w*")
_MATCHERS = re.compile(r"\{[^{}]*\}")
_BRACES = re.compile(r"\s*\{[^{}]*\}")
#: Labels without a series: those of groupings and of joins.
_LABEL_LISTS = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^()]*\)", re.IGNORECASE)
_BY_NAME = re.compile(r"__name__\s*=\s*[\"'](karpenter_\w+)[\"']")
_MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)\s*[\"']")
_TEXT = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'")
#: Functions over counters.
_RATES = re.compile(r"\b(rate|irate|increase)\s*\(\s*$")


@dataclass(frozen=True, slots=True)
class SeriesUse:
    """A series in an expression: its labels in braces, and the function of rates that is applied to it directly."""

    name: str
    labels: tuple[str, ...] = ()
    rate_function: str = ""


def series_in(expression: str) -> Iterator[SeriesUse]:
    """The series of ours that an expression names, in order."""
    outside = _LABEL_LISTS.sub(_blank, _MATCHERS.sub(_blank, _TEXT.sub(_blank, expression)))
    for match in _SERIES.finditer(outside):
        is_part_of_name = expression[match.end() : match.end() + 1] in (":", "$")
        if not is_part_of_name and not expression.startswith("[[", match.end()):
            rate = _RATES.search(outside[: match.start()])
            braces = _BRACES.match(expression, match.end())
            yield SeriesUse(match[0], tuple(_MATCHER.findall(braces[0] if braces else "")), rate[1] if rate else "")
    for named in _BY_NAME.finditer(expression):
        yield SeriesUse(named[1])


def _blank(match: re.Match[str]) -> str:
    return " " * len(match[0])
