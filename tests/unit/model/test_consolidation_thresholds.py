"""Consolidation thresholds of a NodePool."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest

from karpenter.api.karpenter import Disruption
from karpenter.model import consolidation_thresholds, labels
from karpenter.model.consolidation_thresholds import ConsolidationThresholds
from support.builders import annotated, node_pool

RATIO, AGE = labels.MINIMUM_SAVING_RATIO, labels.MINIMUM_NODE_AGE


def of(**notes: str) -> ConsolidationThresholds:
    """``ratio`` and ``age`` are the two annotations."""
    keys = {"ratio": RATIO, "age": AGE}
    return consolidation_thresholds.consolidation_thresholds(
        annotated(node_pool(), {keys[name]: text for name, text in notes.items()})
    )


def test_a_pool_that_says_nothing_has_the_settings_of_its_policy() -> None:
    """DIS-254 for Balanced"""
    assert of() == ConsolidationThresholds(0.3, timedelta(minutes=5))
    balanced = node_pool(disruption=Disruption(consolidation_policy="Balanced"))
    assert consolidation_thresholds.consolidation_thresholds(balanced) == ConsolidationThresholds(
        0.5, timedelta(minutes=5)
    )


def test_the_annotation_wins_over_the_policy() -> None:
    balanced = node_pool(disruption=Disruption(consolidation_policy="Balanced"))
    assert (
        consolidation_thresholds.consolidation_thresholds(annotated(balanced, {RATIO: "0.3"})).minimum_saving_ratio
        == 0.3
    )


@pytest.mark.parametrize(("text", "want"), [("0", 0.0), ("0.0", 0.0), ("1", 1.0), ("2.75", 2.75), ("0.000001", 1e-6)])
def test_a_ratio_is_a_plain_decimal_number(text: str, want: float) -> None:
    assert of(ratio=text) == ConsolidationThresholds(want)


@pytest.mark.parametrize(
    ("text", "want"), [("0s", timedelta()), ("90s", timedelta(seconds=90)), ("1h30m", timedelta(minutes=90))]
)
def test_an_age_is_a_duration(text: str, want: timedelta) -> None:
    assert of(age=text).minimum_node_age == want


@pytest.mark.parametrize("text", ["", "-1", "10%", "1e3", "nan", "inf", "1.", ".5", " 1", "0,5", "٣", "1" * 400])
def test_no_move_reaches_a_ratio_that_cannot_be_read(text: str) -> None:
    thresholds = of(ratio=text)
    assert thresholds.minimum_saving_ratio == math.inf
    (finding,) = thresholds.findings
    assert finding.path == f"metadata.annotations[{RATIO}]"
    assert "such as 0.5" in finding.message
    assert len(finding.message) < 200


@pytest.mark.parametrize("text", ["", "-1s", "5", "Never", "5 m", "old", "9999999h"])
def test_no_node_is_old_enough_for_an_age_that_cannot_be_read(text: str) -> None:
    thresholds = of(age=text)
    assert thresholds.minimum_node_age == timedelta.max
    assert thresholds.minimum_saving_ratio == 0.3
    assert [finding.path for finding in thresholds.findings] == [f"metadata.annotations[{AGE}]"]
