"""New nodes for few pods are optimal, whatever they ask of nodes and of each other on a host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from karpenter.api.core import Container, ContainerPort, Pod, ResourceRequirements
from karpenter.api.meta import LabelSelector
from karpenter.api.scheduling_constraints import Affinity, PodAffinity, PodAffinityTerm, TopologySpreadConstraint
from karpenter.instancetypes.instance_type import BurstableCpu
from karpenter.model import labels
from karpenter.scheduling.objective import NO_EXPOSURE_LIMITS, Objective
from karpenter.scheduling.packing import exact_packing
from karpenter.scheduling.scheduling_options import ArrivalForecast, SchedulingOptions
from karpenter.scheduling.search import packing_problem
from support import mixed_clusters
from support.brute_force import UNSERVED, cheapest_partition
from support.builders import ANY_CAPACITY, affinity, expr, node_pool, plan, pod, pool_taint, term, tolerating, wanted
from support.examples import examples
from support.instance_types import WELL_KNOWN, offering, shape
from support.mixed_clusters import CUSTOM
from support.plan_checker import violations
from support.plan_checker_cluster import ClusterObjects
from support.topology_builders import affinity_term

_QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
FEE = 0.01
OPTIONS = SchedulingOptions(
    objective=Objective(FEE, exposure=NO_EXPOSURE_LIMITS), arrival_forecast=ArrivalForecast.NONE
)
_OPEN = wanted(CUSTOM, "Exists")


@st.composite
def few_pods(draw: st.DrawFn) -> ClusterObjects:
    """Up to six pods that mix selectors, taints, host ports, spread and affinity by host; some types are burstable."""
    taint = draw(st.sampled_from([(), (), (pool_taint("hard"),)]))
    pools = [
        node_pool("open", [ANY_CAPACITY, *draw(st.sampled_from([(), (_OPEN,), (wanted(CUSTOM, "In", "a", "b"),)]))])
    ]
    if draw(st.booleans()):
        pools.append(node_pool("other", template={"taints": taint}))
    waiting = [draw(_pod(number)) for number in range(draw(st.integers(1, 6)))]
    types = tuple(replace(each, burstable_cpu=draw(_burstable)) for each in draw(mixed_clusters.types()))
    return ClusterObjects(tuple(waiting), tuple(pools), (), (), (), types, WELL_KNOWN)


#: Guaranteed CPU and the price beyond it, dear and cheap compared with prices in `mixed_clusters`; none for half of the types.
_burstable = st.none() | st.builds(
    BurstableCpu, st.sampled_from([200, 400, 1600]), st.sampled_from([None, 0.05, 0.4, 0.9])
)


@st.composite
def _pod(draw: st.DrawFn, number: int) -> Pod:
    requests = {"cpu": draw(st.sampled_from(["250m", "500m", "1", "1500m", "3"])), "memory": "500Mi"}
    app = draw(st.sampled_from(["x", "y", "z"]))
    selector = LabelSelector(match_labels={"app": app})
    pod_anti_affinity_to, spread = draw(st.integers(0, 5)) == 0, draw(st.integers(0, 5)) == 0
    term_apart = PodAffinityTerm(topology_key=labels.HOSTNAME, label_selector=selector)
    follows = draw(st.sampled_from(["x", "y", "z", app])) if draw(st.integers(0, 3)) == 0 else None
    constraint = TopologySpreadConstraint(
        max_skew=draw(st.integers(1, 2)),
        topology_key=labels.HOSTNAME,
        when_unsatisfiable="DoNotSchedule",
        label_selector=selector,
    )
    node_affinity = affinity(term(draw(mixed_clusters.expressions))) if draw(st.booleans()) else Affinity()
    ports = (ContainerPort(container_port=80, host_port=80),) if draw(st.integers(0, 7)) == 0 else ()
    return pod(
        f"p{number}",
        meta={"labels": {"app": app}},
        containers=(Container(resources=ResourceRequirements(requests=requests), ports=ports),),
        affinity=Affinity(
            node_affinity=node_affinity.node_affinity,
            pod_affinity=PodAffinity(required=(affinity_term(follows),)) if follows else None,
            pod_anti_affinity=PodAffinity(required=(term_apart,)) if pod_anti_affinity_to else None,
        ),
        topology_spread_constraints=(constraint,) if spread else (),
        tolerations=(tolerating("hard"),) if draw(st.booleans()) else (),
    )


def check(cluster: ClusterObjects) -> None:
    assert is_cheapest_where_proven(cluster) is not False


def is_cheapest_where_proven(cluster: ClusterObjects) -> bool | None:
    """Whether the plan says that it is optimal; None where it need not, as not all pods can have nodes in every order of binding.

    If it says so, no partition is cheaper; and none has nodes for more pods, whether it says so or not.
    """
    solution = plan(list(cluster.objects()), types=cluster.types, options=OPTIONS)
    assert violations(cluster, solution) == []
    cheapest = cheapest_partition(cluster, FEE)
    assert len(solution.unschedulable) <= cheapest // UNSERVED
    if not solution.new_claims or not solution.is_optimal:
        return False if solution.new_claims and cheapest < UNSERVED else None
    cost = solution.price_per_hour + solution.cpu_surplus_per_hour + FEE * len(solution.new_claims)
    assert solution.optimality_gap is None or solution.optimality_gap >= 0
    assert cost + UNSERVED * len(solution.unschedulable) <= cheapest + 1e-9
    return True


@settings(max_examples=examples(120), deadline=None, suppress_health_check=_QUIET)
@given(few_pods())
def test_no_partition_of_up_to_six_pods_is_cheaper(cluster: ClusterObjects) -> None:
    """SCH-865: price and fee, against every partition of the pods over every type and offering."""
    check(cluster)


@pytest.mark.soak
@settings(max_examples=examples(5_000), deadline=None, suppress_health_check=_QUIET)
@given(few_pods())
def test_nor_in_a_long_series(cluster: ClusterObjects) -> None:
    """SCH-865."""
    check(cluster)


@settings(max_examples=examples(40), deadline=None, suppress_health_check=_QUIET)
@given(few_pods())
def test_nor_cheaper_than_enumerated_columns(cluster: ClusterObjects) -> None:
    """SCH-865: the way of more pods than dynamic programming takes, on few."""
    with columns_alone():
        is_cheapest_where_proven(cluster)


@pytest.mark.soak
@settings(max_examples=examples(5_000), deadline=None, suppress_health_check=_QUIET)
@given(few_pods())
def test_nor_cheaper_than_enumerated_columns_in_a_long_series(cluster: ClusterObjects) -> None:
    """SCH-865."""
    with columns_alone():
        is_cheapest_where_proven(cluster)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=_QUIET)
@given(few_pods())
def test_nor_cheaper_than_the_integer_program_over_nodes(cluster: ClusterObjects) -> None:
    """SCH-865: the way of more pods that fit the same nodes, on few."""
    with node_program_alone():
        is_cheapest_where_proven(cluster)


@pytest.mark.soak
@settings(max_examples=examples(5_000), deadline=None, suppress_health_check=_QUIET)
@given(few_pods())
def test_nor_cheaper_than_the_integer_program_over_nodes_in_a_long_series(cluster: ClusterObjects) -> None:
    """SCH-865."""
    with node_program_alone():
        is_cheapest_where_proven(cluster)


@contextmanager
def columns_alone() -> Iterator[None]:
    """Without dynamic programming, for however few groups."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact_packing, "MAX_STATES", 0)
        patch.setattr(packing_problem, "MAX_GROUPS_PER_SIGNATURE", 100)
        yield


