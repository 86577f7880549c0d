"""Pods with device claims are planned for: new nodes, and nodes that are there (SCH §27)."""

from __future__ import annotations

import pytest

from karpenter.api.core import PodResourceClaim
from karpenter.api.resource_claims import DeviceTaint, DeviceToleration
from karpenter.instancetypes.instance_type import BindingGroup
from karpenter.model import labels
from support.builders import (
    claim,
    daemon_set,
    existing,
    left,
    new_types,
    node_and_claim,
    node_pool,
    plan,
    pod,
    pods,
    sizes,
    wanted,
)
from support.device_builders import (
    DRIVER,
    alternative,
    claim_template,
    counter_set,
    device,
    device_class,
    every,
    exactly,
    first_available,
    gpu_type,
    gpus,
    of_template,
    published,
    resource_claim,
    same,
    slice_spec,
    using,
    with_devices,
)
from support.device_plans import FOUR, MODEL, ONE, ROOM, TYPES, decided
from support.instance_types import STD, shape


def with_gpus(
    name: str, count: int, *, model: str = "a100", instance_type: str = "g4", initialized: bool = True
) -> list[object]:
    """A node whose driver has published so many GPUs."""
    own = {"node.kubernetes.io/instance-type": instance_type}
    return [
        *node_and_claim(name, ROOM, labels=own, initialized=initialized),
        published(f"slice-{name}", slice_spec(*gpus(count, model), node=name)),
    ]


# -- new nodes ----------------------------------------------------------------------------------------------------------------


def test_a_node_is_launched_that_has_the_devices() -> None:
    """SCH-784: device templates of types count for claims of new nodes; SCH-610: initialization waits for the drivers used."""
    result = decided(claim_template("one", exactly()), of_template("p", "one"))
    assert new_types(result) == ["g1"]
    annotations = result.new_claims[0].claim.metadata.annotations
    assert annotations["karpenter.sh/requested-dra-drivers"] == DRIVER
    assert set(result.new_claims[0].claim.spec.resources.requests) == {"cpu", "pods"}


def test_pods_share_the_devices_of_a_node_as_far_as_they_go() -> None:
    """K15-163: template devices are of one node and are never shared between claims."""
    result = decided(claim_template("one", exactly()), [of_template(f"p{at}", "one") for at in range(5)])
    assert (sorted(sizes(result)), left(result)) == ([1, 4], [])
    assert result.lower_bound_per_hour is not None


@pytest.mark.parametrize(("devices", "nodes"), [(2, 1), (1, 2)])
def test_as_many_nodes_are_launched_as_the_devices_of_a_type_take(devices: int, nodes: int) -> None:
    """S-241: two claims of one device each share a node with two; each node names the drivers it waits for (SCH-791)."""
    claims = [claim_template("one", exactly()), [of_template(f"p{at}", "one") for at in range(2)]]
    result = decided(claims, types=(gpu_type("g", devices),))
    assert (new_types(result), left(result)) == (["g"] * nodes, [])
    annotations = [each.claim.metadata.annotations for each in result.new_claims]
    assert [each["karpenter.sh/requested-dra-drivers"] for each in annotations] == [DRIVER] * nodes


def test_a_placed_pod_holds_its_devices_for_the_rest_of_the_plan() -> None:
    """SCH-791: devices are committed with the placement, so a third pod finds none on a node with two.

    SCH-790: types whose devices do not suffice for the claims of a node are no types of its NodeClaim.
    """
    result = decided(
        claim_template("one", exactly()),
        [of_template(f"p{at}", "one") for at in range(3)],
        types=(*STD, ONE, gpu_type("g2", 2)),
    )
    types_by_size = {len(each.pods): set(each.instance_types) for each in result.new_claims}
    assert left(result) == []
    assert sum(len(each.pods) for each in result.new_claims) == 3
    assert types_by_size.keys() <= {1, 2}
    assert types_by_size.get(2, {"g2"}) == {"g2"}
    assert types_by_size[1] <= {"g1", "g2"}


def test_pods_without_claims_are_planned_as_if_there_were_none() -> None:
    """No work and no price when no pod has a claim."""
    plain = pods(3, {"cpu": 1})
    with_class = decided(plain)
    assert new_types(with_class) == new_types(plan(node_pool(), plain, types=TYPES))
    assert "karpenter.sh/requested-dra-drivers" not in with_class.new_claims[0].claim.metadata.annotations


