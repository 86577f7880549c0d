"""The nearest fit of a pod left out: the number of types each filter excluded, and the smallest change (SCH §13 Beyond)."""

from __future__ import annotations

from itertools import permutations

import pytest

from karpenter.api.core import ContainerPort, Pod
from karpenter.api.meta import LabelSelector
from karpenter.api.scheduling_constraints import (
    Affinity,
    NodeSelectorTerm,
    PodAffinity,
    PodAffinityTerm,
    TopologySpreadConstraint,
)
from karpenter.model import labels
from karpenter.scheduling.explain.nearest_fit_messages import filter_noun, nearest_fit_sentence
from karpenter.scheduling.explain.reason_messages import (
    reason_message,
    unschedulable_event_message,
    unschedulable_fingerprint,
)
from karpenter.scheduling.failed_filters import (
    FilterBreakdown,
    FilteredTypes,
    HostPortTaken,
    InsufficientResource,
    NoMatchingOffering,
    OfferingsUnavailable,
    UnknownResource,
    UnmetRequirement,
    UntoleratedTaint,
)
from karpenter.scheduling.solution import Solution, UnschedulablePod
from support.builders import (
    affinity,
    container,
    daemon_set,
    expr,
    left,
    node,
    node_pool,
    plan,
    pod,
    pods,
    pool_taint,
    term,
    tolerating,
    wanted,
)
from support.instance_types import offering, shape

GIB = 2**30 * 1000
POD_ENI = "vpc.amazonaws.com/pod-eni"
DEDICATED = {"taints": (pool_taint("dedicated"),)}
SMALL = shape(
    "small", {"cpu": 2, "memory": "4Gi", "pods": 9}, [offering("spot", "z1", 0.1), offering("spot", "z2", 0.1)]
)
LARGE = shape("large", {"cpu": 8, "memory": "16Gi", "pods": 9}, [offering("spot", "z1", 0.4)])
BOTH = (SMALL, LARGE)
#: Of this type everything in z1 is sold out.
HALF = shape(
    "half",
    {"cpu": 2, "memory": "4Gi", "pods": 9},
    [offering("spot", "z1", 0.1, available=False), offering("spot", "z2", 0.5)],
)
APP = {"app": "web"}
SELECTED = LabelSelector(match_labels=APP)
SPREAD = TopologySpreadConstraint(
    max_skew=1, topology_key=labels.ZONE, when_unsatisfiable="DoNotSchedule", label_selector=SELECTED
)


def only(result: Solution) -> UnschedulablePod:
    (unschedulable_pod,) = result.unschedulable
    return unschedulable_pod


def said(result: Solution) -> str:
    unschedulable_pod = only(result)
    return nearest_fit_sentence(unschedulable_pod.nearest_fit, unschedulable_pod.nearest_node)


def breakdown(result: Solution, pool: str = "np") -> FilterBreakdown:
    (filter_breakdown,) = [reason.filter_breakdown for reason in only(result).reasons if reason.node_pool == pool]
    assert filter_breakdown is not None
    return filter_breakdown


def filtered_types(result: Solution, kind: type[object]) -> FilteredTypes:
    (filtered_types,) = [
        filtered_type for filtered_type in breakdown(result).filtered if isinstance(filtered_type.failed_filter, kind)
    ]
    return filtered_types


# -- sentences ------------------------------------------------------------------------------------------------------------


def test_an_unknown_resource_is_named_as_exactly_that() -> None:
    result = plan(node_pool(), pod("p", {POD_ENI: "1"}), types=BOTH)
    assert said(result) == f"no instance type of NodePool np offers the resource {POD_ENI}"
    assert filtered_types(result, UnknownResource) == FilteredTypes(UnknownResource(POD_ENI), types=2, only_by_this=2)


def test_an_unknown_resource_comes_first_where_more_is_wrong() -> None:
    result = plan(node_pool(template=DEDICATED), pod("p", {POD_ENI: "1"}), types=BOTH)
    assert said(result).startswith(f"no instance type of NodePool np offers the resource {POD_ENI}; also, ")
    assert "dedicated:NoSchedule" in said(result)


def test_missing_amounts_are_reported_for_the_largest_type() -> None:
    """SCH-336 Beyond"""
    result = plan(node_pool(), pod("p", {"memory": "28Gi"}), types=BOTH)
    assert said(result) == (
        "nearest is NodePool np: the pod is 12.01 GiB of memory short on large, the largest otherwise suitable type "
        "(asks 28 GiB of memory, 15.99 GiB of memory there)"
    )