@contextmanager
def node_program_alone() -> Iterator[None]:
    """Without dynamic programming and columns, for however few groups."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact_packing, "MAX_STATES", 0)
        patch.setattr(packing_problem, "MAX_GROUPS_PER_SIGNATURE", 0)
        yield


@pytest.mark.parametrize("each", [1, 2])
def test_a_dozen_and_more_different_pods_are_packed_at_a_proven_optimum(each: int) -> None:
    """SCH-865: twenty groups of one pod, or fourteen of two: against the cheapest nodes that have enough CPU in sum."""
    sizes = [150 + 70 * number for number in range(20 if each == 1 else 14)]
    waiting = [pod(f"p{size}-{copy}", {"cpu": f"{size}m"}) for size in sizes for copy in range(each)]
    prices = {2: 0.10, 4: 0.19, 8: 0.37, 16: 0.73}
    types = [
        shape(f"c{cpu}", {"cpu": cpu, "memory": "99Gi", "pods": 99}, [offering("on-demand", "z1", price)], overhead={})
        for cpu, price in prices.items()
    ]
    solution = plan(node_pool(), waiting, types=types, options=OPTIONS)
    least = [0.0]  # by CPU in millicores / 10
    for needed in range(1, sum(sizes) * each // 10 + 1):
        least.append(min(least[max(0, needed - cpu * 100)] + price + FEE for cpu, price in prices.items()))
    cost = solution.price_per_hour + FEE * len(solution.new_claims)
    assert (solution.is_optimal, cost) == (True, pytest.approx(least[-1]))


def test_pods_that_each_narrow_another_label_share_a_node() -> None:
    """SCH-865: a zone, a capacity type and an architecture: one node has all three."""
    asked = [(labels.ZONE, "z1"), (labels.CAPACITY_TYPE, "spot"), (labels.ARCH, "amd64")]
    waiting = [
        pod(f"p{number}", {"cpu": "1"}, affinity=affinity(term(expr(key, "In", value))))
        for number, (key, value) in enumerate(asked)
    ]
    types = [
        shape(f"c{cpu}", {"cpu": cpu, "memory": f"{cpu}Gi", "pods": 9}, [offering("spot", "z1", cpu * price)])
        for cpu, price in ((2, 0.03), (4, 0.02))
    ]
    solution = plan(node_pool(), waiting, types=types, options=OPTIONS)
    assert ([len(claim.pods) for claim in solution.new_claims], solution.is_optimal) == ([3], True)


def test_thousands_of_small_equal_pods_are_packed_by_the_search() -> None:
    """More pods than the exact packing takes, and more on one node than a recursion could hold."""
    types = [shape("large", {"cpu": "64", "memory": "64Gi", "pods": 5_000}, [offering("on-demand", "z1", 2.0)])]
    waiting = [pod(f"p{number}", {"cpu": "10m", "memory": "16Mi"}) for number in range(3_000)]
    solution = plan(node_pool(), waiting, types=types, options=OPTIONS)
    assert (sum(len(claim.pods) for claim in solution.new_claims), solution.is_optimal) == (3_000, False)


def test_few_pods_of_one_group_are_packed_exactly() -> None:
    """SCH-865: up to sixty pods, here all on one node."""
    types = [shape("large", {"cpu": "64", "memory": "64Gi", "pods": 500}, [offering("on-demand", "z1", 2.0)])]
    waiting = [pod(f"p{number}", {"cpu": "10m", "memory": "16Mi"}) for number in range(60)]
    solution = plan(node_pool(), waiting, types=types, options=OPTIONS)
    assert ([len(claim.pods) for claim in solution.new_claims], solution.is_optimal) == ([60], True)
