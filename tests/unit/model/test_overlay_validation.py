"""What makes a stored NodeOverlay unusable (SCH-755, API-163)."""

from __future__ import annotations

from typing import Any

import pytest

from karpenter.api.meta import ObjectMeta
from karpenter.api.node_overlay import NodeOverlay, NodeOverlaySpec, OverlayRequirement
from karpenter.model import runtime_validation


def findings(*requirements: tuple[str, str, tuple[str, ...]], **spec: Any) -> list[tuple[str, str]]:
    wanted = tuple(OverlayRequirement(key=key, operator=op, values=values) for key, op, values in requirements)
    overlay = NodeOverlay(metadata=ObjectMeta(name="o"), spec=NodeOverlaySpec(requirements=wanted, **spec))
    return [(finding.path, finding.code) for finding in runtime_validation.validate_node_overlay(overlay)]


def test_a_sound_overlay_has_no_findings() -> None:
    own = ("karpenter.sh/nodepool", "In", ("a",))
    assert findings(own, ("example.com/a", "NotIn", ("x",)), price="0.5", capacity={"example.com/gpu": "2"}) == []


def test_the_finding_about_a_change_of_price_shows_the_forms_that_are_accepted() -> None:
    """API-169: with a sign, as a percentage or as an amount."""
    overlay = NodeOverlay(metadata=ObjectMeta(name="o"), spec=NodeOverlaySpec(requirements=(), price_adjustment="5%"))
    texts = [str(finding) for finding in runtime_validation.validate_node_overlay(overlay)]
    assert any(text.endswith("'5%' is not a change of price such as +5%, -5%, +0.10 or -0.10") for text in texts)


@pytest.mark.parametrize(
    ("requirement", "code"),
    [
        (("a", "NotIn", ()), "values"),
        (("a", "In", ()), "values"),
        (("a", "Gt", ("x",)), "bound"),
        (("spaces are not allowed", "Exists", ()), "name"),
        (("karpenter.sh/foo", "Exists", ()), "restricted"),
        (("a", "In", ("not a value!",)), "value"),
        (("karpenter.sh/capacity-type", "In", ("borrowed",)), "values"),
    ],
)
def test_requirements_are_validated_like_those_of_pools(
    requirement: tuple[str, str, tuple[str, ...]], code: str
) -> None:
    """SCH-055"""
    assert [finding for _, finding in findings(requirement)] == [code]


@pytest.mark.parametrize("name", ["cpu", "pods", "vpc.amazonaws.com/efa", "aws.amazon.com/neuron", "habana.ai/gaudi"])
def test_resources_that_only_the_cloud_defines_cannot_be_overlaid(name: str) -> None:
    """API-153"""
    assert [code for _, code in findings(capacity={name: "1"})] == ["restricted"]


def test_resources_of_graphics_cards_can_be_overlaid() -> None:
    """API-153"""
    assert findings(capacity={"nvidia.com/gpu": "8", "amd.com/gpu": 1}) == []


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        ({"price": "1", "price_adjustment": "+1"}, "price"),
        ({"price": ".5"}, "price"),
        ({"price_adjustment": "5%"}, "price"),
        ({"price_adjustment": "-101%"}, "price"),
        ({"capacity": {"a": "many"}}, "quantity"),
        ({"capacity": {"a": "-1"}}, "range"),
    ],
)
def test_what_looser_rules_let_in_is_found(spec: dict[str, Any], code: str) -> None:
    assert [finding for _, finding in findings(**spec)] == [code]
