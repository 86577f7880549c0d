"""What the choice among packings promises about price."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from karpenter.api.core import Pod
from karpenter.api.karpenter import NodePool
from karpenter.api.meta import LabelSelector
from karpenter.api.scheduling_constraints import Affinity, PodAffinity, PodAffinityTerm, TopologySpreadConstraint
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.model import labels
from karpenter.scheduling.objective import NO_EXPOSURE_LIMITS, Objective
from karpenter.scheduling.scheduling_options import ArrivalForecast, PackingMode, SchedulingOptions
from karpenter.scheduling.solution import Solution
from support.builders import node_pool, plan, pod, wanted
from support.examples import examples
from support.instance_types import offering, shape
from support.mixed_clusters import clusters
from support.plan_checker_cluster import ClusterObjects

_QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
_ROUNDING = 1e-9
_SOLD = (("tiny", "z1", 0.052), ("plain", "z1", 0.344), ("roomy", "z2", 0.272))
_EVEN = TopologySpreadConstraint(
    max_skew=1,
    topology_key=labels.ZONE,
    when_unsatisfiable="ScheduleAnyway",
    label_selector=LabelSelector(match_labels={"app": "even"}),
)


@st.composite
def instance_types(draw: st.DrawFn) -> tuple[InstanceType, ...]:
    """Types of one to four shapes in several sizes, priced by size with some noise, on demand and as spot."""
    instance_types = []
    for family in range(draw(st.integers(1, 4))):
        gib, rate = draw(st.sampled_from([2, 4, 8])), draw(st.integers(30, 60))
        for cpu in draw(st.lists(st.sampled_from([1, 2, 4, 8, 16, 48]), min_size=1, max_size=4, unique=True)):
            price = cpu * (rate + draw(st.integers(-3, 3))) / 1000
            sold = [offering("on-demand", zone, price) for zone in ("z1", "z2")]
            sold += [offering("spot", "z1", round(price * draw(st.integers(25, 80)) / 100, 6))] * draw(st.booleans())
            capacity = {"cpu": cpu, "memory": f"{cpu * gib}Gi", "pods": draw(st.sampled_from([8, 29, 110]))}
            instance_types.append(shape(f"f{family}.{cpu}", capacity, sold))
    return tuple(instance_types)


@st.composite
def workloads(draw: st.DrawFn) -> list[Pod]:
    """A few kinds of pods, some of them many, some picky about how they are launched."""
    pods = []
    for kind in range(draw(st.integers(1, 8))):
        requests = {"cpu": f"{draw(st.integers(1, 30)) * 100}m", "memory": f"{draw(st.integers(1, 40)) * 200}Mi"}
        selector: Mapping[str, str] = draw(
            st.sampled_from([{}, {}, {labels.ZONE: "z2"}, {labels.CAPACITY_TYPE: "on-demand"}])
        )
        count = draw(st.sampled_from([1, 3, 10, 40]))
        pods += [pod(f"k{kind}-{number}", requests, node_selector=selector) for number in range(count)]
    return pods


def both(objects: list[object], types: tuple[InstanceType, ...]) -> tuple[Solution, Solution]:
    """The plan chosen and the classic one, in dollars alone and without regard to pods to come."""
    free = Objective(node_fee_per_hour=0.0, cost_per_interruption=0.0, exposure=NO_EXPOSURE_LIMITS)
    chosen, classic = (
        plan(
            objects,
            types=types,
            options=SchedulingOptions(objective=free, arrival_forecast=ArrivalForecast.NONE, packing_mode=way),
        )
        for way in (PackingMode.CHEAPEST, PackingMode.CLASSIC)
    )
    return chosen, classic


def _named(app: str, count: int, cpu: str, memory: str, **spec: object) -> list[Pod]:
    requests = {"cpu": cpu, "memory": memory}
    return [pod(f"{app}-{cpu}-{number}", requests, meta={"labels": {"app": app}}, **spec) for number in range(count)]


def check(chosen: Solution, classic: Solution, pools: Iterable[NodePool] = ()) -> None:
    """Leaves out no more than the classic plan, and no plan beats the bound.

    It is never more expensive, unless it places more pods, or for more of them in heavier NodePools (SCH-313, SCH-384).
    """
    assert _left_out(chosen) <= _left_out(classic)
    weights = {pool.metadata.name: pool.spec.weight or 0 for pool in pools}
    places_more = len(chosen.unschedulable) < len(classic.unschedulable)
    if not places_more and _by_weight(chosen, weights) <= _by_weight(classic, weights):
        assert chosen.price_per_hour <= classic.price_per_hour + _ROUNDING
    for solution in (chosen, classic):
        assert solution.lower_bound_per_hour is not None
        assert solution.lower_bound_per_hour <= solution.price_per_hour + 1e-6


def _by_weight(solution: Solution, weights: Mapping[str, int]) -> list[int]:
    """How many pods new nodes of each weight have, the heaviest first."""
    counts = Counter(dict.fromkeys(weights.values(), 0))
    for claim in solution.new_claims if weights else ():
        counts[weights[claim.claim.metadata.labels[labels.NODE_POOL]]] += len(claim.pods)
    return [counts[weight] for weight in sorted(counts, reverse=True)]


def _left_out(plan: Solution) -> list[tuple[int, int]]:
    """Pods left out, by priority, the most important first."""
    return sorted(
        Counter(unschedulable_pod.pod.spec.priority or 0 for unschedulable_pod in plan.unschedulable).items(),
        reverse=True,
    )


def test_where_limits_bind_the_classic_way_may_have_a_place_for_more_and_is_taken() -> None:
    """SCH-865: rounds that each leave out fewer came to leaving out two pods in the end, for all of whom there is room."""
    sold = {name: [offering("on-demand", zone, price)] for name, zone, price in _SOLD}
    types = (
        shape("tiny", {"cpu": 1, "memory": "8Gi", "pods": 8}, sold["tiny"]),
        shape("plain", {"cpu": 8, "memory": "16Gi", "pods": 3}, sold["plain"]),
        shape("roomy", {"cpu": 8, "memory": "32Gi", "pods": 3}, sold["roomy"]),
    )
    pool = node_pool("default", [wanted(labels.CAPACITY_TYPE, "Exists")], limits={"memory": "47Gi"})
    apart = PodAffinityTerm(topology_key=labels.HOSTNAME, label_selector=LabelSelector(match_labels={"app": "apart"}))
    waiting = [
        *_named("apart", 2, "1300m", "5400Mi", affinity=Affinity(pod_anti_affinity=PodAffinity(required=(apart,)))),
        *_named("even", 2, "1200m", "1400Mi", topology_spread_constraints=(_EVEN,)),
        *_named("even", 2, "700m", "600Mi", topology_spread_constraints=(_EVEN,)),
    ]
    chosen, classic = both([pool, *waiting], types)
    assert classic.unschedulable == ()
    check(chosen, classic)


@settings(max_examples=examples(150), deadline=None, suppress_health_check=_QUIET)
@given(instance_types(), workloads())
def test_the_chosen_plan_is_never_more_expensive_than_the_classic_one(
    types: tuple[InstanceType, ...], waiting: list[Pod]
) -> None:
    """SCH-865"""
    pool = node_pool("default", [wanted(labels.CAPACITY_TYPE, "Exists")])
    chosen, classic = both([pool, *waiting], types)
    check(chosen, classic)
    assert (not classic.new_claims) or classic.packing_heuristic == "classic"


@settings(max_examples=examples(150), deadline=None, suppress_health_check=_QUIET)
@given(clusters())
def test_with_all_kinds_of_constraints_it_is_not_more_expensive_either(cluster: ClusterObjects) -> None:
    """SCH-865"""
    check(*both(list(cluster.objects()), cluster.types), cluster.pools)
