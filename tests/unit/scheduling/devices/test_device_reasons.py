"""Why pods with device claims wait, and that bad claims, classes and slices cost their own pods only (SCH §27)."""

from __future__ import annotations

import msgspec
import pytest

from karpenter.api.resource_claims import DeviceRequest
from karpenter.scheduling.failed_filters import InsufficientResource
from support.builders import (
    categories,
    details,
    existing,
    left,
    new_types,
    node_and_claim,
    pod,
    sizes,
)
from support.device_builders import (
    DRIVER,
    alternative,
    claim_template,
    counter_set,
    device,
    every,
    exactly,
    first_available,
    gpu_type,
    of_template,
    published,
    resource_claim,
    same,
    slice_spec,
    using,
    with_devices,
)
from support.device_plans import FOUR, ROOM, decided
from support.instance_types import STD, shape


def test_a_claim_that_is_not_there_defers_its_pod_alone() -> None:
    """SCH-783, K15-150: a missing claim defers the pod; claims of templates are found by the pod's status."""
    made = resource_claim("made", exactly())
    result = decided(
        made,
        using("a", "nowhere"),
        of_template("b", "one", made={"one": "made"}),
        of_template("c", "no-template"),
        of_template("d", "one", made={"one": None}),
    )
    assert left(result) == ["a", "c"]
    assert 'resourceclaim "default/nowhere" not found' in details(result)
    assert categories(result) == {"device"}
    assert all(reason.is_transient for each in result.unschedulable for reason in each.reasons)


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("device.driver ==", 'CEL expression "device.driver ==" failed to compile'),
        ("[1].all(a,[1].all(b,[1].all(c,[1].all(d,true))))", "costs too much"),
        ("true || " * 2000 + "true", "too long"),
    ],
    ids=["does not compile", "costs too much", "too long"],
)
def test_a_bad_selector_keeps_its_pod_waiting_with_a_reason(expression: str, text: str) -> None:
    """K15-156: one pod waits with a reason; the others are planned."""
    templates = [claim_template("bad", exactly("r", 1, expression)), claim_template("good", exactly())]
    result = decided(templates, of_template("bad", "bad"), of_template("good", "good"))
    assert left(result) == ["bad"]
    assert text in details(result)
    assert sizes(result) == [1]


def test_a_selector_that_fails_at_run_time_matches_nothing() -> None:
    """K15-156: a run-time error means no match in counted mode and an error in mode All."""
    lacking = 'device.attributes["gpu.example.com"].lacking == 1'
    for request in (exactly("r", 1, lacking), every("r", lacking)):
        result = decided(claim_template("bad", request), of_template("p", "bad"))
        assert left(result) == ["p"]


def test_a_class_that_is_missing_is_named() -> None:
    """K15-155."""
    result = decided(claim_template("bad", exactly(of="lacking")), of_template("p", "bad"))
    assert 'claim "bad" request "r": DeviceClass "lacking" not found' in details(result)


def test_a_claim_has_no_more_than_32_devices() -> None:
    """K15-146: checked before the search with the smallest alternatives."""
    many = gpu_type("many", 40)
    result = decided(claim_template("bad", exactly("r", 33)), of_template("p", "bad"), types=[many])
    assert 'claim "bad" requests 33 total devices, exceeding maximum of 32' in details(result)
    either = first_available("r", alternative("many", 33), alternative("few", 2))
    assert new_types(decided(claim_template("good", either), of_template("p", "good"), types=[many])) == ["many"]


def test_pools_that_contradict_themselves_offer_nothing() -> None:
    """K15-162: a repeated name, an unknown counter or a negative one: the pool is unusable, the rest goes on."""
    twice = with_devices(shape("twice", ROOM), slice_spec(device("d"), device("d")))
    unknown = with_devices(shape("unknown", ROOM), slice_spec(device("d", takes={"none": {"x": 1}})))
    negative = with_devices(
        shape("negative", ROOM), slice_spec(device("d", takes={"c": {"x": 1}}), counters=[counter_set("c", x=-1)])
    )
    wanted = [claim_template("one", exactly()), of_template("p", "one"), pod("plain", {"cpu": 1})]
    result = decided(wanted, types=[twice, unknown, negative])
    assert left(result) == ["p"]


def test_types_without_devices_are_counted_in_the_reason() -> None:
    result = decided(claim_template("one", exactly()), of_template("p", "one"), types=STD)
    assert left(result) == ["p"]
    assert "no instance type" in details(result)


