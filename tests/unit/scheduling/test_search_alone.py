"""Which packings a plan of hundreds of pods is made of: the search alone, where nothing else can be as cheap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf
from random import Random
from typing import Any

import pytest

from karpenter.api.core import Pod
from karpenter.model import labels
from karpenter.scheduling.arrival_forecast import MAX_EXPECTED_PODS
from karpenter.scheduling.demand import Packing
from karpenter.scheduling.node_share import CappedDemands
from karpenter.scheduling.objective import NO_EXPOSURE_LIMITS, NODE_FEE_PER_HOUR, Objective
from karpenter.scheduling.packing.packer import Packer
from karpenter.scheduling.pass_result import PassResult
from karpenter.scheduling.scheduling_options import PackingMode, SchedulingOptions
from karpenter.scheduling.scheduling_passes import SEARCH_ONLY_FROM, SchedulingPasses
from karpenter.scheduling.solution import Solution
from support.builders import left, node_pool, plan, pod
from support.instance_types import inc, offering, shape
from support.topology_builders import affinity_term, app_pods, pod_affinity_to, spread_over

_ZONES = [offering("on-demand", f"z{number}", 1.0) for number in range(2)]
_FULL = [shape("one", {"cpu": 4, "memory": "16Gi", "pods": 20}, _ZONES, overhead={})]


def packings_made(monkeypatch: pytest.MonkeyPatch, pods: list[Pod], types: Any, limits: Any = None) -> list[str]:
    """The names of the packings that a plan for the pods was chosen from, in the order they were made."""
    made: list[str] = []

    def noting(pack: Callable[..., Packing]) -> Callable[..., Packing]:
        def noted(*arguments: Any, **named: Any) -> Packing:
            packing = pack(*arguments, **named)
            made.append(packing.name)
            return packing

        return noted

    for name in ("classic", "best_value", "searched"):
        monkeypatch.setattr(Packer, name, noting(getattr(Packer, name)))
    pool = node_pool(limits=limits) if limits else node_pool()
    assert left(plan(pool, pods, types=types)) == []
    return made


def test_the_classic_packing_is_not_finished_once_it_costs_more_than_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of so many pods mostly costs a fifth more, and took a tenth of the decision."""
    ended: list[Packing | None] = []
    below = Packer.classic_below

    def noting(self: Packer, searched: Packing) -> Packing | None:
        ended.append(below(self, searched))
        return ended[-1]

    monkeypatch.setattr(Packer, "classic_below", noting)
    dear = shape("dear", {"cpu": 64, "memory": "256Gi", "pods": 200}, [offering("on-demand", "z1", 30.0)])
    assert set(packings_made(monkeypatch, app_pods(300, {"cpu": "700m"}), [*inc(4), dear])) == {"priced"}
    assert ended == [None]


@pytest.mark.parametrize("seed", [2, 34, 38])
def test_hundreds_of_pods_cost_no_more_than_the_classic_packing(seed: int) -> None:
    """Sizes that fill the largest nodes exactly: the classic packing is optimal, and a search stays 1 % above it."""
    dice = Random(seed)
    count = dice.choice([100, 120, 160, 250, 400])
    sizes = [(dice.choice([500, 1000, 2000, 4000]), dice.choice([512, 1024, 2048])) for _ in range(count)]
    pods = [pod(f"p{at}", {"cpu": f"{cpu}m", "memory": f"{memory}Mi"}) for at, (cpu, memory) in enumerate(sizes)]
    types = inc(dice.choice([8, 16, 64]))
    costs = [_cost(plan(node_pool(), pods, types=types, options=_options(mode))) for mode in _COMPARED]
    assert costs[0] <= costs[1]


_COMPARED = (PackingMode.CHEAPEST, PackingMode.CLASSIC)


def _options(mode: PackingMode) -> SchedulingOptions:
    return SchedulingOptions(packing_mode=mode, objective=Objective(exposure=NO_EXPOSURE_LIMITS))


def _cost(made: Solution) -> float:
    return round(made.price_per_hour + NODE_FEE_PER_HOUR * len(made.new_claims), 9)


def test_few_pods_are_packed_the_classic_way_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "classic" in packings_made(monkeypatch, app_pods(70, {"cpu": "700m"}), inc(16))


