"""Pod groups that fit on the same types share launch options; the plan is that of groups that share none."""

from __future__ import annotations

import random

import pytest

from karpenter.api.core import Pod
from karpenter.api.meta import LabelSelector
from karpenter.api.scheduling_constraints import TopologySpreadConstraint
from karpenter.model import labels
from karpenter.scheduling.offerings import launch_options
from karpenter.scheduling.scheduling_options import PackingMode, SchedulingOptions
from support.builders import node_pool, plan, pod
from support.instance_types import inc

CLASSIC = SchedulingOptions(packing_mode=PackingMode.CLASSIC)


def _spread(app: str) -> TopologySpreadConstraint:
    return TopologySpreadConstraint(
        max_skew=1,
        topology_key=labels.ZONE,
        when_unsatisfiable="DoNotSchedule",
        label_selector=LabelSelector(match_labels={"app": app}),
    )


def _pods(draw: random.Random) -> list[Pod]:
    """Pods of many sizes, of some of which only large types hold one, spread over zones by one of two labels."""
    made = []
    for number in range(40):
        requests = {
            "cpu": f"{draw.choice((100, 350, 900, 1800, 3500, 7000))}m",
            "memory": f"{draw.choice((1, 3, 9))}Gi",
        }
        terms = (_spread(draw.choice("ab")),) if draw.random() < 0.7 else ()
        made.append(
            pod(f"p{number}", requests, meta={"labels": {"app": draw.choice("ab")}}, topology_spread_constraints=terms)
        )
    return made


@pytest.mark.parametrize("seed", range(6))
def test_a_plan_is_the_same_where_groups_share_no_options(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    waiting = _pods(draw)
    pools = [node_pool(), node_pool("other", weight=draw.choice((None, 10)))]
    usual = plan(*pools, waiting, types=list(inc(12)), options=CLASSIC)
    monkeypatch.setattr(launch_options, "MAX_POOLS_COMPARED", 0)
    assert plan(*pools, waiting, types=list(inc(12)), options=CLASSIC) == usual
    assert usual.new_claims
