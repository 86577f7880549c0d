"""The search for policies: its Pareto front, its recommendation, and that it repeats itself."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from karpenter.simulator.parameter_space import Parameter, ParameterSpace
from karpenter.simulator.policy_comparison import Estimate
from karpenter.simulator.policy_search import (
    CandidateFigures,
    PolicyCandidate,
    pareto_front,
    recommended,
    search_policies,
)

SPACE = ParameterSpace(
    "lean",
    {"node-fee": Parameter(low=0, high=1), "consolidateAfter": Parameter(choices=["1m", "1h"])},
)


def figures(number: int, cost: float, restarts: float, still_waiting: int = 0) -> CandidateFigures:
    candidate = PolicyCandidate(number, {} if number == 0 else {"node-fee": str(number)})
    return CandidateFigures(candidate, Estimate(cost, None), Estimate(restarts, None), 1.0, 45.0, still_waiting)


def judge(candidates: Sequence[PolicyCandidate]) -> list[CandidateFigures]:
    """Cost is least at a fee of 0.3; restarts fall with the fee, and by half with 1h."""
    judged = []
    for candidate in candidates:
        fee = float(candidate.values.get("node-fee", "0"))
        calm = candidate.values.get("consolidateAfter") == "1h"
        cost = 100 + (fee - 0.3) ** 2 * 100 + (5 if calm else 0)
        restarts = (1 - fee) * (5 if calm else 10)
        judged.append(CandidateFigures(candidate, Estimate(cost, None), Estimate(restarts, None), 1.0, 45.0, 0))
    return judged


results_strategy = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 1)), max_size=12).map(
    lambda rows: [figures(number, *row) for number, row in enumerate(rows)]
)


@given(results_strategy)
def test_the_front_has_exactly_those_than_which_none_is_better(results: list[CandidateFigures]) -> None:
    front = pareto_front(results)
    goals = [(each.usd_per_month.mean, each.restarts_per_day.mean) for each in front]
    assert goals == sorted(set(goals), key=lambda goal: (goal[0], -goal[1]))
    for each in results:
        if each.still_waiting <= results[0].still_waiting:
            mine = (each.usd_per_month.mean, each.restarts_per_day.mean)
            assert any(cost <= mine[0] and restarts <= mine[1] for cost, restarts in goals)


def test_a_candidate_that_leaves_pods_waiting_is_not_on_the_front() -> None:
    assert pareto_front([figures(0, 10, 3), figures(1, 1, 0, still_waiting=4)]) == (figures(0, 10, 3),)


def test_the_cheapest_candidate_without_more_restarts_is_recommended() -> None:
    profile = figures(0, 10, 3)
    assert recommended([profile, figures(1, 5, 9), figures(2, 7, 3), figures(3, 8, 1)]) == figures(2, 7, 3)
    assert recommended([profile, figures(1, 5, 9)]) is None
    assert recommended([]) is None


def test_the_same_seed_gives_the_same_search_and_the_profile_comes_first() -> None:
    first, again = (list(search_policies(SPACE, 20, 7, judge)) for _ in range(2))
    assert first == again
    assert first[0].candidate == PolicyCandidate(0, {})
    assert list(search_policies(SPACE, 20, 8, judge)) != first


def test_the_search_finds_cheap_candidates_and_calm_ones() -> None:
    front = pareto_front(list(search_policies(SPACE, 60, 1, judge)))
    assert front[0].usd_per_month.mean < 101
    assert front[-1].restarts_per_day.mean < 1


def test_no_candidate_is_simulated_twice() -> None:
    space = ParameterSpace("lean", {"consolidateAfter": Parameter(choices=["1m", "5m", "1h"])})
    results = list(search_policies(space, 24, 1, judge))
    assert sorted(each.candidate.values.get("consolidateAfter", "") for each in results) == ["", "1h", "1m", "5m"]
