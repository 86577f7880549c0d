"""Which pods are scheduled, and which labels they may select: scenarios S-004 to S-035 of the scheduling specification."""

from __future__ import annotations

import pytest

from karpenter.api.core import Pod
from karpenter.api.meta import Condition
from karpenter.api.scheduling_constraints import Affinity, NodeSelectorTerm
from karpenter.model import labels
from karpenter.scheduling.explain.reason_messages import skipped_pool_message, unschedulable_message
from karpenter.scheduling.pod_eligibility import is_opt_out
from karpenter.scheduling.solution import SkippedNodePool, Solution
from karpenter.scheduling.unschedulable_reasons import PoolSkipReason
from support.builders import (
    ANY_CAPACITY,
    NOW,
    UNSCHEDULABLE,
    affinity,
    asked,
    budget,
    categories,
    details,
    existing,
    expr,
    left,
    new_types,
    node,
    node_and_claim,
    node_pool,
    owner,
    plan,
    pod,
    pods,
    replaced,
    sizes,
    term,
    wanted,
    where,
)
from support.instance_types import INTEGER

GATED = Condition(type="PodScheduled", status="False", reason="SchedulingGated")


@pytest.mark.parametrize(
    "waiting",
    [
        pod("p", status={"conditions": ()}),
        pod("p", status={"conditions": (GATED,)}),
        pod("p", meta={"owner_references": (owner("DaemonSet"),)}),
        pod("p", meta={"owner_references": (owner("Node", api_version="v1"),)}),
        pod("p", meta={"deletion_timestamp": NOW}),
    ],
    ids=["S-004-unseen", "S-004-gated", "S-004-daemon", "S-004-mirror", "S-005-terminating"],
)
def test_pods_that_do_not_wait_for_a_node_are_ignored(waiting: Pod) -> None:
    """S-004. S-005: a terminating pod is left out too, where the reference launches a node for it (SCH-041 Beyond)."""
    result = plan(node_pool(), waiting)
    assert (result.new_claims, result.unschedulable) == ((), ())


def nominated(**meta: object) -> Pod:
    status = {"conditions": (UNSCHEDULABLE,), "nominated_node_name": "n"}
    return pod("p", {"cpu": "1"}, status=status, meta=meta, priority=10)


def test_a_pod_for_which_others_are_preempted_is_left_out() -> None:
    """S-004: the scheduler nominated the pod and a victim is on its way out of that node.

    SCH-040c: the pod waits for the victims of its preemption.
    """
    victim = pod("v", {"cpu": "1"}, node_name="n", meta={"deletion_timestamp": NOW}, priority=1)
    result = plan(node_pool(), node("n", {"cpu": "1"}), victim, nominated())
    assert (new_types(result), existing(result), left(result)) == ([], {}, [])


def test_a_nomination_without_preemption_excludes_nothing() -> None:
    """S-004 as settled: our own nominations use the same field; a full or vanished node does not hold the pod back."""
    assert new_types(plan(node_pool(), nominated())) == ["small"]
    full = plan(node_pool(), node("n", {"cpu": "1"}), pod("other", {"cpu": "1"}, node_name="n"), nominated())
    assert new_types(full) == ["small"]


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        pytest.param({"node_selector": {labels.HOSTNAME: "x"}}, "restricted", id="S-006"),
        pytest.param({"node_selector": {"karpenter.sh/foo": "x"}}, "restricted", id="S-007"),
        pytest.param({"affinity": where("karpenter.sh/made-up", "Exists")}, "restricted", id="S-007-affinity"),
        pytest.param(
            {"affinity": affinity(NodeSelectorTerm(match_fields=(expr("metadata.name", "In", "x"),)))},
            "matchFields is not supported",
            id="S-009",
        ),
        pytest.param({"affinity": affinity(NodeSelectorTerm())}, "matches no node", id="empty-term"),
        pytest.param({"node_selector": {"a b": "x"}}, "qualified name", id="key-syntax"),
        pytest.param({"node_selector": {"a": "x y"}}, "invalid value", id="value-syntax"),
        pytest.param({"node_selector": {labels.CAPACITY_TYPE: "cheap"}}, "no valid values", id="closed-values"),
        pytest.param({"affinity": where(INTEGER, "Gt", "x")}, "single positive integer", id="bound"),
    ],
)
def test_a_pod_with_an_invalid_requirement_stays_waiting_and_the_reason_says_which(
    spec: dict[str, object], text: str
) -> None:
    """S-006, S-007, S-009, SCH-052, SCH-053, SCH-055"""
    result = plan(node_pool(), pod("p", **spec), pod("fine"))
    assert left(result) == ["p"]
    assert categories(result) == {"pod"}
    assert text in details(result)
    assert sizes(result) == [1]