def test_selectors_choose_among_types() -> None:
    """SCH-788: selectors of class and request are ANDed."""
    template = claim_template("h", exactly("r", 1, f'{MODEL} == "h100"'))
    assert new_types(decided(template, of_template("p", "h"))) == ["h2"]
    only_h100 = device_class("h", f'{MODEL} == "h100"')
    template = claim_template("h", exactly("r", 1, f'{MODEL} == "a100"', of="h"))
    assert left(decided(template, of_template("p", "h"), classes=[only_h100])) == ["p"]


def test_a_count_is_met_by_one_node() -> None:
    result = decided(claim_template("many", exactly("r", 3)), of_template("p", "many"))
    assert new_types(result) == ["g4"]
    assert left(decided(claim_template("many", exactly("r", 5)), of_template("p", "many"))) == ["p"]


def test_a_sub_request_that_a_type_can_meet_keeps_it() -> None:
    """K15-S21, K15-141: claim ``firstAvailable [big x1, small x2]``, type A has big, type B two small: both types stay."""
    big = with_devices(shape("a", ROOM), slice_spec(device("d", {"size": "big"})))
    small = with_devices(shape("b", ROOM), slice_spec(device("d0", {"size": "small"}), device("d1", {"size": "small"})))
    size = f'device.attributes["{DRIVER}"].size'
    wanted = first_available(
        "r", alternative("big", 1, f'{size} == "big"'), alternative("small", 2, f'{size} == "small"')
    )
    result = decided(claim_template("either", wanted), of_template("p", "either"), types=(big, small))
    assert set(result.new_claims[0].instance_types) == {"a", "b"}


def test_mode_all_without_a_matching_device_drops_the_type() -> None:
    """K15-145, K15-S22: mode All needs at least one matching device."""
    result = decided(claim_template("all", every()), of_template("p", "all"))
    assert new_types(result) == ["g1"]
    assert left(decided(claim_template("all", every("r", "false")), of_template("p", "all"))) == ["p"]


def test_devices_of_a_claim_agree_in_an_attribute() -> None:
    """K15-159: the first device pins the value: pairs by link, not a GPU of each link."""
    pair = claim_template("pair", exactly("r", 2), constraints=[same("link")])
    assert sizes(decided(pair, [of_template(f"p{at}", "pair") for at in range(4)])) == [2, 2]
    three = claim_template("three", exactly("r", 3), constraints=[same("link")])
    assert left(decided(three, of_template("p", "three"))) == ["p"]


def test_groups_of_devices_stand_for_values_that_are_not_known_yet() -> None:
    """K15-160: groups are transitive, and never mix with concrete values."""
    pair = claim_template("pair", exactly("r", 3), constraints=[same("rack")])
    groups = [BindingGroup(f"{DRIVER}/rack", "node", ("a", "b")), BindingGroup(f"{DRIVER}/rack", "node", ("b", "c"))]
    devices = [device("a"), device("b"), device("c")]
    tied = with_devices(shape("tied", ROOM), slice_spec(*devices), groups=groups)
    assert new_types(decided(pair, of_template("p", "pair"), types=[tied])) == ["tied"]
    mixed = with_devices(
        shape("mixed", ROOM), slice_spec(device("a"), device("b"), device("c", {"rack": "a"})), groups=groups[:1]
    )
    assert left(decided(pair, of_template("p", "pair"), types=[mixed])) == ["p"]


def test_partitions_share_the_counters_of_their_device() -> None:
    """K15-166: a device whose counters do not suffice is skipped; the search packs no more than counters allow."""
    halves = [device(f"half-{at}", {"kind": "half"}, takes={"gpu": {"slices": 4}}) for at in range(2)]
    sevenths = [device(f"small-{at}", {"kind": "small"}, takes={"gpu": {"slices": 1}}) for at in range(7)]
    mig = with_devices(shape("mig", ROOM), slice_spec(*halves, *sevenths, counters=[counter_set("gpu", slices=7)]))
    kind = f'device.attributes["{DRIVER}"].kind'
    half, small = exactly("r", 1, f'{kind} == "half"'), exactly("r", 1, f'{kind} == "small"')
    templates = [claim_template("half", half), claim_template("small", small)]
    result = decided(templates, [of_template(f"h{at}", "half") for at in range(2)], types=[mig])
    assert sizes(result) == [1, 1]
    wanted = [of_template("h", "half"), *(of_template(f"s{at}", "small") for at in range(3))]
    assert sizes(decided(templates, wanted, types=[mig])) == [4]
    assert len(sizes(decided(templates, wanted, of_template("s3", "small"), types=[mig]))) == 2


