"""Spread over several topology keys at once: which domain combinations are considered, and what happens in doubt."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from karpenter.model import labels
from karpenter.scheduling.topology.domain_placement import DomainPlacement
from karpenter.scheduling.topology.topology import DomainCombination, combination_order
from support.builders import ANY_CAPACITY, left, node_and_claim, node_pool, plan, wanted, where
from support.instance_types import SIZE, STD, inc, shape
from support.topology_builders import app_pods, spread_over

ZONE, TYPE, KIND, ARCH = labels.ZONE, labels.INSTANCE_TYPE, labels.CAPACITY_TYPE, labels.ARCH
RACK, TIER, DISK = "example.com/rack", "example.com/tier", "example.com/disk"


def test_combinations_are_those_that_are_sold_however_many_values_there_are() -> None:
    """SCH-547: 300 types in three zones are more combinations than fit a list; only the last fifty types suit the pods."""
    small = [shape(f"c{number:03}", {"cpu": 2, "memory": "4Gi", "pods": 10}) for number in range(250)]
    large = [shape(f"m{number:03}", {"cpu": 6, "memory": "12Gi", "pods": 10}) for number in range(50)]
    waiting = app_pods(
        6, {"cpu": "1"}, spread=[spread_over(ZONE), spread_over(TYPE)], affinity=where(SIZE, "In", "large")
    )
    result = plan(node_pool(requirements=[ANY_CAPACITY]), waiting, types=(*small, *large))
    assert left(result) == []
    assert {claim.cheapest_offering.zone for claim in result.new_claims} == {"z1", "z2", "z3"}
    assert len({claim.instance_types for claim in result.new_claims}) == 6


def test_pods_spread_over_two_hundred_racks_and_all_zones() -> None:
    """SCH-547: each rack takes one pod, though racks times zones are 600 combinations."""
    racks = [f"r{number:03}" for number in range(200)]
    pool = node_pool(requirements=[ANY_CAPACITY, wanted(RACK, "In", *racks)])
    result = plan(pool, app_pods(200, {"cpu": "1"}, spread=[spread_over(RACK), spread_over(ZONE)]), types=inc(2))
    assert left(result) == []
    assert len({claim.claim.metadata.labels[RACK] for claim in result.new_claims}) == 200


def test_existing_nodes_of_many_combinations_are_considered() -> None:
    """SCH-547: nodes count even where no pool sells their combination any more."""
    racks = [f"r{number:03}" for number in range(300)]
    pool = node_pool(requirements=[ANY_CAPACITY, wanted(ZONE, "In", "z9"), wanted(RACK, "In", *racks)])
    nodes = [
        node_and_claim(f"n{zone}", {"cpu": "4"}, labels={RACK: f"x{zone}", ZONE: zone}) for zone in ("z1", "z2", "z3")
    ]
    spread = [spread_over(RACK, 300), spread_over(ZONE, 2)]
    result = plan(pool, nodes, app_pods(3, {"cpu": "1"}, spread=spread), types=inc(2))
    assert left(result) == []
    assert len(result.placed_on_existing) == 3


def test_a_label_that_would_be_written_anyway_decides_which_pods_count() -> None:
    """SCH-482: each workload counts nodes of its own label only and leaves the other's open; neither blocks the other."""
    pool = node_pool(
        requirements=[ANY_CAPACITY, wanted(TIER, "In", "gold", "silver"), wanted(DISK, "In", "fast", "slow")]
    )
    gold = app_pods(4, {"cpu": "1"}, prefix="gold", spread=[spread_over(ZONE)], affinity=where(TIER, "In", "gold"))
    fast = app_pods(4, {"cpu": "500m"}, prefix="fast", spread=[spread_over(ZONE)], affinity=where(DISK, "In", "fast"))
    result = plan(pool, gold, fast)
    assert left(result) == []


@pytest.mark.parametrize("asked", [(KIND, "on-demand"), (ARCH, "amd64")], ids=["capacity-type", "architecture"])
def test_well_known_labels_that_pods_leave_open_are_decided_by_price(asked: tuple[str, str]) -> None:
    """SCH-482: a node that may or may not count is pinned to the cheaper of both."""
    pool = node_pool(requirements=[ANY_CAPACITY, wanted(TIER, "In", "gold", "silver")])
    types = (*STD, *(shape(f"arm-{n}", {"cpu": n, "memory": f"{n}Gi", "pods": 5 * n}, arch="arm64") for n in (1, 2, 4)))
    gold = app_pods(4, {"cpu": "1"}, prefix="gold", spread=[spread_over(ZONE)], affinity=where(TIER, "In", "gold"))
    open_ = app_pods(
        4, {"cpu": "500m"}, prefix="open", spread=[spread_over(ZONE)], affinity=where(asked[0], "In", asked[1])
    )
    result = plan(pool, gold, open_, types=types)
    assert left(result) == []


@pytest.mark.parametrize("racks", [2, 200], ids=["all-of-the-values-there-are", "sold-ones-of-many"])
def test_combinations_are_always_offered_in_the_order_of_their_values(
    monkeypatch: pytest.MonkeyPatch, racks: int
) -> None:
    """Of combinations that are alike the first is chosen, so plans depend on this order."""
    allow, offered = DomainPlacement.allowed_combinations, []

    def noting(self: DomainPlacement) -> Sequence[DomainCombination]:
        offered.append(list(allow(self)))
        return offered[-1]

    monkeypatch.setattr(DomainPlacement, "allowed_combinations", noting)
    names = [f"r{number:03}" for number in reversed(range(racks))]
    pool = node_pool(requirements=[ANY_CAPACITY, wanted(RACK, "In", *names)])
    nodes = [node_and_claim(f"n{zone}", {"cpu": "4"}, labels={RACK: "r000", ZONE: zone}) for zone in ("z3", "z1")]
    assert (
        left(plan(pool, nodes, app_pods(9, {"cpu": "1"}, spread=[spread_over(RACK), spread_over(ZONE)]), types=inc(2)))
        == []
    )
    assert max(map(len, offered)) > 5
    assert all(combinations == sorted(combinations, key=combination_order) for combinations in offered)
