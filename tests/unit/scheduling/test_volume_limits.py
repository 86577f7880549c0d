"""Attach limits: how many volumes a node takes (SCH-470)."""

from __future__ import annotations

import time
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpenter.instancetypes.instance_type import InstanceType
from karpenter.model import labels
from karpenter.scheduling.volume_usage import (
    ATTACHMENT_RESOURCE_PREFIX,
    UNLIMITED_VOLUMES,
    VolumeAttachments,
    VolumeUsage,
    volume_limits_of_types,
)
from karpenter.state.pod_volumes import ClusterVolumes, VolumesByDriver
from karpenter.state.snapshot import ClusterSnapshot
from support.builders import categories, flatten, left, new_types, node_and_claim, node_pool, plan, pod, sizes, snapshot
from support.instance_types import index_of, shape
from support.volume_builders import DRIVER, csi_node, pv, pvc, user

OTHER = "other.example.com"
ROOM: dict[str, str | int] = {"cpu": 4, "memory": "8Gi"}


def held_by(state: ClusterSnapshot, name: str) -> VolumeUsage:
    """The volumes that a node holds."""
    limits = volume_limits_of_types(state.volumes, state.nodes, ())
    return VolumeAttachments(state.volumes, limits, ()).usage_of_node(
        next(view for view in state.nodes if view.name == name)
    )


def mounts(*claims: str, driver: str = DRIVER) -> VolumesByDriver:
    return {driver: frozenset(claims)}


def test_pods_fit_as_long_as_their_driver_attaches_more() -> None:
    """SCH-470"""
    some = VolumeUsage({DRIVER: 3}, mounts("held"))
    assert some.count_fitting([mounts(name) for name in "abc"]) == 2
    assert some.with_pods([mounts("a"), mounts("b")]).count_fitting([mounts("c")]) == 0
    assert some.count_fitting([mounts("a", "b"), mounts("c")]) == 1
    assert some.count_fitting([mounts("a", "b", "c")]) == 0


def test_pods_that_share_a_claim_all_fit() -> None:
    """S-138: a claim several pods share is attached once."""
    state = [csi_node("n", ebs=10), pvc("data", "v"), pv("v"), node_and_claim("n", {"cpu": 100})]
    shown = snapshot(flatten(state))
    hundred = [shown.volumes.resolve(user(f"p{number}", "data")).volumes_by_driver for number in range(100)]
    empty = held_by(shown, "n")
    assert empty.count_fitting(hundred) == 100
    assert empty.with_pods(hundred).count_fitting([mounts(f"x{number}") for number in range(20)]) == 9


def test_a_pod_without_new_volumes_fits_on_a_node_beyond_its_limit() -> None:
    """The scheduler lets such a pod in; a limit that came late must not keep it from its volume."""
    full = VolumeUsage({DRIVER: 1}, mounts("a", "b"))
    assert full.count_fitting([mounts("a"), mounts("b", "a"), mounts("c")]) == 2
    assert full.count_fitting([mounts("a")]) == 1
    assert full.count_fitting([mounts("c")]) == 0


def test_a_driver_without_limit_takes_everything() -> None:
    """SCH-470, S-139"""
    many = [mounts(f"c{number}", driver=OTHER) for number in range(1000)]
    assert UNLIMITED_VOLUMES.count_fitting(many) == VolumeUsage({DRIVER: 1}, mounts("a")).count_fitting(many) == 1000
    assert UNLIMITED_VOLUMES.with_pods(many) is UNLIMITED_VOLUMES


def test_a_node_holds_what_its_pods_mount() -> None:
    """SCH-093"""
    running = user("p", "a", "b", node_name="n")
    there = flatten([node_and_claim(name, {"cpu": 4}) for name in "nm"])
    claims = [pvc("a", "va"), pvc("b", "vb"), pv("va"), pv("vb")]
    state = snapshot(there, csi_node("n", ebs=3), claims, running, pod("q", node_name="n"))
    assert held_by(state, "n").count_fitting([mounts("default/a"), mounts("default/c"), mounts("default/d")]) == 2
    assert held_by(state, "m") is UNLIMITED_VOLUMES