def test_claims_share_the_capacity_of_a_device() -> None:
    """K15-165: a shared device is used as long as its capacity suffices; without a request a claim takes all of it."""
    shared = device("gpu", capacity={"memory": "40Gi"}, allow_multiple_allocations=True)
    mps = with_devices(shape("mps", ROOM), slice_spec(shared))
    ten = claim_template("ten", exactly(capacity={"memory": "10Gi"}))
    assert sizes(decided(ten, [of_template(f"p{at}", "ten") for at in range(6)], types=[mps])) in ([2, 4], [3, 3])
    whole = claim_template("whole", exactly())
    assert sizes(decided(whole, [of_template(f"p{at}", "whole") for at in range(2)], types=[mps])) == [1, 1]
    lacking = claim_template("lacking", exactly(capacity={"cores": 1}))
    assert left(decided(lacking, of_template("p", "lacking"), types=[mps])) == ["p"]


def test_tainted_devices_are_for_claims_that_tolerate_them() -> None:
    """Beyond K15-172: Karpenter ignores device taints; the scheduler does not."""
    broken = DeviceTaint(key="broken", effect="NoSchedule")
    tainted = with_devices(shape("tainted", ROOM), slice_spec(device("gpu", taints=(broken,))))
    assert left(decided(claim_template("one", exactly()), of_template("p", "one"), types=[tainted])) == ["p"]
    tolerant = exactly(tolerations=(DeviceToleration(key="broken", operator="Exists"),))
    assert new_types(decided(claim_template("one", tolerant), of_template("p", "one"), types=[tainted])) == ["tainted"]


def test_pods_that_share_a_claim_share_a_node() -> None:
    """SCH-787: devices of a node bind a claim to it, so all pods that use the claim are planned together."""
    shared = resource_claim("shared", exactly())
    result = decided(shared, [using(f"p{at}", "shared", requests={"cpu": 2}) for at in range(3)], types=(*STD, ONE))
    assert (sizes(result), new_types(result)) == ([3], ["g1"])


def test_an_extended_resource_may_stand_for_a_claim() -> None:
    """Beyond K15-172: a class names an extended resource; nodes that have it themselves are used as before."""
    backed = device_class("backed", resource="example.com/gpu")
    asking = pod("p", {"cpu": 1, "example.com/gpu": 2})
    result = decided(asking, classes=[backed])
    assert new_types(result) == ["g4"] or new_types(result) == ["h2"]
    assert "example.com/gpu" not in result.new_claims[0].claim.spec.resources.requests
    native = shape("native", {**ROOM, "example.com/gpu": 2}, ONE.offerings)
    result = decided(asking, classes=[backed], types=(native,))
    assert new_types(result) == ["native"]
    assert result.new_claims[0].claim.spec.resources.requests["example.com/gpu"] == "2"


# -- nodes that are there ---------------------------------------------------------------------------------------------------


def test_pods_go_to_a_node_with_free_devices() -> None:
    """SCH-784: published slices count for initialized nodes; SCH-786: devices in use do not."""
    held = resource_claim("held", exactly(), held=[("n", "gpu-0")], on="n", by=["running"])
    running = using("running", "held", node_name="n")
    result = decided(
        with_gpus("n", 2),
        held,
        running,
        claim_template("one", exactly()),
        of_template("a", "one"),
        of_template("b", "one"),
    )
    assert (existing(result), sizes(result)) == ({"n": 1}, [1])


def test_an_allocated_claim_decides_the_node() -> None:
    """K15-151, beyond K15-154: the node selector of an allocation counts, also where it names the Node in a field."""
    held = resource_claim("held", exactly(), held=[("b", "gpu-0")], on="b", by=["running"])
    running = using("running", "held", node_name="b")
    result = decided(with_gpus("a", 2), with_gpus("b", 2), held, running, using("second", "held"))
    assert existing(result) == {"b": 1}


def test_a_claim_that_only_leaving_pods_hold_is_free() -> None:
    """K15-152, K15-173: pods of a leaving node move with their claims, which are allocated anew."""
    held = resource_claim("held", exactly(), held=[("old", "gpu-0")], on="old", by=["running"])
    running = using("running", "held", node_name="old")
    old = [*node_and_claim("old", ROOM, deleted=True, labels={"node.kubernetes.io/instance-type": "g4"})]
    result = decided(old, published("s", slice_spec(*gpus(4), node="old")), with_gpus("new", 1), held, running)
    assert existing(result) == {"new": 1}


def test_a_claim_held_by_something_else_keeps_its_node() -> None:
    """K15-152: a consumer that is no leaving pod keeps the allocation, and the pod waits."""
    held = resource_claim("held", exactly(), held=[("old", "gpu-0")], on="old", by=["running", "stranger"])
    running = using("running", "held", node_name="old")
    old = [*node_and_claim("old", ROOM, deleted=True)]
    result = decided(old, with_gpus("new", 1), held, running)
    assert (existing(result), left(result)) == ({}, ["running"])


