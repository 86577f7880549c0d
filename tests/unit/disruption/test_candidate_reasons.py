"""All reasons why a node is kept or disrupted, and candidates that wait for a budget."""

from __future__ import annotations

from datetime import timedelta

from karpenter.api.karpenter import Budget
from karpenter.api.meta import Condition
from karpenter.api.scheduling_constraints import Taint
from karpenter.disruption.decide.blocker import BlockerCategory
from karpenter.disruption.decide.blocker_messages import blocker_message
from karpenter.disruption.decide.command import DisruptionReason
from karpenter.disruption.decide.disruption_preview import DisruptionPreview, preview_disruption
from karpenter.disruption.decide.node_explanation import NodeExplanation, explain_node
from karpenter.kube.decoding import metadata_of
from karpenter.model import labels
from support.applied_commands import CONSOLIDATABLE, USUAL
from support.builders import NOW, budget, daemon_set, flatten, indexes, owner, pod, replaced, snapshot
from support.disruption_cases import KINDS, drifted, gone, on, pool, running, with_annotation

EMPTY, DRIFTED, UNDERUTILIZED = DisruptionReason.EMPTY, DisruptionReason.DRIFTED, DisruptionReason.UNDERUTILIZED
CLOSED = Budget(nodes="0")


def seen(*objects: object) -> DisruptionPreview:
    wires = flatten(objects)
    return preview_disruption(snapshot(wires), indexes(wires, KINDS), NOW, USUAL)


def asked(name: str, *objects: object) -> NodeExplanation:
    wires = flatten(objects)
    ahead = preview_disruption(snapshot(wires), indexes(wires, KINDS), NOW, USUAL)
    view = next(view for view in ahead.snapshot.nodes if view.name == name)
    return explain_node(view, ahead, indexes(wires, KINDS))


def messages(node_explanation: NodeExplanation) -> list[str]:
    return [blocker_message(explained_blocker.blocker) for explained_blocker in node_explanation.blockers]


def causes(node_explanation: NodeExplanation) -> list[str]:
    return [explained_blocker.blocker.category.value for explained_blocker in node_explanation.blockers]


def initialized(ago: timedelta) -> tuple[Condition, ...]:
    return (Condition(type="Initialized", status="True", last_transition_time=NOW - ago),)


def test_a_node_that_goes_has_its_move_and_no_blocker() -> None:
    """DIS-306"""
    node_explanation = asked("a", pool(), running("a", "m", 1), running("b", "m", 2))
    assert node_explanation.blockers == ()
    assert node_explanation.command is not None
    assert (node_explanation.command.saving_per_hour, node_explanation.command.pod_restarts) == (2.0, 1)
    assert node_explanation.price_per_hour == 2.0


def test_every_blocker_is_reported_and_not_only_the_first() -> None:
    """DIS-076, DIS-079, DIS-081, DIS-149: all of them at once."""
    node, claim, *pods = running("a", "m", 1, 1)
    held = with_annotation(node, labels.DO_NOT_DISRUPT, "true")
    one, two = (
        with_annotation(pods[0], labels.DO_NOT_DISRUPT, "true"),
        replaced(pods[1], metadata=replaced(metadata_of(pods[1]), labels={"app": "web"})),
    )
    node_explanation = asked(
        "a", pool("np", CLOSED), held, claim, one, two, budget("web", {"app": "web"}), running("b", "m", 2)
    )
    assert [
        (explained_blocker.blocker.category, blocker_message(explained_blocker.blocker))
        for explained_blocker in node_explanation.blockers
    ] == [
        (BlockerCategory.NODE, 'Disruption is blocked through the "karpenter.sh/do-not-disrupt" annotation'),
        (BlockerCategory.POD, 'Pod has "karpenter.sh/do-not-disrupt" annotation (Pod=default/a-0)'),
        (BlockerCategory.POD, "PDB prevents pod evictions (PodDisruptionBudget=[default/web])"),
        (
            BlockerCategory.BUDGET,
            'NodePool "np" allows no node to go for Underutilized now (spec.disruption.budgets[0])',
        ),
    ]


def test_a_pod_protected_for_a_while_says_until_when() -> None:
    """DIS-091"""
    objects = running("a", "m")
    guarded = on("a", 1, meta={"annotations": {labels.DO_NOT_DISRUPT: "1h"}})
    started = [replaced(pod, status=replaced(pod.status, start_time=NOW - timedelta(minutes=10))) for pod in guarded]
    (explained_blocker,) = asked("a", pool(), objects, started).blockers
    assert (explained_blocker.blocker.category, explained_blocker.blocker.until) == (
        BlockerCategory.POD,
        NOW + timedelta(minutes=50),
    )


