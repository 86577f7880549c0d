"""Node share: no new node holds too large a share of a plan or too many pods; both are preferences."""

from __future__ import annotations

import pytest

from karpenter.api.karpenter import NodePool
from karpenter.api.meta import LabelSelector
from karpenter.api.scheduling_constraints import Affinity, PodAffinity, PodAffinityTerm
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.model import labels
from karpenter.scheduling import scheduling_passes
from karpenter.scheduling.explain.reason_messages import exposure_messages
from karpenter.scheduling.objective import NO_EXPOSURE_LIMITS, ExposureLimits, Objective
from karpenter.scheduling.packing import packer
from karpenter.scheduling.scheduling_options import SchedulingOptions
from karpenter.scheduling.search.column_generation import SearchedNodes, SearchStart, search_patterns
from karpenter.scheduling.search.packing_problem import PackingProblem
from karpenter.scheduling.solution import Solution, ViolationCause
from support.builders import annotated, daemon_set, left, node_pool, plan, pod, pods, sizes, tolerating
from support.instance_types import offering, shape

#: 300 pods.
OF_FIVE_SIZES = [
    pod(f"s{size}-{number}", {"cpu": f"{size}m", "memory": "500Mi"})
    for size in (150, 300, 700, 1100, 1900)
    for number in range(60)
]
OFF = SchedulingOptions(objective=Objective(exposure=NO_EXPOSURE_LIMITS))


def of_cores(*cores: int) -> list[InstanceType]:
    """Types of so many cores for as much money each, a little cheaper the larger, for up to 500 pods."""
    return [
        shape(
            f"c{count}",
            {"cpu": count, "memory": f"{2 * count}Gi", "pods": 500},
            [offering("on-demand", "z1", round(count * (0.05 - count / 100_000), 6))],
            overhead={},
        )
        for count in cores
    ]


def planned(count: int, *, pool: NodePool | None = None, options: SchedulingOptions | None = None) -> Solution:
    waiting = pods(count, {"cpu": "100m", "memory": "100Mi"})
    return plan(pool or node_pool(), waiting, types=of_cores(1, 2, 4, 8, 16, 32), options=options)


def test_no_node_holds_more_than_a_quarter_of_a_plan_of_forty_pods() -> None:
    """One node would be cheaper; the plan says what four cost more."""
    assert sizes(planned(40, options=OFF)) == [40]
    solution = planned(40)
    assert max(sizes(solution)) <= 10
    more = solution.price_per_hour - planned(40, options=OFF).price_per_hour
    assert solution.node_share_cost_per_hour == pytest.approx(more)
    assert not solution.is_optimal


def test_smaller_plans_may_be_on_one_node() -> None:
    assert sizes(planned(39)) == [39]


@pytest.mark.parametrize(("share", "most"), [("off", 80), ("0.5", 40), ("0.1", 8)])
def test_a_node_pool_may_ask_for_another_share(share: str, most: int) -> None:
    assert max(sizes(planned(80, pool=annotated(node_pool(), {labels.MAX_NODE_SHARE: share})))) == most


def test_a_share_that_cannot_be_read_leaves_the_default_and_is_reported() -> None:
    solution = planned(40, pool=annotated(node_pool(), {labels.MAX_NODE_SHARE: "half"}))
    assert max(sizes(solution)) <= 10
    assert [each.annotation for each in solution.unreadable_annotations] == [labels.MAX_NODE_SHARE]


def test_no_node_has_more_pods_than_the_setting_says() -> None:
    """A quarter of 300 would be 75; the share is off."""
    pool = annotated(node_pool(), {labels.MAX_NODE_SHARE: "off"})
    assert max(sizes(planned(300, pool=pool))) <= 110
    free = SchedulingOptions(objective=Objective(exposure=ExposureLimits(max_pods_per_node=0)))
    assert max(sizes(planned(300, pool=pool, options=free))) > 110


def test_pods_of_daemon_sets_do_not_count() -> None:
    agent = daemon_set("agent", {"cpu": "10m"}, tolerations=(tolerating(""),))
    waiting = pods(40, {"cpu": "90m", "memory": "100Mi"})
    solution = plan(node_pool(), agent, waiting, types=of_cores(1, 2, 4, 8, 16))
    assert (max(sizes(solution)), left(solution)) == (10, [])


