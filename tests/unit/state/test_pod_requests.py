"""Requests of pods, and which pods form one pod group."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karpenter.api.core import (
    Container,
    ContainerPort,
    ContainerStatus,
    Pod,
    PodOS,
    PodResourceClaim,
    PodSpec,
    ResourceRequirements,
)
from karpenter.api.meta import Condition
from karpenter.api.scheduling_constraints import TopologySpreadConstraint
from karpenter.api.storage import PersistentVolumeClaimSource, Volume
from karpenter.model import pods
from karpenter.model import resources as res
from karpenter.state.pod_signature import PodSignatureCache
from support.builders import affinity, container, expr, pod, seconds, term, tolerating, where
from support.examples import examples

INFEASIBLE = Condition(type="PodResizePending", status="True", reason="Infeasible")


def holding(name: str, cpu: str, allocated: str = "") -> ContainerStatus:
    return ContainerStatus(
        name=name,
        resources=ResourceRequirements(requests={"cpu": cpu}) if cpu else None,
        allocated_resources={"cpu": allocated} if allocated else {},
    )


def sidecar(requests: dict[str, str], **fields: object) -> Container:
    return container(requests, restart_policy="Always", **fields)


def named(cpu: str) -> tuple[Container, ...]:
    return (container({"cpu": cpu}, name="main"),)


@pytest.mark.parametrize(
    ("subject", "cpu"),
    [
        pytest.param(pod("p", {"cpu": "1"}, init_containers=(container({"cpu": "2"}),)), 2000, id="S-049"),
        pytest.param(
            pod("p", {"cpu": "1"}, resources=ResourceRequirements(requests={"cpu": "3"})), 3000, id="S-056-raised"
        ),
        pytest.param(
            pod("p", {"cpu": "4"}, resources=ResourceRequirements(requests={"cpu": "3"})), 3000, id="S-056-replaced"
        ),
        pytest.param(
            pod("p", {"cpu": "1"}, init_containers=(sidecar({"cpu": "1"}), container({"cpu": "2"}))), 3000, id="S-057"
        ),
        pytest.param(
            pod("p", {"cpu": "1"}, init_containers=(container({"cpu": "2"}), sidecar({"cpu": "1"}))),
            2000,
            id="S-057-sidecar-after",
        ),
        pytest.param(
            pod("p", containers=named("2"), status={"container_statuses": (holding("main", "", "3"),)}),
            3000,
            id="S-058",
        ),
        pytest.param(
            pod("p", containers=named("2"), status={"container_statuses": (holding("main", "4", "3"),)}),
            4000,
            id="S-058-actuated",
        ),
        pytest.param(
            pod(
                "p",
                containers=named("9"),
                status={"container_statuses": (holding("main", "2", "3"),), "conditions": (INFEASIBLE,)},
            ),
            3000,
            id="resize-infeasible",
        ),
        pytest.param(pod("p", {"cpu": "1"}, overhead={"cpu": "250m"}), 1250, id="S-041"),
        pytest.param(
            pod("p", containers=(container({"cpu": "1"}, limits={"cpu": "8"}),)), 1000, id="limits-play-no-role"
        ),
    ],
)
def test_effective_requests_are_those_of_the_scheduler(subject: Pod, cpu: int) -> None:
    """S-041, S-049, S-056 to S-058, SCH-195"""
    assert pods.pod_requests(subject)["cpu"] == cpu


def test_pod_level_requests_replace_only_what_may_be_set_there() -> None:
    """SCH-195 step 5"""
    whole = ResourceRequirements(requests={"memory": "5Gi", "a/gpu": "7", "hugepages-2Mi": "4Mi"})
    subject = pod("p", {"cpu": "1", "memory": "1Gi", "a/gpu": "2"}, resources=whole)
    assert pods.pod_requests(subject) == res.parse_resources(
        {"cpu": "1", "memory": "5Gi", "a/gpu": "2", "hugepages-2Mi": "4Mi", "pods": 1}
    )


def test_a_pod_takes_one_slot_whatever_it_says() -> None:
    assert pods.pod_requests(pod("p", {"pods": "7"}))["pods"] == res.ONE_UNIT


amounts = st.dictionaries(st.sampled_from(["cpu", "memory", "a/gpu"]), st.integers(0, 5))
init = st.tuples(amounts, st.booleans())


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(amounts, min_size=1, max_size=3), st.lists(init, max_size=4), amounts)
def test_requests_cover_every_moment_of_the_pods_life(
    regular: list[dict[str, int]], inits: list[tuple[dict[str, int], bool]], overhead: dict[str, int]
) -> None:
    """SCH-195: the largest sum of containers that run together, found by simulating the pod's start step by step."""
    subject = pod(
        "p",
        containers=tuple(container(element) for element in regular),
        init_containers=tuple(sidecar(requests) if stays else container(requests) for requests, stays in inits),
        overhead=overhead,
    )
    running: list[dict[str, int]] = []
    moments: list[list[dict[str, int]]] = []
    for requests, stays in inits:
        moments.append([*running, requests])
        running += [requests] if stays else []
    moments.append([*running, *regular])
    for name in ("cpu", "memory", "a/gpu"):
        most = max(sum(element.get(name, 0) for element in moment) for moment in moments)
        assert pods.pod_requests(subject).get(name, 0) == 1000 * (most + overhead.get(name, 0))


