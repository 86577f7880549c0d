"""Quantities: every form users write, exactly."""

from __future__ import annotations

import pytest

from karpenter.api.meta import WireQuantity
from karpenter.model import quantity
from karpenter.model import resources as res


@pytest.mark.parametrize(
    ("wire", "milli"),
    [
        ("1", 1000),
        ("1.", 1000),
        (".5", 500),
        ("+1.5", 1500),
        ("-2", -2000),
        ("500m", 500),
        ("1u", 1),
        ("1n", 1),
        ("-1n", -1),
        ("1001u", 2),
        ("2k", 2_000_000),
        ("1M", 10**9),
        ("1E", 10**21),
        ("1Ki", 1024_000),
        ("1.5Gi", 1536 * 1024**2 * 1000),
        ("1Ei", 2**60 * 1000),
        ("1e3", 1_000_000),
        ("1E3", 1_000_000),
        ("5e-1", 500),
        (2, 2000),
        (0.5, 500),
        (1e22, 10**25),
        ("0.1", 100),
    ],
)
def test_every_form_of_a_quantity_is_read_exactly(wire: WireQuantity, milli: int) -> None:
    """API-027"""
    assert quantity.parse_milli(wire) == milli


@pytest.mark.parametrize(
    "text",
    ["", " 1", "1 ", "1 Gi", "one", "1K", "1ki", "1e", "1e1.5", "0x10", "1_000", "--1", ".", "٣", "1Gi\n", "1e99999"],
)
def test_what_is_no_quantity_is_refused_by_name(text: str) -> None:
    with pytest.raises(quantity.QuantityError) as error:
        quantity.parse_milli(text)
    assert error.value.text == text


@pytest.mark.parametrize(
    "value", ["9" * 5000, "1e" + "9" * 5000, float("nan"), float("inf"), True], ids=lambda v: str(v)[:5]
)
def test_monstrous_quantities_are_refused_briefly(value: WireQuantity) -> None:
    with pytest.raises(quantity.QuantityError) as error:
        quantity.parse_milli(value)
    assert len(str(error.value)) < 500


@pytest.mark.parametrize(
    ("wire", "canonical"),
    [
        ("1000", "1k"),
        (0.5, "500m"),
        ("1500m", "1500m"),
        ("0", "0"),
        ("-0", "0"),
        ("1Gi", "1073741824"),
        ("-2000", "-2k"),
    ],
)
def test_decimal_quantities_have_one_canonical_text(wire: WireQuantity, canonical: str) -> None:
    assert quantity.quantity_text(quantity.parse_milli(wire)) == canonical


@pytest.mark.parametrize(
    ("wire", "canonical"), [("1024Mi", "1Gi"), ("1000", "1000"), ("1536Mi", "1536Mi"), ("1m", "1m"), ("-1Ki", "-1Ki")]
)
def test_binary_quantities_have_one_canonical_text(wire: WireQuantity, canonical: str) -> None:
    assert quantity.quantity_text(quantity.parse_milli(wire), binary=True) == canonical


def test_resource_lists_are_written_sorted_and_in_their_customary_units() -> None:
    parsed = res.parse_resources({"pods": 110, "memory": "1048576Ki", "cpu": "2000m", "hugepages-2Mi": "2048Ki"})
    written = res.resources_to_wire(parsed)
    assert list(written.items()) == [("cpu", "2"), ("hugepages-2Mi", "2Mi"), ("memory", "1Gi"), ("pods", "110")]


def test_subtraction_keeps_the_names_of_the_left_side() -> None:
    """SCH-190"""
    assert res.subtract({"cpu": 3, "memory": 5}, {"cpu": 5, "pods": 1}) == {"cpu": -2, "memory": 5}


def test_maximum_unites_names_and_minimum_keeps_shared_ones() -> None:
    """SCH-190"""
    lists = [{"cpu": -3, "memory": 1}, {"cpu": -4, "pods": 2}]
    assert res.maximum(lists) == {"cpu": -3, "memory": 1, "pods": 2}
    assert res.minimum(lists) == {"cpu": -4}
    assert res.minimum([]) == res.maximum([]) == {}


@pytest.mark.parametrize(
    ("requests", "available", "want"),
    [
        ({"cpu": 1}, {"cpu": 1}, True),
        ({"cpu": 2}, {"cpu": 1}, False),
        ({"gpu": 0}, {}, True),  # SCH-196
        ({"gpu": 1}, {"cpu": 5}, False),
        ({"cpu": 1}, {"cpu": 1, "memory": -1}, True),  # SCH-198 Beyond
        ({"cpu": 0}, {"cpu": -1}, True),
        ({"cpu": 1}, {"cpu": -1}, False),
        ({}, {}, True),
    ],
)
def test_requests_fit_when_each_asked_resource_is_there(
    requests: dict[str, int], available: dict[str, int], want: bool
) -> None:
    assert res.fits(requests, available) == want
