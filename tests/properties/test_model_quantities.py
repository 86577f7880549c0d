"""Laws of quantities, resource lists, durations and the pool hash."""

from __future__ import annotations

from datetime import timedelta
from fractions import Fraction

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from karpenter.api.karpenter import (
    NodeClaimTemplate,
    NodeClaimTemplateMeta,
    NodeClaimTemplateSpec,
    NodeClassReference,
    NodePool,
    NodePoolSpec,
    NodePoolTaint,
)
from karpenter.model import durations, nodepool_hash, quantity
from karpenter.model import resources as res

FACTORS = {"": 1, "k": 10**3, "M": 10**6, "Ki": 2**10, "Gi": 2**30, "e2": 100, "m": Fraction(1, 1000)}
NUMBERS = st.decimals(min_value=-10000, max_value=10000, places=3)
AMOUNTS = st.dictionaries(st.sampled_from(["cpu", "memory", "pods"]), st.integers(-(10**18), 10**18))


@st.composite
def written(draw: st.DrawFn) -> tuple[str, Fraction]:
    number, suffix = draw(NUMBERS), draw(st.sampled_from(sorted(FACTORS)))
    return f"{number:f}{suffix}", Fraction(number) * FACTORS[suffix]


@given(st.integers(-(10**25), 10**25), st.booleans())
def test_a_quantity_survives_writing_and_reading(milli: int, binary: bool) -> None:
    assert quantity.parse_milli(quantity.quantity_text(milli, binary=binary)) == milli


@given(written())
def test_a_quantity_is_its_value_rounded_away_from_zero(given_: tuple[str, Fraction]) -> None:
    text, value = given_
    milli = quantity.parse_milli(text)
    assert abs(milli) >= abs(value) * 1000 > abs(milli) - 1 or milli == value == 0


@given(written(), written())
def test_quantities_are_ordered_as_their_values(a: tuple[str, Fraction], b: tuple[str, Fraction]) -> None:
    if a[1] <= b[1]:
        assert quantity.parse_milli(a[0]) <= quantity.parse_milli(b[0])


@given(AMOUNTS, AMOUNTS)
def test_what_was_added_can_be_taken_away(a: dict[str, int], b: dict[str, int]) -> None:
    assert res.add(a, b) == res.add(b, a)
    assert {name: amount for name, amount in res.subtract(res.add(a, b), b).items() if name in a} == a


@given(AMOUNTS, AMOUNTS)
def test_what_fits_still_fits_when_there_is_more(requests: dict[str, int], available: dict[str, int]) -> None:
    more = res.maximum([requests, available])
    assert res.fits(requests, more)
    assert not res.fits(requests, available) or res.fits(requests, res.maximum([available, more]))


@given(AMOUNTS)
def test_resource_lists_survive_the_wire(amounts: dict[str, int]) -> None:
    assert res.parse_resources(res.resources_to_wire(amounts)) == amounts


@given(st.timedeltas(timedelta(days=-100000), timedelta(days=100000)))
def test_a_duration_survives_writing_and_reading(duration: timedelta) -> None:
    assert durations.parse_duration(durations.duration_text(duration)) == duration


TAINTS = st.lists(
    st.builds(
        NodePoolTaint,
        key=st.sampled_from("ab"),
        effect=st.sampled_from(("NoSchedule", "NoExecute")),
        value=st.sampled_from((None, "x", "y")),
    ),
    max_size=4,
)


@given(TAINTS, st.data())
def test_the_pool_hash_sees_taints_as_a_set(taints: list[NodePoolTaint], data: st.DataObject) -> None:
    """API-502"""
    shuffled = data.draw(st.permutations(taints))
    assert nodepool_hash.node_pool_hash(_pool(taints)) == nodepool_hash.node_pool_hash(_pool([*shuffled, *taints[:1]]))


@given(TAINTS, TAINTS)
def test_pools_with_different_taints_have_different_hashes(a: list[NodePoolTaint], b: list[NodePoolTaint]) -> None:
    same = {msgspec.json.encode(taint) for taint in a} == {msgspec.json.encode(taint) for taint in b}
    assert (nodepool_hash.node_pool_hash(_pool(a)) == nodepool_hash.node_pool_hash(_pool(b))) == same


def _pool(taints: list[NodePoolTaint]) -> NodePool:
    reference = NodeClassReference(group="g", kind="k", name="n")
    spec = NodeClaimTemplateSpec(requirements=(), node_class_ref=reference, taints=tuple(taints))
    return NodePool(spec=NodePoolSpec(template=NodeClaimTemplate(spec=spec, metadata=NodeClaimTemplateMeta())))