def test_what_daemon_sets_take_is_reported() -> None:
    result = plan(node_pool(), daemon_set("log", {"cpu": "500m"}), pod("p", {"cpu": "7800m"}), types=BOTH)
    assert "asks 8.3 CPU, 0.5 CPU of that for DaemonSets" in said(result)
    short = filtered_types(result, InsufficientResource).failed_filter
    assert isinstance(short, InsufficientResource)
    assert (short.instance_type, short.asked, short.daemonset_requests) == ("large", 8300, 500)


def test_a_taint_to_tolerate_is_named() -> None:
    result = plan(node_pool(template=DEDICATED), pod("p"), types=BOTH)
    assert said(result) == "the pod would fit NodePool np if it tolerated the taint dedicated:NoSchedule"
    tolerant = pod("p", tolerations=(tolerating("dedicated"),))
    assert left(plan(node_pool(template=DEDICATED), tolerant, types=BOTH)) == []


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"cpu": "1"}, "its limit of cpu were 1 CPU higher: a node needs 2 CPU, the limit leaves 1 CPU"),
        ({"nodes": "0"}, "its limit of nodes were 1 node higher: a node needs 1 node, the limit leaves 0 nodes"),
    ],
)
def test_a_limit_to_raise_is_reported_with_how_much(limits: dict[str, str], expected: str) -> None:
    result = plan(node_pool(limits=limits), pod("p"), types=BOTH)
    assert said(result) == f"the pod would fit NodePool np if {expected}"


def test_raising_the_limit_by_the_reported_amount_is_enough() -> None:
    assert left(plan(node_pool(limits={"cpu": "2"}), pod("p"), types=BOTH)) == []


def test_a_limit_that_others_of_the_pass_used_up_is_reported() -> None:
    result = plan(node_pool(limits={"cpu": "3"}), pods(2, {"cpu": "1500m"}), types=BOTH)
    assert said(result) == (
        "the pod would fit NodePool np if its limit of cpu were 1 CPU higher: "
        "a node needs 2 CPU, the limit leaves 1 CPU"
    )


def test_a_zone_that_is_sold_out_is_named() -> None:
    result = plan(node_pool(), pod("p", node_selector={labels.ZONE: "z1"}), types=[HALF])
    assert said(result) == "nearest is NodePool np: all matching offerings are unavailable in z1 as spot"
    assert filtered_types(result, OfferingsUnavailable) == FilteredTypes(
        OfferingsUnavailable(("z1",), ("spot",)), types=1, only_by_this=1, offerings=1
    )


def test_a_zone_without_offerings_is_reported_with_the_zones_that_have_some() -> None:
    result = plan(node_pool(), pod("p", node_selector={labels.ZONE: "z9"}), types=BOTH)
    assert said(result) == (
        "nearest is NodePool np: no otherwise suitable type has topology.kubernetes.io/zone In [z9], "
        "which the pod requires (there are z1, z2)"
    )
    assert filtered_types(result, UnmetRequirement).offerings == 3


def test_an_undefined_label_is_reported() -> None:
    result = plan(node_pool(), pod("p", node_selector={"team": "a"}), types=BOTH)
    assert said(result) == "nearest is NodePool np: the pod requires team In [a], a label the NodePool does not define"


def test_a_requirement_of_the_pool_may_be_what_is_in_the_way() -> None:
    pool = node_pool(requirements=[wanted(labels.INSTANCE_TYPE, "In", "small")])
    result = plan(pool, pod("p", {"cpu": "7"}), types=BOTH)
    assert said(result) == (
        "nearest is NodePool np: no otherwise suitable type has node.kubernetes.io/instance-type In [small], "
        "which the NodePool requires (there is large)"
    )


def test_min_values_out_of_reach_are_reported_with_both_numbers() -> None:
    pool = node_pool(requirements=[wanted(labels.INSTANCE_TYPE, "Exists", least=2)])
    result = plan(pool, pod("p", {"cpu": "3"}), types=BOTH)
    assert said(result) == (
        "nearest is NodePool np: minValues asks for 2 values of node.kubernetes.io/instance-type, and 1 is left"
    )


