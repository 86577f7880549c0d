"""`--packing fewest-pods`: pods are dealt to new nodes as Karpenter's algorithm deals them, and what it leaves out is no more."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from karpenter.api.core import Pod
from karpenter.scheduling.scheduling_options import PackingMode
from karpenter.settings import Settings, resolve_settings
from support.builders import node_pool, plan, pods, sizes
from support.examples import examples
from support.instance_types import offering, shape
from support.karpenter_order import pods_left_out, pods_per_node
from support.mixed_clusters import clusters
from support.plan_checker import violations
from support.plan_checker_cluster import ClusterObjects

_KARPENTER = resolve_settings({"profile": "karpenter"}, {}).scheduling_options()
_QUIET = list(HealthCheck)
_CPU = ("250m", "500m", "700m", "1", "1500m", "3", "5")


@st.composite
def groups_of_pods(draw: st.DrawFn) -> list[Pod]:
    """Groups that request different amounts of CPU: their order is the same for every reader of SCH-231."""
    chosen = draw(st.lists(st.sampled_from(_CPU), min_size=1, max_size=4, unique=True))
    groups = [pods(draw(st.integers(1, 15)), {"cpu": cpu, "memory": "500Mi"}, prefix=f"c{cpu}") for cpu in chosen]
    return [each for group in groups for each in group]


def _types(most_pods: int) -> list[object]:
    return [
        shape(f"c{cpu}", {"cpu": cpu, "memory": "64Gi", "pods": most_pods}, [offering("on-demand", "z1", price)])
        for cpu, price in ((2, 0.10), (8, 0.37))
    ]


@settings(max_examples=examples(160), deadline=None, suppress_health_check=_QUIET)
@given(groups_of_pods(), st.sampled_from([3, 8, 30]))
def test_pods_are_dealt_as_by_karpenter(waiting: list[Pod], most_pods: int) -> None:
    """SCH-231, SCH-260: each pod joins the open claim with the fewest pods that takes it, else a new one."""
    types = _types(most_pods)
    solution = plan(node_pool(), waiting, types=types, options=_KARPENTER)
    assert sizes(solution) == pods_per_node(waiting, [node_pool()], types)
    assert not solution.unschedulable


def test_the_fewest_pods_come_first() -> None:
    """Two large pods open a node each; small ones are dealt in turn, where first-fit would fill the first node."""
    waiting = [*pods(2, {"cpu": "5"}, prefix="large"), *pods(4, {"cpu": "500m"}, prefix="small")]
    fewest_pods, classic = (
        plan(node_pool(), waiting, types=_types(30), options=replace(_KARPENTER, packing_mode=mode))
        for mode in (PackingMode.FEWEST_PODS, PackingMode.CLASSIC)
    )
    assert (sizes(fewest_pods), sizes(classic)) == ([3, 3], [1, 5])


def test_of_nodes_with_as_many_pods_the_one_that_grew_last_comes_first() -> None:
    """SCH-260: equal claims keep their order when they are sorted anew for each pod; one that grew stood before them."""
    large, middle = pods(3, {"cpu": "3"}), pods(2, {"cpu": "1500m"}, prefix="middle")
    small = pods(5, {"cpu": "250m"}, prefix="small")
    solution = plan(node_pool(), large, middle, small, types=_types(8), options=_KARPENTER)
    assert sizes(solution) == [5, 5]


@settings(max_examples=examples(120), deadline=None, suppress_health_check=_QUIET)
@given(groups_of_pods(), st.sampled_from([{"cpu": "8"}, {"cpu": "20"}, {"nodes": "2"}, {"cpu": "4", "nodes": "3"}]))
def test_limits_leave_out_no_more_pods_than_with_karpenter(waiting: list[Pod], limits: dict[str, str]) -> None:
    """SCH-382, SCH-384."""
    pool, types = node_pool(limits=limits), _types(30)
    solution = plan(pool, waiting, types=types, options=_KARPENTER)
    assert len(solution.unschedulable) <= len(pods_left_out(waiting, [pool], types))


@settings(max_examples=examples(160), deadline=None, suppress_health_check=_QUIET)
@given(clusters())
def test_such_plans_are_valid(cluster: ClusterObjects) -> None:
    assert violations(cluster, plan(*cluster.objects(), types=cluster.types, options=_KARPENTER)) == []


@pytest.mark.parametrize("given_packing", ["cheapest", "classic", "fewest-pods"])
def test_a_packing_that_is_given_wins_over_the_profile(given_packing: str) -> None:
    settings = resolve_settings({"profile": "karpenter", "packing": given_packing}, {})
    assert settings.scheduling_options().packing_mode == PackingMode(given_packing)
    assert Settings().scheduling_options().packing_mode is PackingMode.CHEAPEST
