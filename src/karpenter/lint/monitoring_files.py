"""PromQL expressions in dashboards of Grafana and in rules of Prometheus, wherever they are kept.

Dashboards are JSON files, or texts in ConfigMaps and GrafanaDashboards. Rules are files of Prometheus, or PrometheusRules.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from karpenter.lint.lint_input import LintInput
from karpenter.lint.source_map import source_maps
from karpenter.lint.source_object import SourceObject
from karpenter.model.structural_schema import child_path

#: Members that hold an expression.
_EXPRESSIONS = frozenset({"expr", "query", "definition"})
_DASHBOARD_KINDS = frozenset({"GrafanaDashboard", "ConfigMap"})


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression and where it stands. ``line`` is that of the file where the expression is in a text, else 0."""

    where: SourceObject
    path: str
    text: str
    line: int = 0


def is_monitoring_file(content: object) -> bool:
    """Whether a document is a dashboard or a file of rules, which are no objects of a cluster."""
    if not isinstance(content, dict) or "kind" in content or "apiVersion" in content:
        return False
    is_dashboard = isinstance(content.get("panels"), list) or isinstance(content.get("dashboard"), dict)
    return is_dashboard or isinstance(content.get("groups"), list)


def expressions(lint_input: LintInput) -> Iterator[Expression]:
    """All expressions of the input."""
    for where in lint_input.objects:
        if is_monitoring_file(where.content) or where.kind == "PrometheusRule":
            yield from _below(where, where.content, "")
        elif where.kind in _DASHBOARD_KINDS:
            yield from _in_texts(where)


def recorded_names(lint_input: LintInput) -> frozenset[str]:
    """Series that recording rules of the input make."""
    return frozenset(name for where in lint_input.objects for name in _records(where.content))


def _records(value: object) -> Iterator[str]:
    if isinstance(value, list):
        for element in value:
            yield from _records(element)
    elif isinstance(value, dict):
        if isinstance(value.get("record"), str):
            yield value["record"]
        for member in value.values():
            yield from _records(member)


def _below(where: SourceObject, value: object, path: str) -> Iterator[Expression]:
    if isinstance(value, list):
        for index, element in enumerate(value):
            yield from _below(where, element, f"{path}[{index}]")
    elif isinstance(value, dict):
        for name, member in value.items():
            here = child_path(path, name)
            if name in _EXPRESSIONS and isinstance(member, str):
                yield Expression(where, here, member)
            else:
                yield from _below(where, member, here)


def _in_texts(where: SourceObject) -> Iterator[Expression]:
    """Expressions of dashboards that are texts: members of ``data``, or ``spec.json``."""
    for member, texts in (("data", where.content.get("data")), ("spec", where.content.get("spec"))):
        for name, text in texts.items() if isinstance(texts, dict) else ():
            if isinstance(text, str) and text.lstrip().startswith("{"):
                yield from _in_text(where, child_path(member, name), text)


def _in_text(where: SourceObject, path: str, text: str) -> Iterator[Expression]:
    try:
        content = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return
    if not is_monitoring_file(content):
        return
    maps = source_maps(text.encode())
    # A block begins on the line after its key; a text in quotes is on the line of its key.
    span = where.span(path)
    for expression in _below(where, content, ""):
        inner = maps[0].span(expression.path).first if maps else 1
        line = min(span.first + inner, span.last)
        yield Expression(where, path, expression.text, line)