def test_a_host_port_is_reported_with_the_daemon_set_that_takes_it() -> None:
    """SCH-336 Beyond, SCH-417"""
    ports = (ContainerPort(container_port=80, host_port=80),)
    taking = daemon_set("web", containers=(container(ports=ports),))
    result = plan(node_pool(), taking, pod("p", containers=(container(ports=ports),)), types=BOTH)
    assert said(result) == "nearest is NodePool np: host port 80/TCP is taken by DaemonSet default/web on every node"
    assert filtered_types(result, HostPortTaken).types == 2
    assert "pod hostport conflicts with existing hostport configuration" in unschedulable_event_message(only(result))


def test_a_static_pool_that_would_suit_is_named() -> None:
    result = plan(node_pool("fix", replicas=2), node_pool(template=DEDICATED), pod("p"), types=BOTH)
    assert said(result) == "the pod fits only the static NodePool fix, which is full (spec.replicas 2)"


def test_several_changes_are_reported_together() -> None:
    result = plan(node_pool(template=DEDICATED, limits={"cpu": "1"}), pod("p"), types=BOTH)
    assert said(result) == (
        "nearest is type small of NodePool np, where the pod does not tolerate the taint dedicated:NoSchedule "
        "and a node needs 2 CPU, the limit leaves 1 CPU"
    )


def test_the_pool_with_the_fewest_changes_is_the_nearest() -> None:
    far = node_pool("a", template=DEDICATED, requirements=[wanted(labels.ZONE, "In", "z1")])
    near = node_pool("b", template={"taints": (pool_taint("soon"),)})
    result = plan(far, near, pod("p", node_selector={labels.ZONE: "z2"}), types=BOTH)
    assert said(result) == "the pod would fit NodePool b if it tolerated the taint soon:NoSchedule"


def test_the_nearest_alternative_of_a_pod_counts() -> None:
    either = affinity(term(expr(labels.ZONE, "In", "z1")), term(expr(labels.ZONE, "In", "z9"), expr("team", "Exists")))
    result = plan(node_pool(template=DEDICATED), pod("p", affinity=either), types=BOTH)
    assert said(result) == "the pod would fit NodePool np if it tolerated the taint dedicated:NoSchedule"


def test_an_alternative_that_topology_closed_is_reported_before_one_that_no_pool_meets() -> None:
    """SCH-250a: the last OR-term names a label that no pool has, but the pod waits because of its anti-affinity."""
    terms = (term(expr(labels.ZONE, "In", "z1")), term(expr("unknown", "Exists")))
    apart = PodAffinity(required=(PodAffinityTerm(label_selector=SELECTED, topology_key=labels.ZONE),))
    either = affinity(*terms, pod_anti_affinity=apart)
    result = plan(node_pool(), pods(2, {}, affinity=either, meta={"labels": APP}), types=[SMALL])
    assert said(result).startswith("the pod's anti-affinity by topology.kubernetes.io/zone leaves no zone")


def test_an_alternative_that_a_limit_closed_is_reported_before_one_that_no_pool_meets() -> None:
    """SCH-250a, SCH-385: the limit leaves one node of two cores."""
    either = affinity(term(expr(labels.ZONE, "In", "z1")), term(expr("unknown", "Exists")))
    result = plan(node_pool(limits={"nodes": "1"}), pods(2, {"cpu": "1500m"}, affinity=either), types=[SMALL])
    assert said(result).startswith("the pod would fit NodePool np if its limit of nodes were 1 node higher")


_SMALL_TYPE = term(expr(labels.INSTANCE_TYPE, "In", "small"))
_SOLD_OUT = term(expr(labels.INSTANCE_TYPE, "In", "out"))
_OVER_LIMIT = term(expr(labels.INSTANCE_TYPE, "In", "huge"))
_NO_LABEL, _NO_ZONE = term(expr("unknown", "Exists")), term(expr(labels.ZONE, "In", "z9"))


