"""Which packings a plan of hundreds of pods is made of: the search alone, where nothing else can be as cheap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from karpenter.api.core import Pod
from karpenter.model import labels
from karpenter.scheduling.demand import Packing
from karpenter.scheduling.packing.packer import Packer
from karpenter.scheduling.scheduling_passes import SchedulingPasses
from support.builders import left, node_pool, plan
from support.instance_types import inc, offering, shape
from support.topology_builders import app_pods, even

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


def test_a_search_near_its_bound_is_compared_with_no_other_packing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The classic packing of so many pods costs a fifth more than the bound; it took a tenth of the decision."""
    assert set(packings_made(monkeypatch, app_pods(300, {"cpu": "700m"}), inc(16))) == {"priced"}


def test_a_search_far_from_its_bound_is_compared_with_the_classic_packing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound counts parts of nodes: three fifths of each are of no use to these pods."""
    assert "classic" in packings_made(monkeypatch, app_pods(120, {"cpu": "2500m"}), _FULL)


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
    pods = app_pods(count, {"cpu": "4"}, spread=[even(labels.ZONE)])
    assert left(plan(node_pool(), pods, types=_FULL)) == []
    assert orders.count("BALANCED") + 1 == passes
