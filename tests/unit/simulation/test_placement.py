"""Which node takes a pod: one row per rule of kube-scheduler that the stand-in follows."""

from __future__ import annotations

import msgspec
import pytest

from karpenter.api.core import Namespace, Node, Pod, PodSpec
from karpenter.api.meta import LabelSelector, ObjectMeta
from karpenter.api.scheduling_constraints import (
    Affinity,
    NodeAffinity,
    NodeSelectorTerm,
    PodAffinity,
    PodAffinityTerm,
    PreferredSchedulingTerm,
    Taint,
    Toleration,
    TopologySpreadConstraint,
    WeightedPodAffinityTerm,
)
from karpenter.kube.informer import ObjectKey
from karpenter.simulation.scheduler_cache import PodPlaced, PodUnschedulable, SchedulerCache
from karpenter.simulation.scheduler_node_info import FilterReason, to_pod_info
from support.stand_in_cluster import HOST, ZONE, field_term, node, pod, requiring, term

WEB = LabelSelector(match_labels={"app": "web"})
NO_SCHEDULE = Taint(key="team", value="a", effect="NoSchedule")
NO_EXECUTE = Taint(key="team", value="a", effect="NoExecute")
PREFER = Taint(key="team", value="a", effect="PreferNoSchedule")


def board(*nodes: Node, **placed: Pod) -> SchedulerCache:
    """A board of nodes; keyword arguments put a pod on the node of that name."""
    made = SchedulerCache()
    for each in nodes:
        made.set_node(each.metadata.name, each)
    for name, each in placed.items():
        made.add_pod(to_pod_info(each), name)
    return made


def where(on: SchedulerCache, element: Pod) -> str | FilterReason:
    """The node of the pod, or the first reason there is none."""
    decision = on.schedule(to_pod_info(element))
    return decision.node if isinstance(decision, PodPlaced) else decision.reason_counts[0][0]


def reasons(on: SchedulerCache, element: Pod) -> set[FilterReason]:
    """All reasons why no node takes the pod."""
    decision = on.schedule(to_pod_info(element))
    return set() if isinstance(decision, PodPlaced) else {reason for reason, _ in decision.reason_counts}


def tolerating(*tolerations: Toleration) -> PodSpec:
    return PodSpec(tolerations=tolerations)


FILTERS = {
    "a pod that fits is taken": (node("n"), pod("p"), "n"),
    "too little CPU": (node("n", "500m"), pod("p", "501m"), FilterReason.RESOURCES),
    "exactly enough CPU": (node("n", "500m"), pod("p", "500m"), "n"),
    "too little memory": (node("n", memory="1Gi"), pod("p", memory="1025Mi"), FilterReason.RESOURCES),
    "no pod slot left": (node("n", pods=0), pod("p"), FilterReason.RESOURCES),
    "cordoned": (node("n", unschedulable=True), pod("p"), FilterReason.CORDONED),
    "cordon tolerated": (
        node("n", unschedulable=True),
        pod("p", spec=tolerating(Toleration(key="node.kubernetes.io/unschedulable", operator="Exists"))),
        "n",
    ),
    "NoSchedule taint": (node("n", taints=(NO_SCHEDULE,)), pod("p"), FilterReason.TAINTED),
    "NoExecute taint": (node("n", taints=(NO_EXECUTE,)), pod("p"), FilterReason.TAINTED),
    "PreferNoSchedule taint": (node("n", taints=(PREFER,)), pod("p"), "n"),
    "taint tolerated": (
        node("n", taints=(NO_SCHEDULE, NO_EXECUTE)),
        pod("p", spec=tolerating(Toleration(key="team", operator="Exists"))),
        "n",
    ),
    "selector not matched": (
        node("n"),
        pod("p", spec=PodSpec(node_selector={"disk": "ssd"})),
        FilterReason.NODE_AFFINITY,
    ),
    "selector matched": (node("n", labels={"disk": "ssd"}), pod("p", spec=PodSpec(node_selector={"disk": "ssd"})), "n"),
    "affinity In": (node("n"), pod("p", spec=requiring(term(ZONE, "In", "a", "b"))), "n"),
    "affinity In missed": (node("n"), pod("p", spec=requiring(term(ZONE, "In", "b"))), FilterReason.NODE_AFFINITY),
    "affinity NotIn on an absent label": (node("n"), pod("p", spec=requiring(term("gpu", "NotIn", "x"))), "n"),
    "affinity DoesNotExist": (
        node("n"),
        pod("p", spec=requiring(term(ZONE, "DoesNotExist"))),
        FilterReason.NODE_AFFINITY,
    ),
    "affinity Exists": (node("n"), pod("p", spec=requiring(term("gpu", "Exists"))), FilterReason.NODE_AFFINITY),
    "affinity Gt": (node("n", labels={"size": "8"}), pod("p", spec=requiring(term("size", "Gt", "7"))), "n"),
    "affinity Lt": (
        node("n", labels={"size": "8"}),
        pod("p", spec=requiring(term("size", "Lt", "8"))),
        FilterReason.NODE_AFFINITY,
    ),
    "any one term is enough": (node("n"), pod("p", spec=requiring(term(ZONE, "In", "z"), term(ZONE, "In", "a"))), "n"),
    "an empty term matches nothing": (
        node("n"),
        pod("p", spec=requiring(NodeSelectorTerm())),
        FilterReason.NODE_AFFINITY,
    ),
    "field of the node's name": (node("n"), pod("p", spec=requiring(field_term("n"))), "n"),
    "field of another name": (node("n"), pod("p", spec=requiring(field_term("m"))), FilterReason.NODE_AFFINITY),
}


