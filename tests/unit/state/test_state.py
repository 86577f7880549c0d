"""The cache of the cluster, event by event: scenarios OPS-S1 to OPS-S15 of the operations specification."""

from __future__ import annotations

import pytest

from karpenter.api.core import Namespace
from karpenter.api.meta import LabelSelector, ObjectMeta
from karpenter.api.scheduling_constraints import Affinity, PodAffinity, PodAffinityTerm, WeightedPodAffinityTerm
from karpenter.model import labels
from karpenter.model import resources as res
from karpenter.state import ClusterState, StateNode
from support.builders import (
    NOW,
    claim,
    daemon_set,
    feed,
    flatten,
    node,
    node_and_claim,
    node_pool,
    owner,
    pod,
    pods,
    pool_taint,
    replaced,
    seconds,
    taint,
)

CPU = {"cpu": "1"}


def state(*objects: object) -> ClusterState:
    """The cluster state after these objects. The NodePool of claims and nodes exists."""
    return feed(ClusterState(), flatten((node_pool("np"), *objects)))


def view(of: ClusterState, name: str = "n") -> StateNode:
    return next(state_node for state_node in of.state_nodes() if state_node.name == name)


def cpu(of: ClusterState, name: str = "n") -> int:
    return view(of, name).pod_requests.get("cpu", 0)


def names(of: ClusterState) -> list[str]:
    return [state_node.name for state_node in of.state_nodes()]


@pytest.mark.parametrize(
    ("seen", "counted"),
    [
        (pod("p", CPU), 0),
        (pod("p", CPU, node_name="n"), 1000),
        (pod("p", CPU, node_name="n", status={"phase": "Succeeded"}), 0),
        (pod("p", CPU, node_name="n", status={"phase": "Failed"}), 0),
        (pod("p", CPU, node_name="n", meta={"deletion_timestamp": NOW}), 1000),
    ],
    ids=["unbound", "bound", "succeeded", "failed", "terminating"],
)
def test_only_bound_pods_that_have_not_ended_count(seen: object, counted: int) -> None:
    """OPS-S1, SCH-089"""
    assert cpu(state(node("n", {"cpu": "4"}), seen)) == counted


def test_a_pod_that_ends_gives_its_resources_back() -> None:
    """OPS-S1. OPS-108: the usage of a terminal pod is removed."""
    cluster_state = state(node("n", {"cpu": "4"}), pod("p", CPU, node_name="n"))
    assert cpu(cluster_state) == 1000
    cluster_state.set_pod(pod("p", CPU, node_name="n", status={"phase": "Succeeded"}))
    assert cpu(cluster_state) == 0


def test_a_pod_name_used_again_elsewhere_moves_with_its_resources() -> None:
    """OPS-S2: the deletion between was missed. SCH-097, OPS-108: a pod counts on one node only."""
    cluster_state = state(node("a", {"cpu": "4"}), node("b", {"cpu": "4"}), pod("p", CPU, node_name="a"))
    cluster_state.state_nodes()
    cluster_state.set_pod(pod("p", {"cpu": "2"}, node_name="b"))
    assert (cpu(cluster_state, "a"), cpu(cluster_state, "b")) == (0, 2000)


def test_a_deleted_pod_is_forgotten_everywhere() -> None:
    """OPS-S2"""
    cluster_state = state(node("n", {"cpu": "4"}), pod("p", CPU, node_name="n"), pod("w", CPU))
    cluster_state.state_nodes()
    for name in ("p", "w", "never-seen"):
        cluster_state.remove_pod(("default", name))
    assert (
        cpu(cluster_state),
        list(cluster_state.pending_pods()),
        cluster_state.pods_on("n"),
        cluster_state.snapshot().pod_groups,
    ) == (0, [], (), ())


def test_pods_of_daemon_sets_are_counted_in_all_and_apart() -> None:
    """OPS-S3. SCH-090: the daemon requests are the part of pods owned by a DaemonSet."""
    daemon = pod("d", {"cpu": "100m"}, node_name="n", meta={"owner_references": (owner("DaemonSet"),)})
    state_node = view(state(node("n", {"cpu": "4"}), pod("p", CPU, node_name="n"), daemon))
    assert (state_node.pod_requests["cpu"], state_node.daemonset_requests["cpu"]) == (1100, 100)
    assert state_node.pod_requests["pods"] == 2 * res.ONE_UNIT


