"""Laws every provisioning plan obeys, judged by a judge that shares no code with the decision."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings

from support.admission_rows import refusals
from support.builders import plan
from support.examples import examples
from support.judge import problems
from support.judge_world import World
from support.mixed_clusters import worlds
from support.preference_check import missed_chances

_QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


def judge(world: World) -> None:
    result = plan(list(world.objects()), types=world.types)
    assert problems(world, result) == []
    assert missed_chances(world, result) == []
    assert [finding for planned in result.new_claims for finding in refusals(planned.claim)] == []


@settings(max_examples=examples(250), deadline=None, suppress_health_check=_QUIET)
@given(worlds())
def test_a_plan_breaks_no_law(world: World) -> None:
    """Legal placements, resources, taints, limits, minValues, weight order, preferences, nobody left out without need."""
    judge(world)