@pytest.mark.parametrize(("one", "item", "expected"), FILTERS.values(), ids=FILTERS.keys())
def test_a_node_takes_or_refuses_a_pod(one: Node, item: Pod, expected: str | FilterReason) -> None:
    assert where(board(one), item) == expected


def test_pods_on_a_node_use_it_up_and_give_it_back() -> None:
    on = board(node("n", "2"), n=pod("first", "1500m"))
    assert where(on, pod("second")) is FilterReason.RESOURCES
    on.remove_pod(ObjectKey("default", "first"))
    assert where(on, pod("second")) == "n"


def test_a_pod_seen_before_its_node_still_counts() -> None:
    on = SchedulerCache()
    on.add_pod(to_pod_info(pod("early", "3")), "n")
    on.set_node("n", node("n", "4"))
    assert where(on, pod("late", "2")) is FilterReason.RESOURCES
    assert where(on, pod("late", "1")) == "n"


def test_a_host_port_is_given_once_per_node() -> None:
    on = board(node("n"), node("o"), n=pod("first", host_port=80))
    assert where(on, pod("second", host_port=80)) == "o"
    on.add_pod(to_pod_info(pod("second", host_port=80)), "o")
    assert where(on, pod("third", host_port=80)) is FilterReason.HOST_PORT
    assert where(on, pod("fourth", host_port=81)) in ("n", "o")


def test_refusals_are_counted_per_reason() -> None:
    on = board(node("n1", "100m"), node("n2", "100m"), node("n3", taints=(NO_SCHEDULE,)))
    decision = on.schedule(to_pod_info(pod("p")))
    assert decision == PodUnschedulable(3, ((FilterReason.TAINTED, 1), (FilterReason.RESOURCES, 2)))
    assert str(decision).startswith("0/3 nodes are available: 1 had taints")


def test_the_emptier_node_is_preferred() -> None:
    assert where(board(node("a"), node("b"), a=pod("other", "2")), pod("p")) == "b"


def test_equal_nodes_are_taken_in_the_order_of_their_names() -> None:
    assert where(board(node("b"), node("a"), node("c")), pod("p")) == "a"


def test_a_node_preference_outweighs_a_little_free_room() -> None:
    preferred = PreferredSchedulingTerm(weight=10, preference=term("disk", "In", "ssd"))
    spec = PodSpec(affinity=Affinity(node_affinity=NodeAffinity(preferred=(preferred,))))
    on = board(node("a"), node("b", labels={"disk": "ssd"}), b=pod("other", "1"))
    assert where(on, pod("p", spec=spec)) == "b"
    assert where(on, pod("p")) == "a"


def test_a_node_with_a_soft_taint_is_a_last_resort() -> None:
    assert where(board(node("a", taints=(PREFER,)), node("b"), b=pod("other", "2")), pod("p")) == "b"