def test_objections_of_pods_do_not_keep_a_drifted_node_whose_drain_has_an_end() -> None:
    """DIS-082"""
    node = running("a", "m", conditions=drifted())
    guarded = on("a", 1, meta={"annotations": {labels.DO_NOT_DISRUPT: "true"}})
    node_explanation = asked("a", pool(), node, guarded)
    assert node_explanation.reasons == (UNDERUTILIZED, DRIFTED)
    assert DRIFTED in node_explanation.blockers[0].blocked_reasons
    ending = running("a", "m", conditions=drifted(), termination_grace_period="1h")
    assert asked("a", pool(), ending, guarded).command is not None


def test_a_node_in_its_consolidate_after_period_says_when_that_is_over() -> None:
    """DIS-241, DIS-327"""
    node = running("a", "m", conditions=initialized(timedelta(minutes=1)))
    node_explanation = asked("a", pool(consolidate_after="30m"), node)
    assert [
        (explained_blocker.blocker.category, explained_blocker.blocker.until)
        for explained_blocker in node_explanation.blockers
    ] == [(BlockerCategory.CONSOLIDATE_AFTER, NOW + timedelta(minutes=29))]


def test_a_node_past_consolidate_after_counts_as_consolidatable_and_that_is_reported() -> None:
    """DIS-327"""
    node = running("a", "m", conditions=initialized(timedelta(minutes=31)))
    node_explanation = asked("a", pool(consolidate_after="30m"), node)
    assert (node_explanation.is_assumed_consolidatable, node_explanation.command is not None) == (True, True)
    assert not asked("a", pool(consolidate_after="30m"), running("a", "m")).is_assumed_consolidatable


def test_periods_that_are_not_over_are_reported_with_their_ends() -> None:
    """DIS-241"""
    resting = running("a", "m", conditions=initialized(timedelta(minutes=10)))
    ahead = seen(pool(consolidate_after="30m"), resting, running("b", "m"))
    assert ahead.consolidate_after_ends == {"claim-a": NOW + timedelta(minutes=20)}
    assert gone(ahead.without_budgets) == ["b"]


def test_a_node_within_its_stabilization_window_says_so_and_until_when() -> None:
    """DIS-487: an end in time, and a sentence."""
    consolidatable = running("a", "m", 1, conditions=(*initialized(timedelta(seconds=31)), CONSOLIDATABLE))
    soon = running("b", "m", 1, conditions=initialized(timedelta(seconds=29)))
    node_explanation = asked("a", pool(consolidate_after="30s"), consolidatable, soon)
    assert messages(node_explanation) == [
        "Node waits for other nodes whose consolidateAfter ends within 15s of its own"
    ]
    assert node_explanation.blockers[0].blocker.until == NOW + timedelta(seconds=59)


def test_where_consolidation_is_off_nothing_is_assumed() -> None:
    """DIS-105"""
    node_explanation = asked(
        "a", pool(consolidate_after="Never"), running("a", "m", conditions=initialized(timedelta(days=1)))
    )
    assert causes(node_explanation) == ["pool"]
    assert not node_explanation.is_assumed_consolidatable


def test_a_young_node_says_when_it_is_old_enough() -> None:
    """DIS-487"""
    node, claim, *pods = running("a", "m", 1)
    born = replaced(claim, metadata=replaced(metadata_of(claim), creation_timestamp=NOW - timedelta(minutes=2)))
    node_explanation = asked("a", pool(), node, born, pods, running("b", "m", 2))
    assert [
        (explained_blocker.blocker.category, explained_blocker.blocker.until)
        for explained_blocker in node_explanation.blockers
        if explained_blocker.blocker.category is BlockerCategory.NODE_AGE
    ] == [(BlockerCategory.NODE_AGE, NOW + timedelta(minutes=3))]


def test_a_roll_out_under_way_is_reported() -> None:
    """DIS-487"""
    pods = [
        on(
            "a",
            1,
            prefix=f"v{number}",
            meta={
                "owner_references": (owner("ReplicaSet", f"web-{number}"),),
                "labels": {"pod-template-hash": str(number)},
            },
        )
        for number in (1, 2)
    ]
    node_explanation = asked("a", pool(), running("a", "l"), pods, running("b", "l", 1))
    assert messages(node_explanation) == ["Deployment default/web is being rolled out"]


def test_a_node_that_is_not_worth_moving_says_in_figures_why() -> None:
    """DIS-257"""
    strict = with_annotation(pool(), labels.MINIMUM_SAVING_RATIO, "100")
    node_explanation = asked("a", strict, running("a", "m", 1), running("b", "m", 2))
    saving = [
        blocker_message(explained_blocker.blocker)
        for explained_blocker in node_explanation.blockers
        if explained_blocker.blocker.category is BlockerCategory.SAVING
    ]
    assert len(saving) == 1
    assert saving[0].endswith("the NodePool asks for 100")