def test_a_pod_with_one_valid_term_uses_that_one() -> None:
    """§3 Beyond: the reference refuses the pod for its bad term."""
    either = affinity(term(expr(labels.HOSTNAME, "In", "x")), term(expr(labels.ZONE, "In", "z2")))
    result = plan(node_pool(), pod("p", affinity=either))
    assert asked(result, labels.ZONE) == [("In", ("z2",))]


def test_a_custom_label_of_a_shared_domain_is_an_ordinary_label() -> None:
    """S-008"""
    result = plan(node_pool(labels={"kubernetes.io/foo": "x"}), pod("p", node_selector={"kubernetes.io/foo": "x"}))
    assert result.new_claims[0].claim.metadata.labels["kubernetes.io/foo"] == "x"


def test_a_pod_that_opts_out_stays_pending_with_a_reason_of_its_own() -> None:
    """S-010: no event is written for it. SCH-051: required terms decide."""
    result = plan(node_pool(), pod("p", affinity=where(labels.NODE_POOL, "DoesNotExist")))
    assert left(result) == ["p"]
    assert all(is_opt_out(reason) for reason in result.unschedulable[0].reasons)


@pytest.mark.parametrize(
    ("pool", "why"),
    [
        (node_pool(ready=False), PoolSkipReason.NOT_READY),
        (node_pool(deleted=True), PoolSkipReason.DELETING),
        (node_pool(replicas=3), PoolSkipReason.STATIC),
    ],
    ids=["not-ready", "deleting", "static"],
)
def test_without_a_usable_pool_nothing_is_launched(pool: object, why: PoolSkipReason) -> None:
    """S-011"""
    result = plan(pool, pod("p"))
    assert (result.new_claims, left(result), categories(result)) == ((), ["p"], {"no-pool"})
    assert "no dynamic nodepools found" in details(result)
    assert result.skipped_pools == (SkippedNodePool("np", why),)
    assert skipped_pool_message(result.skipped_pools[0]) in details(result)


def test_a_pool_left_out_is_named_beside_those_tried() -> None:
    """SCH-115 Beyond: with what its conditions say."""
    broken = node_pool("broken", ready=False)
    why = Condition(type="NodeClassReady", status="False", reason="NotFound", message="there is no such class")
    broken = replaced(broken, status=replaced(broken.status, conditions=(*broken.status.conditions, why)))
    result = plan(node_pool("small"), broken, pod("p", {"cpu": "99"}))
    assert categories(result) == {"types-resources", "skipped-pool"}
    assert "nodepool broken: NodePool is not ready: there is no such class" in unschedulable_message(
        result.unschedulable[0].reasons
    )
    assert "no dynamic nodepools" not in details(result)