def test_new_nodes_allow_what_those_of_their_type_do() -> None:
    """SCH-293 Beyond: of nodes that differ, the one that allows least counts."""
    named = {"a": "large", "b": "large", "c": "small", "d": "plain"}
    there = [node_and_claim(name, {"cpu": 4}, labels={labels.INSTANCE_TYPE: kind}) for name, kind in named.items()]
    limits = [csi_node("a", ebs=25), csi_node("b", ebs=24, other=7), csi_node("c", ebs=0), csi_node("gone", ebs=1)]
    state = snapshot(flatten(there), limits)
    volume_limits = volume_limits_of_types(state.volumes, state.nodes, ())
    assert volume_limits == {"large": {DRIVER: 24, "other": 7}, "small": {DRIVER: 0}}
    assert volume_limits_of_types(ClusterVolumes(), state.nodes, ()) == {}


def test_a_type_may_tell_itself_what_it_allows() -> None:
    """K15-090, K15-512: as an instance-type file or a NodeOverlay may have it; of several who tell, the least counts."""
    capacity: dict[str, str | int] = {ATTACHMENT_RESOURCE_PREFIX + DRIVER: 9, **ROOM}
    index = index_of([shape("a", capacity), shape("b", capacity), shape("c", ROOM)])
    state = snapshot(flatten(node_and_claim("n", {"cpu": 4}, labels={labels.INSTANCE_TYPE: "a"})), csi_node("n", ebs=5))
    volume_limits = volume_limits_of_types(state.volumes, state.nodes, [index, index])
    assert volume_limits == {"a": {DRIVER: 5}, "b": {DRIVER: 9}}


def with_volumes(name: str, claims: Iterable[str]) -> list[object]:
    """A pod and the volumes behind its claims."""
    named = list(claims)
    return [user(name, *named), *(pvc(each, f"v-{each}") for each in named), *(pv(f"v-{each}") for each in named)]


def limited(count: int) -> list[InstanceType]:
    """Types with room for all pods of these tests, which attach so many volumes."""
    return [shape("some", {ATTACHMENT_RESOURCE_PREFIX + DRIVER: count, "pods": 50, **ROOM})]


def test_types_that_attach_fewer_volumes_than_a_pod_has_are_dropped() -> None:
    """K15-091, K15-S17"""
    wanted = with_volumes("p", (f"c{number}" for number in range(30)))
    larger = shape("larger", {ATTACHMENT_RESOURCE_PREFIX + DRIVER: 30, "pods": 50, "cpu": 8, "memory": "16Gi"})
    assert left(plan(node_pool(), wanted, types=limited(27))) == ["p"]
    assert new_types(plan(node_pool(), wanted, types=[*limited(27), larger])) == ["larger"]


def test_pods_whose_volumes_together_are_too_many_get_nodes_of_their_own() -> None:
    """K15-091, K15-S17: volumes that both have count once."""
    first = [f"a{number}" for number in range(20)]
    second = [f"b{number}" for number in range(20)]
    apart = plan(node_pool(), with_volumes("p", first), with_volumes("q", second), types=limited(27))
    assert sizes(apart) == [1, 1]
    common = first[:2]
    together = [*with_volumes("p", [*common, *first[2:14]]), user("q", *common, *second[:12])]
    behind = [wire for each in second[:12] for wire in (pvc(each, f"v-{each}"), pv(f"v-{each}"))]
    assert sizes(plan(node_pool(), together, behind, types=limited(26))) == [2]
    assert sizes(plan(node_pool(), together, behind, types=limited(25))) == [1, 1]


def test_a_volume_that_cannot_be_resolved_fails_its_pod_before_any_node_is_tried() -> None:
    """K15-094: although an existing node has room."""
    there = node_and_claim("n", {"cpu": 4})
    result = plan(node_pool(), flatten(there), user("p", "missing"), pod("q"), types=limited(27))
    assert (left(result), categories(result)) == (["p"], {"volume"})


def test_a_node_without_a_csi_node_allows_as_many_volumes_as_others_of_its_type() -> None:
    other_node = node_and_claim("a", {"cpu": 4}, labels={labels.INSTANCE_TYPE: "large"})
    starting = node_and_claim("b", {"cpu": 4}, labels={labels.INSTANCE_TYPE: "large"}, initialized=False)
    ready = node_and_claim("c", {"cpu": 4}, labels={labels.INSTANCE_TYPE: "large"})
    state = snapshot(flatten([other_node, starting, ready]), csi_node("a", ebs=2))
    three = [mounts(name) for name in "xyz"]
    assert (held_by(state, "b").count_fitting(three), held_by(state, "c").count_fitting(three)) == (2, 3)