def test_devices_of_a_node_that_starts_are_those_of_its_type() -> None:
    """K15-163: templates count for existing nodes not yet initialized, published devices for the others."""
    starting = node_and_claim("n", ROOM, labels={"node.kubernetes.io/instance-type": "g4"}, initialized=False)
    ready = node_and_claim("n", ROOM, labels={"node.kubernetes.io/instance-type": "g4"})
    wanted = [claim_template("one", exactly()), of_template("p", "one")]
    assert existing(decided(starting, wanted)) == {"n": 1}
    assert existing(decided(ready, wanted)) == {}


@pytest.mark.parametrize(
    ("generation", "slices", "expected"),
    [(1, 1, {"n": 1}), (1, 2, {}), (0, 1, {})],
    ids=["whole", "incomplete", "superseded"],
)
def test_only_whole_pools_of_the_newest_generation_count(
    generation: int, slices: int, expected: dict[str, int]
) -> None:
    """K15-162."""
    here = node_and_claim("n", ROOM)
    old = published("a", slice_spec(*gpus(1), node="n", generation=generation, slices=slices))
    newest = [] if generation else [published("b", slice_spec(node="n", generation=1))]
    result = decided(here, old, newest, claim_template("one", exactly()), of_template("p", "one"), types=STD)
    assert existing(result) == expected


def test_the_next_node_of_a_type_has_what_the_last_one_published() -> None:
    """Beyond SCH-784: types without templates learn their devices from nodes, but not what identifies a single device."""
    plain = shape("plain", ROOM)
    own = {"node.kubernetes.io/instance-type": "plain"}
    seen = [*node_and_claim("n", ROOM, labels=own), published("s", slice_spec(device("gpu", {"uuid": "1"}), node="n"))]
    held = resource_claim("held", exactly(), held=[("n", "gpu")], on="n", by=["running"])
    world = [seen, held, using("running", "held", node_name="n")]
    assert new_types(decided(world, claim_template("one", exactly()), of_template("p", "one"), types=[plain])) == [
        "plain"
    ]
    same_device = exactly("r", 1, f'device.attributes["{DRIVER}"].uuid == "1"')
    assert left(decided(world, claim_template("one", same_device), of_template("p", "one"), types=[plain])) == ["p"]


def test_a_claim_in_flight_that_may_become_several_types_has_what_all_of_them_have() -> None:
    """K15-167: devices are held on each of its types, so a pod joins only where every type has one left."""
    flight = claim("c", None, [wanted(labels.INSTANCE_TYPE, "In", "g1", "g4")], pool="np")
    pods_ = [of_template(f"p{at}", "one") for at in range(2)]
    result = decided(flight, claim_template("one", exactly()), pods_, types=(ONE, FOUR))
    assert existing(result) == {"c": 1}
    assert sizes(result) == [1]


def test_devices_of_claims_are_in_use_until_all_their_pods_leave() -> None:
    """K15-168: of a shared device only the shares of leaving pods are free."""
    shared = device("m", capacity={"memory": "40Gi"}, allow_multiple_allocations=True)
    seen = published("s", slice_spec(shared, node="n"))
    part = {"consumed_capacity": {"memory": "20Gi"}}
    stays = resource_claim("stays", exactly(), held=[("n", "m")], on="n", by=["a"], **part)
    leaves = resource_claim("leaves", exactly(), held=[("n", "m")], on="n", by=["b"], **part)
    old = node_and_claim("old", ROOM, deleted=True)
    want = [claim_template("w", exactly("r", 1, capacity={"memory": "20Gi"})), of_template("p", "w")]
    here = [node_and_claim("n", ROOM), seen, stays, leaves, using("a", "stays", node_name="n")]
    assert left(decided(here, using("b", "leaves", node_name="n"), want, types=STD)) == ["p"]
    after = decided(here, old, using("b", "leaves", node_name="old"), want, types=STD)
    assert "p" not in left(after)


def test_daemons_with_claims_are_overhead_once_claims_are_planned_for() -> None:
    """K15-174: they are left out only while requests of devices are ignored."""
    daemons = daemon_set("d", {"cpu": "6"}, resource_claims=(PodResourceClaim(name="gpu"),))
    assert sizes(plan(node_pool(), daemons, pods(2, {"cpu": 1}), types=(FOUR,))) == [2]
    assert sizes(decided(daemons, pods(2, {"cpu": 1}), types=(FOUR,))) == [1, 1]