def test_pods_seen_before_their_node_count_once_it_appears() -> None:
    """OPS-S2"""
    cluster_state = state(pod("p", CPU, node_name="n"))
    assert names(cluster_state) == []
    cluster_state.set_node(node("n", {"cpu": "4"}))
    assert cpu(cluster_state) == 1000


def test_a_node_that_gets_its_provider_id_late_stays_one_state_node() -> None:
    """OPS-S4"""
    cluster_state = state(node("n", {"cpu": "4"}, provider_id=""))
    assert names(cluster_state) == ["n"]
    cluster_state.set_node(node("n", {"cpu": "4"}, provider_id="p://n"))
    assert [(state_node.name, state_node.provider_id) for state_node in cluster_state.state_nodes()] == [("n", "p://n")]


def test_a_claim_that_launches_and_registers_stays_one_node() -> None:
    """OPS-S4, SCH-072, SCH-073: whichever comes first, Node and claim meet by provider ID.

    OPS-105: the provider ID joins the two.
    """
    cluster_state = state(claim("c"))
    assert names(cluster_state) == ["c"]
    there, behind = node_and_claim("n", {"cpu": "4"})
    behind = replaced(behind, metadata=replaced(behind.metadata, name="c"))
    cluster_state.set_claim(behind)
    assert names(cluster_state) == ["c"]
    cluster_state.set_node(there)
    assert [(state_node.name, state_node.key, state_node.registered) for state_node in cluster_state.state_nodes()] == [
        ("n", "c", True)
    ]
    assert names(state(there, behind)) == names(state(behind, there)) == ["n"]


def test_a_node_is_gone_when_both_its_halves_are() -> None:
    """OPS-S5, OPS-107"""
    there, behind = node_and_claim("n", {"cpu": "4"})
    for first in (True, False):
        cluster_state = state(there, behind)
        steps = [lambda s=cluster_state: s.remove_node("n"), lambda s=cluster_state: s.remove_claim("claim-n")]
        for step in steps if first else reversed(steps):
            assert len(cluster_state.state_nodes()) == 1
            step()
        assert cluster_state.state_nodes() == ()


def test_of_two_nodes_with_one_provider_id_the_survivor_is_known() -> None:
    """OPS-107: an instance that registered again under another name."""
    first, behind = node_and_claim("a", {"cpu": "4"})
    second = node("b", {"cpu": "4"}, labels=first.metadata.labels, provider_id="p://a")
    cluster_state = state(behind, first, second)
    assert [listed_node.metadata.name for listed_node in cluster_state.nodes_by_provider_id("p://a")] == ["a", "b"]
    cluster_state.remove_node("a")
    assert names(cluster_state) == ["b"]
    assert [listed_node.metadata.name for listed_node in cluster_state.nodes_by_provider_id("p://a")] == ["b"]
    assert cluster_state.nodes_by_provider_id("") == cluster_state.nodes_by_provider_id("p://other") == ()


def test_a_managed_node_without_provider_id_is_left_out_until_it_has_one() -> None:
    """SCH-072, OPS-106"""
    own = {labels.NODE_POOL: "np", labels.INSTANCE_TYPE: "t"}
    assert names(state(node("n", {"cpu": "4"}, labels=own, provider_id=""))) == []
    assert names(state(node("n", {"cpu": "4"}, labels={labels.NODE_POOL: "np"}))) == []
    assert names(state(node("n", {"cpu": "4"}, labels=own))) == ["n"]


