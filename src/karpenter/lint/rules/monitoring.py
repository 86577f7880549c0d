"""Rules about dashboards and alerts: series that are not exported, older names, removed labels."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources

import msgspec

from karpenter.lint.lint_input import LintInput
from karpenter.lint.monitoring_files import Expression, expressions, recorded_names
from karpenter.lint.promql import SeriesUse, series_in
from karpenter.lint.rule import Match, Rule, Severity, Topic
from karpenter.metrics.legacy_names import LEGACY_NAMES

_PREFIX = "karpenter_"
_SUFFIXES = ("_bucket", "_sum", "_count")
_HISTOGRAMS = frozenset({"histogram", "summary"})
#: Labels of releases before 1.0, with the present ones.
_OLD_LABELS: Mapping[str, str] = {
    "provisioner": "nodepool",
    "provisioner_name": "nodepool",
    "karpenter_sh_provisioner_name": "nodepool",
    "node_pool": "nodepool",
}
_MIN_SIMILARITY = 0.8
#: What dropped names began with, and what took their place.
_OLD_PREFIXES: Mapping[str, str] = {
    "karpenter_machines_": "karpenter_nodeclaims_",
    "karpenter_provisioners_": "karpenter_nodepools_",
    "karpenter_provisioner_": "karpenter_nodepools_",
    "karpenter_deprovisioning_": "karpenter_voluntary_disruption_",
}


class ExportedSeries(msgspec.Struct, frozen=True):
    """A series: its type, and its labels; ``open_labels`` where those of Nodes come in addition."""

    type: str
    labels: tuple[str, ...]
    open_labels: bool = False


@cache
def exported_series() -> Mapping[str, ExportedSeries]:
    """What the controller exports, by name."""
    content = resources.files("karpenter.lint").joinpath("exported_series.json").read_bytes()
    return msgspec.json.decode(content, type=dict[str, ExportedSeries])


def _find(name: str) -> ExportedSeries | None:
    """The series of a name, or of a sample of a histogram."""
    series = exported_series().get(name)
    for suffix in _SUFFIXES:
        family = exported_series().get(name.removesuffix(suffix)) if name.endswith(suffix) else None
        if series is None and family is not None and family.type in _HISTOGRAMS:
            series = family
    return series


def _uses(lint_input: LintInput) -> Iterator[tuple[Expression, SeriesUse]]:
    recorded = recorded_names(lint_input)
    for expression in expressions(lint_input):
        for use in series_in(expression.text):
            if use.name not in recorded:
                yield expression, use


def _present_name(name: str) -> str:
    """The present name of a series that was renamed; empty where it was not."""
    for suffix in ("", *_SUFFIXES):
        present = LEGACY_NAMES.get(name.removeprefix(_PREFIX).removesuffix(suffix)) if name.endswith(suffix) else None
        if present is not None:
            return f"{_PREFIX}{present}{suffix}"
    return ""


def _dead(lint_input: LintInput) -> Iterator[Match]:
    for expression, use in _uses(lint_input):
        if _find(use.name) is None and not _present_name(use.name):
            yield _match(
                expression, f"nobody exports {use.name}{_hint(use.name)}: the panel stays empty, the alert never fires"
            )


def _hint(name: str) -> str:
    for old, present in _OLD_PREFIXES.items():
        if name.startswith(old):
            name = present + name.removeprefix(old)
            break
    near = difflib.get_close_matches(name, exported_series(), n=1, cutoff=_MIN_SIMILARITY)
    return f"; did you mean {near[0]}?" if near else ""


def _renamed(lint_input: LintInput) -> Iterator[Match]:
    for expression, use in _uses(lint_input):
        present = _present_name(use.name)
        if _find(use.name) is None and present:
            yield _match(expression, f"{use.name} is {present} since Karpenter 1.0")


def _dead_label(lint_input: LintInput) -> Iterator[Match]:
    for expression, use in _uses(lint_input):
        series = _find(use.name)
        for label in use.labels if series is not None else ():
            meant = _meant_label(label, series) if series is not None else ""
            if meant:
                yield _match(expression, f"{use.name} has no label {label}; did you mean {meant}?")


def _meant_label(label: str, series: ExportedSeries) -> str:
    """The label that was meant; empty where the series has it, or where Prometheus may have added it."""
    if label in series.labels:
        return ""
    if _OLD_LABELS.get(label) in series.labels:
        return _OLD_LABELS[label]
    near = difflib.get_close_matches(label, series.labels, n=1, cutoff=_MIN_SIMILARITY)
    return near[0] if near and not series.open_labels else ""


def _rate_of_gauge(lint_input: LintInput) -> Iterator[Match]:
    for expression, use in _uses(lint_input):
        series = exported_series().get(use.name)
        if use.rate_function and series is not None and series.type == "gauge":
            text = f"{use.rate_function}() of {use.name}, which is a gauge: the result means nothing; use delta() or deriv()"
            yield _match(expression, text)


def _match(expression: Expression, text: str) -> Match:
    return Match(expression.where, expression.path, text, expression.line)


RULES = (
    Rule(
        "KL501",
        "dead-series",
        Severity.ERROR,
        Topic.MONITORING,
        "A dashboard or alert that names a series of Karpenter which is not exported.",
        "The panel stays empty, and the alert never fires.",
        "Take a name of the [metrics](../metrics.md).",
        _dead,
    ),
    Rule(
        "KL502",
        "renamed-series",
        Severity.WARNING,
        Topic.MONITORING,
        "A series under its name before Karpenter 1.0.",
        "It is exported only with `--legacy-metrics`.",
        "Write the present name.",
        _renamed,
    ),
    Rule(
        "KL503",
        "dead-label",
        Severity.WARNING,
        Topic.MONITORING,
        "A matcher on a label that the series does not have, such as `provisioner`.",
        "It matches nothing, or with a negation everything.",
        "Write the present label.",
        _dead_label,
    ),
    Rule(
        "KL504",
        "rate-of-gauge",
        Severity.WARNING,
        Topic.MONITORING,
        "`rate`, `irate` or `increase` of a gauge.",
        "These functions take every decrease for a restart.",
        "Use `delta` or `deriv`.",
        _rate_of_gauge,
    ),
)
