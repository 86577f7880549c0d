"""Feature gates as users write them (OPS §4.4)."""

from __future__ import annotations

import pytest

from karpenter.model.feature_gate_flags import FeatureGateError, ParsedFeatureGates, parse_feature_gates
from karpenter.model.feature_gates import DEFAULT_FEATURE_GATES, FeatureGate


def test_without_a_list_gates_are_as_by_default() -> None:
    """OPS-O1. AWS-015: of the gates of core only ReservedCapacity is on."""
    assert parse_feature_gates("") == ParsedFeatureGates() == ParsedFeatureGates(DEFAULT_FEATURE_GATES)
    assert {FeatureGate.RESERVED_CAPACITY} == DEFAULT_FEATURE_GATES


def test_a_list_changes_only_what_it_names() -> None:
    """OPS-O4, OPS-355"""
    assert parse_feature_gates("NodeRepair=true").enabled == DEFAULT_FEATURE_GATES | {FeatureGate.NODE_REPAIR}
    assert parse_feature_gates("ReservedCapacity=false").enabled == frozenset()


@pytest.mark.parametrize("gate", list(FeatureGate))
@pytest.mark.parametrize(
    ("word", "is_on"), [("true", True), ("True", True), ("1", True), ("false", False), ("F", False)]
)
def test_every_gate_can_be_switched(gate: FeatureGate, word: str, is_on: bool) -> None:
    assert (gate in parse_feature_gates(f"{gate}={word}").enabled) == is_on


def test_blanks_and_stray_commas_do_no_harm() -> None:
    """OPS-355"""
    expected = frozenset({FeatureGate.NODE_REPAIR})
    assert parse_feature_gates(" NodeRepair = true ,,ReservedCapacity= false,").enabled == expected


def test_the_last_word_counts() -> None:
    assert FeatureGate.NODE_REPAIR not in parse_feature_gates("NodeRepair=true,NodeRepair=false").enabled


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("NodeRepair", "'NodeRepair' has no value; write NodeRepair=true or NodeRepair=false"),
        ("NodeRepair=", "NodeRepair='' is neither true nor false"),
        ("NodeRepair=yes", "NodeRepair='yes' is neither true nor false"),
        ("Unknown", "'Unknown' has no value; write Unknown=true or Unknown=false"),
        ("NodeRepair=true, ", "'' has no value; write Name=true or Name=false"),
    ],
)
def test_what_cannot_be_read_is_refused_by_its_entry(text: str, says: str) -> None:
    """OPS-O5, OPS-355"""
    with pytest.raises(FeatureGateError) as refused:
        parse_feature_gates(text)
    assert str(refused.value) == says


def test_gates_of_the_past_are_no_mistake() -> None:
    """OPS-356"""
    assert list(parse_feature_gates("Drift=true").warnings()) == []
    assert parse_feature_gates("Drift=false").enabled == DEFAULT_FEATURE_GATES


def test_an_unknown_gate_is_ignored_and_logged_with_the_gate_that_it_resembles() -> None:
    """OPS-357"""
    feature_gates = parse_feature_gates("NodeRepiar=true,Xyzzy=true,NodeRepiar=false")
    assert feature_gates.enabled == DEFAULT_FEATURE_GATES
    assert list(feature_gates.warnings()) == [
        "feature gate NodeRepiar: unknown and ignored; did you mean NodeRepair?",
        "feature gate Xyzzy: unknown and ignored",
    ]


def test_gates_read_back_as_they_are_shown() -> None:
    feature_gates = parse_feature_gates("NodeRepair=true,ReservedCapacity=false")
    assert parse_feature_gates(str(feature_gates)) == feature_gates


def test_the_gates_of_the_release_come_in_its_order() -> None:
    """K15-040 to K15-045: all new ones are off; CapacitySchedule and GangScheduling are ours and come last."""
    assert str(ParsedFeatureGates()) == (
        "NodeRepair=false,ReservedCapacity=true,SpotToSpotConsolidation=false,NodeOverlay=false,StaticCapacity=false,"
        "CapacityBuffer=false,TerminateFirstDrift=false,TerminateFirstRepair=false,PodDeletionCostManagement=false,"
        "CapacitySchedule=false,GangScheduling=false"
    )
