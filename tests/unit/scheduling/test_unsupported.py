"""An unsupported constraint is never ignored: its pod waits, and the reason names the constraint."""

from __future__ import annotations

import time

import msgspec
import pytest

from karpenter.api.core import Container, ContainerPort, Pod, PodOS, PodResourceClaim
from karpenter.api.meta import LabelSelector
from karpenter.api.scheduling_constraints import (
    Affinity,
    PodAffinity,
    PodAffinityTerm,
    TopologySpreadConstraint,
    WeightedPodAffinityTerm,
)
from karpenter.api.storage import Volume
from karpenter.model import labels
from karpenter.scheduling.problem import build_problem
from karpenter.scheduling.solver import solve
from support.builders import (
    NOW,
    asked,
    categories,
    daemon_set,
    details,
    existing,
    indexes,
    left,
    new_types,
    node_and_claim,
    node_pool,
    plan,
    pod,
    pods,
    sizes,
    snapshot,
)
from support.instance_types import inc, shape

WEB = LabelSelector(match_labels={"app": "web"})


def near(key: str = labels.ZONE, **fields: object) -> PodAffinityTerm:
    return PodAffinityTerm(topology_key=key, label_selector=WEB, **fields)


def spread(when: str) -> tuple[TopologySpreadConstraint, ...]:
    return (
        TopologySpreadConstraint(max_skew=1, topology_key=labels.ZONE, when_unsatisfiable=when, label_selector=WEB),
    )


def listening(**fields: object) -> Container:
    return Container(ports=(ContainerPort(container_port=80, host_port=8080),), **fields)


HARD = [
    pytest.param({"resource_claims": (PodResourceClaim(name="gpu"),)}, "device", "gpu", id="S-240"),
]


@pytest.mark.parametrize(("spec", "category", "named"), HARD)
def test_a_pod_with_an_unsupported_constraint_waits_and_its_reason_names_it(
    spec: dict[str, object], category: str, named: str
) -> None:
    """Neither existing nodes nor new ones take it; other pods are served (S-240, S-142).

    SCH-780, SCH-781: a pod with device claims is not scheduled at all.
    """
    there = node_and_claim("n", {"cpu": "1"})
    result = plan(node_pool(), there, pod("p", {"cpu": "100m"}, **spec), pod("q", {"cpu": "2"}))
    assert (left(result), categories(result), existing(result), sizes(result)) == (["p"], {category}, {}, [1])
    assert named in details(result)


@pytest.mark.parametrize(
    "spec",
    [
        {"topology_spread_constraints": spread("ScheduleAnyway")},
        {
            "affinity": Affinity(
                pod_affinity=PodAffinity(preferred=(WeightedPodAffinityTerm(weight=1, pod_affinity_term=near()),))
            )
        },
        {
            "affinity": Affinity(
                pod_anti_affinity=PodAffinity(preferred=(WeightedPodAffinityTerm(weight=1, pod_affinity_term=near()),))
            )
        },
        {"init_containers": (listening(),)},
        {"volumes": (Volume(name="token"),)},
    ],
    ids=["soft-spread", "preferred-affinity", "preferred-anti-affinity", "init-port", "plain-volume"],
)
def test_a_preferred_or_empty_constraint_excludes_no_node(spec: dict[str, object]) -> None:
    """SCH-250"""
    assert sizes(plan(node_pool(), pod("p", **spec))) == [1]


def test_a_pod_in_the_network_of_its_host_may_take_no_port_of_it() -> None:
    assert sizes(plan(node_pool(), pod("p", host_network=True))) == [1]


def test_a_pod_goes_only_where_its_operating_system_runs() -> None:
    """The kubelet of another system would refuse it."""
    types = [
        shape("penguin", {"cpu": 4, "memory": "4Gi", "pods": 9}, systems=("linux",)),
        shape("glass", {"cpu": 8, "memory": "8Gi", "pods": 9}, systems=("windows",)),
    ]
    on_windows = pod("p", {"cpu": "1"}, os=PodOS(name="windows"))
    result = plan(node_pool(), on_windows, types=types)
    assert (new_types(result), asked(result, labels.OS)) == (["glass"], [("In", ("windows",))])
    there = node_and_claim("n", {"cpu": "4"}, labels={labels.OS: "linux"})
    assert existing(plan(node_pool(), there, on_windows, types=types)) == {}
    assert existing(plan(node_pool(), there, pod("p", os=PodOS(name="linux")), types=types)) == {"n": 1}