def of_prices(prices: dict[int, float]) -> list[InstanceType]:
    """Types of so many cores by price, for up to 500 pods."""
    return [
        shape(
            f"c{count}",
            {"cpu": count, "memory": f"{2 * count}Gi", "pods": 500},
            [offering("on-demand", "z1", price)],
            overhead={},
        )
        for count, price in prices.items()
    ]


@pytest.mark.parametrize(
    ("prices", "largest", "causes"),
    [
        pytest.param({2: 0.108, 8: 0.4}, 20, [], id="8-percent-more"),
        pytest.param({2: 0.115, 8: 0.4}, 80, [ViolationCause.PRICE], id="15-percent-more"),
    ],
)
def test_the_default_share_gives_way_where_it_costs_over_a_tenth_more(
    prices: dict[int, float], largest: int, causes: list[ViolationCause]
) -> None:
    solution = plan(node_pool(), pods(80, {"cpu": "100m", "memory": "100Mi"}), types=of_prices(prices))
    assert max(sizes(solution)) == largest
    assert [each.cause for each in solution.exposure_violations] == causes
    saved = 4 * prices[2] - solution.price_per_hour if causes else 0.0
    assert solution.node_share_saving_per_hour == pytest.approx(saved)
    assert solution.node_share_cost_per_hour == pytest.approx(solution.price_per_hour - 0.4)
    assert ["nodes with fewer would cost over a tenth more" in line for line in exposure_messages(solution)] == (
        [True] if causes else []
    )


@pytest.mark.parametrize(
    ("count", "prices"),
    [(120, {16: 0.492, 64: 1.592, 96: 2.802}), (240, {8: 0.21, 64: 1.3, 96: 2.0})],
)
def test_the_default_share_is_kept_where_a_plan_without_it_is_not_a_tenth_cheaper(
    count: int, prices: dict[int, float]
) -> None:
    """One node for all would be; with 110 pods at most on a node nothing is saved."""
    waiting = pods(count, {"cpu": "500m", "memory": "700Mi"})
    solution = plan(node_pool(), waiting, types=of_prices(prices))
    free = plan(node_pool(), waiting, types=of_prices(prices), options=OFF)
    assert solution.price_per_hour > free.price_per_hour * 1.1
    assert max(sizes(solution)) <= count // 4
    assert (relaxed(solution), solution.node_share_saving_per_hour) == ([], 0.0)


def test_a_plan_is_packed_for_its_share_and_without_it_only_where_they_differ(
    searches: list[tuple[SearchStart, SearchedNodes]],
) -> None:
    """A quarter of 600 pods is more than the 110 that a node has at most."""
    plan(node_pool(), pods(600, {"cpu": "100m", "memory": "100Mi"}), types=of_prices({8: 0.8, 12: 1.2, 64: 1.0}))
    assert len(searches) == 3, "the cheapest, with 110 pods at most, with 60 at most"


def test_a_share_that_a_node_pool_asks_for_is_kept_at_any_price() -> None:
    pool = annotated(node_pool(), {labels.MAX_NODE_SHARE: "0.25"})
    waiting = pods(80, {"cpu": "100m", "memory": "100Mi"})
    solution = plan(pool, waiting, types=of_prices({2: 0.2, 4: 0.3, 8: 0.4}))
    assert (max(sizes(solution)), relaxed(solution)) == (20, [])


def test_no_node_has_more_pods_than_the_setting_says_whatever_it_costs() -> None:
    waiting = pods(300, {"cpu": "100m", "memory": "100Mi"})
    solution = plan(node_pool(), waiting, types=of_prices({8: 0.8, 12: 1.2, 32: 1.0}))
    assert max(sizes(solution)) == 110


def test_a_limit_of_nodes_is_no_reason_to_leave_a_pod_out() -> None:
    """One node may be launched, so it holds all, and the plan says that the share was relaxed."""
    solution = planned(40, pool=node_pool(limits={"nodes": "1"}))
    assert sizes(solution) == [40]
    assert relaxed(solution) == [("the plan", 40, 10, ViolationCause.LIMITS)]
    (message,) = exposure_messages(solution)
    assert "40 pods of the plan in NodeClaim" in message


def test_more_pods_than_a_node_should_have_are_reported() -> None:
    """Limits of the NodePool allow one node for 300 pods, 110 are the most by default, a quarter is 75."""
    solution = planned(300, pool=node_pool(limits={"nodes": "1"}))
    assert relaxed(solution) == [("the plan", 300, 75, ViolationCause.LIMITS)]