def test_a_node_whose_pods_fit_nowhere_cheaper_says_so() -> None:
    """DIS-398"""
    assert causes(asked("a", pool(), running("a", "s", 2))) == ["move"]


def test_a_freeze_is_reported_with_its_end() -> None:
    """DIS-494"""
    end = NOW + timedelta(hours=8)
    frozen = with_annotation(pool(), labels.FREEZE, "release week")
    frozen = with_annotation(frozen, labels.FREEZE_UNTIL, end.isoformat().replace("+00:00", "Z"))
    node_explanation = asked("a", frozen, running("a", "m"))
    assert [
        (explained_blocker.blocker.category, explained_blocker.blocker.until)
        for explained_blocker in node_explanation.blockers
    ] == [(BlockerCategory.FREEZE, end)]
    assert "release week" in blocker_message(node_explanation.blockers[0].blocker)
    assert node_explanation.command_without_budgets is not None


def test_one_that_only_others_go_before_waits_without_blockers() -> None:
    """DIS-151"""
    cluster = [pool("np", Budget(nodes="1")), running("a", "m"), running("b", "l")]
    node_explanation = asked("a", *cluster)
    assert (
        node_explanation.blockers,
        node_explanation.command,
        node_explanation.command_without_budgets is not None,
    ) == ((), None, True)


def test_a_node_without_a_nodeclaim_is_reported_as_unmanaged() -> None:
    """DIS-071"""
    node, _claim = running("a", "m")
    assert messages(asked("a", pool(), node)) == ["Node has no NodeClaim: it is not managed"]


def test_a_node_of_an_unknown_pool_says_so() -> None:
    """DIS-078"""
    node_explanation = asked("a", running("a", "m", 1, pool="gone"))
    assert messages(node_explanation) == ["NodePool not found (NodePool=gone)"]


def test_a_tainted_node_is_taken_to_be_on_its_way_out() -> None:
    """DIS-054: who looks from outside does not know what is under way."""
    taint = Taint(key=labels.DISRUPTED_TAINT.key, effect=labels.DISRUPTED_TAINT.effect)
    ahead = seen(pool("np", Budget(nodes="1")), running("a", "m", taints=(taint,)), running("b", "m"))
    assert ahead.tainted_for_disruption == ("claim-a",)
    assert ahead.within_budgets.commands == ()
    assert gone(ahead.without_budgets) == ["b"]


def test_a_node_that_waiting_pods_will_go_to_is_nominated() -> None:
    """DIS-075"""
    cluster = [pool(), running("a", "m", 1), pod("waiting", {"cpu": "2"})]
    node_explanation = asked("a", *cluster)
    assert messages(node_explanation) == ["Node is nominated for a pending pod"]
    assert seen(*cluster).nominated == ("claim-a",)


def test_a_budget_that_opens_says_when() -> None:
    """DIS-141"""
    begin = NOW - timedelta(hours=1)
    closed = Budget(nodes="0", schedule=f"{begin.minute} {begin.hour} * * *", duration="3h")
    (budget_status,) = seen(pool("np", closed), running("a", "m")).budget_statuses
    expected = begin.replace(second=0, microsecond=0) + timedelta(hours=3)
    assert (budget_status.reason, budget_status.allowed, budget_status.remaining, budget_status.opens_at) == (
        EMPTY,
        0,
        0,
        expected,
    )


def test_a_budget_that_never_opens_has_no_moment() -> None:
    """DIS-140"""
    (budget_status,) = seen(pool("np", CLOSED), running("a", "m")).budget_statuses
    assert budget_status.opens_at is None


def test_a_daemon_set_without_room_is_reported_with_what_it_lacks() -> None:
    """DIS §24: a new DaemonSet that does not fit on nodes launched before it."""
    agent = daemon_set("agent", {"cpu": "1300m"})
    (set_shortfall,) = asked("a", pool(), running("a", "m", 3), agent).daemonset_shortfalls
    assert (set_shortfall.daemon_set, set_shortfall.missing) == ("default/agent", {"cpu": 300})
    small = daemon_set("agent", {"cpu": "900m"})
    assert asked("a", pool(), running("a", "m", 3), small).daemonset_shortfalls == ()


def test_a_daemon_set_that_runs_there_or_belongs_elsewhere_is_not_reported() -> None:
    agent = daemon_set("agent", {"cpu": "2"})
    there = on("a", 2, meta={"owner_references": (owner("DaemonSet", "agent"),)})
    assert asked("a", pool(), running("a", "m", 2), there, agent).daemonset_shortfalls == ()
    other = daemon_set("agent", {"cpu": "2"}, node_selector={"disk": "ssd"})
    assert asked("a", pool(), running("a", "m", 3, conditions=(CONSOLIDATABLE,)), other).daemonset_shortfalls == ()
