"""Stocks: offerings of which a known number is left, as of the hosts of one kind (SCH-581)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from karpenter.instancetypes.instance_type import InstanceType, Offering
from karpenter.model import labels
from karpenter.model.requirements import requirements_from_labels
from karpenter.scheduling.scheduling_options import SchedulingOptions
from karpenter.scheduling.solution import Solution
from support.builders import asked, claim, left, node_pool, pods, sizes, wanted
from support.instance_types import shape
from support.plans_on_types import SoldTypes, plan_on_types

ONE, TWO = {"cpu": "1"}, {"cpu": "2"}


def hosts(name: str, cpu: int, price: float, free: int, *, of: str = "lab", zone: str = "z1") -> InstanceType:
    """So many free hosts of one kind."""
    own = shape(name, {"cpu": cpu, "memory": "64Gi", "pods": 99}, overhead={})
    place = requirements_from_labels({labels.ZONE: zone, labels.CAPACITY_TYPE: "on-demand"})
    offering = Offering(place, price, free > 0, reservation_capacity=free, stock=f"{of}/{name}/{zone}/on-demand")
    return replace(own, offerings=(offering,))


def plan(*objects: object, types: SoldTypes, options: SchedulingOptions | None = None) -> Solution:
    return plan_on_types(objects, types, lambda _: labels.WELL_KNOWN, options)


def launched(result: Solution) -> list[str]:
    return sorted(each.instance_types[0] for each in result.new_claims)


@pytest.mark.parametrize("reserved_capacity", [True, False])
def test_no_more_nodes_are_planned_than_are_left(reserved_capacity: bool) -> None:
    """Whatever the gate ReservedCapacity says: a stock is no reservation."""
    options = replace(SchedulingOptions(), reserved_capacity=reserved_capacity)
    result = plan(node_pool(), pods(5, TWO), types=[hosts("h", 2, 0.1, 3)], options=options)
    assert (sizes(result), len(left(result))) == ([1, 1, 1], 2)


def test_more_expensive_hosts_take_what_the_cheap_ones_do_not_hold() -> None:
    result = plan(node_pool(), pods(5, TWO), types=[hosts("cheap", 2, 0.1, 3), hosts("dear", 2, 0.4, 3)])
    assert (launched(result), left(result)) == (["cheap"] * 3 + ["dear"] * 2, [])


def test_a_claim_is_for_hosts_of_one_stock_only() -> None:
    """So the next pass knows what it will take, and a launch takes no host that was planned for another."""
    result = plan(node_pool(), pods(3, TWO), types=[hosts("a", 2, 0.1, 1), hosts("b", 4, 0.2, 9)])
    assert all(len(each.instance_types) == 1 for each in result.new_claims)
    assert {operator for operator, _ in asked(result, labels.INSTANCE_TYPE)} == {"In"}


def test_what_hosts_cost_counts_as_without_a_count() -> None:
    """Nothing of a stock is paid for already: the cheapest nodes for all pods are launched, and that is proven."""
    result = plan(node_pool(), pods(8, ONE), types=[hosts("small", 2, 0.30, 9), hosts("large", 8, 1.0, 1)])
    assert launched(result) == ["large"]
    result = plan(node_pool(), pods(2, ONE), types=[hosts("small", 2, 0.30, 9), hosts("large", 8, 1.0, 1)])
    assert launched(result) == ["small"]


@pytest.mark.parametrize(("of", "count"), [("lab", 2), ("office", 4)])
def test_node_pools_share_the_stock_of_one_class_and_no_other(of: str, count: int) -> None:
    """Hosts of two classes may be of one type, and are different hosts."""
    types = {"one": [hosts("h", 2, 0.1, 2)], "two": [hosts("h", 2, 0.1, 2, of=of)]}
    result = plan(node_pool("one"), node_pool("two"), pods(6, TWO), types=types)
    assert len(result.new_claims) == count


def test_a_claim_that_has_not_launched_takes_its_host_already() -> None:
    place = {labels.INSTANCE_TYPE: "h", labels.ZONE: "z1", labels.CAPACITY_TYPE: "on-demand"}
    coming = claim("coming", {"cpu": "2"}, [wanted(key, "In", value) for key, value in place.items()])
    pinned = pods(3, TWO)
    result = plan(node_pool(), coming, pinned, types=[hosts("h", 2, 0.1, 2)])
    assert len(result.new_claims) == 1


def test_pods_beyond_the_hosts_go_to_a_cloud() -> None:
    cloud = shape("m", {"cpu": 2, "memory": "64Gi", "pods": 99}, overhead={})
    sold = Offering(requirements_from_labels({labels.ZONE: "z1", labels.CAPACITY_TYPE: "on-demand"}), 0.9)
    types = {"hosts": [hosts("h", 2, 0.1, 2)], "cloud": [replace(cloud, offerings=(sold,))]}
    result = plan(node_pool("hosts"), node_pool("cloud"), pods(5, TWO), types=types)
    assert (launched(result), left(result)) == (["h", "h", "m", "m", "m"], [])


def test_limits_of_the_node_pool_count_as_well() -> None:
    result = plan(node_pool(limits={"cpu": "4"}), pods(5, TWO), types=[hosts("h", 2, 0.1, 3)])
    assert len(result.new_claims) == 2
    result = plan(node_pool(limits={"cpu": "40"}), pods(5, TWO), types=[hosts("h", 2, 0.1, 3)])
    assert len(result.new_claims) == 3


def test_zones_have_stocks_of_their_own() -> None:
    """Pods that want a zone wait for its hosts."""
    types = [hosts("a", 2, 0.1, 1, zone="z1"), hosts("b", 2, 0.1, 3, zone="z2")]
    in_zones = [pods(2, TWO, prefix=f"p-{zone}", node_selector={labels.ZONE: zone}) for zone in ("z1", "z2")]
    result = plan(node_pool(), *in_zones, types=types)
    assert launched(result) == ["a", "b", "b"]
    assert [name.split("-")[1] for name in left(result)] == ["z1"]