class TestNomination:
    def test_the_nominated_node_is_tried_first(self) -> None:
        on = board(node("busy"), node("empty"), busy=pod("other", "2"))
        assert where(on, pod("p", nominated="busy")) == "busy"

    @pytest.mark.parametrize("nominated", ["gone", "full"])
    def test_a_nominated_node_that_cannot_take_the_pod_is_no_obstacle(self, nominated: str) -> None:
        on = board(node("full", "1"), node("other"), full=pod("holder"))
        assert where(on, pod("p", nominated=nominated)) == "other"

    @pytest.mark.parametrize(
        ("priority", "expected"), [(0, FilterReason.RESOURCES), (4, FilterReason.RESOURCES), (6, "n")]
    )
    def test_room_is_kept_from_pods_of_no_higher_priority(self, priority: int, expected: str | FilterReason) -> None:
        on = board(node("n", "1"))
        on.nominate(to_pod_info(pod("meant", nominated="n", priority=5 if priority else 0)))
        assert where(on, pod("p", priority=priority)) == expected

    def test_room_is_free_again_when_the_nomination_is_taken_back(self) -> None:
        on = board(node("n", "1"))
        on.nominate(to_pod_info(pod("meant", nominated="n")))
        on.nominate(to_pod_info(pod("meant")))
        assert where(on, pod("p")) == "n"

    def test_a_nominated_pod_does_not_stand_in_its_own_way(self) -> None:
        on = board(node("n", "1"))
        meant = pod("meant", nominated="n")
        on.nominate(to_pod_info(meant))
        assert where(on, meant) == "n"


def spread(key: str, when: str = "DoNotSchedule", **more: object) -> PodSpec:
    constraint = TopologySpreadConstraint(max_skew=1, topology_key=key, when_unsatisfiable=when, label_selector=WEB)
    return PodSpec(topology_spread_constraints=(msgspec.structs.replace(constraint, **more),))


def web(name: str, spec: PodSpec | None = None) -> Pod:
    return pod(name, "100m", labels={"app": "web"}, spec=spec)


class TestSpread:
    def test_a_full_zone_is_refused(self) -> None:
        on = board(node("a", zone="a"), node("b", "100m", zone="b"), a=web("one"))
        assert where(on, web("two", spread(ZONE))) == "b"
        on.add_pod(to_pod_info(web("two")), "b")
        on.add_pod(to_pod_info(web("three")), "a")
        assert reasons(on, web("four", spread(ZONE))) == {FilterReason.SPREAD, FilterReason.RESOURCES}

    def test_pods_the_selector_does_not_match_are_not_counted(self) -> None:
        on = board(node("a", zone="a"), node("b", zone="b"), a=pod("other", "100m"))
        on.add_pod(to_pod_info(pod("another", "3")), "b")
        assert where(on, web("one", spread(ZONE))) == "a"

    def test_an_empty_selector_counts_no_pod(self) -> None:
        on = board(node("a", zone="a"), a=web("one"))
        assert where(on, web("two", spread(ZONE, min_domains=2, label_selector=LabelSelector()))) == "a"

    def test_a_node_without_the_label_is_refused(self) -> None:
        bare = node("n")
        bare = msgspec.structs.replace(bare, metadata=msgspec.structs.replace(bare.metadata, labels={}))
        assert where(board(bare), web("one", spread(ZONE))) is FilterReason.SPREAD

    def test_too_few_domains_count_as_an_empty_one(self) -> None:
        on = board(node("a", zone="a"), a=web("one"))
        assert where(on, web("two", spread(ZONE))) == "a"
        assert where(on, web("two", spread(ZONE, min_domains=2))) is FilterReason.SPREAD

    def test_zones_the_pod_cannot_use_do_not_hold_it_back(self) -> None:
        on = board(node("a", zone="a"), node("b", zone="b"), a=web("one"))
        only_a = msgspec.structs.replace(spread(ZONE), node_selector={ZONE: "a"})
        ignoring = msgspec.structs.replace(spread(ZONE, node_affinity_policy="Ignore"), node_selector={ZONE: "a"})
        assert where(on, web("two", only_a)) == "a"
        assert reasons(on, web("two", ignoring)) == {FilterReason.SPREAD, FilterReason.NODE_AFFINITY}

    def test_a_soft_constraint_only_prefers(self) -> None:
        on = board(node("a", zone="a"), node("b", zone="b"), a=web("one"))
        on.add_pod(to_pod_info(pod("other", "500m")), "b")
        assert where(on, web("two", spread(ZONE, "ScheduleAnyway"))) == "b"
        on.set_node("b", None)
        assert where(on, web("two", spread(ZONE, "ScheduleAnyway"))) == "a"


