"""Which series of ours an expression names."""

from __future__ import annotations

import pytest

from karpenter.lint.promql import SeriesUse, series_in
from karpenter.lint.rules.monitoring import exported_series
from karpenter.metrics.legacy_names import LEGACY_NAMES


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("karpenter_a", [SeriesUse("karpenter_a")]),
        (
            'sum by (karpenter_sh_nodepool) (karpenter_a{nodepool=~"x", zone!="y"})',
            [("karpenter_a", "nodepool zone", "")],
        ),
        ('kube_node_labels{karpenter_sh_nodepool="web"}', []),
        (
            "karpenter_a / on (karpenter_sh_nodepool) group_left (karpenter_b) karpenter_c",
            ["karpenter_a", "karpenter_c"],
        ),
        ("irate( karpenter_a[5m])", [("karpenter_a", "", "irate")]),
        ("rate(sum(karpenter_a)[5m:])", ["karpenter_a"]),
        ('label_replace(karpenter_a, "x", "karpenter_b", "y", "z")', ["karpenter_a"]),
        ('{__name__="karpenter_a"}', ["karpenter_a"]),
        ("karpenter_$kind", []),
        ("karpenter_[[kind]]_total", []),
        ("karpenter_a:rate5m", []),
        ("job:karpenter_a", []),
        ("label_values(karpenter_a, nodepool)", ["karpenter_a"]),
        ("up", []),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_series_are_found_with_their_labels_and_rates(expression: str, expected: list[object]) -> None:
    assert list(series_in(expression)) == [_use(each) for each in expected]


def _use(said: object) -> object:
    if isinstance(said, tuple) and not isinstance(said, SeriesUse):
        return SeriesUse(said[0], tuple(said[1].split()), said[2])
    return SeriesUse(said) if isinstance(said, str) else said


def test_no_exported_series_is_called_renamed() -> None:
    """OPS-498: an older name that is exported again would be called dead."""
    assert [name for name in LEGACY_NAMES if f"karpenter_{name}" in exported_series()] == []