def test_a_ready_pool_whose_limit_was_just_made_unreadable_blocks_no_other() -> None:
    """API-027: an API server takes the limit, and Ready is about the pool before that edit."""
    result = plan(node_pool("edited", limits={"cpu": "1e1.5"}), node_pool("fine"), pod("p"))
    assert [new_nodeclaim.node_pool for new_nodeclaim in result.new_claims] == ["fine"]
    (skipped,) = result.skipped_pools
    assert (skipped.node_pool, skipped.reason) == ("edited", PoolSkipReason.NOT_READY)
    assert "spec.limits.cpu: '1e1.5' is not a quantity" in skipped_pool_message(skipped)


def test_without_any_pool_the_reason_says_so() -> None:
    """S-011"""
    assert details(plan(pod("p"))) == "no dynamic nodepools found"


def test_a_live_pool_serves_beside_a_deleting_one() -> None:
    """S-012"""
    result = plan(node_pool("old", deleted=True), node_pool("new"), pod("p"))
    assert [new_nodeclaim.node_pool for new_nodeclaim in result.new_claims] == ["new"]


def test_pods_of_a_leaving_node_are_planned_with_the_waiting_ones() -> None:
    """S-013"""
    leaving = node_and_claim("n", {"cpu": "8", "memory": "8Gi"}, deleted=True)
    moving = [pod(f"m{i}", {"cpu": "100m"}, node_name="n") for i in range(3)]
    result = plan(node_pool(), leaving, moving, pods(2, {"cpu": "100m"}))
    assert (sizes(result), existing(result), left(result)) == ([5], {}, [])


@pytest.mark.parametrize(
    ("bound", "moved"),
    [
        pytest.param({"status": {"phase": "Failed"}}, 0, id="S-014-failed"),
        pytest.param({"meta": {"owner_references": (owner("DaemonSet"),)}}, 0, id="S-014-daemon"),
        pytest.param(
            {"meta": {"owner_references": (owner("ReplicaSet"),), "deletion_timestamp": NOW}}, 0, id="S-014-terminating"
        ),
        pytest.param(
            {"meta": {"owner_references": (owner("StatefulSet"),), "deletion_timestamp": NOW}}, 1, id="S-015-stateful"
        ),
        pytest.param({"meta": {"annotations": {labels.DO_NOT_DISRUPT: "true"}}}, 0, id="SCH-061-protected"),
        pytest.param({}, 1, id="plain"),
    ],
)
def test_only_pods_that_will_need_a_place_leave_with_their_node(bound: dict[str, object], moved: int) -> None:
    """S-014, S-015, SCH-060"""
    leaving = node_and_claim("n", {"cpu": "8", "memory": "8Gi"}, deleted=True)
    result = plan(node_pool(), leaving, pod("p", {"cpu": "1"}, node_name="n", **bound))
    assert sum(sizes(result)) == moved
    assert result.unschedulable == ()


@pytest.mark.parametrize(
    ("budgets", "moved"),
    [
        ([budget("b", {"app": "a"}, max_unavailable=0)], 0),
        ([budget("b", {"app": "a"}, max_unavailable="0%")], 0),
        ([budget("b", {"app": "a"}, min_available="100%")], 0),
        ([budget("b", {"app": "a"}, max_unavailable=1), budget("c", {"app": "a"}, max_unavailable=1)], 0),
        ([budget("b", {"app": "a"}, max_unavailable=1)], 1),
        ([budget("b", {"app": "other"}, max_unavailable=0)], 1),
    ],
    ids=["S-016-zero", "S-016-zero-percent", "S-016-all", "S-016-two", "allowing", "of-others"],
)
def test_a_pod_no_budget_will_ever_let_go_needs_no_other_place(budgets: list[object], moved: int) -> None:
    """S-016, SCH-062"""
    leaving = node_and_claim("n", {"cpu": "8", "memory": "8Gi"}, deleted=True)
    bound = pod("p", {"cpu": "1"}, node_name="n", meta={"labels": {"app": "a"}})
    assert sum(sizes(plan(node_pool(), leaving, bound, budgets))) == moved