def near(*terms: PodAffinityTerm) -> PodSpec:
    return PodSpec(affinity=Affinity(pod_affinity=PodAffinity(required=terms)))


def apart(*terms: PodAffinityTerm) -> PodSpec:
    return PodSpec(affinity=Affinity(pod_anti_affinity=PodAffinity(required=terms)))


BY_ZONE = PodAffinityTerm(topology_key=ZONE, label_selector=WEB)
BY_HOST = PodAffinityTerm(topology_key=HOST, label_selector=WEB)


class TestPodAffinity:
    def test_a_pod_goes_where_its_friends_are(self) -> None:
        on = board(node("a", zone="a"), node("b", zone="b"), b=web("one"))
        assert where(on, pod("p", spec=near(BY_ZONE))) == "b"

    def test_without_friends_it_waits(self) -> None:
        assert where(board(node("a")), pod("p", spec=near(BY_ZONE))) is FilterReason.POD_AFFINITY

    def test_the_first_of_its_own_kind_may_start_anywhere(self) -> None:
        assert where(board(node("a")), web("one", near(BY_ZONE))) == "a"

    def test_pods_that_exclude_each_other_go_to_different_hosts(self) -> None:
        on = board(node("a"), node("b"), a=web("one", apart(BY_HOST)))
        assert where(on, web("two", apart(BY_HOST))) == "b"
        on.add_pod(to_pod_info(web("two", apart(BY_HOST))), "b")
        assert where(on, web("three", apart(BY_HOST))) is FilterReason.ANTI_AFFINITY

    def test_a_pod_in_place_keeps_out_those_it_excludes(self) -> None:
        on = board(node("a"), a=pod("hermit", spec=apart(BY_HOST)))
        assert where(on, web("one")) is FilterReason.ANTI_AFFINITY
        assert where(on, pod("stranger")) == "a"
        on.remove_pod(ObjectKey("default", "hermit"))
        assert where(on, web("one")) == "a"

    def test_other_namespaces_count_only_when_selected(self) -> None:
        other = msgspec.structs.replace(
            web("one"), metadata=ObjectMeta(name="one", namespace="team", labels={"app": "web"})
        )
        on = board(node("a"), a=other)
        on.census.set_namespace("team", Namespace(metadata=ObjectMeta(name="team", labels={"kind": "prod"})))
        selected = LabelSelector(match_labels={"kind": "prod"})
        chosen = PodAffinityTerm(topology_key=ZONE, label_selector=WEB, namespace_selector=selected)
        named = PodAffinityTerm(topology_key=ZONE, label_selector=WEB, namespaces=("team",))
        assert where(on, pod("p", spec=near(BY_ZONE))) is FilterReason.POD_AFFINITY
        assert where(on, pod("p", spec=near(chosen))) == "a"
        assert where(on, pod("p", spec=near(named))) == "a"

    def test_a_preference_for_friends_is_followed(self) -> None:
        weighted = WeightedPodAffinityTerm(weight=50, pod_affinity_term=BY_HOST)
        spec = PodSpec(affinity=Affinity(pod_affinity=PodAffinity(preferred=(weighted,))))
        on = board(node("a"), node("b"), b=web("one"))
        assert where(on, pod("p", spec=spec)) == "b"

    def test_a_retry_sees_friends_that_came_meanwhile(self) -> None:
        on = board(node("a"))
        pod_info = to_pod_info(pod("p", spec=near(BY_ZONE)))
        before = on.change_count(pod_info)
        assert isinstance(on.schedule(pod_info), PodUnschedulable)
        on.add_pod(to_pod_info(web("one")), "a")
        assert on.change_count(pod_info) != before
        assert on.schedule(pod_info) == PodPlaced("a")
