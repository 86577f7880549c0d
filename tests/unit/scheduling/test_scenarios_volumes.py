"""Where volumes let pods run, in whole plans (SCH §18)."""

from __future__ import annotations

import pytest

from karpenter.api.meta import LabelSelector
from karpenter.api.scheduling_constraints import Affinity, PodAffinity, PodAffinityTerm
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.model import labels
from karpenter.scheduling.explain.nearest_fit_messages import nearest_fit_sentence
from support.builders import (
    ANY_CAPACITY,
    affinity,
    asked,
    categories,
    claim,
    details,
    existing,
    expr,
    left,
    new_types,
    node_and_claim,
    node_pool,
    plan,
    pod,
    sizes,
    term,
    wanted,
)
from support.instance_types import offering, shape
from support.volume_builders import DRIVER, csi_node, pv, pvc, storage_class, user, zonal

POOL = node_pool()


@pytest.mark.parametrize(
    ("objects", "named"),
    [
        pytest.param((), "getting persistent volume claim", id="missing"),
        pytest.param((pvc("disk", "gone"),), "failed to validate pvc", id="volume-gone"),
        pytest.param((pvc("disk", storage_class="none"),), "failed to get storage class", id="class-gone"),
        pytest.param((pvc("disk", phase="Lost"),), "non-existent persistentvolume", id="lost"),
        pytest.param((pvc("disk"),), "must define a storage class", id="no-class"),
    ],
)
def test_a_pod_whose_volume_cannot_be_had_waits_and_others_are_served(objects: tuple[object, ...], named: str) -> None:
    """S-130, S-142"""
    result = plan(POOL, objects, user("p", "disk", requests={"cpu": "1"}), pod("q", {"cpu": "1"}))
    assert (left(result), categories(result), sizes(result)) == (["p"], {"volume"}, [1])
    assert named in details(result)


def test_a_class_and_a_selector_that_share_no_zone_leave_no_place() -> None:
    """S-132"""
    actual = storage_class("standard", {labels.ZONE: ("z1", "z3")})
    waiting = user("p", "disk", node_selector={labels.ZONE: "z2"})
    assert left(plan(POOL, actual, pvc("disk", storage_class="standard"), waiting)) == ["p"]


def test_a_volume_elsewhere_than_the_selector_leaves_no_place() -> None:
    """S-133"""
    waiting = user("p", "disk", node_selector={labels.ZONE: "z1"})
    assert left(plan(POOL, zonal("v", "z3"), pvc("disk", "v"), waiting)) == ["p"]


def test_a_node_is_launched_where_the_volume_is() -> None:
    """S-137: also when the pod's own terms are relaxed."""
    preferred = affinity(preferred=[(1, term(expr(labels.ZONE, "In", "z9")))])
    result = plan(POOL, zonal("v", "z2"), pvc("disk", "v"), user("p", "disk", affinity=preferred))
    assert asked(result, labels.ZONE) == [("In", ("z2",))]


def test_a_node_elsewhere_is_no_place_for_a_pod_with_a_volume() -> None:
    there = [
        node_and_claim(name, {"cpu": "4"}, labels={labels.ZONE: zone}) for name, zone in (("a", "z1"), ("b", "z3"))
    ]
    result = plan(POOL, there, zonal("v", "z3"), pvc("disk", "v"), user("p", "disk", requests={"cpu": "1"}))
    assert existing(result) == {"b": 1}


def test_a_local_volume_binds_to_no_host_and_a_network_volume_to_its_own() -> None:
    """S-134, S-135"""
    host = term(expr(labels.HOSTNAME, "In", "gone"))
    assert sizes(plan(POOL, pv("v", host, local={"path": "/disk"}), pvc("disk", "v"), user("p", "disk"))) == [1]
    assert left(plan(POOL, pv("v", host), pvc("disk", "v"), user("p", "disk"))) == ["p"]


def test_volumes_in_one_of_two_zones_leave_room_for_anti_affinity() -> None:
    """S-136"""
    apart = Affinity(
        pod_anti_affinity=PodAffinity(
            required=(
                PodAffinityTerm(topology_key=labels.ZONE, label_selector=LabelSelector(match_labels={"app": "db"})),
            )
        )
    )
    pods = [user(name, f"disk-{name}", affinity=apart, meta={"labels": {"app": "db"}}) for name in ("a", "b")]
    disks = [obj for name in ("a", "b") for obj in (zonal(f"v-{name}", "z1", "z2"), pvc(f"disk-{name}", f"v-{name}"))]
    result = plan(POOL, disks, pods)
    assert sorted(asked(result, labels.ZONE)) == [("In", ("z1",)), ("In", ("z2",))]