@pytest.mark.parametrize(
    ("nearest", "farther", "sentence"),
    [
        (_SOLD_OUT, (_SMALL_TYPE, _NO_LABEL), "nearest is NodePool np: all matching offerings are unavailable"),
        (_SOLD_OUT, (_OVER_LIMIT, _NO_ZONE), "nearest is NodePool np: all matching offerings are unavailable"),
        (_OVER_LIMIT, (_SMALL_TYPE, _NO_LABEL), "the pod would fit NodePool np if its limit of cpu were 32 CPU higher"),
        (_SMALL_TYPE, (_NO_ZONE, _NO_LABEL), "nearest is NodePool np: the pod is 2.1 CPU short on small"),
    ],
    ids=["sold out", "sold out beside a limit", "limit", "too small"],
)
def test_of_alternatives_that_fail_for_different_causes_the_nearest_is_reported_whatever_their_order(
    nearest: NodeSelectorTerm, farther: tuple[NodeSelectorTerm, ...], sentence: str
) -> None:
    """SCH-250a: Karpenter reports the alternative that it tried last."""
    sold_out = shape("out", {"cpu": 16, "memory": "64Gi", "pods": 9}, [offering("spot", "z1", 0.8, available=False)])
    huge = shape("huge", {"cpu": 64, "memory": "64Gi", "pods": 9}, [offering("spot", "z1", 3.0)])
    for terms in permutations((nearest, *farther)):
        asking = pod("p", {"cpu": "4"}, affinity=affinity(*terms))
        result = plan(node_pool(limits={"cpu": "32"}), asking, types=[SMALL, sold_out, huge])
        assert said(result).startswith(sentence)
        (reason,) = only(result).reasons
        (named,) = nearest.match_expressions
        assert f"{named.key} In [{named.values[0]}]" in reason_message(reason)


# -- between pods ---------------------------------------------------------------------------------------------------------


def test_a_spread_blocked_by_a_sold_out_zone_reports_both() -> None:
    spread = pods(3, {"cpu": "1500m"}, topology_spread_constraints=(SPREAD,), meta={"labels": APP})
    result = plan(node_pool(), spread, types=[HALF])
    assert {nearest_fit_sentence(unschedulable_pod.nearest_fit) for unschedulable_pod in result.unschedulable} == {
        "topology spread by topology.kubernetes.io/zone allows only z1 next: "
        "nearest is NodePool np: all matching offerings are unavailable in z1 as spot"
    }


def test_a_spread_blocked_by_a_zone_that_no_pool_serves_names_it() -> None:
    """The zone is known from a node there, and the pool launches elsewhere."""
    there = [node("n3", {"cpu": "100m"}, labels={labels.ZONE: "z3"})]
    running = pods(1, {}, prefix="r", node_name="n1", meta={"labels": APP})
    at_home = node("n1", {"cpu": "1"}, labels={labels.ZONE: "z1"})
    pool = node_pool(requirements=[wanted(labels.ZONE, "In", "z1")])
    waiting = pod("p", {"cpu": "1500m"}, topology_spread_constraints=(SPREAD,), meta={"labels": APP})
    result = plan(pool, there, at_home, running, waiting, types=BOTH)
    assert said(result) == (
        "the pod's topology spread by topology.kubernetes.io/zone allows only z3, where no NodePool may launch nodes: "
        "such pods are in z1 (1)"
    )
    assert (
        "unsatisfiable topology constraint for topology spread, key=topology.kubernetes.io/zone"
        in unschedulable_event_message(only(result))
    )


def test_anti_affinity_without_a_free_zone_names_the_taken_ones() -> None:
    apart = Affinity(
        pod_anti_affinity=PodAffinity(required=(PodAffinityTerm(label_selector=SELECTED, topology_key=labels.ZONE),))
    )
    result = plan(node_pool(), pods(3, {}, affinity=apart, meta={"labels": APP}), types=[SMALL])
    assert said(result) == (
        "the pod's anti-affinity by topology.kubernetes.io/zone leaves no zone: such pods are in z1 (1), z2 (1)"
    )


# -- nodes there are ---------------------------------------------------------------------------------------------------


def test_a_node_that_nearly_has_room_is_named() -> None:
    """SCH-261 Beyond"""
    there = [node("a", {"cpu": "1", "memory": "4Gi"}), node("b", {"cpu": "1200m", "memory": "4Gi"})]
    result = plan(node_pool(template=DEDICATED), there, pod("p", {"cpu": "1500m"}), types=BOTH)
    assert said(result).endswith("; node b has 0.3 CPU too little")