def test_a_type_with_enough_devices_that_do_not_go_together_is_distinguished() -> None:
    """K15-171: the devices are there, and no allocation of them meets the claim."""
    apart = with_devices(shape("apart", ROOM), slice_spec(device("a", {"link": "1"}), device("b", {"link": "2"})))
    pair = claim_template("pair", exactly("r", 2), constraints=[same("link")])
    result = decided(pair, of_template("p", "pair"), types=[apart])
    (reason,) = result.unschedulable[0].reasons
    assert reason.nearest_fit is not None
    assert [each.kind for each in reason.nearest_fit.failed_filters] == ["devices-not-allocatable"]


def test_too_few_devices_are_a_resource_that_is_short() -> None:
    """The reason names the class and how many there are."""
    result = decided(claim_template("many", exactly("r", 5)), of_template("p", "many"), types=(FOUR,))
    (reason,) = result.unschedulable[0].reasons
    assert reason.nearest_fit is not None
    (short,) = reason.nearest_fit.failed_filters
    assert isinstance(short, InsufficientResource)
    assert (short.resource, short.asked, short.available) == ("devices of gpu", 5000, 4000)


def test_a_claim_that_only_an_endless_search_would_refuse_leaves_its_pod_out() -> None:
    """K15-169: the search has a bound. Each request may be met in two ways, the last in none: 2^20 ways in all."""
    slot = f'device.attributes["{DRIVER}"].slot'
    devices = [device(f"d{at}", {"slot": f"s{at}"}) for at in range(20)]
    node = with_devices(shape("a", ROOM), slice_spec(*devices))

    def twice(at: int) -> DeviceRequest:
        ways = [alternative(name, 1, f'{slot} == "s{at}"') for name in ("first", "second")]
        return first_available(f"r{at}", *(msgspec.structs.replace(way, allocation_mode="All") for way in ways))

    template = claim_template("endless", *map(twice, range(20)), exactly("none", 1, f'{slot} == "s0"'))
    assert left(decided(template, of_template("p", "endless"), types=(node,))) == ["p"]


def test_a_type_whose_counters_cannot_cover_all_devices_is_out() -> None:
    """K15-147: mode All takes every partition; with an alternative that counts, the type stays."""
    parts = [device(f"d{at}", takes={"c": {"x": 1}}) for at in range(2)]
    short = with_devices(shape("short", ROOM), slice_spec(*parts, counters=[counter_set("c", x=1)]))
    enough = with_devices(shape("enough", ROOM), slice_spec(*parts, counters=[counter_set("c", x=2)]))
    result = decided(claim_template("all", every()), of_template("p", "all"), types=[short, enough])
    assert new_types(result) == ["enough"]
    ways = (msgspec.structs.replace(alternative("all"), allocation_mode="All"), alternative("one"))
    either = claim_template("either", first_available("r", *ways))
    assert new_types(decided(either, of_template("p", "either"), types=[short])) == ["short"]


def test_counters_that_would_go_negative_leave_the_device_out() -> None:
    """K15-166: what is in use on the node is deducted first, and never below zero."""
    parts = [device(f"d{at}", takes={"c": {"x": 3}}) for at in range(3)]
    seen = published("s", slice_spec(*parts, node="n", counters=[counter_set("c", x=5)]))
    held = [resource_claim(f"h{at}", exactly(), held=[("n", f"d{at}")], on="n", by=[f"r{at}"]) for at in range(2)]
    running = [using(f"r{at}", f"h{at}", node_name="n") for at in range(2)]
    world = [node_and_claim("n", ROOM), seen, held, running]
    result = decided(
        world, claim_template("one", exactly()), of_template("p", "one"), pod("plain", {"cpu": 1}), types=STD
    )
    assert left(result) == ["p"]


def test_slices_that_contradict_each_other_keep_their_pod_only() -> None:
    """K15-162: two slices of one generation that tell different counts, or one device twice."""
    counts = [
        published("a", slice_spec(device("d"), node="n", slices=1)),
        published("b", slice_spec(device("e"), node="n", slices=2)),
    ]
    twice = [
        published("a", slice_spec(device("d"), node="n", slices=2)),
        published("b", slice_spec(device("d"), node="n", slices=2)),
    ]
    for slices in (counts, twice):
        world = [node_and_claim("n", ROOM), slices, pod("plain", {"cpu": 1})]
        result = decided(world, claim_template("one", exactly()), of_template("p", "one"), types=STD)
        assert left(result) == ["p"]
        assert existing(result) == {"n": 1}