def test_a_node_that_waits_for_its_claim_is_not_counted_beside_it() -> None:
    """The watch delivers the Node before the provider ID of its NodeClaim: one instance, not two."""
    own = {labels.NODE_POOL: "np", labels.INSTANCE_TYPE: "t"}
    joined = node("n", {"cpu": "4"}, labels=own, taints=(labels.UNREGISTERED_TAINT,), provider_id="p://n")
    cluster_state = state(claim("c", {"cpu": "4"}, provider_id=""), joined)
    assert len(cluster_state.state_nodes()) == 1
    cluster_state.set_claim(claim("c", {"cpu": "4"}, provider_id="p://n"))
    (view,) = cluster_state.state_nodes()
    assert (view.node, view.key) == (joined, "c")


TERM = PodAffinityTerm(topology_key=labels.HOSTNAME, label_selector=LabelSelector(match_labels={"app": "web"}))
REQUIRED = Affinity(pod_anti_affinity=PodAffinity(required=(TERM,)))
PREFERRED = Affinity(
    pod_anti_affinity=PodAffinity(preferred=(WeightedPodAffinityTerm(weight=1, pod_affinity_term=TERM),))
)


def repelled_from(cluster_state: ClusterState) -> list[dict[str, int]]:
    """The nodes pods with required anti-affinity are on, per set of terms."""
    return [dict(counts) for counts in cluster_state.snapshot().anti_affinity_counts.values()]


def test_pods_that_must_keep_others_away_are_counted_by_node() -> None:
    """SCH-098"""
    there = node("n", {"cpu": "4"})
    guards = [pod(name, node_name="n", affinity=REQUIRED) for name in ("p", "q")]
    assert repelled_from(state(there, guards)) == [{"n": 2}]
    assert repelled_from(state(there, pod("p", node_name="n", affinity=PREFERRED))) == []
    assert repelled_from(state(there, pod("p", affinity=REQUIRED))) == []


def test_a_repelling_pod_that_goes_is_counted_no_more() -> None:
    """SCH-098"""
    cluster_state = state(pod("p", node_name="n", affinity=REQUIRED))
    before = cluster_state.snapshot()
    cluster_state.remove_pod(("default", "p"))
    assert ([dict(counts) for counts in before.anti_affinity_counts.values()], repelled_from(cluster_state)) == (
        [{"n": 1}],
        [],
    )


def test_bound_pods_are_counted_by_signature_and_node() -> None:
    """SCH-500: what is finished or on its way out does not count."""
    web = {"labels": {"app": "web"}}
    cluster_state = state(
        [pod(name, node_name="n", meta=web) for name in ("a", "b")],
        pod("c", node_name="m", meta=web),
        pod("done", node_name="n", status={"phase": "Succeeded"}, meta=web),
        pod("plain", node_name="n"),
        pod("waiting", meta=web),
    )
    counted = {
        (face.labels.get("app"), *counts.items()) for face, counts in cluster_state.snapshot().pod_counts.items()
    }
    assert counted == {("web", ("n", 2), ("m", 1)), (None, ("n", 1))}


def test_the_labels_of_namespaces_are_known_with_their_names() -> None:
    """SCH-486"""
    cluster_state = ClusterState()
    cluster_state.set_namespace(Namespace(metadata=ObjectMeta(name="shop", labels={"team": "a"})))
    assert cluster_state.snapshot().namespaces == {"shop": {"kubernetes.io/metadata.name": "shop", "team": "a"}}
    cluster_state.remove_namespace("shop")
    assert cluster_state.snapshot().namespaces == {}


def daemon_pod(name: str, cpu: str, after: float) -> object:
    meta = {"owner_references": (owner("DaemonSet", "d"),), "creation_timestamp": seconds(after)}
    return pod(name, {"cpu": cpu}, node_name="n", meta=meta)


def test_the_newest_pod_stands_for_its_daemon_set() -> None:
    """OPS-S11, SCH-210. SCH-099: by creation timestamp."""
    cluster_state = state(daemon_set("d", {"cpu": "5"}), daemon_pod("new", "2", 9), daemon_pod("old", "1", 1))
    assert cluster_state.daemonset_pods()[0].requests["cpu"] == 2000
    cluster_state.remove_pod(("default", "new"))
    assert cluster_state.daemonset_pods()[0].requests["cpu"] == 1000
    cluster_state.remove_pod(("default", "old"))
    assert cluster_state.daemonset_pods()[0].requests["cpu"] == 5000
    cluster_state.remove_daemon_set(("default", "d"))
    assert cluster_state.daemonset_pods() == ()


