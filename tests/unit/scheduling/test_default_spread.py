"""Pods without spread constraints of their own get those the scheduler is configured with (SCH §29)."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from karpenter.api.core import Pod
from karpenter.api.scheduling_constraints import TopologySpreadConstraint
from karpenter.model import labels
from karpenter.scheduling.problem import build_problem
from karpenter.scheduling.scheduling_options import PreferencePolicy, SchedulingOptions
from karpenter.scheduling.solver import solve
from karpenter.state import virtual_pods
from karpenter.state.virtual_pods import VirtualPods
from support.applied_plans import PlannedCluster
from support.builders import (
    ANY_CAPACITY,
    NOW,
    asked,
    details,
    indexes,
    left,
    node_and_claim,
    node_pool,
    plan,
    sizes,
    snapshot,
    wanted,
)
from support.instance_types import STD
from support.topology_builders import app_pods, of_app, spread_over
from support.workload_selectors import owned_by, selector_workload, service

HOST, ZONE = labels.HOSTNAME, labels.ZONE
APART = SchedulingOptions(default_spread=(spread_over(HOST, selector=None),))


def of_set(count: int, name: str = "web", **spec: object) -> list[Pod]:
    """Waiting pods of a ReplicaSet, all with the label app=web."""
    pods = app_pods(count, prefix=name, **spec)
    owner = owned_by(name)
    return [
        msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, owner_references=owner))
        for pod in pods
    ]


def test_pods_of_a_replica_set_are_spread() -> None:
    """S-220"""
    assert sizes(plan(node_pool(), selector_workload("web", of_app("web")), of_set(3), options=APART)) == [1, 1, 1]


def test_pods_a_service_selects_are_spread() -> None:
    """S-220"""
    assert sizes(plan(node_pool(), service("web", {"app": "web"}), app_pods(3), options=APART)) == [1, 1, 1]


def test_a_bare_pod_is_not_constrained() -> None:
    """S-220, SCH-832, K15-615: pods without a selector are packed."""
    assert sizes(plan(node_pool(), app_pods(3), options=APART)) == [3]


@pytest.mark.parametrize("soft", [False, True])
def test_pods_with_constraints_of_their_own_keep_to_those_only(soft: bool) -> None:
    """S-220, SCH-831"""
    own = [spread_over(HOST, 3, soft=soft)]
    result = plan(node_pool(), service("web", {"app": "web"}), app_pods(3, spread=own), options=APART)
    assert sizes(result) == [3]


def test_without_defaults_services_mean_nothing() -> None:
    assert sizes(plan(node_pool(), service("web", {"app": "web"}), app_pods(3))) == [3]


def test_all_defaults_are_given_with_what_they_say() -> None:
    """SCH-831, SCH-833: as if the pods had said it themselves."""
    defaults = (spread_over(HOST, 2, selector=None), spread_over(ZONE, selector=None, min_domains=3))
    cluster = PlannedCluster(
        node_pool(), service("web", {"app": "web"}), options=SchedulingOptions(default_spread=defaults)
    )
    cluster.batch(app_pods(6))
    assert (cluster.per_node(), sorted(cluster.counts().values())) == ([2, 2, 2], [2, 2, 2])


def test_bound_pods_of_the_same_owner_count() -> None:
    there = node_and_claim("a", {"cpu": "8"}, labels={ZONE: "z1"})
    zones = SchedulingOptions(default_spread=(spread_over(ZONE, selector=None),))
    pool = node_pool(requirements=[ANY_CAPACITY, wanted(ZONE, "In", "z1", "z2")])
    cluster = PlannedCluster(pool, there, selector_workload("web", of_app("web")), options=zones)
    cluster.batch(of_set(4, requests={"cpu": "100m"}))
    cluster.batch(of_set(4, requests={"cpu": "100m"}))
    assert cluster.counts() == {"z1": 2, "z2": 2}


def test_equal_pods_of_different_owners_are_distinguished() -> None:
    options = SchedulingOptions(default_spread=zones(soft=False))
    result = plan(
        node_pool(), selector_workload("a", of_app("web")), of_set(1, "a"), of_set(3, "stranger"), options=options
    )
    assert (left(result), sizes(result)) == (["a-000"], [3])


def test_pods_of_different_labels_but_one_service_are_spread_together() -> None:
    named = [pod for n in range(3) for pod in app_pods(1, prefix=f"db-{n}", own={"pod-name": f"db-{n}"})]
    assert sizes(plan(node_pool(), service("db", {"app": "web"}), named, options=APART)) == [1, 1, 1]


def zones(soft: bool) -> tuple[TopologySpreadConstraint, ...]:
    return (spread_over("example.com/unknown", soft=soft, selector=None),)


def test_a_soft_default_that_cannot_hold_is_given_up() -> None:
    """S-221"""
    options = SchedulingOptions(default_spread=zones(soft=True))
    result = plan(node_pool(), service("web", {"app": "web"}), app_pods(2), options=options)
    assert (left(result), sizes(result)) == ([], [2])


def test_a_hard_default_that_cannot_hold_keeps_the_pod_waiting_and_is_named() -> None:
    options = SchedulingOptions(default_spread=zones(soft=False))
    result = plan(node_pool(), service("web", {"app": "web"}), app_pods(1), options=options)
    assert left(result) == ["web-000"]
    assert "example.com/unknown" in details(result)


def test_a_soft_default_counts_nothing_under_policy_ignore() -> None:
    soft = (spread_over(HOST, soft=True, selector=None),)
    options = SchedulingOptions(PreferencePolicy.IGNORE, default_spread=soft)
    assert sizes(plan(node_pool(), service("web", {"app": "web"}), app_pods(2), options=options)) == [2]
    respecting = SchedulingOptions(default_spread=soft)
    assert sizes(plan(node_pool(), service("web", {"app": "web"}), app_pods(2), options=respecting)) == [1, 1]


def test_pods_that_must_leave_their_node_are_spread_too() -> None:
    """SCH-831, K15-104: pods of all origins, in every simulation, and only in its frozen picture of them."""
    cluster = node_and_claim("old", {"cpu": "8"}, labels={ZONE: "z1"}, deleted=True)
    bound = app_pods(3, {"cpu": "1"}, node_name="old", status={"phase": "Running", "conditions": ()})
    result = plan(node_pool(), cluster, service("web", {"app": "web"}), bound, options=APART)
    assert sizes(result) == [1, 1, 1]


def test_pods_that_leave_and_pods_that_wait_are_spread_together() -> None:
    old = node_and_claim("old", {"cpu": "8"}, labels={ZONE: "z1"}, deleted=True)
    bound = app_pods(2, {"cpu": "1"}, node_name="old", status={"phase": "Running", "conditions": ()})
    waiting = app_pods(2, {"cpu": "1"}, prefix="new")
    result = plan(node_pool(), old, service("web", {"app": "web"}), bound, waiting, options=APART)
    assert (left(result), sizes(result)) == ([], [1, 1, 1, 1])


def test_virtual_pods_are_spread_too() -> None:
    """SCH-831"""
    virtual = VirtualPods()
    room = [
        msgspec.structs.replace(
            pod,
            metadata=msgspec.structs.replace(pod.metadata, annotations={virtual_pods.VIRTUAL_POD_ANNOTATION: "true"}),
        )
        for pod in app_pods(2)
    ]
    virtual.set_pods("default/room", tuple(room))
    pool = node_pool()
    shown = virtual.added_to(snapshot(pool, service("web", {"app": "web"})))
    assert sizes(solve(build_problem(shown, indexes([pool], STD), NOW, APART))) == [1, 1]
    assert sizes(
        solve(
            build_problem(
                replace(shown, workload_selectors=snapshot().workload_selectors), indexes([pool], STD), NOW, APART
            )
        )
    ) == [2]


def test_the_pods_of_a_plan_are_those_that_wait() -> None:
    """Default constraints appear in no created object, nomination or message."""
    waiting = app_pods(1)
    result = plan(node_pool(), service("web", {"app": "web"}), waiting, options=APART)
    assert [new_nodeclaim.pods for new_nodeclaim in result.new_claims] == [tuple(waiting)]
    assert asked(result, HOST) == []


def test_of_a_mixed_batch_only_undeclared_pods_are_constrained() -> None:
    """K15-615: pods of the Service without own constraints are spread, pods with constraints and pods of no Service are not."""
    own = [spread_over(HOST, 9)]
    undeclared = app_pods(2, prefix="plain")
    result = plan(
        node_pool(), service("web", {"app": "web"}), undeclared, app_pods(2, prefix="own", spread=own), options=APART
    )
    hosts = [{pod.metadata.name for pod in new.pods} for new in result.new_claims]
    assert all(len({name for name in names if name.startswith("plain")}) <= 1 for names in hosts)
    assert left(result) == []
