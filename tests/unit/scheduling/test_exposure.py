"""Exposure: not all pods of a workload on one new node, as a preference that can be relaxed (issue of price, point 3)."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest

from karpenter.api.core import Pod
from karpenter.api.karpenter import NodePool
from karpenter.api.meta import LabelSelector, ObjectMeta
from karpenter.api.scheduling_constraints import Affinity, PodAffinity, PodAffinityTerm
from karpenter.instancetypes import ec2_packaged_types
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.model import labels
from karpenter.scheduling.explain.reason_messages import exposure_messages
from karpenter.scheduling.objective import NO_EXPOSURE_LIMITS, ExposureLimits, Objective
from karpenter.scheduling.problem import build_problem
from karpenter.scheduling.scheduling_options import SchedulingOptions
from karpenter.scheduling.solution import Solution, ViolationCause
from karpenter.scheduling.solver import solve
from karpenter.scheduling.whatif.questions import ReschedulingResult, WhatIf
from karpenter.scheduling.whatif.rescheduling import prepare_rescheduling
from support.builders import (
    NOW,
    existing,
    left,
    new_types,
    node_and_claim,
    node_pool,
    owner,
    plan,
    pod,
    pods,
    replaced,
    sizes,
    snapshot,
    wanted,
)
from support.instance_types import STD, inc, index_of

OFF = SchedulingOptions(objective=Objective(exposure=NO_EXPOSURE_LIMITS))
SMALL = {"cpu": "100m"}


def replicas(count: int, name: str = "web", **spec: object) -> list[Pod]:
    """Pods of one ReplicaSet."""
    requests = spec.pop("requests", SMALL)
    meta = {"owner_references": (owner("ReplicaSet", name),), "labels": {"app": name}, **spec.pop("meta", {})}
    return [pod(f"{name}-{number:03}", requests, meta=meta, **spec) for number in range(count)]


def asking(text: str) -> dict[str, dict[str, object]]:
    return {"meta": {"annotations": {labels.EXPOSURE: text}}}


def pool_asking(text: str, name: str = "np", **spec: object) -> NodePool:
    made = node_pool(name, **spec)
    annotated = ObjectMeta(name=name, uid=made.metadata.uid, annotations={labels.EXPOSURE: text})
    return replaced(made, metadata=annotated)


def most_together(result: Solution, prefix: str = "web") -> int:
    """The most pods of a workload on one new node."""
    counts = [sum(pod.metadata.name.startswith(prefix) for pod in claim.pods) for claim in result.new_claims]
    return max(counts)


def test_a_workload_is_not_placed_on_one_node() -> None:
    """One node would be cheaper, and is what a plan without the preference launches."""
    assert sizes(plan(node_pool(), replicas(8), types=inc(8), options=OFF)) == [8]
    solution = plan(node_pool(), replicas(8), types=inc(8))
    assert sizes(solution) == [4, 4]
    assert solution.exposure_violations == ()


def test_a_share_is_rounded_up_and_never_below_one() -> None:
    assert most_together(plan(node_pool(), replicas(5), types=inc(8))) == 3
    tenth = SchedulingOptions(objective=Objective(exposure=ExposureLimits.uniform(Fraction(1, 10))))
    assert sizes(plan(node_pool(), replicas(5), types=inc(8), options=tenth)) == [1] * 5
    third = SchedulingOptions(objective=Objective(exposure=ExposureLimits.uniform(Fraction("0.3"))))
    assert most_together(plan(node_pool(), replicas(10), types=inc(8), options=third)) == 3


def test_few_pods_may_be_together_and_so_may_those_without_owner() -> None:
    assert sizes(plan(node_pool(), replicas(3), types=inc(8))) == [3]
    assert sizes(plan(node_pool(), pods(12, SMALL), types=inc(8))) == [12]


def test_every_workload_counts_for_itself() -> None:
    """Two workloads with equal pods: each of two nodes holds half of each workload."""
    solution = plan(node_pool(), replicas(6, "web"), replicas(6, "api"), types=inc(8))
    assert sizes(solution) == [6, 6]
    assert most_together(solution, "web") == most_together(solution, "api") == 3


def test_pods_of_one_workload_count_together_whatever_their_size() -> None:
    """A rollout that changes requests is still one workload where its owner is one."""
    small, large = replicas(4), replicas(4, requests={"cpu": "200m"})
    renamed = [
        replaced(listed_pod, metadata=replaced(listed_pod.metadata, name=f"web-l{n}", uid=f"l{n}"))
        for n, listed_pod in enumerate(large)
    ]
    assert most_together(plan(node_pool(), small, renamed, types=inc(8))) == 4


def test_bound_replicas_count_for_the_size_of_the_workload() -> None:
    """Four of twelve wait: all of them on one node are no more than half."""
    there = node_and_claim("n1", {"cpu": "1"})
    bound = [
        replaced(replica, metadata=replaced(replica.metadata, name=f"old-{n}", uid=f"old-{n}"))
        for n, replica in enumerate(replicas(8, node_name="n1", requests={"cpu": "120m"}))
    ]
    assert sizes(plan(node_pool(), there, bound, replicas(4), types=inc(8))) == [4]
    assert sizes(plan(node_pool(), there, replicas(4), types=inc(8), options=OFF)) == []


def test_what_exists_is_the_schedulers_business() -> None:
    solution = plan(node_pool(), node_and_claim("n1", {"cpu": "4"}), replicas(8), types=inc(8))
    assert existing(solution) == {"n1": 8}
    assert solution.exposure_violations == ()


def test_limits_are_no_reason_to_leave_a_pod_out() -> None:
    """One node may be launched: all go there, and the plan says that this is more than the share that was asked for."""
    solution = plan(node_pool(limits={"nodes": "1"}), replicas(8), types=inc(8))
    assert sizes(solution) == [8]
    assert left(solution) == []
    (concession,) = solution.exposure_violations
    assert concession.cause is ViolationCause.LIMITS
    assert (concession.subject, concession.actual, concession.limit) == ("ReplicaSet default/web", 8, 4)
    assert concession.place == f"NodeClaim {solution.new_claims[0].name}"
    assert exposure_messages(solution) == [
        "exposure limit not kept: 8 pods of ReplicaSet default/web in "
        f"NodeClaim {solution.new_claims[0].name}, preferred at most 4: "
        "limits of NodePools allow no other nodes"
    ]


def test_preferences_of_other_pods_are_relaxed_too_where_that_places_a_pod() -> None:
    """The node that one workload would have for its second half is what the pod of another needs."""
    alone = pod("alone", SMALL, node_selector={labels.ARCH: "arm64"})
    waiting = replicas(6, node_selector={labels.ARCH: "amd64"})
    solution = plan(node_pool(limits={"nodes": "2"}), waiting, alone, types=(*inc(4), *STD))
    assert left(solution) == []
    assert sizes(solution) == [1, 6]
    assert [violation.cause for violation in solution.exposure_violations] == [ViolationCause.LIMITS]


def test_limits_that_leave_pods_out_anyway_change_nothing() -> None:
    """The pod nothing holds waits; the others are still apart."""
    solution = plan(node_pool(limits={"cpu": "20"}), replicas(8), pod("huge", {"cpu": "99"}), types=inc(8))
    assert left(solution) == ["huge"]
    assert sizes(solution) == [4, 4]
    assert solution.exposure_violations == ()


def test_pods_that_want_to_be_together_are() -> None:
    term = PodAffinityTerm(topology_key=labels.HOSTNAME, label_selector=LabelSelector(match_labels={"app": "web"}))
    near = Affinity(pod_affinity=PodAffinity(required=(term,)))
    solution = plan(node_pool(), replicas(6, affinity=near), types=inc(8))
    assert sizes(solution) == [6]
    assert [(violation.cause, violation.actual, violation.limit) for violation in solution.exposure_violations] == [
        (ViolationCause.TOGETHER, 6, 3)
    ]


@pytest.mark.parametrize(("text", "most"), [("off", 8), ("1", 8), ("0.25", 2), (".75", 6)])
def test_a_workload_may_ask_for_another_share(text: str, most: int) -> None:
    solution = plan(node_pool(), replicas(8, "web", **asking(text)), types=inc(8))
    assert most_together(solution) == most
    assert (solution.exposure_violations, solution.unreadable_annotations) == ((), ())


def test_a_node_pool_may_ask_for_another_share_and_the_workload_has_the_last_word() -> None:
    assert sizes(plan(pool_asking("off"), replicas(8), types=inc(8))) == [8]
    assert sizes(plan(pool_asking("0.25"), replicas(8), types=inc(8))) == [2, 2, 2, 2]
    assert sizes(plan(pool_asking("0.25"), replicas(8, "web", **asking("off")), types=inc(8))) == [8]


def test_a_share_holds_for_nodes_of_the_node_pool_that_asks_for_it() -> None:
    """The heavier pool says off, the other one a quarter: the one that launches decides."""
    heavy, light = pool_asking("off", "heavy", weight=10), pool_asking("0.25", "light")
    solution = plan(heavy, light, replicas(8), types=inc(8))
    assert {claim.node_pool for claim in solution.new_claims} == {"heavy"}
    assert most_together(solution) <= 8
    assert solution.exposure_violations == ()


@pytest.mark.parametrize("text", ["", "half", "0", "1.5", "-0.5", "50%", "1e-1", "nan", " 0.5", "Off"])
def test_a_share_that_cannot_be_read_leaves_the_default_and_is_reported(text: str) -> None:
    solution = plan(pool_asking(text), replicas(8, "web", **asking(text)), types=inc(8))
    assert sizes(solution) == [4, 4]
    assert [annotation.subject for annotation in solution.unreadable_annotations] == [
        "NodePool np",
        "ReplicaSet default/web",
    ]
    assert {annotation.annotation for annotation in solution.unreadable_annotations} == {"karpenter.sh/exposure"}
    assert all(repr(text) in annotation.error for annotation in solution.unreadable_annotations)
    assert len(exposure_messages(solution)) == 2


def test_many_workloads_are_all_apart() -> None:
    """More workloads than the search has rules for: each is still on at least two nodes, and no pod is left out."""
    waiting = [replicas(4 + number % 5, f"w{number:02}x") for number in range(40)]
    solution = plan(node_pool(), waiting, types=inc(30))
    assert left(solution) == []
    by_owner = Counter(listed_pod.metadata.name.partition("x")[0] for group in waiting for listed_pod in group)
    for claim in solution.new_claims:
        here = Counter(listed_pod.metadata.name.partition("x")[0] for listed_pod in claim.pods)
        assert all(count <= -(-by_owner[name] // 2) for name, count in here.items())
    assert solution.exposure_violations == ()
    without = plan(node_pool(), waiting, types=inc(30), options=OFF)
    assert solution.price_per_hour <= 1.1 * without.price_per_hour, "so many workloads fill two nodes as well as one"
    assert len(new_types(solution)) >= 2


@pytest.mark.parametrize("share", [Fraction(1, 2), Fraction(1, 10)])
def test_exposure_costs_next_to_nothing_where_there_are_many_workloads(share: Fraction) -> None:
    """Forty workloads of twelve pods on EC2 types: plans with exposure fill nodes as well as plans without."""
    index = TypeIndex(ec2_packaged_types.packaged_instance_types(), labels.WELL_KNOWN)
    waiting = [
        replicas(
            12,
            f"w{number:02}x",
            requests={"cpu": f"{100 + 137 * number % 1400}m", "memory": f"{150 + 331 * number % 3900}Mi"},
        )
        for number in range(40)
    ]
    picture = snapshot(node_pool("np", [wanted(labels.CAPACITY_TYPE, "In", "on-demand")]), waiting)
    exposed = SchedulingOptions(objective=Objective(exposure=ExposureLimits.uniform(share)))
    solution, without = (solve(build_problem(picture, {"np": index}, NOW, options)) for options in (exposed, OFF))
    assert solution.exposure_violations == ()
    assert solution.price_per_hour <= 1.02 * without.price_per_hour


def test_pods_that_are_moved_are_no_more_exposed_than_those_that_come() -> None:
    """Two nodes with half of a workload each are not given up for one with all of it."""
    there = [node_and_claim(name, {"cpu": "1"}) for name in ("n1", "n2")]
    bound = [
        replaced(replica, spec=replaced(replica.spec, node_name=f"n{1 + number % 2}"))
        for number, replica in enumerate(replicas(8, node_name="n1"))
    ]
    moving = [wire for wire in bound if isinstance(wire, Pod)]
    picture = snapshot(node_pool(), there, moving)
    types = {"np": index_of(inc(8))}
    for options, expected in ((SchedulingOptions(), 2), (OFF, 1)):
        base = prepare_rescheduling(build_problem(picture, types, NOW, options), types)
        reschedule = base.reschedule(WhatIf((tuple(moving),), frozenset({"claim-n1", "claim-n2"})))
        assert isinstance(reschedule, ReschedulingResult)
        assert len(reschedule.new_claims) == expected
