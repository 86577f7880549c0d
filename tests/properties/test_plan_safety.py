"""Rules that every provisioning plan obeys, checked by code that shares nothing with the decision."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings

from support.admission_rows import refusals
from support.builders import plan
from support.examples import examples
from support.mixed_clusters import clusters
from support.plan_checker import violations
from support.plan_checker_cluster import ClusterObjects
from support.preference_check import missed_chances

_QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


def check_plan(cluster: ClusterObjects) -> None:
    result = plan(list(cluster.objects()), types=cluster.types)
    assert violations(cluster, result) == []
    assert missed_chances(cluster, result) == []
    assert [finding for planned in result.new_claims for finding in refusals(planned.claim)] == []


@settings(max_examples=examples(250), deadline=None, suppress_health_check=_QUIET)
@given(clusters())
def test_a_plan_breaks_no_rule(cluster: ClusterObjects) -> None:
    """Valid placements, resources, taints, limits, minValues, weight order, preferences, no pod left out without need."""
    check_plan(cluster)