def test_a_daemon_set_that_comes_back_finds_its_pods() -> None:
    """OPS-S11"""
    cluster_state = state(daemon_set("d", {"cpu": "5"}), daemon_pod("p", "2", 1))
    cluster_state.remove_daemon_set(("default", "d"))
    cluster_state.set_daemon_set(daemon_set("d", {"cpu": "5"}))
    assert cluster_state.daemonset_pods()[0].requests["cpu"] == 2000


def test_a_marked_node_is_leaving_until_the_mark_goes() -> None:
    """OPS-S13"""
    cluster_state = state(node_and_claim("n", {"cpu": "4"}))
    assert not view(cluster_state).marked_for_deletion
    cluster_state.mark_for_deletion("claim-n")
    assert view(cluster_state).marked_for_deletion
    cluster_state.unmark_for_deletion("claim-n")
    assert not view(cluster_state).marked_for_deletion


def test_a_mark_goes_with_its_claim() -> None:
    """OPS-S13: a claim of the same name starts unmarked."""
    there, behind = node_and_claim("n", {"cpu": "4"})
    cluster_state = state(there, behind)
    cluster_state.mark_for_deletion("claim-n")
    cluster_state.nominate("claim-n", seconds(20))
    cluster_state.remove_claim("claim-n")
    cluster_state.set_claim(behind)
    assert not view(cluster_state).marked_for_deletion
    assert not cluster_state.is_nominated("claim-n", NOW)


def test_a_nomination_lasts_as_long_as_the_latest_says() -> None:
    """SCH-640. SCH-094, DIS-005: each new nomination restarts the window."""
    cluster_state = state(node_and_claim("n", {"cpu": "4"}))
    cluster_state.nominate("claim-n", seconds(20))
    cluster_state.nominate("claim-n", seconds(10))
    assert [cluster_state.is_nominated("claim-n", seconds(after)) for after in (0, 19, 20)] == [True, True, False]


def test_a_node_that_moves_to_another_pool_counts_there() -> None:
    """OPS-S14"""
    there, behind = node_and_claim("n", {"cpu": "4"}, pool="a")
    cluster_state = state(there, behind)
    assert view(cluster_state).pool == "a"
    cluster_state.set_node(node("n", {"cpu": "4"}, labels={**there.metadata.labels, labels.NODE_POOL: "b"}))
    assert view(cluster_state).pool == "b"


@pytest.mark.parametrize(
    ("objects", "capacity"),
    [
        (node_and_claim("n", {"cpu": "4"}), 4000),
        ((claim("n", {"cpu": "4"}, provider_id="p://n"),), 4000),
        (
            (node("n", {"cpu": "0"}, labels={labels.NODE_POOL: "np"}), claim("n", {"cpu": "4"}, provider_id="p://n")),
            4000,
        ),
        (
            (node("n", {"cpu": "3"}, labels={labels.NODE_POOL: "np"}), claim("n", {"cpu": "4"}, provider_id="p://n")),
            3000,
        ),
    ],
    ids=["initialized", "claim-only", "starting-at-zero", "starting-with-its-own"],
)
def test_capacity_is_the_claims_until_the_node_says_better(objects: tuple[object, ...], capacity: int) -> None:
    """OPS-S15, SCH-087, SCH-088. The node itself is counted where limits are (``nodes``).

    OPS-116: once the Node says more than zero, it is authoritative.
    """
    state_node = view(state(objects))
    assert state_node.capacity["cpu"] == state_node.allocatable["cpu"] == capacity


@pytest.mark.parametrize(
    ("initialized", "kept"),
    [(False, ["mine"]), (True, ["node.kubernetes.io/not-ready", "starting", "mine"])],
)
def test_taints_that_will_go_are_hidden_while_a_node_starts(initialized: bool, kept: list[str]) -> None:
    """SCH-084, SCH-085, OPS-115"""
    taints = [taint("node.kubernetes.io/not-ready"), taint("starting"), taint("mine")]
    startup = {"startup_taints": (pool_taint("starting"),)}
    there = node_and_claim("n", {"cpu": "4"}, taints=taints, initialized=initialized, **startup)
    assert [taint.key for taint in view(state(there)).taints] == kept