def test_nothing_is_relaxed_where_the_shares_hold_or_are_off() -> None:
    assert relaxed(planned(300)) == relaxed(planned(40, options=OFF)) == []


def relaxed(solution: Solution) -> list[tuple[str, int, int, ViolationCause]]:
    return [(each.subject, each.actual, each.limit, each.cause) for each in solution.exposure_violations]


def test_pods_that_must_be_together_are() -> None:
    term = PodAffinityTerm(topology_key=labels.HOSTNAME, label_selector=LabelSelector(match_labels={"app": "web"}))
    waiting = pods(
        40,
        {"cpu": "100m"},
        meta={"labels": {"app": "web"}},
        affinity=Affinity(pod_affinity=PodAffinity(required=(term,))),
    )
    solution = plan(node_pool(), waiting, types=of_cores(2, 4, 8))
    assert sizes(solution) == [40]
    assert relaxed(solution) == [("the plan", 40, 10, ViolationCause.TOGETHER)]


def test_claims_keep_the_requests_and_types_of_their_own_pods() -> None:
    """The limit is not written into claims: every type that holds the pods is offered, however many pods it could take."""
    solution = planned(40)
    assert all("c32" in claim.instance_types for claim in solution.new_claims)
    for claim in solution.new_claims:
        assert claim.claim.spec.resources.requests["pods"] == str(len(claim.pods))


@pytest.mark.parametrize(("dearer", "most"), [(1.004, 60), (1.05, 110)])
def test_of_plans_that_cost_about_the_same_one_has_at_most_sixty_pods_on_a_node(dearer: float, most: int) -> None:
    """Up to 110 pods may be on a node; within 1 % of the price no more than 60 are."""
    types = [
        shape(name, {"cpu": cores, "memory": "256Gi", "pods": 500}, [offering("on-demand", "z1", price)], overhead={})
        for name, cores, price in (("c6", 6, 0.6 * dearer), ("c11", 11, 1.1))
    ]
    waiting = pods(660, {"cpu": "100m", "memory": "100Mi"})
    free = SchedulingOptions(objective=Objective(0.0))
    assert max(sizes(plan(node_pool(), waiting, types=types, options=free))) == most


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[SearchStart, SearchedNodes]]:
    """Where each search began, and what it found."""
    made: list[tuple[SearchStart, SearchedNodes]] = []

    def observed(problem: PackingProblem, start: SearchStart) -> SearchedNodes:
        found = search_patterns(problem, start)
        made.append((start, found))
        return found

    monkeypatch.setattr(packer, "search_patterns", observed)
    return made


def test_searches_for_fewer_pods_on_a_node_begin_with_the_pod_values_of_the_first(
    searches: list[tuple[SearchStart, SearchedNodes]],
) -> None:
    """Each of them ends near its lower bound, and the plan is the same each time it is made."""
    first = plan(node_pool(), *OF_FIVE_SIZES, types=of_cores(1, 2, 3, 4, 8, 16, 32, 48))
    starts = [start for start, _ in searches]
    assert [start.gap for start in starts] == [scheduling_passes.GAP_OF_DIVIDED_PLANS] * 3
    assert not starts[0].pod_values
    assert starts[1].pod_values == starts[2].pod_values == searches[0][1].pod_values
    again = plan(node_pool(), *OF_FIVE_SIZES, types=of_cores(1, 2, 3, 4, 8, 16, 32, 48))
    assert [each.pods for each in again.new_claims] == [each.pods for each in first.new_claims]


@pytest.mark.parametrize(
    ("count", "options"), [pytest.param(400, OFF, id="no-limits"), pytest.param(1_100, None, id="many-pods")]
)
def test_searches_are_made_in_full_where_no_usual_number_divides_the_plan(
    count: int, options: SchedulingOptions | None, searches: list[tuple[SearchStart, SearchedNodes]]
) -> None:
    planned(count, options=options)
    assert searches
    assert all(start.gap is None and not start.pod_values for start, _ in searches)


def test_a_plan_by_shorter_searches_costs_at_most_two_thousandths_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pods of five sizes and eight types, as full searches would launch nodes for them."""
    types = of_cores(1, 2, 3, 4, 8, 16, 32, 48)
    short = plan(node_pool(), *OF_FIVE_SIZES, types=types)
    monkeypatch.setattr(scheduling_passes, "_search_gap", lambda *_: None)
    full = plan(node_pool(), *OF_FIVE_SIZES, types=types)
    assert short.price_per_hour <= full.price_per_hour * 1.002
