"""Devices that several nodes reach: slices for all nodes, or for those that a selector selects (K15-161, K15-164, K15-170)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from karpenter.api.meta import OwnerReference
from karpenter.api.resource_claims import Device, ResourceSlice
from karpenter.api.scheduling_constraints import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.model import labels
from karpenter.scheduling.solution import Solution
from support import device_plans
from support.builders import details, existing, left, new_types, node_and_claim, sizes
from support.device_builders import (
    claim_template,
    counter_set,
    device,
    every,
    exactly,
    gpu_type,
    gpus,
    of_template,
    published,
    resource_claim,
    same,
    slice_spec,
    using,
)
from support.device_plans import ROOM
from support.instance_types import STD


def decided(*objects: object, types: Iterable[InstanceType] = STD) -> Solution:
    return device_plans.decided(claim_template("one", exactly()), *objects, types=types)


def everywhere(*devices: Device, name: str = "fabric", **fields: Any) -> ResourceSlice:
    """A slice whose devices every node reaches."""
    return published(name, slice_spec(*devices, pool=name, all_nodes=True, **fields))


def where(key: str, value: str) -> NodeSelector:
    required = NodeSelectorRequirement(key=key, operator="In", values=(value,))
    return NodeSelector(node_selector_terms=(NodeSelectorTerm(match_expressions=(required,)),))


def in_zone(zone: str, *devices: Device, **fields: Any) -> ResourceSlice:
    """A slice whose devices the nodes of a zone reach."""
    return published(zone, slice_spec(*devices, pool=zone, node_selector=where(labels.ZONE, zone), **fields))


def zones(solution: Solution) -> set[str]:
    return {
        value
        for new in solution.new_claims
        for asked in new.claim.spec.requirements
        if asked.key == labels.ZONE
        for value in asked.values
    }


def owned(resource_slice: ResourceSlice, node: str) -> ResourceSlice:
    owner = OwnerReference(api_version="v1", kind="Node", name=node, uid=f"uid-{node}")
    metadata = msgspec.structs.replace(resource_slice.metadata, owner_references=(owner,))
    return msgspec.structs.replace(resource_slice, metadata=metadata)


def test_a_device_that_every_node_reaches_needs_no_node_with_devices() -> None:
    """K15-161: accessible when ``allNodes``; the cheapest node will do, and it waits for no driver."""
    result = decided(everywhere(*gpus(1)), of_template("p", "one"), types=(*STD, gpu_type("g1", 1)))
    assert (left(result), set(new_types(result)) & {"g1"}) == ([], set())
    assert "karpenter.sh/requested-dra-drivers" not in result.new_claims[0].claim.metadata.annotations


def test_a_device_is_planned_for_one_claim_only() -> None:
    """K15-164: never for two claims; the third pod waits with a reason."""
    result = decided(everywhere(*gpus(2)), [of_template(f"p{at}", "one") for at in range(3)])
    assert (len(left(result)), sum(sizes(result))) == (1, 2)
    assert "no instance type" in details(result)


def test_a_claim_without_a_device_left_gets_a_node_that_has_one() -> None:
    """K15-169: published devices go before those of types."""
    pods = [of_template(f"p{at}", "one") for at in range(2)]
    result = decided(everywhere(*gpus(1)), pods, types=(*STD, gpu_type("g1", 1)))
    assert left(result) == []
    assert new_types(result).count("g1") == 1


def test_the_selector_of_a_slice_narrows_the_node() -> None:
    """K15-170: the pod's node is launched where its device is reached."""
    result = decided(in_zone("z2", *gpus(1)), of_template("p", "one"))
    assert (left(result), zones(result)) == ([], {"z2"})


def test_devices_of_disjoint_places_are_not_mixed_in_a_claim() -> None:
    """K15-170: types that need a disjoint topology are dropped; with a device from everywhere it is one place."""
    pair = claim_template("pair", exactly("r", 2))
    apart = [in_zone("z1", device("a")), in_zone("z2", device("b"))]
    assert left(decided(pair, apart, of_template("p", "pair"))) == ["p"]
    result = decided(pair, apart, everywhere(device("c")), of_template("p", "pair"))
    assert (left(result), len(zones(result))) == ([], 1)


def test_two_claims_of_a_pod_are_met_in_one_place() -> None:
    """K15-170: also for the claims that follow."""
    slices = [in_zone("z1", device("a")), in_zone("z2", device("b"), device("c"))]
    pod = of_template("p", "one", "two")
    result = decided(claim_template("two", exactly()), slices, pod)
    assert (left(result), zones(result)) == ([], {"z2"})


def test_a_claim_of_its_own_is_met_where_the_shared_claim_of_the_pod_is() -> None:
    """K15-170: the first pod has brought the shared claim to z2; the device in z1 is of no use to the second one."""
    slices = [in_zone("z1", device("a")), in_zone("z2", device("b"), device("c"))]
    first = using("p1", "shared", node_selector={labels.ZONE: "z2"}, priority=1)
    second = of_template("p2", "one")
    own = second.spec.resource_claims
    both = msgspec.structs.replace(
        second, spec=msgspec.structs.replace(second.spec, resource_claims=(*first.spec.resource_claims, *own))
    )
    result = decided(resource_claim("shared", exactly()), slices, first, both)
    assert (left(result), zones(result)) == ([], {"z2"})