def test_a_daemon_set_runs_only_where_its_operating_system_does() -> None:
    """SCH-213"""
    types = [shape("penguin", {"cpu": 1, "memory": "4Gi", "pods": 9}, systems=("linux",), overhead={})]
    own = [daemon_set("d", {"cpu": "500m"}, os=PodOS(name=name)) for name in ("linux", "windows")]
    assert sizes(plan(node_pool(), own[0], pods(2, {"cpu": "500m"}), types=types)) == [1, 1]
    assert sizes(plan(node_pool(), own[1], pods(2, {"cpu": "500m"}), types=types)) == [2]


def test_a_runtime_class_without_overhead_changes_nothing() -> None:
    """Admission writes a runtime's overhead and node selector into the pod; the name itself asks for nothing."""
    manifest = b'{"metadata":{"name":"p"},"spec":{"runtimeClassName":"kata","containers":[{}]},"status":%s}'
    status = msgspec.json.encode(pod("p").status)
    assert sizes(plan(node_pool(), msgspec.json.decode(manifest % status, type=Pod))) == [1]


def repelling(key: str, **fields: object) -> dict[str, object]:
    return {"affinity": Affinity(pod_anti_affinity=PodAffinity(required=(near(key, **fields),)))}


def web(name: str, **fields: object) -> object:
    return pod(name, {"cpu": "100m"}, meta={"labels": {"app": "web"}, **fields})


def test_a_pod_that_repels_others_closes_its_node_to_them_only() -> None:
    """S-183 for host names: a selected pod goes elsewhere, any other may come."""
    there = [node_and_claim("a", {"cpu": "4"}), node_and_claim("b", {"cpu": "4"})]
    guard = pod("guard", node_name="a", **repelling(labels.HOSTNAME))
    assert existing(plan(node_pool(), there, guard, web("w"))) == {"b": 1}
    assert existing(plan(node_pool(), there, guard, pod("plain", {"cpu": "100m"}))) == {"a": 1}


def test_a_repelled_pod_gets_a_node_of_its_own_when_its_node_is_closed() -> None:
    guard = pod("guard", node_name="a", **repelling(labels.HOSTNAME))
    result = plan(node_pool(), node_and_claim("a", {"cpu": "4"}), guard, web("w"))
    assert (existing(result), sizes(result)) == ({}, [1])


def test_a_pod_repelled_from_a_whole_zone_goes_to_another() -> None:
    """S-183"""
    guard = pod("guard", node_name="a", **repelling(labels.ZONE))
    there = node_and_claim("a", {"cpu": "4"}, labels={labels.ZONE: "z1"})
    result = plan(node_pool(), there, guard, web("w"))
    assert (left(result), existing(result)) == ([], {})
    assert asked(result, labels.ZONE) != [("In", ("z1",))]


@pytest.mark.parametrize(
    ("term", "closed"),
    [
        ({}, False),
        ({"namespaces": ("other",)}, True),
        ({"namespaces": ("third",)}, False),
        ({"namespace_selector": LabelSelector()}, True),
    ],
    ids=["own-namespace", "listed", "not-listed", "all"],
)
def test_the_pods_that_an_anti_affinity_selects_depend_on_namespaces(term: dict[str, object], closed: bool) -> None:
    """S-185"""
    guard = pod("guard", node_name="a", **repelling(labels.HOSTNAME, **term))
    result = plan(node_pool(), node_and_claim("a", {"cpu": "4"}), guard, web("w", namespace="other"))
    assert bool(existing(result)) is not closed


def test_anti_affinity_of_a_finished_pod_does_not_count() -> None:
    guard = pod("guard", node_name="a", status={"phase": "Succeeded"}, **repelling(labels.HOSTNAME))
    assert existing(plan(node_pool(), node_and_claim("a", {"cpu": "4"}), guard, web("w"))) == {"a": 1}


@pytest.mark.speed
def test_twenty_thousand_pods_hear_from_five_thousand_others_in_no_time() -> None:
    """Replicas with labels of their own included: only labels that some term reads tell pods apart."""
    there = [node_and_claim(f"n{number}", {"cpu": "4"}) for number in range(100)]
    guards = [pod(f"g{n}", node_name=f"n{n % 100}", **repelling(labels.HOSTNAME)) for n in range(5000)]
    waiting = [
        pod(f"w{n}", {"cpu": "1m"}, meta={"labels": {"app": "web", "statefulset.kubernetes.io/pod-name": f"w{n}"}})
        for n in range(20_000)
    ]
    state = snapshot(node_pool(), there, guards, waiting)
    begun = time.thread_time()
    result = solve(build_problem(state, indexes([node_pool()], inc(200)), NOW))
    assert time.thread_time() - begun < 10
    assert (existing(result), left(result)) == ({}, [])