def test_identity_is_the_claims_until_the_node_has_registered() -> None:
    """SCH-081, SCH-082, OPS-115. DIS-002: labels and name come from the NodeClaim until then."""
    there = node("n", {"cpu": "4"}, labels={labels.NODE_POOL: "np", "team": "node"})
    behind = claim("c", {"cpu": "4"}, provider_id="p://n", labels={"team": "claim"})
    early = state(there, behind).state_nodes()[0]
    assert (early.name, early.requirements["team"].values, early.registered) == ("c", {"claim"}, False)
    registered = node("n", {"cpu": "4"}, labels={**there.metadata.labels, labels.REGISTERED: "true"})
    late = state(registered, behind).state_nodes()[0]
    assert (late.name, late.requirements["team"].values, late.registered) == ("n", {"node"}, True)


@pytest.mark.parametrize(
    ("objects", "leaving"),
    [
        (node_and_claim("n", {"cpu": "4"}), False),
        (node_and_claim("n", {"cpu": "4"}, deleted=True), True),
        ((node("n", {"cpu": "4"}, deleted=True),), True),
    ],
    ids=["staying", "claim-deleted", "unmanaged-deleted"],
)
def test_a_node_on_its_way_out_is_known_as_such(objects: tuple[object, ...], leaving: bool) -> None:
    """SCH-086"""
    assert view(state(objects)).marked_for_deletion is leaving


def test_an_object_that_cannot_be_read_is_complained_about_and_left_out() -> None:
    """One bad quantity must not stop decisions about everything else."""
    complaints: list[tuple[str, str]] = []
    cluster_state = ClusterState(lambda kind, name, _why: complaints.append((kind, name)))
    broken = {"cpu": "lots"}
    feed(
        cluster_state, [pod("p", broken), daemon_set("d", broken), node("n", broken), node("fine", CPU), pod("q", CPU)]
    )
    taken = cluster_state.snapshot()
    assert [state_node.name for state_node in taken.nodes] == ["fine"]
    assert [pod_group.pods[0].metadata.name for pod_group in taken.pod_groups] == ["q"]
    assert taken.daemonset_pods == ()
    assert sorted(complaints) == [("DaemonSet", "default/d"), ("Node", "n"), ("Pod", "default/p")]


def test_a_daemon_set_that_becomes_invalid_is_ignored_until_it_is_repaired() -> None:
    cluster_state = state(daemon_set("d", CPU))
    cluster_state.set_daemon_set(daemon_set("d", {"cpu": "lots"}))
    assert cluster_state.daemonset_pods() == ()
    cluster_state.set_daemon_set(daemon_set("d", CPU))
    assert len(cluster_state.daemonset_pods()) == 1


def test_waiting_pods_of_one_class_are_one_group_oldest_first() -> None:
    late = pod("a", CPU, meta={"creation_timestamp": seconds(5)})
    groups = state(late, pods(2, CPU)).snapshot().pod_groups
    assert [[listed_pod.metadata.name for listed_pod in group.pods] for group in groups] == [
        ["pod-000", "pod-001", "a"]
    ]


def test_a_snapshot_does_not_change_with_later_events() -> None:
    """SCH-080: a pass works on a copy."""
    cluster_state = state(node_pool(), node_and_claim("n", {"cpu": "4"}), pod("p", CPU))
    before = cluster_state.snapshot()
    cluster_state.set_pod(pod("p", CPU, node_name="n"))
    cluster_state.remove_pool("np")
    assert (len(before.pod_groups), len(before.pools), before.nodes[0].pod_requests) == (1, 1, {})
    after = cluster_state.snapshot()
    assert (len(after.pod_groups), len(after.pools), after.nodes[0].pod_requests["cpu"]) == (0, 0, 1000)
