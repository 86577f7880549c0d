"""The zone a waiting pod will be in, before anything is planned (SCH-668, S-270)."""

from __future__ import annotations

from typing import Any

import pytest

from karpenter.api.meta import LabelSelector
from karpenter.api.scheduling_constraints import Affinity, PodAffinity, PodAffinityTerm, TopologySpreadConstraint
from karpenter.model import labels
from karpenter.scheduling.scheduling_options import PreferencePolicy, SchedulingOptions
from support.builders import affinity, expr, node, node_pool, plan, pod, pods, term, where
from support.volume_builders import pvc, using, zonal

APP = {"app": "web"}
SELECTED = LabelSelector(match_labels=APP)
APART = Affinity(
    pod_anti_affinity=PodAffinity(required=(PodAffinityTerm(label_selector=SELECTED, topology_key=labels.ZONE),))
)
SPREAD = TopologySpreadConstraint(
    max_skew=1, topology_key=labels.ZONE, when_unsatisfiable="DoNotSchedule", label_selector=SELECTED
)
DISKS = (pvc("data", "disk"), zonal("disk", "z1"), pvc("other", "second"), zonal("second", "z2"))


def running(*zones: str) -> list[object]:
    """A node with one pod in each of the zones."""
    there = [node(f"n-{zone}", {"cpu": "1"}, labels={labels.ZONE: zone}) for zone in zones]
    bound = [pods(1, {}, prefix=zone, node_name=f"n-{zone}", meta={"labels": APP}) for zone in zones]
    return [*there, *bound]


def zone_of(*objects: object, options: SchedulingOptions | None = None, **spec: Any) -> str:
    result = plan(node_pool(), *DISKS, *objects, pod("p", meta={"labels": APP}, **spec), options=options)
    return next((zoned.zone for zoned in result.zone_bound if zoned.pods), "flexible")


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param({}, "flexible", id="free"),
        pytest.param({"node_selector": {labels.ZONE: "z2"}}, "z2", id="selector"),
        pytest.param({"volumes": using("data")}, "z1", id="volume"),
        pytest.param({"volumes": using("other"), "node_selector": {labels.ZONE: "z1"}}, "none", id="volume-elsewhere"),
        pytest.param({"affinity": where(labels.ZONE, "In", "z1", "z2")}, "flexible", id="two-zones"),
        pytest.param(
            {"affinity": affinity(term(expr(labels.ZONE, "In", "z1")), term(expr(labels.ZONE, "In", "z2")))},
            "flexible",
            id="either-term",
        ),
        pytest.param({"affinity": where(labels.ZONE, "NotIn", "z1")}, "flexible", id="all-but-one"),
    ],
)
def test_what_a_pod_and_its_volumes_ask_for_settles_its_zone(spec: dict[str, Any], expected: str) -> None:
    """S-270"""
    assert zone_of(**spec) == expected


@pytest.mark.parametrize(
    ("taken", "expected"), [(["z1"], "flexible"), (["z1", "z2"], "z3"), (["z1", "z2", "z3"], "none")]
)
def test_anti_affinity_leaves_the_zones_without_matching_pods(taken: list[str], expected: str) -> None:
    """S-270"""
    assert zone_of(*running(*taken), affinity=APART) == expected


def test_a_spread_leaves_the_emptiest_zone() -> None:
    assert zone_of(*running("z1", "z3"), topology_spread_constraints=(SPREAD,)) == "z2"


def test_a_spread_and_a_volume_that_contradict_leave_none() -> None:
    assert zone_of(*running("z1", "z3"), topology_spread_constraints=(SPREAD,), volumes=using("data")) == "none"


def test_a_preference_settles_nothing() -> None:
    preferred = affinity(preferred=[(1, term(expr(labels.ZONE, "In", "z1")))])
    assert zone_of(affinity=preferred) == "flexible"
    assert zone_of(affinity=preferred, options=SchedulingOptions(PreferencePolicy.IGNORE)) == "flexible"