def moved(affinity_of_pod: Affinity) -> Solution:
    """A pod on a terminating node, and another node with a label that only its owner may set."""
    leaving = node_and_claim("old", {"cpu": "8"}, deleted=True)
    there = node_and_claim("there", {"cpu": "8"}, labels={"karpenter.sh/mine": "yes"})
    return plan(node_pool(), leaving, there, pod("p", {"cpu": "1"}, node_name="old", affinity=affinity_of_pod))


def test_a_pod_that_must_leave_its_node_is_not_asked_again_which_labels_it_may_name() -> None:
    """SCH-063: it was let in once; a waiting pod would be refused."""
    restricted = where("karpenter.sh/mine", "In", "yes")
    assert existing(moved(restricted)) == {"there": 1}
    waiting = plan(node_pool(), node_and_claim("there", {"cpu": "8"}), pod("p", {"cpu": "1"}, affinity=restricted))
    assert categories(waiting) == {"pod"}


@pytest.mark.parametrize(
    "unreadable",
    [NodeSelectorTerm(), NodeSelectorTerm(match_fields=(expr("metadata.name", "In", "old"),))],
    ids=["empty", "match-fields"],
)
def test_a_term_that_cannot_be_read_moves_no_pod(unreadable: NodeSelectorTerm) -> None:
    """An empty term matches nothing; what it says by fields is not known here."""
    assert (left(moved(affinity(unreadable))), categories(moved(affinity(unreadable)))) == (["p"], {"pod"})
    assert existing(moved(affinity(unreadable, term(expr("karpenter.sh/mine", "Exists"))))) == {"there": 1}


@pytest.mark.parametrize(
    ("asked_for", "meant"),
    [
        ("zone", labels.ZONE),
        ("example.com/zone", labels.ZONE),
        ("instance-type", labels.INSTANCE_TYPE),
        ("example.com/floo", "example.com/floor"),
        ("example.com/roof", ""),
        ("floor", "example.com/floor"),
    ],
)
def test_an_undefined_label_that_resembles_an_existing_one_gets_a_hint(asked_for: str, meant: str) -> None:
    """SCH-169: well-known ones first, then the pool's."""
    result = plan(node_pool(labels={"example.com/floor": "2"}), pod("p", node_selector={asked_for: "x"}))
    text = f'incompatible requirements, label "{asked_for}" does not have known values'
    assert details(result) == text + (f' (typo of "{meant}"?)' if meant else "")


@pytest.mark.parametrize(
    ("bounds", "excluded"),
    [
        ((("Gte", "1"), ("Lte", "2")), ("1", "2")),
        ((("Gt", "0"), ("Lt", "3")), ("1", "2")),
        ((("Lte", "1"),), ("0", "1")),
        ((("Gte", str(2**63 - 1)),), (str(2**63 - 1),)),
    ],
    ids=["both", "both-open", "below", "at-the-end"],
)
def test_a_pool_whose_values_are_all_excluded_gets_no_node(
    bounds: tuple[tuple[str, str], ...], excluded: tuple[str, ...]
) -> None:
    """SCH-146: otherwise the node gets a value its pods refuse, and another one is planned in every pass."""
    pool = node_pool(requirements=[ANY_CAPACITY, *(wanted("k", operator, value) for operator, value in bounds)])
    result = plan(pool, pod("p", affinity=where("k", "NotIn", *excluded)))
    assert (left(result), categories(result)) == (["p"], {"requirements"})


@pytest.mark.parametrize("low", [1, 2**31 - 1, 2**31, 2**62])
def test_a_value_is_drawn_beside_those_excluded(low: int) -> None:
    """SCH-622"""
    pool = node_pool(requirements=[ANY_CAPACITY, wanted("k", "Gte", str(low))])
    result = plan(pool, pod("p", affinity=where("k", "NotIn", str(low), str(low + 1))))
    assert int(result.new_claims[0].claim.metadata.labels["k"]) > low + 1
