"""What-if questions on a prepared base: a move gives another base, and the first one answers as before."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from karpenter.api.core import Pod
from karpenter.api.meta import LabelSelector
from karpenter.api.scheduling_constraints import Affinity, PodAffinity, PodAffinityTerm
from karpenter.api.storage import PersistentVolumeClaimSource, Volume
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.instancetypes.well_known_labels import label_in
from karpenter.model import labels
from karpenter.model.requirements import Requirements
from karpenter.scheduling.decision_memory import DecisionMemory
from karpenter.scheduling.preferences import Preferences
from karpenter.scheduling.problem import build_problem
from karpenter.scheduling.solution import PlacedPods
from karpenter.scheduling.whatif import rescheduling, room_facts
from karpenter.scheduling.whatif.counted_pass import CountedPass, count_pass
from karpenter.scheduling.whatif.movers import Movers
from karpenter.scheduling.whatif.questions import ReschedulingResult, UnreadyHosts, WhatIf
from karpenter.scheduling.whatif.refused_nodes import RefusedNodes
from karpenter.scheduling.whatif.rescheduling import ReschedulingBase, prepare_rescheduling
from support.builders import NOW, flatten, node_and_claim, node_pool, pod, replaced, snapshot
from support.instance_types import STD, index_of, offering, shape

_APART = Affinity(
    pod_anti_affinity=PodAffinity(
        required=(
            PodAffinityTerm(topology_key=labels.HOSTNAME, label_selector=LabelSelector(match_labels={"app": "db"})),
        )
    )
)


def test_two_courses_of_moves_from_one_base_do_not_touch_each_other() -> None:
    """Rooms and anti-affinity: after a move to n2 the pod of n3 has to go elsewhere, on the first base it may go to n2."""
    members = {
        name: pod(f"db-{name}", {"cpu": "100m"}, meta={"labels": {"app": "db"}}, node_name=name, affinity=_APART)
        for name in ("n1", "n3")
    }
    nodes = [node_and_claim(name, {"cpu": "1", "pods": "10"}) for name in ("n1", "n2", "n3")]
    index = {"np": index_of(STD)}
    base = prepare_rescheduling(build_problem(snapshot(node_pool(), nodes, list(members.values())), index, NOW), index)

    def target(of: ReschedulingBase, name: str) -> list[str] | None:
        result = of.place_on_existing(WhatIf(((members[name],),), frozenset({f"claim-{name}"})))
        return None if result is None else [placed.node_name for placed in result.placements]

    assert (target(base, "n1"), target(base, "n3")) == (["n2"], ["n2"])
    moved = base.after_move([PlacedPods("claim-n2", "n2", (members["n1"],))], [members["n1"]], ["claim-n1"])
    assert target(moved, "n3") is None
    assert target(base, "n3") == ["n2"]
    assert target(base.with_closed_nodes(["claim-n2"]), "n3") is None
    assert target(base, "n3") == ["n2"]


def test_what_a_pass_could_launch_is_kept_with_its_result_as_long_as_a_base_holds_it() -> None:
    """Were results found by its identity alone, another one could have that once it is gone."""
    mover, index, memory = pod("a", {"cpu": "100m"}, node_name="n1"), {"np": index_of(STD)}, DecisionMemory()
    nodes = [node_and_claim(name, {"cpu": "1", "pods": "10"}) for name in ("n1", "n2")]
    problem = build_problem(snapshot(node_pool(limits={"cpu": "4"}), nodes, [mover]), index, NOW)
    base = prepare_rescheduling(problem, index, memory=memory)
    other, question = base.with_closed_nodes([]), WhatIf(((mover,),), frozenset({"claim-n1"}))
    assert base.place_on_existing(question) is not None
    options = weakref.ref(base._options_for(question))
    del base
    memory._options.clear()
    gc.collect()
    assert other._passes
    assert options() is not None


def test_anti_affinity_that_came_later_counts_for_pods_that_were_asked_about_before() -> None:
    mover = pod("db-0", {"cpu": "100m"}, meta={"labels": {"app": "db"}}, node_name="n1")
    guard = pod("guard", {"cpu": "100m"}, node_name="n2", affinity=_APART)
    nodes = [node_and_claim(name, {"cpu": "1", "pods": "10"}) for name in ("n1", "n2")]
    index = {"np": index_of(STD)}
    memory = DecisionMemory()

    def target(*others: Pod) -> list[str] | None:
        problem = build_problem(snapshot(node_pool(), nodes, [mover, *others]), index, NOW)
        base = prepare_rescheduling(problem, index, memory=memory)
        result = base.place_on_existing(WhatIf(((mover,),), frozenset({"claim-n1"})))
        return None if result is None else [placed.node_name for placed in result.placements]

    assert target() == ["n2"]
    assert target(guard) is None
    assert target() == ["n2"]


@pytest.mark.parametrize(("size", "passes"), [("900m", 1), ("200m", 3)])
def test_nodes_without_room_for_a_pod_cost_no_further_pass(
    monkeypatch: pytest.MonkeyPatch, size: str, passes: int
) -> None:
    """n2 has 300m left and is closed. Its opening is another question only for a pod that fits there."""
    mover = pod("mover", {"cpu": size}, node_name="n1")
    others = [pod(f"other-{name}", {"cpu": "700m"}, node_name=name) for name in ("n2", "n3")]
    nodes = [node_and_claim(name, {"cpu": "1", "pods": "10"}) for name in ("n1", "n2", "n3")]
    index = {"np": index_of(STD)}
    problem = build_problem(snapshot(node_pool(), nodes, [mover, *others]), index, NOW)
    base = prepare_rescheduling(problem, index).with_closed_nodes(["claim-n2"])
    runs: list[int] = []

    def counted(*asked: Any) -> CountedPass:
        runs.append(1)
        return count_pass(*asked)

    monkeypatch.setattr(room_facts, "count_pass", counted)
    removed = frozenset({"claim-n1"})
    deletion = WhatIf(((mover,),), removed)
    fits = size == "200m"
    assert (base.place_on_existing(deletion) is not None) == fits
    replacement = base.reschedule(WhatIf(((mover,),), removed), max_price=100.0)
    assert isinstance(replacement, ReschedulingResult)
    assert bool(replacement.new_claims) != fits
    assert (base.place_on_existing(WhatIf(((mover,),), removed, reopened=frozenset({"claim-n2"}))) is not None) == fits
    both_closed = base.with_closed_nodes(["claim-n3"]).place_on_existing(deletion)
    assert both_closed is None
    assert len(runs) == passes


_ANYWHERE = shape("anywhere", {"cpu": "4", "memory": "8Gi", "pods": "20"})
_ON_DEMAND_ONLY = shape("steady", {"cpu": "4", "memory": "8Gi", "pods": "20"}, [offering("on-demand", "z1", 0.1)])
_SPOT = Requirements((label_in(labels.CAPACITY_TYPE, "spot"),))


@pytest.mark.parametrize(
    ("types", "selectors", "room", "is_refused"),
    [
        ([_ANYWHERE], [{}, {}], "100m", True),
        ([_ANYWHERE], [{}, {labels.ZONE: "z1"}], "100m", False),
        ([_ANYWHERE], [{labels.CAPACITY_TYPE: "on-demand"}], "100m", False),
        ([_ANYWHERE, _ON_DEMAND_ONLY], [{}], "100m", False),
        ([_ANYWHERE], [{}], "1", False),
    ],
)
def test_nothing_is_packed_where_all_that_pods_could_get_is_refused(
    types: list[InstanceType], selectors: list[dict[str, str]], room: str, is_refused: bool
) -> None:
    """Together pods may ask for what none of them asks for alone; where nothing is launched, nothing is refused."""
    movers = [
        pod(f"mover-{at}", {"cpu": "500m"}, node_name="n1", node_selector=selector)
        for at, selector in enumerate(selectors)
    ]
    nodes = [node_and_claim("n1", {"cpu": "4", "pods": "10"}), node_and_claim("n2", {"cpu": room, "pods": "10"})]
    index = {"np": index_of(types)}
    base = prepare_rescheduling(build_problem(snapshot(node_pool(), nodes, movers), index, NOW), index)
    removed = frozenset({"claim-n1"})
    answer = base.reschedule(WhatIf((tuple(movers),), removed), refused=_SPOT)
    assert isinstance(answer, RefusedNodes) == is_refused
    packed = base.reschedule(WhatIf((tuple(movers),), removed))
    assert isinstance(packed, ReschedulingResult)
    sold_as_spot = [
        claim.template.index.with_available_offering(claim.requirements.intersect(_SPOT)) & claim.types
        for claim in packed.new_claims
    ]
    assert not is_refused or all(sold_as_spot)


class _ToldMemory(DecisionMemory):
    """A memory that records which movers it returned."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[Movers] = []

    def movers(self, pods: Sequence[Pod], preferences: Preferences, make: Callable[[], Movers]) -> Movers:
        self.given.append(super().movers(pods, preferences, make))
        return self.given[-1]

    def known_movers(self, pods: Sequence[Pod], preferences: Preferences) -> Movers | None:
        known = super().known_movers(pods, preferences)
        self.given += () if known is None else (known,)
        return known