def test_the_most_important_pod_has_the_last_device() -> None:
    pods = [of_template("a", "one", priority=0), of_template("b", "one", priority=1000), of_template("c", "one")]
    assert sorted(left(decided(everywhere(*gpus(1)), pods))) == ["a", "c"]


def test_a_place_that_the_pod_does_not_allow_is_not_taken() -> None:
    slices = [in_zone("z1", device("a")), in_zone("z2", device("b"))]
    result = decided(slices, of_template("p", "one", node_selector={labels.ZONE: "z2"}))
    assert (left(result), zones(result)) == ([], {"z2"})


def test_a_place_where_no_node_can_be_is_not_taken() -> None:
    """A rack that no NodePool and no node is in: its device would leave the pod without a node."""
    rack = published("rack", slice_spec(*gpus(1), pool="rack", node_selector=where("example.com/rack", "r1")))
    assert left(decided(rack, of_template("p", "one"))) == ["p"]
    there = node_and_claim("n", ROOM, labels={"example.com/rack": "r1"})
    assert existing(decided(rack, there, of_template("p", "one"))) == {"n": 1}


def test_slices_may_select_nodes_per_device() -> None:
    """K15-172 leaves that out; kube-scheduler reads it."""
    far = device("a", node_selector=where(labels.ZONE, "z2"))
    spec = slice_spec(far, device("b", all_nodes=True), pool="mixed", per_device_node_selection=True)
    result = decided(published("mixed", spec), [of_template(f"p{at}", "one") for at in range(2)])
    assert left(result) == []
    assert left(decided(published("mixed", spec), [of_template(f"p{at}", "one") for at in range(3)])) != []


@pytest.mark.parametrize(
    ("owner", "counts"), [("there", True), ("absent", False), ("leaving", False), ("starting", False)]
)
def test_slices_of_a_node_that_is_not_settled_are_left_out(owner: str, counts: bool) -> None:
    """K15-161: owned by a Node that is absent, leaving or not initialized; slices without such an owner are always in."""
    nodes = [
        node_and_claim("there", ROOM),
        node_and_claim("leaving", ROOM, deleted=True),
        node_and_claim("starting", ROOM, initialized=False),
    ]
    result = decided(nodes, owned(everywhere(*gpus(1)), owner), of_template("p", "one"))
    assert (left(result) == []) is counts


def test_a_device_in_use_is_not_given() -> None:
    """K15-168: devices of allocated claims, whichever nodes reach them."""
    held = resource_claim("held", exactly(), held=[("fabric", "gpu-0")], on="n", by=["running"])
    world = [node_and_claim("n", ROOM), held, using("running", "held", node_name="n")]
    assert left(decided(world, everywhere(*gpus(1)), of_template("p", "one"))) == ["p"]
    assert left(decided(world, everywhere(*gpus(2)), of_template("p", "one"))) == []


def test_pods_that_share_a_claim_share_its_device_on_any_nodes() -> None:
    """Such a device ties no pod to a node, so the pods need not be together."""
    big = {"cpu": "3"}
    pods = [using(name, "shared", requests=big) for name in ("a", "b", "c", "d")]
    result = decided(resource_claim("shared", exactly()), everywhere(*gpus(1)), pods)
    assert left(result) == []


def test_shared_capacity_is_given_as_far_as_it_goes() -> None:
    """K15-165: two claims of 20 Gi share a device of 40 Gi, the third finds no room."""
    fabric = everywhere(device("m", capacity={"memory": "40Gi"}, allow_multiple_allocations=True))
    part = claim_template("part", exactly("r", 1, capacity={"memory": "20Gi"}))
    result = decided(part, fabric, [of_template(f"p{at}", "part") for at in range(3)])
    assert len(left(result)) == 1


def test_counters_of_a_pool_are_counted_over_all_its_devices() -> None:
    """K15-166: three devices, and counters for two of them."""
    parts = [device(f"d{at}", takes={"c": {"x": 1}}) for at in range(3)]
    fabric = everywhere(*parts, counters=[counter_set("c", x=2)])
    assert len(left(decided(fabric, [of_template(f"p{at}", "one") for at in range(3)]))) == 1


def test_constraints_hold_among_such_devices() -> None:
    """K15-159: a pair by link, of which one is complete."""
    devices = [device("a", {"link": "1"}), device("b", {"link": "2"}), device("c", {"link": "2"})]
    pair = claim_template("pair", exactly("r", 2), constraints=[same("link")])
    result = decided(pair, everywhere(*devices), [of_template(f"p{at}", "pair") for at in range(2)])
    assert len(left(result)) == 1


@pytest.mark.parametrize("slices", [1, 2])
def test_a_pool_that_is_not_complete_is_not_given(slices: int) -> None:
    """K15-162: its slices are counted over all nodes."""
    assert (left(decided(everywhere(*gpus(1), slices=slices), of_template("p", "one"))) == []) is (slices == 1)


def test_claims_for_all_devices_are_left_to_nodes() -> None:
    """What all of them are depends on the node, so such a claim is not met here; its pod waits, and others go on."""
    result = decided(
        claim_template("all", every()), everywhere(*gpus(2)), of_template("p", "all"), of_template("q", "one")
    )
    assert left(result) == ["p"]
