"""Gangs in the engine: each gets places for at least its minimum of pods, or none; one that gets none holds no room."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import timedelta

import msgspec
import pytest

from karpenter.api.core import PodWorkloadReference
from karpenter.api.meta import ObjectMeta
from karpenter.api.pod_groups import (
    CoschedulingPodGroup,
    CoschedulingPodGroupSpec,
    GangSchedulingPolicy,
    GroupedWorkload,
    GroupedWorkloadSpec,
    PodGroupPolicy,
    WorkloadPodGroup,
)
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.model import labels
from karpenter.scheduling.solution import GangOutcome, Solution
from support.builders import (
    ANY_CAPACITY,
    NOW,
    asked,
    categories,
    details,
    left,
    new_types,
    node,
    node_pool,
    plan,
    pod,
    pods,
    replaced,
    sizes,
    wanted,
)
from support.gang_builders import gang, gang_pods, pod_group
from support.instance_types import offering, shape

ONE = {"cpu": "1500m", "memory": "1Gi"}


def one_pod_types(**prices: float) -> list[InstanceType]:
    """One type that holds one pod of the tests, at a price by zone."""
    sold = [offering("on-demand", zone, price) for zone, price in (prices or {"z1": 0.1, "z2": 0.2}).items()]
    return [shape("two", {"cpu": 2, "memory": "4Gi", "pods": 20}, sold)]


def outcomes(result: Solution) -> dict[str, tuple[int, bool]]:
    return {each.gang: (each.placed, each.is_complete) for each in result.gangs}


def test_a_gang_that_fits_is_planned_like_any_other_pods() -> None:
    types = one_pod_types()
    alone = plan(node_pool(), gang("a", 4, ONE), types=types)
    assert (new_types(alone), left(alone)) == (["two"] * 4, [])
    assert alone.gangs == (GangOutcome("PodGroup default/a", 4, 0, 4, True),)
    assert alone.price_per_hour == plan(node_pool(), pods(4, ONE), types=types).price_per_hour
    assert {claim.claim.metadata.annotations[labels.GANG] for claim in alone.new_claims} == {"PodGroup default/a"}


def test_nothing_is_launched_for_a_gang_that_limits_cannot_hold_and_the_reason_names_the_missing_pods() -> None:
    result = plan(node_pool(limits={"cpu": "6"}), gang("a", 4, ONE), types=one_pod_types())
    assert (new_types(result), len(left(result)), categories(result)) == ([], 4, {"gang"})
    assert details(result) == (
        "PodGroup default/a needs places for at least 4 pods at once, 3 would have one; "
        "missing default/a-003: nodepool np: all available instance types exceed limits for nodepool (NodePool=np)"
    )


def test_a_gang_larger_than_every_limit_leaves_all_room_to_others() -> None:
    result = plan(
        node_pool(limits={"cpu": "6"}), gang("a", 400, ONE), pods(3, ONE), gang("b", 1, ONE), types=one_pod_types()
    )
    assert len(new_types(result)) == 3
    assert outcomes(result)["PodGroup default/a"] == (0, False)
    assert sum(name.startswith("a-") for name in left(result)) == 400


def test_of_two_gangs_under_one_limit_the_older_one_is_complete() -> None:
    """Without gangs each would get some pods, and both would wait for ever."""
    later = NOW + timedelta(seconds=5)
    types, pool = one_pod_types(), node_pool(limits={"cpu": "10"})
    for first, second in (("a", "b"), ("b", "a")):
        younger = gang_pods(second, 4, ONE, later)
        result = plan(pool, gang(first, 4, ONE), pod_group(second, 4), younger, types=types)
        assert outcomes(result) == {
            f"PodGroup default/{first}": (4, True),
            f"PodGroup default/{second}": (0, False),
        }
        assert sizes(result) == [1] * 4


def test_the_more_important_gang_comes_before_the_older_one() -> None:
    important = gang_pods("b", 4, ONE, NOW + timedelta(hours=1), priority=100)
    result = plan(
        node_pool(limits={"cpu": "10"}), gang("a", 4, ONE), pod_group("b", 4), important, types=one_pod_types()
    )
    assert outcomes(result) == {"PodGroup default/a": (0, False), "PodGroup default/b": (4, True)}


def test_more_pods_than_the_minimum_are_placed_while_there_is_room() -> None:
    result = plan(node_pool(limits={"cpu": "12"}), pod_group("a", 4), gang_pods("a", 8, ONE), types=one_pod_types())
    assert outcomes(result) == {"PodGroup default/a": (6, True)}
    assert (len(left(result)), categories(result)) == (2, {"limits"})


def test_running_pods_count_towards_the_minimum() -> None:
    busy = node("n1", {"cpu": "2", "memory": "4Gi"})
    started, *waiting = gang_pods("a", 4, ONE)
    bound = replaced(started, spec=msgspec.structs.replace(started.spec, node_name="n1"))
    result = plan(node_pool(), busy, pod_group("a", 4), bound, waiting, types=one_pod_types())
    assert (outcomes(result), len(new_types(result))) == ({"PodGroup default/a": (3, True)}, 3)


def test_a_gang_waits_for_pods_that_do_not_exist_yet() -> None:
    result = plan(node_pool(), pod_group("a", 4), gang_pods("a", 3, ONE), types=one_pod_types())
    assert details(result) == "PodGroup default/a waits for pods: 3 of at least 4 exist"
    assert new_types(result) == []


def test_pods_that_the_scheduler_holds_back_for_the_others_are_planned_with_them() -> None:
    """The scheduler marks only those unschedulable that found no node; the others wait at its permit."""
    first, *others = gang_pods("a", 3, ONE)
    held = replaced(first, status=msgspec.structs.replace(first.status, conditions=()))
    result = plan(node_pool(), pod_group("a", 3), held, others, types=one_pod_types())
    assert (outcomes(result), len(new_types(result))) == ({"PodGroup default/a": (3, True)}, 3)


def test_a_pod_group_that_does_not_exist_keeps_its_pods_waiting() -> None:
    result = plan(node_pool(), gang_pods("a", 3, ONE), types=one_pod_types())
    assert (details(result), new_types(result)) == ("PodGroup default/a does not exist", [])


def test_a_gang_in_one_zone_gets_the_cheapest_zone_that_holds_it_whole() -> None:
    """Zone z1 is cheaper, but only two of its nodes fit the limit of its own NodePool."""
    pools = [
        node_pool("near", (ANY_CAPACITY, wanted(labels.ZONE, "In", "z1")), limits={"cpu": "4"}),
        node_pool("far", (ANY_CAPACITY, wanted(labels.ZONE, "In", "z2"))),
    ]
    result = plan(pools, gang("a", 3, ONE, labels.ZONE), types=one_pod_types())
    assert [each.domain for each in result.gangs] == ["z2"]
    assert asked(result, labels.ZONE) == [("In", ("z2",))] * 3
    assert not result.is_optimal
    free = plan(pools, gang("a", 3, ONE), types=one_pod_types())
    assert {values for _, values in asked(free, labels.ZONE)} > {("z2",)}


def test_a_gang_in_one_zone_stays_where_some_of_its_pods_run() -> None:
    busy = node("n1", {"cpu": "2", "memory": "4Gi"}, labels={labels.ZONE: "z2"})
    started, *waiting = gang_pods("a", 3, ONE)
    bound = replaced(started, spec=msgspec.structs.replace(started.spec, node_name="n1"))
    result = plan(node_pool(), busy, pod_group("a", 3, labels.ZONE), bound, waiting, types=one_pod_types())
    assert asked(result, labels.ZONE) == [("In", ("z2",))] * 2


def test_gangs_in_one_zone_take_the_next_zone_when_the_first_is_full() -> None:
    pools = [
        node_pool(zone, (ANY_CAPACITY, wanted(labels.ZONE, "In", zone)), limits={"cpu": "6"}) for zone in ("z1", "z2")
    ]
    result = plan(pools, [gang(name, 3, ONE, labels.ZONE) for name in "abc"], types=one_pod_types())
    assert [(each.domain, each.is_complete) for each in result.gangs] == [("z1", True), ("z2", True), ("", False)]


def test_a_topology_key_that_no_node_has_keeps_the_gang_waiting() -> None:
    result = plan(node_pool(), gang("a", 3, ONE, "example.com/rack"), types=one_pod_types())
    assert (new_types(result), "no node and no NodePool has the label example.com/rack" in details(result)) == (
        [],
        True,
    )


def test_a_gang_on_one_host_is_not_planned_for() -> None:
    result = plan(node_pool(), gang("a", 2, {"cpu": "100m"}, labels.HOSTNAME), types=one_pod_types())
    assert (new_types(result), "which is not planned for" in details(result)) == ([], True)


@pytest.mark.parametrize("own_labels", [False, True])
def test_gangs_that_ask_for_the_same_are_refused_after_few_plans(own_labels: bool) -> None:
    """Fifty of a hundred fit; labels of their own do not make each of them a case of its own."""
    members = [
        gang_pods(f"g{number:03}", 2, ONE, meta={"labels": {"job": f"{number}"}} if own_labels else {})
        for number in range(100)
    ]
    groups = [pod_group(f"g{number:03}", 2) for number in range(100)]
    result = plan(node_pool(limits={"cpu": "200"}), groups, members, types=one_pod_types())
    assert [each.is_complete for each in result.gangs] == [True] * 50 + [False] * 50
    assert "not decided" not in details(result)


def test_a_workload_of_1_35_makes_gangs_by_group_and_replica() -> None:
    policy = PodGroupPolicy(gang=GangSchedulingPolicy(min_count=2))
    spec = GroupedWorkloadSpec(
        pod_groups=(WorkloadPodGroup(name="workers", policy=policy), WorkloadPodGroup(name="driver"))
    )
    workload = GroupedWorkload(metadata=ObjectMeta(name="train", namespace="default"), spec=spec)
    members = [
        pod(
            f"{group}-{key}-{n}",
            ONE,
            workload_ref=PodWorkloadReference(name="train", pod_group=group, pod_group_replica_key=key),
        )
        for group, key, count in (("workers", "0", 2), ("workers", "1", 1), ("driver", "", 1))
        for n in range(count)
    ]
    result = plan(node_pool(), workload, members, types=one_pod_types())
    assert outcomes(result) == {
        "Workload default/train/workers/0": (2, True),
        "Workload default/train/workers/1": (0, False),
    }
    assert (len(new_types(result)), left(result)) == (3, ["workers-1-0"])


def test_coscheduling_pods_are_a_gang_once_their_pod_group_exists() -> None:
    label = {"labels": {"scheduling.x-k8s.io/pod-group": "mpi"}}
    members = [pod(f"mpi-{n}", ONE, meta=label) for n in range(2)]
    group = CoschedulingPodGroup(
        metadata=ObjectMeta(name="mpi", namespace="default"), spec=CoschedulingPodGroupSpec(min_member=3)
    )
    assert len(new_types(plan(node_pool(), members, types=one_pod_types()))) == 2
    assert new_types(plan(node_pool(), members, group, types=one_pod_types())) == []


@pytest.mark.parametrize(
    ("own_labels", "name"),
    [
        ({"jobset.sigs.k8s.io/jobset-name": "js"}, "JobSet default/js"),
        (
            {"leaderworkerset.sigs.k8s.io/name": "lws", "leaderworkerset.sigs.k8s.io/group-index": "3"},
            "LeaderWorkerSet default/lws/3",
        ),
    ],
)
def test_all_pods_of_a_job_set_or_leader_worker_group_get_places_or_none(own_labels: dict[str, str], name: str) -> None:
    """They have no minimum of their own: those that exist count, because some are created only when others run."""
    members = [pod(f"m-{n}", ONE, meta={"labels": own_labels}) for n in range(4)]
    assert outcomes(plan(node_pool(), members, types=one_pod_types())) == {name: (4, True)}
    limited = plan(node_pool(limits={"cpu": "6"}), members, types=one_pod_types())
    assert (outcomes(limited), new_types(limited)) == ({name: (0, False)}, [])


def test_an_annotation_of_pods_asks_for_one_domain() -> None:
    meta = {"labels": {"jobset.sigs.k8s.io/jobset-name": "js"}, "annotations": {labels.GANG_TOPOLOGY: labels.ZONE}}
    members = [pod(f"m-{n}", ONE, meta=meta) for n in range(3)]
    result = plan(node_pool(), members, types=one_pod_types())
    assert asked(result, labels.ZONE) == [("In", ("z1",))] * 3


@pytest.mark.parametrize("seed", range(25))
def test_every_gang_is_complete_or_gets_nothing(seed: int) -> None:
    """For clusters and gangs made at random; what the complete ones cost is what they cost without the others."""
    rng = random.Random(seed)
    sizes_of = {f"g{number}": rng.randint(1, 6) for number in range(rng.randint(1, 8))}
    minimum = {name: rng.randint(1, size + (rng.random() < 0.2)) for name, size in sizes_of.items()}
    zoned = {name for name in sizes_of if rng.random() < 0.4}
    groups = [pod_group(name, minimum[name], labels.ZONE if name in zoned else "") for name in sizes_of]
    members = {
        name: gang_pods(name, size, ONE, NOW + timedelta(seconds=rng.randint(0, 3))) for name, size in sizes_of.items()
    }
    singles = pods(rng.randint(0, 3), ONE, prefix="single")
    pool = node_pool(limits={"cpu": str(rng.randint(1, 30))})
    result = plan(pool, groups, list(members.values()), singles, types=one_pod_types())
    _check_gangs(result, minimum, zoned)
    complete = [each.gang.rpartition("/")[2] for each in result.gangs if each.is_complete]
    kept = [pod_group(name, minimum[name], labels.ZONE if name in zoned else "") for name in complete]
    others_gone = plan(pool, kept, [members[name] for name in complete], singles, types=one_pod_types())
    assert others_gone.price_per_hour == pytest.approx(result.price_per_hour)


def _check_gangs(result: Solution, minimum: dict[str, int], zoned: set[str]) -> None:
    placed: dict[str, list[str]] = {}
    for claim in result.new_claims:
        (zone,) = [entry.values for entry in claim.claim.spec.requirements if entry.key == labels.ZONE] or [("any",)]
        for member in claim.pods:
            placed.setdefault(member.metadata.name.rpartition("-")[0], []).append(",".join(zone))
    for name, least in minimum.items():
        zones: Sequence[str] = placed.get(name, ())
        assert not zones or len(zones) >= least
        if name in zoned and zones:
            assert len(set(zones)) == 1
            assert zones[0] in ("z1", "z2")