# -- classes --------------------------------------------------------------------------------------------------------------


def token(name: str) -> tuple[Volume, ...]:
    return (Volume(name=name),)


BASE = {"cpu": "1"}


@pytest.mark.parametrize(
    "other",
    [
        pod("other", BASE),
        pod("p", BASE, meta={"labels": {"app": "web"}, "creation_timestamp": seconds(9), "uid": "elsewhere"}),
        pod("p", BASE, meta={"namespace": "other", "annotations": {"a": "b"}}),
        pod("p", BASE, volumes=token("kube-api-access-x7f2p")),
        pod("p", BASE, scheduler_name="mine", termination_grace_period_seconds=7),
        pod("p", BASE, status={"nominated_node_name": "n"}),
        pod("p", BASE, node_name="n"),
    ],
    ids=["name", "metadata", "namespace", "token-volume", "scheduler", "nomination", "bound"],
)
def test_pods_scheduling_cannot_tell_apart_share_a_class(other: Pod) -> None:
    """SCH-900.1: labels and namespaces are compared pod by pod where they matter."""
    classes = PodSignatureCache()
    assert classes.signature_of(pod("p", BASE)) is classes.signature_of(other)


def test_the_token_volume_of_each_pod_does_not_split_a_workload() -> None:
    classes = PodSignatureCache()
    assert classes.signature_of(pod("p", BASE, volumes=token("a"))) is classes.signature_of(
        pod("q", BASE, volumes=token("b"))
    )


def spread(when: str) -> TopologySpreadConstraint:
    return TopologySpreadConstraint(max_skew=1, topology_key="zone", when_unsatisfiable=when)


DIFFERENT = [
    {"topology_spread_constraints": (spread("DoNotSchedule"),)},
    {"containers": (container({"cpu": "2"}),)},
    {"containers": (container(BASE, ports=(ContainerPort(host_port=80),)),)},
    {"init_containers": (container({"cpu": "1"}),)},
    {"node_selector": {"a": "b"}},
    {"os": PodOS(name="windows")},
    {"host_network": True, "containers": (container(BASE, ports=(ContainerPort(container_port=81),)),)},
    {"affinity": where("a", "Exists")},
    {"affinity": affinity(preferred=[(1, term(expr("a", "Exists")))])},
    {"tolerations": (tolerating("a"),)},
    {"overhead": {"cpu": "1"}},
    {"resources": ResourceRequirements(requests={"cpu": "3"})},
    {"resource_claims": (PodResourceClaim(name="gpu"),)},
    {"topology_spread_constraints": (spread("ScheduleAnyway"),)},
    {"status": {"container_statuses": (holding("", "3"),)}},
]


def test_pods_that_differ_in_what_scheduling_reads_are_of_different_classes() -> None:
    """SCH-900.1"""
    classes = PodSignatureCache()
    pod_signatures = [
        classes.signature_of(pod("p", BASE)),
        *(classes.signature_of(pod("p", **{"requests": BASE, **fields})) for fields in DIFFERENT),
    ]
    assert len(set(pod_signatures)) == len(pod_signatures)


SAME = [
    {"host_network": True},
    {"priority": 7},
    {"containers": (msgspec.structs.replace(container(BASE), name="other"),)},
    {"containers": (container(BASE, ports=(ContainerPort(container_port=80),)),)},
    {"volumes": (Volume(name="v", persistent_volume_claim=PersistentVolumeClaimSource(claim_name="disk")),)},
]


def test_what_no_decision_reads_splits_no_class() -> None:
    classes = PodSignatureCache()
    plain = classes.signature_of(pod("p", BASE))
    assert {classes.signature_of(pod("p", **{"requests": BASE, **fields})) for fields in SAME} == {plain}


def test_the_order_of_keys_in_a_manifest_does_not_split_a_class() -> None:
    classes = PodSignatureCache()
    one = pod("p", {"cpu": "1", "memory": "1Gi"}, node_selector={"a": "1", "b": "2"})
    other = pod("q", {"memory": "1Gi", "cpu": "1"}, node_selector={"b": "2", "a": "1"})
    assert classes.signature_of(one) is classes.signature_of(other)


def test_a_class_goes_with_its_last_pod() -> None:
    classes = PodSignatureCache()
    first = classes.signature_of(pod("p", BASE))
    key = first.key
    del first
    assert classes.signature_of(pod("p", {"cpu": "2"})).key != key
    assert len(list(classes._by_key)) == 0


def test_preferences_come_heaviest_first() -> None:
    """SCH-160"""
    preferences = [(1, term(expr("a", "Exists"))), (9, term(expr("b", "Exists"))), (9, term(expr("c", "Exists")))]
    requirementses = (
        PodSignatureCache().signature_of(pod("p", affinity=affinity(preferred=preferences))).preferred_node_affinity
    )
    assert [list(requirements) for requirements in requirementses] == [["b"], ["c"], ["a"]]


def test_a_template_reads_missing_requests_from_limits() -> None:
    """SCH-211"""
    spec = PodSpec(containers=(container({"cpu": "1"}, limits={"cpu": "2", "memory": "1Gi"}),))
    assert pods.template_requests(spec) == res.parse_resources({"cpu": "1", "memory": "1Gi", "pods": 1})
