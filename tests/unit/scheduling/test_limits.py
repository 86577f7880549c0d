"""Limits of NodePools: what could be launched within a limit is launched, and pods left out join the claims of the same plan."""

from __future__ import annotations

import pytest

from karpenter.instancetypes.instance_type import InstanceType
from karpenter.model import labels
from karpenter.scheduling.failed_filters import NodePoolLimitReached
from karpenter.scheduling.solution import Solution, ViolationCause
from support.builders import ANY_CAPACITY, left, new_types, node_pool, owner, plan, pod, pods, sizes, wanted
from support.instance_types import inc, offering, shape


def medium_and_others() -> list[InstanceType]:
    """A type that holds one pod of the tests exactly, and larger ones that cost more or hold two."""
    sold = {"medium": (2, 4, 0.04), "wide": (2, 8, 0.05), "large": (4, 8, 0.1), "huge": (16, 64, 0.5)}
    return [
        shape(
            name,
            {"cpu": cpu, "memory": f"{gib}Gi", "pods": 30},
            [offering("on-demand", zone, price) for zone in ("z1", "z2")],
        )
        for name, (cpu, gib, price) in sold.items()
    ]


EXACT = {"cpu": "1500m", "memory": "2500Mi"}


def per_pool(result: Solution) -> dict[str, int]:
    """Pods by the NodePool they are launched from."""
    counts: dict[str, int] = {}
    for claim in result.new_claims:
        counts[claim.node_pool] = counts.get(claim.node_pool, 0) + len(claim.pods)
    return counts


def test_pods_that_fit_a_limit_exactly_all_get_nodes() -> None:
    """SCH-384: ten nodes of 2 CPU and 4Gi are the whole limit; no claim reserves more than the node it is for."""
    result = plan(node_pool(limits={"cpu": "20", "memory": "40Gi"}), pods(10, EXACT), types=medium_and_others())
    assert (left(result), new_types(result)) == ([], ["medium"] * 10)
    assert {claim.instance_types for claim in result.new_claims} == {("medium",)}


def test_a_limit_far_from_reached_does_not_change_the_price_nor_the_types() -> None:
    """SCH-384: claims are narrowed only as far as limits make it necessary."""
    free, limited = (
        plan(node_pool(limits=limits), pods(5, EXACT), types=medium_and_others())
        for limits in ({}, {"cpu": "1000", "memory": "1000Gi"})
    )
    assert limited.price_per_hour == free.price_per_hour
    assert [claim.instance_types for claim in limited.new_claims] == [claim.instance_types for claim in free.new_claims]


@pytest.mark.parametrize(("cpu", "largest"), [("40", "large"), ("39", "wide")])
def test_claims_get_the_types_that_limits_still_allow(cpu: str, largest: str) -> None:
    """SCH-384: ten nodes may all become one of four CPU where the limit is 40. Equal claims stay equal."""
    result = plan(node_pool(limits={"cpu": cpu, "memory": "400Gi"}), pods(10, EXACT), types=medium_and_others())
    assert left(result) == []
    assert {claim.instance_types[-1] for claim in result.new_claims} == {largest}


def test_min_values_keep_their_types_under_a_limit() -> None:
    """SCH-360 with SCH-384: a claim reserves the types that minValues needs, the smallest first."""
    pool = node_pool(
        requirements=[ANY_CAPACITY, wanted(labels.INSTANCE_TYPE, "Exists", least=3)],
        limits={"cpu": "8", "memory": "64Gi"},
    )
    result = plan(pool, pods(3, EXACT), types=medium_and_others())
    assert all(set(claim.instance_types) == {"medium", "wide", "large"} for claim in result.new_claims)
    assert sum(4 for _ in result.new_claims) <= 8


def test_a_heavier_pool_keeps_its_pods_while_its_limit_is_far() -> None:
    """SCH-313 with SCH-384: thirty nodes of 4Gi are within 200Gi, so no pod goes to the lighter pool."""
    pools = [node_pool("heavy", weight=10, limits={"memory": "200Gi"}), node_pool("light", weight=1)]
    assert per_pool(plan(*pools, pods(30, EXACT), types=medium_and_others())) == {"heavy": 30}