@pytest.mark.parametrize(
    ("volume", "is_remembered"),
    [
        (Volume(name="kube-api-access-x2x4z"), True),
        (Volume(name="data", persistent_volume_claim=PersistentVolumeClaimSource(claim_name="data")), False),
    ],
    ids=["a token", "a claim"],
)
def test_pods_are_remembered_unless_a_volume_says_where_they_may_run(volume: Volume, is_remembered: bool) -> None:
    mover = pod("web-0", {"cpu": "100m"}, node_name="n1", volumes=(volume,))
    nodes = [node_and_claim(name, {"cpu": "1", "pods": "10"}) for name in ("n1", "n2")]
    index = {"np": index_of(STD)}
    memory = _ToldMemory()
    for _ in range(2):
        problem = build_problem(snapshot(node_pool(), nodes, [mover]), index, NOW)
        prepare_rescheduling(problem, index, memory=memory).place_on_existing(
            WhatIf(((mover,),), frozenset({"claim-n1"}))
        )
    first, second = memory.given
    assert (first is second) == is_remembered


@pytest.mark.parametrize(("limits", "is_limited"), [({}, False), ({"cpu": "100"}, False), ({"cpu": "1"}, True)])
def test_a_pod_that_would_wait_for_a_starting_node_is_reported_as_by_the_whole_plan(
    monkeypatch: pytest.MonkeyPatch, limits: dict[str, str], is_limited: bool
) -> None:
    """The small pod fits on n2, which starts; the large one needs a new node, unless limits allow none."""
    large, small = (pod(f"p{cpu}", {"cpu": cpu}, node_name="n1") for cpu in ("900m", "500m"))
    kept = pod("kept", {"cpu": "400m"}, node_name="n2")
    nodes = [
        node_and_claim("n1", {"cpu": "2", "pods": "10"}),
        node_and_claim("n2", {"cpu": "1", "pods": "10"}, initialized=False),
    ]
    own_pool = node_pool()
    wires = flatten([replaced(own_pool, spec=replaced(own_pool.spec, limits=limits)), nodes, large, small, kept])
    index = {"np": index_of(STD)}
    base = prepare_rescheduling(build_problem(snapshot(wires), index, NOW), index)
    question = WhatIf(((large, small),), frozenset({"claim-n1"}))
    answer = base.reschedule(question)
    monkeypatch.setattr(rescheduling, "unready_hosts", lambda *_: None)
    plan = base.reschedule(question)
    assert isinstance(plan, ReschedulingResult)
    assert [unplaced.pod.metadata.name for unplaced in plan.unschedulable] == (["p900m"] if is_limited else [])
    if limits:
        assert isinstance(answer, ReschedulingResult)
    else:
        assert answer == UnreadyHosts(small, "claim-n2")
        (waiting,) = (placed for placed in plan.placements if placed.node_key in plan.uninitialized_nodes)
        assert (waiting.pods[0], waiting.node_key) == (small, "claim-n2")
