"""PromQL expressions over series that the controller exports.

An expression names series only through ``series``, which knows the exported names and labels from ``docs/metrics.md``. Tests
compare that page with what the process exports, so a renamed metric fails here instead of leaving a panel empty.

Counters appear with their first event. ``increase`` cannot see a first event, and most events of a node autoscaler are the first
of their label set (one launch of one instance type in one zone). ``events`` therefore subtracts values and takes a series that
was absent before as 0.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"
_NODE_LABELS = (
    "node_name",
    "nodepool",
    "phase",
    "managed",
    "zone",
    "region",
    "instance_type",
    "arch",
    "os",
    "capacity_type",
)
_KINDS = ("nodeclaim", "node", "nodepool", "kwoknodeclass", "ec2nodeclass")
#: Labels that Prometheus gives every series of a target.
_TARGET_LABELS = frozenset({"job", "instance"})
_SUFFIXES = ("_bucket", "_sum", "_count")


class UnknownSeries(Exception):
    """An expression names a series or a label that is not exported."""


@dataclass(frozen=True, slots=True)
class Series:
    """A series of the page. ``open_labels``: it has those of Nodes, of which providers declare more."""

    type: str
    labels: frozenset[str]
    open_labels: bool


def _series_of_page() -> Mapping[str, Series]:
    found: dict[str, Series] = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if not line.startswith("| `"):
            continue
        name, kind, own = (cell.strip() for cell in line.strip("|").split("|")[:3])
        name = name.partition(" ")[0].strip("`")
        for subject in _KINDS if "<kind>" in name else ("",):
            found[name.replace("<kind>", subject)] = Series(kind, _labels(own, kind), _has_node_labels(own))
    return found


def _labels(text: str, kind: str) -> frozenset[str]:
    of_node = _NODE_LABELS if _has_node_labels(text) else ()
    carried = ("karpenter_sh_nodepool",) if "+" in text else ()
    by_type = {"histogram": ("le",), "summary": ("quantile",)}.get(kind, ())
    return frozenset((*re.findall(r"`(\w+)`", text), *of_node, *carried, *by_type))


def _has_node_labels(text: str) -> bool:
    return re.search(r"\bN\b", text) is not None


_SERIES = _series_of_page()
EXPORTED: Mapping[str, frozenset[str]] = {name: each.labels for name, each in _SERIES.items()}


def exported_json() -> str:
    """Names, types and labels, as ``karpenter lint`` reads them."""
    described = {
        name: {"type": each.type, "labels": sorted(each.labels), "open_labels": each.open_labels}
        for name, each in sorted(_SERIES.items())
    }
    lines = (f"  {json.dumps(name)}: {json.dumps(series)}" for name, series in described.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def series(name: str, /, **matchers: str) -> str:
    """A selector. A matcher is a value, or starts with one of ``=~``, ``!=``, ``!~``.

    ``UnknownSeries`` where the controller exports no such series, or the series has no such label.
    """
    _check_labels(name, matchers)
    return name + _matchers(matchers)


def _check_labels(name: str, wanted: Iterable[str]) -> None:
    labels = EXPORTED.get(name)
    for suffix in _SUFFIXES:
        labels = labels if labels is not None else EXPORTED.get(name.removesuffix(suffix))
    if labels is None:
        raise UnknownSeries(f"{name} is not exported")
    if unknown := set(wanted) - labels - _TARGET_LABELS:
        raise UnknownSeries(f"{name} has no label {', '.join(sorted(unknown))}")


def _matchers(matchers: Mapping[str, str]) -> str:
    if not matchers:
        return ""
    return "{" + ", ".join(f"{label}{_condition(value)}" for label, value in matchers.items()) + "}"


def _condition(value: str) -> str:
    operator = value[:2] if value[:2] in ("=~", "!=", "!~") else ""
    return f'{operator or "="}"{value.removeprefix(operator)}"'


def summed(name: str, by: str = "", /, **matchers: str) -> str:
    """The sum over all series, or one sum per value of ``by`` (labels, comma-separated)."""
    return f"sum{_by(name, by)} ({series(name, **matchers)})"


def largest(name: str, by: str = "", /, **matchers: str) -> str:
    """The largest value. Gauges of the leader are read so: a standby exports none or a stale one."""
    return f"max{_by(name, by)} ({series(name, **matchers)})"


def counted(name: str, by: str = "", /, **matchers: str) -> str:
    """How many series there are."""
    return f"count{_by(name, by)} ({series(name, **matchers)})"


def rate(name: str, by: str = "", /, **matchers: str) -> str:
    """Events per second of a counter whose series are there from the start."""
    return f"sum{_by(name, by)} (rate({series(name, **matchers)}[$__rate_interval]))"


def events(name: str, by: str, window: str = "$__interval", /, **matchers: str) -> str:
    """Events of a counter within ``window``, first events included. Less than 0 (a restart) becomes 0."""
    now = summed(name, by, **matchers)
    before = f"sum{_by(name, by)} ({series(name, **matchers)} offset {window})"
    return f"clamp_min({now} - ({before} or {now} * 0), 0)"


def quantile(share: float, name: str, by: str = "", /, window: str = "$__rate_interval", **matchers: str) -> str:
    """A quantile of a histogram."""
    _by(name, by)
    groups = ", ".join(part for part in (by, "le") if part)
    return f"histogram_quantile({share}, sum by ({groups}) (rate({series(f'{name}_bucket', **matchers)}[{window}])))"


def or_zero(expression: str) -> str:
    """The expression, or 0 where it gives nothing: no event of that sort yet."""
    return f"{expression} or on() vector(0)"


def _by(name: str, labels: str) -> str:
    _check_labels(name, labels.split(", ") if labels else ())
    return f" by ({labels})" if labels else ""
