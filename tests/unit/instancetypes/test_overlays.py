"""NodeOverlays on the types of pools: which match, which clash, what comes out (SCH §26, API §5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from karpenter.api.karpenter import NodePool
from karpenter.api.meta import ObjectMeta
from karpenter.api.node_overlay import NodeOverlay, NodeOverlaySpec, OverlayRequirement
from karpenter.instancetypes import overlay_application
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.instancetypes.overlay_application import NodePoolInstanceTypes, OverlayConflict, ParsedOverlay
from karpenter.model import labels
from karpenter.scheduling.volume_usage import ATTACHMENT_RESOURCE_PREFIX
from support.builders import node_pool
from support.device_builders import gpus, slice_spec, with_devices
from support.instance_types import SIZE, offering, shape

CHEAP = shape("cheap", {"cpu": 2, "memory": "2Gi"}, [offering("spot", "z1", 1.0), offering("on-demand", "z2", 2.0)])
DEAR = shape("dear", {"cpu": 16, "memory": "16Gi"}, [offering("on-demand", "z1", 5.0)])
TYPES = (CHEAP, DEAR)


def req(key: str, operator: str, *values: str) -> OverlayRequirement:
    return OverlayRequirement(key=key, operator=operator, values=values)


def overlay(name: str = "o", *requirements: OverlayRequirement, **spec: Any) -> ParsedOverlay:
    wire = NodeOverlay(metadata=ObjectMeta(name=name), spec=NodeOverlaySpec(requirements=requirements, **spec))
    return overlay_application.parse_overlay(wire)


def pool(name: str = "np", **template_labels: str) -> NodePool:
    return node_pool(name, (), labels=template_labels)


def seen(
    *parsed_overlays: ParsedOverlay, types: tuple[InstanceType, ...] = TYPES, of: NodePool | None = None
) -> dict[str, InstanceType]:
    """The types of a pool once the overlays have been judged and applied."""
    offered = NodePoolInstanceTypes(of or pool(), types)
    judgement = overlay_application.evaluate_overlays(parsed_overlays, [offered])
    return {
        instance_type.name: instance_type
        for instance_type in overlay_application.apply_overlays(judgement.accepted, offered)
    }


def prices(instance_type: InstanceType) -> list[float]:
    return [sold.price_per_hour for sold in instance_type.offerings]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"price_adjustment": "-10%"}, 0.9),
        ({"price_adjustment": "+0.25"}, 1.25),
        ({"price_adjustment": "-2"}, 0.0),
        ({"price_adjustment": "+5%"}, 1.05),
        ({"price_adjustment": "-100%"}, 0.0),
        ({"price_adjustment": "-.5"}, 0.5),
        ({"price": "0.37"}, 0.37),
        ({"price": "0"}, 0.0),
    ],
)
def test_prices_are_replaced_or_changed_and_never_fall_below_nothing(
    change: Mapping[str, str], expected: float
) -> None:
    """API-S111, API-151, 152, 164, SCH-759, OPS-242, OPS-P3: the sign decides, and no price is below zero."""
    instance_types = seen(
        overlay("o", **change), types=(shape("t", {"cpu": 1, "memory": "1Gi"}, [offering("spot", "z1", 1.0)]),)
    )
    assert prices(instance_types["t"]) == [expected]


def test_only_the_offerings_an_overlay_is_about_are_repriced_and_the_rest_stays() -> None:
    """S-250, API-S110: the price for one zone, the capacity for the type in all zones."""
    instance_types = seen(overlay("o", req(labels.ZONE, "In", "z1"), price="0.5", capacity={"x/dev": 1}))
    assert prices(instance_types["cheap"]) == [0.5, 2.0]
    assert prices(instance_types["dear"]) == [0.5]
    assert instance_types["cheap"].capacity["x/dev"] == 1000
    assert instance_types["cheap"].offerings[1] is CHEAP.offerings[1]


def test_what_no_overlay_matches_is_the_very_object_it_was() -> None:
    """Callers go by identity."""
    offered = NodePoolInstanceTypes(pool(), TYPES)
    nothing = overlay("o", req(labels.INSTANCE_TYPE, "In", "other"), price="1")
    assert overlay_application.apply_overlays([nothing], offered) is TYPES
    instance_types = overlay_application.apply_overlays(
        [overlay("o", req(labels.INSTANCE_TYPE, "In", "dear"), price="1")], offered
    )
    assert instance_types[0] is CHEAP


def test_pools_that_overlays_cannot_tell_apart_share_their_types() -> None:
    """One index is built for all of them, not one for each of two hundred pools."""
    offered = [
        NodePoolInstanceTypes(pool("a", team="x"), TYPES),
        NodePoolInstanceTypes(pool("b", team="y"), TYPES),
        NodePoolInstanceTypes(pool("c", tier="gold"), TYPES),
        NodePoolInstanceTypes(pool("d"), TYPES[:1]),
    ]
    overlays = [overlay("gold", req("tier", "In", "gold"), price="0.1"), overlay("all", price_adjustment="-50%")]
    first, second, gold, fewer = overlay_application.apply_overlays_to_pools(overlays, offered)
    assert first is second
    assert [prices(each) for each in first] == [[0.5, 1.0], [2.5]]
    assert [prices(each) for each in gold] == [[0.1, 0.1], [0.1]]
    assert [prices(each) for each in fewer] == [[0.5, 1.0]]


def test_added_capacity_makes_a_type_fit_and_leaves_the_overhead_alone() -> None:
    """S-251, SCH-759"""
    instance_types = seen(overlay("o", req(SIZE, "In", "small"), capacity={"x/dev": "1"}))
    assert instance_types["cheap"].allocatable["x/dev"] == 1000
    assert instance_types["cheap"].allocatable["cpu"] == CHEAP.allocatable["cpu"]
    assert instance_types["cheap"].overlay_capacity == {"x/dev": 1000}
    assert not instance_types["cheap"].is_price_overlaid
    assert instance_types["dear"] is DEAR


def test_of_overlays_that_set_the_same_the_heavier_counts() -> None:
    """API-S108, API-S109, API-154, SCH-753, 758, API-161: overlays apply by weight, and the heaviest that matches wins."""
    heavy = overlay("heavy", price="1.0", capacity={"a": 1, "b": 1}, weight=10)
    light = overlay("light", price="0.5", capacity={"b": 2, "c": 3}, weight=5)
    instance_types = seen(light, heavy)
    assert prices(instance_types["dear"]) == [1.0]
    assert {name: instance_types["dear"].overlay_capacity[name] for name in "abc"} == {"a": 1000, "b": 1000, "c": 3000}


def test_a_lighter_overlay_prices_what_the_heavier_is_not_about() -> None:
    """SCH-758"""
    heavy = overlay("heavy", req(labels.ZONE, "In", "z1"), price="9", weight=10)
    light = overlay("light", price="7", weight=5)
    assert prices(seen(heavy, light)["cheap"]) == [9.0, 7.0]


@pytest.mark.parametrize(
    ("first", "second", "contested"),
    [
        ({"price": "1"}, {"price": "2"}, "price"),
        ({"price": "1"}, {"price_adjustment": "+1%"}, "price"),
        ({"capacity": {"a": 1, "b": 1}}, {"capacity": {"b": 1}}, "b"),
    ],
    ids=["price", "adjustment", "capacity"],
)
def test_overlays_of_one_weight_that_set_the_same_clash_and_the_first_by_name_loses_in_all_pools(
    first: Mapping[str, Any], second: Mapping[str, Any], contested: str
) -> None:
    """API-162, SCH-757, its Beyond: both and the contested type are named."""
    alpha = overlay("alpha", **first, weight=3)
    omega = overlay(
        "omega", req(labels.NODE_POOL, "In", "b"), req(labels.INSTANCE_TYPE, "In", "dear"), **second, weight=3
    )
    judgement = overlay_application.evaluate_overlays(
        [alpha, omega], [NodePoolInstanceTypes(pool(name), TYPES) for name in ("a", "b")]
    )
    assert judgement.accepted == (omega,)
    assert judgement.conflicts == {"alpha": OverlayConflict("omega", 3, contested, "dear", "b")}


def test_overlays_of_one_weight_that_set_different_things_live_together() -> None:
    """API-162"""
    parsed_overlays = (
        overlay("a", price="1"),
        overlay("b", capacity={"a": 1}),
        overlay("c", capacity={"b": 1}),
        overlay("d", req(labels.INSTANCE_TYPE, "In", "other"), price="2"),
        overlay("e", price="3", weight=2),
    )
    assert (
        overlay_application.evaluate_overlays(parsed_overlays, [NodePoolInstanceTypes(pool(), TYPES)]).conflicts == {}
    )


def test_prices_of_different_offerings_do_not_clash() -> None:
    one = overlay("one", req(labels.CAPACITY_TYPE, "In", "spot"), price="1")
    other = overlay("other", req(labels.CAPACITY_TYPE, "In", "on-demand"), price="2")
    assert prices(seen(one, other)["cheap"]) == [1.0, 2.0]


def test_a_clash_is_noticed_under_a_heavier_overlay() -> None:
    """API-162: weights 10, 5, 5 on one offering"""
    parsed_overlays = (
        overlay("x", price="1", weight=10),
        overlay("y", price="2", weight=5),
        overlay("z", price="3", weight=5),
    )
    assert set(
        overlay_application.evaluate_overlays(parsed_overlays, [NodePoolInstanceTypes(pool(), TYPES)]).conflicts
    ) == {"y"}


def test_all_overlays_of_a_weight_are_compared_not_only_neighbours() -> None:
    """API-162 Beyond: {gpu}, {efa}, {gpu}"""
    parsed_overlays = tuple(
        overlay(name, capacity={resource: 1}) for name, resource in zip("abc", ("x/a", "x/b", "x/a"), strict=True)
    )
    assert set(
        overlay_application.evaluate_overlays(parsed_overlays, [NodePoolInstanceTypes(pool(), TYPES)]).conflicts
    ) == {"a"}


def test_an_overlay_that_lost_holds_nothing_against_others() -> None:
    """It is left out entirely: a third one that only meets the loser is fine."""
    winner = overlay("z", capacity={"a": 1})
    loser = overlay("y", capacity={"a": 1, "b": 1})
    third = overlay("x", capacity={"b": 1})
    judgement = overlay_application.evaluate_overlays([winner, loser, third], [NodePoolInstanceTypes(pool(), TYPES)])
    assert judgement.accepted == (winner, third)


@pytest.mark.parametrize(
    ("requirement", "matches"),
    [
        (req(labels.NODE_POOL, "In", "np"), True),
        (req(labels.NODE_POOL, "In", "other"), False),
        (req("team", "In", "a"), True),
        (req("team", "In", "b"), False),
        (req("unheard-of", "Exists"), False),
        (req("unheard-of", "DoesNotExist"), True),
        (req("integer", "Gt", "8"), False),
        (req("integer", "Lte", "2"), True),
    ],
)
def test_pools_their_labels_and_the_types_labels_are_what_an_overlay_can_ask_for(
    requirement: OverlayRequirement, matches: bool
) -> None:
    """SCH-756, API-160, API-S107: custom labels nobody defines do not match."""
    instance_types = seen(overlay("o", requirement, price="0"), types=(CHEAP,), of=pool(team="a"))
    assert (prices(instance_types["cheap"]) == [0.0, 0.0]) == matches


def test_a_type_without_an_offering_that_matches_is_left_alone() -> None:
    """SCH-756: not even its capacity"""
    instance_types = seen(overlay("o", req(labels.CAPACITY_TYPE, "In", "reserved"), capacity={"a": 1}))
    assert instance_types == {"cheap": CHEAP, "dear": DEAR}


def test_what_enclaves_take_is_added_to_the_types_of_a_labelled_pool() -> None:
    """K15-A38: slots and CPUs of enclaves and huge pages come from an overlay; a NodePool label selects it, so pods need no
    selector."""
    amounts = {"aws.ec2.nitro/nitro_enclaves": 4, "aws.ec2.nitro/nitro_enclaves_cpus": 2, "hugepages-1Gi": "2Gi"}
    label = "aws-nitro-enclaves-k8s-dp"
    enclaves = overlay("o", req(label, "In", "enabled"), capacity=amounts)
    assert all(amounts.keys().isdisjoint(each.capacity) for each in seen(enclaves).values())
    own = seen(enclaves, of=pool(**{label: "enabled"}))
    assert {each.capacity["aws.ec2.nitro/nitro_enclaves"] for each in own.values()} == {4000}
    assert {each.capacity["hugepages-1Gi"] for each in own.values()} == {2 * 1024**3 * 1000}


def test_an_overlay_keeps_the_devices_and_volume_limits_of_a_type() -> None:
    """K15-102: of the type as of those that it changes."""
    limit = f"{ATTACHMENT_RESOURCE_PREFIX}ebs.csi.aws.com"
    plain = shape("gpu", {"cpu": 2, "memory": "2Gi", limit: 9}, [offering("spot", "z1", 1.0)])
    own = with_devices(plain, slice_spec(*gpus(2)))
    for changed in (overlay("o", price="0.5"), overlay("o", capacity={"x/dev": 1})):
        after = seen(changed, types=(own,))["gpu"]
        assert after is not own
        assert (after.devices, after.capacity[limit]) == (own.devices, 9000)