def test_among_plans_that_serve_all_the_one_with_most_pods_in_the_heavier_pool_counts() -> None:
    """SCH-313: the heavier pool has 8 CPU. Its price does not send pods to the lighter pool."""
    dear = shape("dear", {"cpu": 4, "memory": "16Gi", "pods": 9}, [offering("on-demand", "z1", 2.0)])
    cheap = shape("cheap", {"cpu": 16, "memory": "64Gi", "pods": 30}, [offering("on-demand", "z1", 0.1)])
    pools = [node_pool("heavy", weight=10, limits={"cpu": "8"}), node_pool("light")]
    result = plan(*pools, pods(12, {"cpu": "900m"}), types={"heavy": [dear], "light": [cheap]})
    assert per_pool(result) == {"heavy": 8, "light": 4}


def test_a_pod_that_a_limit_leaves_out_joins_a_claim_launched_from_a_lighter_pool() -> None:
    """SCH-260, SCH-382: one node of each pool is allowed; the light claim grows for the pod left out."""
    heavy = node_pool("heavy", weight=10, limits={"nodes": "1"})
    light = node_pool("light", [ANY_CAPACITY, wanted(labels.ZONE, "In", "z1")], limits={"nodes": "1", "cpu": "8"})
    waiting = [
        *pods(2, {"cpu": "3500m"}, prefix="either"),
        pod("first", {"cpu": "3"}, node_selector={labels.ZONE: "z1"}),
        pod("last", {"cpu": "800m"}, node_selector={labels.ZONE: "z1"}),
    ]
    result = plan(heavy, light, waiting, types=inc(8))
    assert left(result) == []


def test_a_pod_left_out_makes_a_claim_grow_within_the_limit() -> None:
    """SCH-382: the claim is launched at 2 CPU; with the pod it needs 4 CPU, which the limit allows in place of two."""
    pool = node_pool(limits={"nodes": "1", "cpu": "4"})
    types = [
        shape("two", {"cpu": 2, "memory": "8Gi", "pods": 9}, [offering("on-demand", "z1", 0.1)]),
        shape("four", {"cpu": 4, "memory": "8Gi", "pods": 9}, [offering("on-demand", "z2", 0.9)]),
    ]
    result = plan(pool, pod("a", {"cpu": "1500m"}), pod("b", {"cpu": "1500m"}), types=types)
    assert (left(result), sizes(result)) == ([], [2])


@pytest.mark.parametrize("missing", [1, 3])
def test_the_advice_to_raise_a_limit_is_enough_and_no_more(missing: int) -> None:
    """SCH-382: the limit misses the room for some nodes of 2 CPU; one node more needs exactly what the advice says."""
    limit, types = 20 - 2 * missing + 1, medium_and_others()[:2]
    result = plan(node_pool(limits={"cpu": str(limit)}), pods(10, EXACT), types=types)
    assert len(left(result)) == missing
    (obstacle,) = {f for each in result.unschedulable if each.nearest_fit for f in each.nearest_fit.failed_filters}
    assert isinstance(obstacle, NodePoolLimitReached)
    assert (obstacle.remaining, obstacle.needed) == (1000, 2000)
    raised = plan(node_pool(limits={"cpu": str(limit + 1)}), pods(10, EXACT), types=types)
    assert len(left(raised)) == missing - 1


def test_exposure_does_not_send_pods_to_a_lighter_pool() -> None:
    """SCH-313: the heavier pool may launch one node, which holds all; exposure is relaxed."""
    meta = {"owner_references": (owner("ReplicaSet", "web"),)}
    replicas = [pod(f"web-{number}", {"cpu": "100m"}, meta=meta) for number in range(8)]
    pools = [node_pool("heavy", weight=10, limits={"nodes": "1"}), node_pool("light")]
    result = plan(*pools, replicas, types=inc(8))
    assert per_pool(result) == {"heavy": 8}
    assert [violation.cause for violation in result.exposure_violations] == [ViolationCause.LIMITS]