@pytest.mark.parametrize(
    "there",
    [
        pytest.param(node("n", {"cpu": "700m", "memory": "4Gi"}), id="far-too-small"),
        pytest.param(node("n", {"cpu": "1200m"}, labels={labels.ZONE: "z2"}), id="elsewhere"),
        pytest.param(node("n", {"cpu": "1200m"}, taints=(pool_taint("no").as_taint(),)), id="tainted"),
    ],
)
def test_a_node_that_would_not_do_anyway_is_not_named(there: object) -> None:
    waiting = pod("p", {"cpu": "1500m"}, node_selector={labels.ZONE: "z1"})
    assert only(plan(node_pool(template=DEDICATED), there, waiting, types=BOTH)).nearest_node is None


# -- counts ---------------------------------------------------------------------------------------------------------------


def test_types_are_counted_by_what_they_fall_to() -> None:
    pool = node_pool(requirements=[wanted(labels.ZONE, "In", "z2")])
    result = plan(pool, pod("p", {"cpu": "3"}), types=BOTH)
    filter_breakdown = breakdown(result)
    assert (filter_breakdown.types, filter_breakdown.offerings) == (2, 3)
    assert [
        (filter_noun(filtered_types.failed_filter), filtered_types.types, filtered_types.only_by_this)
        for filtered_types in filter_breakdown.filtered
    ] == [
        ("the NodePool's requirement topology.kubernetes.io/zone In [z2]", 1, 1),
        ("cpu: the pod asks 3 CPU (the largest of them, small, has 1.9 CPU)", 1, 1),
    ]


@pytest.mark.parametrize(
    ("keys", "noun"),
    [
        ((), "having no offering"),
        ((labels.ZONE,), "having no offering that meets the requirements on topology.kubernetes.io/zone"),
    ],
)
def test_types_without_an_offering_are_counted_by_that(keys: tuple[str, ...], noun: str) -> None:
    assert filter_noun(NoMatchingOffering(keys)) == noun


def test_pods_that_fail_alike_share_one_explanation() -> None:
    result = plan(node_pool(template=DEDICATED), pods(50, {}), types=BOTH)
    assert len(result.unschedulable) == 50
    assert len({id(unschedulable_pod.reasons) for unschedulable_pod in result.unschedulable}) == 1
    assert {id(unschedulable_pod.nearest_fit) for unschedulable_pod in result.unschedulable} == {
        id(result.unschedulable[0].nearest_fit)
    }
    assert result.unschedulable[0].nearest_fit is not None
    assert isinstance(result.unschedulable[0].nearest_fit.failed_filters[0], UntoleratedTaint)


# -- the short form -------------------------------------------------------------------------------------------------------


def test_the_event_keeps_the_known_text_and_ends_with_the_nearest_miss() -> None:
    result = plan(node_pool(), pod("p", {POD_ENI: "1"}), types=BOTH)
    text = unschedulable_event_message(only(result))
    assert text.startswith("Failed to schedule pod, nodepool np: no instance type has enough resources, requirements=")
    assert text.endswith(f"; no instance type of NodePool np offers the resource {POD_ENI}")


def test_the_event_is_never_longer_than_the_api_server_takes_and_keeps_the_nearest_miss() -> None:
    many = [node_pool(f"a-rather-long-name-of-a-pool-{number}") for number in range(40)]
    text = unschedulable_event_message(
        only(plan(many, pod("p", {"ümlaut/" + "x" * 60: "1", POD_ENI: "1"}), types=BOTH))
    )
    assert len(text.encode()) <= 1024
    assert POD_ENI in text.rpartition("; ")[2]


def test_changed_amounts_give_no_new_event_and_another_missing_resource_does() -> None:
    """SCH-654 Beyond"""
    pool = node_pool(template=DEDICATED)

    def with_node(cpu: str, requests: dict[str, str]) -> UnschedulablePod:
        return only(plan(pool, node("n", {"cpu": cpu, "memory": "4Gi"}), waiting(requests), types=BOTH))

    def waiting(requests: dict[str, str]) -> Pod:
        return pod("p", requests)

    first, second = with_node("1200m", {"cpu": "1500m"}), with_node("1300m", {"cpu": "1500m"})
    assert unschedulable_event_message(first) != unschedulable_event_message(second)
    assert unschedulable_fingerprint(first) == unschedulable_fingerprint(second)
    assert unschedulable_fingerprint(first) != unschedulable_fingerprint(
        with_node("1200m", {"cpu": "1500m", POD_ENI: "1"})
    )