def test_a_driver_that_publishes_no_count_attaches_without_limit_whatever_others_of_the_type_say() -> None:
    """K15-093: the limits of the type are for drivers that the node has not published."""
    there = [node_and_claim(name, {"cpu": 4}, labels={labels.INSTANCE_TYPE: "large"}) for name in "ab"]
    state = snapshot(flatten(there), csi_node("a", ebs=2), csi_node("b", ebs=None))
    three = [mounts(name) for name in "xyz"]
    assert (held_by(state, "a").count_fitting(three), held_by(state, "b").count_fitting(three)) == (2, 3)


def asked(wanted: list[frozenset[str]], limit: int) -> list[int]:
    """How many attachments each of the pods asks of a node of a type with such a limit."""
    all_of_them = [{DRIVER: own} for own in wanted]
    attaching = VolumeAttachments(ClusterVolumes(), {"t": {DRIVER: limit}}, all_of_them)
    return [sum(attaching.attachment_requests(one).values()) // 1000 for one in all_of_them]


def test_claims_that_pods_share_are_set_aside_on_every_node() -> None:
    own = [frozenset((f"own-{number}", "shared")) for number in range(30)]
    assert asked(own, limit=25) == [1] * 30
    attaching = VolumeAttachments(ClusterVolumes(), {"t": {DRIVER: 25}}, [{DRIVER: one} for one in own])
    extended = attaching.with_attachments(index_of([shape("t", ROOM), shape("u", ROOM)]))
    slots = [instance_type.allocatable[ATTACHMENT_RESOURCE_PREFIX + DRIVER] // 1000 for instance_type in extended.types]
    assert slots[0] == 24, "one of them is the shared one's"
    assert slots[1] > 1000, "nobody knows"


@pytest.mark.parametrize("shared", [7, 24])
def test_many_shared_claims_are_counted_with_each_pod(shared: int) -> None:
    together = frozenset(f"s{number}" for number in range(shared))
    assert asked([together, together], limit=25) == [shared] * 2


SHARING = st.lists(st.frozensets(st.integers(0, 30).map(str), max_size=6), min_size=1, max_size=12)


@given(SHARING, st.integers(0, 30))
def test_pods_whose_attachments_fit_by_number_fit_by_name(wanted: list[frozenset[str]], limit: int) -> None:
    """A plan never places more volumes than a node attaches."""
    attaching = VolumeAttachments(ClusterVolumes(), {"t": {DRIVER: limit}}, [{DRIVER: own} for own in wanted])
    free = (
        attaching.with_attachments(index_of([shape("t", ROOM)]))
        .types[0]
        .allocatable[ATTACHMENT_RESOURCE_PREFIX + DRIVER]
    )
    fitting: list[VolumesByDriver] = []
    for own in wanted:
        free -= attaching.attachment_requests({DRIVER: own}).get(ATTACHMENT_RESOURCE_PREFIX + DRIVER, 0)
        if free >= 0:
            fitting.append({DRIVER: own})
    assert free < 0 or len(fitting) == len(wanted)
    assert VolumeUsage({DRIVER: limit}, {}).count_fitting(fitting) == len(fitting)


CLAIMS = st.frozensets(st.sampled_from("abcdef"), max_size=4)
WANTED = st.lists(st.dictionaries(st.sampled_from([DRIVER, OTHER, "free"]), CLAIMS, max_size=3), max_size=8)
LIMITS = st.dictionaries(st.sampled_from([DRIVER, OTHER]), st.integers(0, 5))


@given(LIMITS, st.dictionaries(st.sampled_from([DRIVER, OTHER]), CLAIMS), WANTED)
def test_pods_fit_together_exactly_if_they_fit_one_after_the_other(
    limits: dict[str, int], held: dict[str, frozenset[str]], wanted: list[dict[str, frozenset[str]]]
) -> None:
    """One by one or all at once: the same pods fit."""
    some, fitting = VolumeUsage(limits, held), 0
    while fitting < len(wanted) and some.count_fitting([wanted[fitting]]):
        some = some.with_pods([wanted[fitting]])
        fitting += 1
    assert VolumeUsage(limits, held).count_fitting(wanted) == fitting


@pytest.mark.speed
@pytest.mark.parametrize("limit", [25, 1_000_000])
def test_twenty_thousand_pods_are_counted_in_no_time(limit: int) -> None:
    some = VolumeUsage({DRIVER: limit}, {})
    wanted = [mounts(f"c{number}") for number in range(20_000)]
    begun = time.thread_time()
    assert some.count_fitting(wanted) == min(limit, 20_000)
    assert time.thread_time() - begun < 1