def test_a_claim_shared_by_many_is_attached_once() -> None:
    """S-138"""
    there = node_and_claim("n", {"cpu": "100", "pods": "200"}, labels={labels.ZONE: "z1"})
    many = [user(f"p{number}", "disk", requests={"cpu": "10m"}) for number in range(100)]
    result = plan(POOL, there, csi_node("n", **{DRIVER: 1}), zonal("v", "z1"), pvc("disk", "v"), many)
    assert existing(result) == {"n": 100}


def test_a_node_takes_as_many_volumes_as_its_driver_attaches() -> None:
    """SCH-470"""
    there = node_and_claim("n", {"cpu": "100", "pods": "200"}, labels={labels.ZONE: "z1"})
    disks = [obj for n in range(5) for obj in (zonal(f"v{n}", "z1"), pvc(f"disk{n}", f"v{n}"))]
    many = [user(f"p{n}", f"disk{n}", requests={"cpu": "10m"}) for n in range(5)]
    result = plan(POOL, there, csi_node("n", **{DRIVER: 3}), disks, many)
    assert (existing(result), sum(sizes(result))) == ({"n": 3}, 2)


def test_replicas_with_disks_of_their_own_share_a_node() -> None:
    """SCH-900.1: the claims of a StatefulSet have different names and mean the same."""
    disks = [obj for n in range(4) for obj in (zonal(f"v{n}", "z1"), pvc(f"disk{n}", f"v{n}"))]
    result = plan(POOL, disks, [user(f"p{n}", f"disk{n}", requests={"cpu": "200m"}) for n in range(4)])
    assert sizes(result) == [4]


def _with_disks(count: int, each: int = 1) -> list[object]:
    """Pods with so many claims of their own."""
    claims = [[f"disk-{number}-{place}" for place in range(each)] for number in range(count)]
    waiting = [user(f"p{number}", *own, requests={"cpu": "100m"}) for number, own in enumerate(claims)]
    return [storage_class(), [pvc(name, storage_class="standard") for own in claims for name in own], waiting]


def _known(name: str, limit: int) -> list[object]:
    """A full node of a type, whose CSINode shows the attach limit of the type."""
    return [
        node_and_claim(f"there-{name}", {"cpu": "0"}, labels={labels.INSTANCE_TYPE: name}),
        csi_node(f"there-{name}", ebs=limit),
    ]


def test_new_nodes_get_no_more_volumes_than_their_type_attaches() -> None:
    """SCH-293 Beyond: so much is known once a node of the type runs."""
    types = [_shape("t", 8)]
    result = plan(POOL, _known("t", 3), _with_disks(8), types=types)
    assert (left(result), sorted(sizes(result))) == ([], [2, 3, 3])
    assert sizes(plan(POOL, _known("other", 3), _with_disks(8), types=types)) == [8]


def test_a_type_that_attaches_enough_is_launched_for_many_volumes() -> None:
    result = plan(POOL, _known("a", 2), _with_disks(2, each=3), types=[_shape("a", 4), _shape("b", 8)])
    assert (left(result), new_types(result)) == ([], ["b"])


def test_a_pod_with_more_volumes_than_any_node_attaches_gets_that_reason() -> None:
    result = plan(POOL, _known("t", 2), _with_disks(1, each=3), types=[_shape("t", 4)])
    assert left(result) == ["p0"]
    nearest = result.unschedulable[0].nearest_fit
    assert nearest is not None
    assert "attachable-volumes-csi-ebs.csi.aws.com" in nearest_fit_sentence(nearest)


def test_attachments_are_not_asked_of_the_provider() -> None:
    result = plan(POOL, _known("t", 3), _with_disks(2), types=[_shape("t", 4)])
    assert set(result.new_claims[0].claim.spec.resources.requests) == {"cpu", "pods"}


def test_a_claim_on_its_way_takes_no_more_volumes_than_its_types_attach() -> None:
    coming = claim("coming", None, [ANY_CAPACITY, wanted(labels.INSTANCE_TYPE, "In", "t")])
    result = plan(POOL, coming, _known("t", 3), _with_disks(5), types=[_shape("t", 8)])
    assert (left(result), existing(result), sizes(result)) == ([], {"coming": 3}, [2])


def _shape(name: str, cpu: int) -> InstanceType:
    return shape(name, {"cpu": cpu, "memory": "64Gi", "pods": 100}, [offering("on-demand", "z1", float(cpu))])
