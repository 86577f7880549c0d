"""Limits and weights of NodePools: never more pods are left out than by Karpenter's algorithm."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from karpenter.api.core import Pod
from karpenter.api.karpenter import NodePool
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.model import labels
from karpenter.model import resources as res
from support.brute_force import most_served
from support.builders import ANY_CAPACITY, node_pool, plan, pods, wanted
from support.examples import examples
from support.instance_types import WELL_KNOWN, offering, shape
from support.karpenter_order import pods_left_out
from support.plan_checker import violations
from support.plan_checker_cluster import ClusterObjects

_QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
_LIMITS = (
    {},
    {"cpu": "4"},
    {"cpu": "12"},
    {"cpu": "20", "memory": "40Gi"},
    {"memory": "8Gi"},
    {"memory": "40Gi"},
    {"nodes": "1"},
    {"nodes": "3", "cpu": "16"},
)


@dataclass(frozen=True)
class Limited:
    """NodePools with limits and weights, and pods for them."""

    types: tuple[InstanceType, ...]
    pools: tuple[NodePool, ...]
    pods: tuple[Pod, ...]


@st.composite
def limited(draw: st.DrawFn, *, most_pods: int = 32, most_pools: int = 3) -> Limited:
    types = []
    for number in range(draw(st.integers(2, 6))):
        cpu = draw(st.sampled_from([1, 2, 4, 8, 16]))
        gib = cpu * draw(st.sampled_from([2, 4, 8]))
        price = round((0.04 * cpu + 0.005 * gib) * draw(st.integers(8, 12)) / 10, 4)
        capacity = {"cpu": cpu, "memory": f"{gib}Gi", "pods": draw(st.sampled_from([4, 10, 30]))}
        types.append(shape(f"t{number}", capacity, [offering("on-demand", zone, price) for zone in ("z1", "z2")]))
    pools = []
    for number in range(draw(st.integers(1, most_pools))):
        zones = draw(st.sampled_from([(), (), ("z1",)]))
        own = [ANY_CAPACITY, *([wanted(labels.ZONE, "In", *zones)] if zones else [])]
        weight = draw(st.sampled_from([None, 10, 50]))
        pools.append(node_pool(f"p{number}", own, weight=weight, limits=draw(st.sampled_from(_LIMITS))))
    waiting: list[Pod] = []
    for kind in range(draw(st.integers(1, 4))):
        requests = {
            "cpu": draw(st.sampled_from(["250m", "500m", "1", "1500m", "3"])),
            "memory": draw(st.sampled_from(["100Mi", "1Gi", "3Gi", "6Gi"])),
        }
        selector = draw(st.sampled_from([{}, {}, {labels.ZONE: "z1"}, {labels.ZONE: "z2"}]))
        waiting += pods(draw(st.sampled_from([1, 2, 4, 8])), requests, prefix=f"k{kind}", node_selector=selector)
    return Limited(tuple(types), tuple(pools), tuple(waiting[:most_pods]))


def check(case: Limited) -> None:
    solution = plan(case.pools, case.pods, types=case.types)
    karpenter = pods_left_out(case.pods, case.pools, case.types)
    assert len(solution.unschedulable) <= len(karpenter)
    cluster = ClusterObjects(case.pods, case.pools, (), (), (), case.types, WELL_KNOWN)
    assert violations(cluster, solution) == []


@settings(max_examples=examples(200), deadline=None, suppress_health_check=_QUIET)
@given(limited())
def test_no_more_pods_are_left_out_than_by_karpenter(case: Limited) -> None:
    """SCH-260, SCH-382, SCH-384: and no claim may become more than limits allow."""
    check(case)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=_QUIET)
@given(limited(most_pods=6, most_pools=1))
def test_what_can_be_launched_within_limits_is_launched(case: Limited) -> None:
    """SCH-382, SCH-384: no way to divide a few pods among nodes within the limits serves more of them."""
    (pool,) = case.pools
    waiting = [pod for pod in case.pods if not pod.spec.node_selector]
    requests = [res.parse_resources(pod.spec.containers[0].resources.requests) for pod in waiting]
    sizes = [{**requested, res.PODS: res.ONE_UNIT} for requested in requests]
    solution = plan(pool, waiting, types=case.types)
    served = len(waiting) - len(solution.unschedulable)
    assert served == most_served(sizes, case.types, res.parse_resources(pool.spec.limits))


@pytest.mark.soak
@settings(max_examples=examples(10_000), deadline=None, suppress_health_check=_QUIET)
@given(limited())
def test_nor_in_a_long_series(case: Limited) -> None:
    """SCH-260, SCH-382, SCH-384."""
    check(case)