def test_pods_under_limits_are_packed_the_classic_way_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which pods limits leave out is judged by packings that keep to the weights of NodePools."""
    made = packings_made(monkeypatch, app_pods(120, {"cpu": "700m"}), inc(16), limits={"cpu": "1000"})
    assert made[0] == "classic"


@pytest.mark.parametrize(
    ("count", "passes"), [pytest.param(120, 1, id="many-nodes-in-each-zone"), pytest.param(20, 2, id="few-pods")]
)
def test_zones_are_not_balanced_once_more_where_each_has_many_nodes(
    monkeypatch: pytest.MonkeyPatch, count: int, passes: int
) -> None:
    """Another order of zones is another pass and two more packings."""
    run, orders = SchedulingPasses._run_pass, []

    def noting(self: SchedulingPasses, *arguments: Any) -> Any:
        orders.append(self._context.domain_order.name)
        return run(self, *arguments)

    monkeypatch.setattr(SchedulingPasses, "_run_pass", noting)
    pods = app_pods(count, {"cpu": "4"}, spread=[spread_over(labels.ZONE)])
    assert left(plan(node_pool(), pods, types=_FULL)) == []
    assert orders.count("BALANCED") + 1 == passes


@pytest.mark.parametrize("seed", [30, 37, 56])
def test_plans_that_node_shares_divide_cost_no_more_than_the_classic_packing(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """No node has more than its share of the pods in either."""
    cap, costs = SchedulingPasses._capped, []

    def noting(self: SchedulingPasses, best: Any, cheapest: Packing, max_pods_in: Any, start: Any) -> Packing | None:
        capped = cap(self, best, cheapest, max_pods_in, start)
        demands = CappedDemands([keyed_demand.demand for keyed_demand in best.result.demands], max_pods_in).demands
        classic = self._new_packer(demands, best.result).classic()
        assert capped is not None
        costs.append((capped.objective_value, classic.objective_value, capped.name))
        return capped

    monkeypatch.setattr(SchedulingPasses, "_capped", noting)
    dice = Random(seed)
    sizes = [(dice.choice([500, 1000, 2000, 4000]), dice.choice([512, 1024, 2048])) for _ in range(400)]
    pods = [pod(f"p{at}", {"cpu": f"{cpu}m", "memory": f"{memory}Mi"}) for at, (cpu, memory) in enumerate(sizes)]
    assert left(plan(node_pool(), pods, types=inc(256))) == []
    assert costs
    assert all(capped <= classic + 1e-9 for capped, classic, _ in costs), costs


def test_room_for_pods_to_come_is_valued_only_where_the_classic_packing_is_made_as_well() -> None:
    """Its large nodes leave more room than those of a search."""
    assert MAX_EXPECTED_PODS < SEARCH_ONLY_FROM


@pytest.mark.parametrize("limits", [{}, {"cpu": "40"}], ids=["without-limits", "within-limits"])
@pytest.mark.parametrize("together", [False, True], ids=["alone", "beside-others"])
def test_a_classic_packing_that_is_finished_below_a_search_is_the_classic_packing(
    monkeypatch: pytest.MonkeyPatch, limits: dict[str, str], together: bool
) -> None:
    """Also where some pods can never be the first on a node, or no node can be launched for them; it is made once only."""
    pack, compared = SchedulingPasses._pack, []

    def noting(self: SchedulingPasses, result: PassResult) -> Packing:
        packer = self._new_packer([keyed_demand.demand for keyed_demand in result.demands], result)
        classic = packer.classic()
        dearer = replace(classic, objective_value=inf)
        below = packer.classic_below(dearer)
        assert below is packer.classic_below(dearer)
        assert below is not None
        compared.append((_nodes(below), _nodes(classic)))
        return pack(self, result)

    monkeypatch.setattr(SchedulingPasses, "_pack", noting)
    followers = (
        app_pods(5, {"cpu": "1"}, app="follower", prefix="f", affinity=pod_affinity_to(affinity_term("web")))
        if together
        else []
    )
    own = [*app_pods(40, {"cpu": "700m"}), *app_pods(20, {"cpu": "3"}, prefix="large")]
    plan(node_pool(limits=limits) if limits else node_pool(), own, followers, types=inc(8))
    assert compared
    assert all(one == other for one, other in compared)


def _nodes(packing: Packing) -> tuple[object, ...]:
    nodes = [(claim.template.name, claim.types, claim.contents) for claim in packing.claims]
    return (nodes, packing.unpacked, packing.remaining_limits, packing.pods_below_weight)
