"""Affinity by host that leaves room for some pods only: the most important get it, on the cheapest and then the fewest nodes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from karpenter.api.core import Pod
from karpenter.model import labels
from karpenter.scheduling.demand import SchedulingNodeClaim
from karpenter.scheduling.objective import NO_EXPOSURE_LIMITS, Objective
from karpenter.scheduling.packing import exact_packing, packer
from karpenter.scheduling.scheduling_options import ArrivalForecast, SchedulingOptions
from support.builders import left, node_pool, plan, pod
from support.examples import examples
from support.instance_types import offering, shape
from support.topology_builders import affinity_term, app_pods, pod_affinity_to

#: The largest node, in CPU. Types cost what their CPU costs.
LARGEST = 5
TYPES = [
    shape(
        f"c{cpu}",
        {"cpu": cpu, "memory": "64Gi", "pods": 50},
        [offering("on-demand", zone, 0.1 * cpu) for zone in ("z1", "z2")],
        overhead={},
    )
    for cpu in range(1, LARGEST + 1)
]
_FREE = SchedulingOptions(objective=Objective(0.0, exposure=NO_EXPOSURE_LIMITS), arrival_forecast=ArrivalForecast.NONE)
#: Followers as (CPU, priority).
_Followers = Sequence[tuple[int, int]]


def follower(number: int, cpu: int, priority: int) -> Pod:
    return pod(f"f{number}", {"cpu": str(cpu)}, affinity=pod_affinity_to(affinity_term("web")), priority=priority)


def left_by_priority(followers: _Followers, placed: Sequence[bool]) -> list[int]:
    """Followers without a place by priority, the highest first: the smaller, the better."""
    levels = sorted({priority for _, priority in followers}, reverse=True)
    out = [priority for (_, priority), has_place in zip(followers, placed, strict=True) if not has_place]
    return [out.count(level) for level in levels]


def least_left(followers: _Followers, targets: int) -> list[int]:
    """The best of all ways to put followers beside the targets, one on each node."""
    best = []
    for places in product(range(targets + 1), repeat=len(followers)):
        used = [
            sum(cpu for (cpu, _), at in zip(followers, places, strict=True) if at == node) for node in range(targets)
        ]
        if all(1 + cpu <= LARGEST for cpu in used):
            best.append(left_by_priority(followers, [at < targets for at in places]))
    return min(best)


@settings(max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.integers(1, 4), st.sampled_from([0, 10, 100])), min_size=1, max_size=6), st.integers(1, 2))
def test_the_most_important_followers_get_a_place(followers: list[tuple[int, int]], targets: int) -> None:
    """A target may have a node of its own, so that its followers have the most room."""
    waiting = [follower(number, *each) for number, each in enumerate(followers)]
    web = app_pods(targets, {"cpu": "1"}, app="web")
    out = set(left(plan(node_pool(), web, waiting, types=TYPES, options=_FREE)))
    placed = [each.metadata.name not in out for each in waiting]
    assert left_by_priority(followers, placed) == least_left(followers, targets)


def test_an_important_follower_displaces_two_others() -> None:
    """More pods would have a place without it."""
    waiting = [follower(0, 4, 100), follower(1, 2, 0), follower(2, 2, 0)]
    result = plan(node_pool(), app_pods(1, {"cpu": "1"}, app="web"), waiting, types=TYPES, options=_FREE)
    assert left(result) == ["f1", "f2"]


@pytest.mark.parametrize("others", [4, 7, 11])
def test_of_packings_that_cost_the_same_the_one_with_the_fewest_nodes_is_exact(
    others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a pod has no place, here in another zone than its target: what it counts must not blur the difference."""
    found: list[list[SchedulingNodeClaim]] = []

    def recorded(*arguments: object) -> list[SchedulingNodeClaim] | None:
        claims = exact_packing.cheapest_claims(*arguments)
        if claims is not None:
            found.append(claims)
        return claims

    monkeypatch.setattr(packer, "cheapest_claims", recorded)
    web = app_pods(1, {"cpu": "1"}, app="web", node_selector={labels.ZONE: "z1"})
    elsewhere = pod(
        "f0", {"cpu": "100m"}, affinity=pod_affinity_to(affinity_term("web")), node_selector={labels.ZONE: "z2"}
    )
    waiting = [pod(f"p{number}", {"cpu": "1"}) for number in range(others)]
    result = plan(node_pool(), web, elsewhere, waiting, types=TYPES, options=_FREE)
    assert left(result) == ["f0"]
    assert {len(claims) for claims in found} == {-(-(others + 1) // LARGEST)}
