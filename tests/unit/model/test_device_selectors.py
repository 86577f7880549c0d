"""CEL selectors of devices: what they read (K15-157), and selectors that cannot be used (K15-156)."""

from __future__ import annotations

import pytest

from karpenter.model.device_selectors import DeviceFacts, Version, match, selector_error

FACTS = DeviceFacts(
    "gpu.example.com",
    (
        ("gpu.example.com/model", "a100"),
        ("gpu.example.com/index", 3),
        ("gpu.example.com/healthy", True),
        ("gpu.example.com/driver", Version("535.104.5")),
    ),
    (("gpu.example.com/memory", 40 * 2**30 * 1000),),
    allow_multiple_allocations=True,
)
OWN = 'device.attributes["gpu.example.com"]'


@pytest.mark.parametrize(
    ("expression", "selects"),
    [
        ('device.driver == "gpu.example.com"', True),
        (f'{OWN}.model == "a100" && {OWN}.index == 3 && {OWN}.healthy', True),
        (f'{OWN}.driver.isGreaterThan(semver("535.0.0"))', True),
        (f'{OWN}.driver.isLessThan(semver("535.0.0"))', False),
        ('device.capacity["gpu.example.com"].memory.compareTo(quantity("40Gi")) == 0', True),
        ('device.capacity["gpu.example.com"].memory.isGreaterThan(quantity("40Gi"))', False),
        ("device.allowMultipleAllocations", True),
        ('"lacking" in device.attributes["other.example.com"]', False),
    ],
)
def test_selectors_read_driver_attributes_capacity_and_sharing(expression: str, selects: bool) -> None:
    """K15-157"""
    result = match(expression, FACTS)
    assert (result.matches, result.error) == (selects, "")


@pytest.mark.parametrize(
    "expression",
    [f"{OWN}.lacking == 1", f"{OWN}.model > 3", '"text"', 'semver("x").isLessThan(semver("1.0.0"))'],
    ids=["attribute", "types", "no-bool", "argument"],
)
def test_an_error_at_run_time_is_no_match_and_is_reported(expression: str) -> None:
    """K15-156"""
    result = match(expression, FACTS)
    assert not result.matches
    assert result.error


@pytest.mark.parametrize(
    "expression",
    ["device.driver ==", "[1].all(a,[1].all(b,[1].all(c,[1].all(d,true))))", "x" * 20_000],
    ids=["does-not-compile", "costs-too-much", "too-long"],
)
def test_an_expression_that_cannot_be_used_says_why(expression: str) -> None:
    """K15-156"""
    assert selector_error(expression)
    assert "\n" not in selector_error(expression)
