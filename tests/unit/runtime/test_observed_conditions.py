"""Status conditions as series and events: their present status, and each change."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from karpenter.api.ec2_node_class import EC2NodeClass, EC2NodeClassStatus
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import EC2_NODE_CLASS
from karpenter.api.kwok_node_class import KWOKNodeClass
from karpenter.api.meta import Condition, ObjectMeta, Wire
from karpenter.model import labels
from support.builders import NOW, claim, node, node_pool, replaced, seconds
from support.metrics_scrape import Scrape
from support.observed_cluster import ObservedCluster

CLASS = "karpenter.kwok.sh/kwoknodeclass"
COUNT = "operator_nodeclaim_status_condition_count"
CURRENT = "operator_nodeclaim_status_condition_current_status_seconds"
TURNS = "operator_nodeclaim_status_condition_transitions_total"
TURNING = "operator_nodeclaim_status_condition_transition_seconds"
TWIN_COUNT = "operator_status_condition_count"
TWIN_TURNS = "operator_status_condition_transitions_total"


def is_now(type_: str, status: str, at: float = 0, reason: str = "", message: str = "") -> Condition:
    moment = seconds(at)
    return Condition(type=type_, status=status, reason=reason or type_, message=message, last_transition_time=moment)


def a_claim(*conditions: Condition, **meta: object) -> NodeClaim:
    nodeclaim = claim("c", labels={CLASS: "default"}, conditions=conditions)
    return replaced(nodeclaim, metadata=replaced(nodeclaim.metadata, **meta))


def shown(scraped: Scrape, name: str, **own: str) -> list[tuple[str, str, str]]:
    return [
        (series_labels["type"], series_labels["status"], series_labels["reason"])
        for series_labels in scraped.series(name, **own)
    ]


def recorded_events(seen: ObservedCluster) -> list[tuple[str, str, str]]:
    return [
        (object_event.involved_object.kind.name, object_event.reason, object_event.message)
        for object_event in seen.events.recorded
    ]


def test_every_condition_of_an_object_is_a_series() -> None:
    """OPS-480, OPS-481, OPS-485"""
    seen = ObservedCluster()
    seen.put(a_claim(is_now("Launched", "True"), is_now("Registered", "Unknown", 5, "NodeNotFound")))
    seen.passes(30)
    scrape = seen.scrape()
    own = {"namespace": "", "name": "c", "karpenter_kwok_sh_kwoknodeclass": "default", "karpenter_sh_nodepool": "np"}
    assert scrape.series(COUNT) == [
        {**own, "type": "Launched", "status": "True", "reason": "Launched"},
        {**own, "type": "Registered", "status": "Unknown", "reason": "NodeNotFound"},
    ]
    assert scrape.value(COUNT, type="Launched") == 1
    assert scrape.values(CURRENT, "type") == {"Launched": 30, "Registered": 25}


def test_conditions_of_ec2nodeclasses_have_series_of_their_own() -> None:
    """AWS-789: count and transitions by type, status and reason, and the time since the deletion."""
    seen = ObservedCluster(node_class_kinds=(EC2_NODE_CLASS,))
    before = EC2NodeClass(
        metadata=ObjectMeta(name="default"), status=EC2NodeClassStatus(conditions=(is_now("Ready", "Unknown"),))
    )
    ready = EC2NodeClassStatus(conditions=(is_now("Ready", "True"),))
    seen.put(before)
    seen.put(replaced(before, status=ready))
    series = "operator_ec2nodeclass_status_condition"
    assert shown(seen.scrape(), f"{series}_count") == [("Ready", "True", "Ready")]
    assert shown(seen.scrape(), f"{series}_transitions_total") == [("Ready", "True", "Ready")]
    seen.put(replaced(before, status=ready, metadata=ObjectMeta(name="default", deletion_timestamp=seconds(0))))
    seen.passes(30)
    assert seen.scrape().value("operator_ec2nodeclass_termination_current_time_seconds", name="default") == 30


def test_the_documented_alert_finds_its_series() -> None:
    """OPS-486"""
    seen = ObservedCluster()
    seen.put(a_claim(is_now("ConsistentStateFound", "False")))
    wanted = {"type": "ConsistentStateFound", "kind": "NodeClaim", "status": "False", "group": "karpenter.sh"}
    (series_labels,) = seen.scrape().series(TWIN_COUNT, **wanted)
    assert set(series_labels) == {"group", "kind", "namespace", "name", "type", "status", "reason"}


def test_a_condition_that_changes_leaves_no_series_behind_and_is_counted_timed_and_reported() -> None:
    """OPS-M9, OPS-E7, OPS-482, OPS-483, OPS-530"""
    seen = ObservedCluster()
    seen.put(a_claim(is_now("Ready", "True", 0)))
    assert recorded_events(seen) == []
    seen.put(a_claim(is_now("Ready", "False", 8, "UnhealthyDependents", "Launched=False")))
    scrape = seen.scrape()
    assert shown(scrape, COUNT) == shown(scrape, TWIN_COUNT) == [("Ready", "False", "UnhealthyDependents")]
    assert scrape.value(TURNS, type="Ready", status="False", reason="UnhealthyDependents") == 1
    assert scrape.value(TWIN_TURNS, kind="NodeClaim", type="Ready", status="False") == 1
    assert scrape.value(f"{TURNING}_sum", type="Ready", status="True", karpenter_sh_nodepool="np") == 8
    assert scrape.value(f"{TURNING}_bucket", type="Ready", le="8.0") == 1
    assert scrape.value(f"{TURNING}_bucket", type="Ready", le="4.0") == 0
    assert scrape.value("operator_status_condition_transition_seconds_sum", kind="NodeClaim", type="Ready") == 8
    assert recorded_events(seen) == [
        (
            "NodeClaim",
            "Ready",
            "Status condition transitioned, Type: Ready, Status: True -> False, "
            "Reason: UnhealthyDependents, Message: Launched=False",
        )
    ]
    assert seen.events.recorded[0].type == "Normal"


def test_another_reason_or_message_is_no_turn() -> None:
    """OPS-487: the series follows, without a count or an event."""
    seen = ObservedCluster()
    seen.put(a_claim(is_now("Registered", "Unknown", 0, "NodeNotFound")))
    seen.put(a_claim(is_now("Registered", "Unknown", 0, "RegistrationHookPending", "hook")))
    scrape = seen.scrape()
    assert shown(scrape, COUNT) == [("Registered", "Unknown", "RegistrationHookPending")]
    assert scrape.series(TURNS) == []
    assert recorded_events(seen) == []


@pytest.mark.parametrize("earlier", [None, a_claim()], ids=["new-object", "new-condition"])
def test_a_condition_seen_for_the_first_time_counts_unless_unknown_and_gives_no_event(
    earlier: NodeClaim | None,
) -> None:
    """OPS-487"""
    seen = ObservedCluster()
    if earlier is not None:
        seen.put(earlier)
    seen.put(a_claim(is_now("Consolidatable", "True", 3), is_now("Drained", "Unknown"), is_now("Drifted", "False")))
    scrape = seen.scrape()
    assert {series_labels["type"] for series_labels in scrape.series(TURNS)} == {"Consolidatable", "Drifted"}
    assert scrape.total(TURNS) == scrape.total(TWIN_TURNS) == 2
    assert scrape.series(f"{TURNING}_count") == []
    assert recorded_events(seen) == []


def test_what_every_claim_has_is_unknown_from_its_creation_on() -> None:
    """OPS-E7, OPS-100: the first write of a claim's status may bring its launch already."""
    seen = ObservedCluster()
    seen.put(a_claim(creation_timestamp=NOW))
    seen.put(a_claim(is_now("Launched", "True", 3), creation_timestamp=NOW))
    assert [message for _, _, message in recorded_events(seen)] == [
        "Status condition transitioned, Type: Launched, Status: Unknown -> True, Reason: Launched"
    ]
    assert seen.scrape().value(f"{TURNING}_sum", type="Launched", status="Unknown") == 3


def test_a_condition_that_disappears_takes_its_series_along() -> None:
    """OPS-M10"""
    seen = ObservedCluster()
    seen.put(a_claim(is_now("Consolidatable", "True"), is_now("Ready", "True")))
    seen.put(a_claim(is_now("Ready", "True")))
    scrape = seen.scrape()
    assert shown(scrape, COUNT) == shown(scrape, TWIN_COUNT) == [("Ready", "True", "Ready")]


def test_an_object_that_ends_shows_for_how_long_and_counts_it_when_it_is_gone() -> None:
    """OPS-484"""
    seen = ObservedCluster()
    leaving = a_claim(is_now("Ready", "True"), deletion_timestamp=NOW, finalizers=("karpenter.sh/termination",))
    seen.put(a_claim(is_now("Ready", "True")))
    assert seen.scrape().series("operator_nodeclaim_termination_current_time_seconds") == []
    seen.put(leaving)
    seen.passes(12)
    scrape = seen.scrape()
    assert scrape.value("operator_nodeclaim_termination_current_time_seconds", name="c") == 12
    assert scrape.value("operator_termination_current_time_seconds", kind="NodeClaim", name="c") == 12
    seen.gone(leaving)
    scrape = seen.scrape()
    assert scrape.series("operator_nodeclaim_termination_current_time_seconds") == []
    assert scrape.value("operator_nodeclaim_termination_duration_seconds_sum", karpenter_sh_nodepool="np") == 12
    assert scrape.value("operator_termination_duration_seconds_sum", kind="NodeClaim", group="karpenter.sh") == 12
    assert 'name="c"' not in scrape.text


def test_removed_finalizers_give_an_event() -> None:
    """OPS-531"""
    seen = ObservedCluster()
    both = a_claim(deletion_timestamp=NOW, finalizers=("example.com/mine", "karpenter.sh/termination"))
    seen.put(both)
    seen.put(replaced(both, metadata=replaced(both.metadata, finalizers=("karpenter.sh/termination",))))
    assert recorded_events(seen) == [("NodeClaim", "Finalized", "Finalized example.com/mine")]
    seen.gone(both)
    assert recorded_events(seen)[1:] == [("NodeClaim", "Finalized", "Finalized karpenter.sh/termination")]


def _node(status: str, **more: str) -> Wire:
    own = {labels.NODE_POOL: "np", CLASS: "default", labels.INITIALIZED: "true", **more}
    condition = node("n", {}, labels=own)
    return replaced(condition, status=replaced(condition.status, conditions=(is_now("Ready", status),)))


def _pool(status: str) -> Wire:
    nodepool = node_pool()
    return replaced(nodepool, status=replaced(nodepool.status, conditions=(is_now("Ready", status),)))


def _class(status: str) -> Wire:
    kwok_node_class = KWOKNodeClass(metadata=ObjectMeta(name="default"))
    return replaced(kwok_node_class, status=replaced(kwok_node_class.status, conditions=(is_now("Ready", status),)))


@pytest.mark.parametrize(
    ("before", "after", "kind", "own"),
    [
        (
            _node("False"),
            _node("True"),
            "Node",
            {
                "karpenter_sh_nodepool": "np",
                "karpenter_kwok_sh_kwoknodeclass": "default",
                "karpenter_sh_initialized": "true",
            },
        ),
        (_pool("False"), _pool("True"), "NodePool", {}),
        (_class("False"), _class("True"), "KWOKNodeClass", {}),
    ],
    ids=["Node", "NodePool", "KWOKNodeClass"],
)
def test_kinds_have_series_of_their_own(before: Wire, after: Wire, kind: str, own: Mapping[str, str]) -> None:
    """OPS-480, OPS-485, OPS-530: Nodes have no series without the kind in their names."""
    seen = ObservedCluster()
    seen.put(before)
    seen.put(after)
    scrape = seen.scrape()
    prefix = f"operator_{kind.lower()}_status_condition"
    (count,) = scrape.series(f"{prefix}_count", type="Ready", status="True")
    assert {key: count[key] for key in own} == own
    turned = {"type": "Ready", "status": "True", "reason": "Ready"}
    assert scrape.series(f"{prefix}_transitions_total", status="True") == [{**own, **turned}]
    assert len(scrape.series(TWIN_COUNT, kind=kind)) == (kind != "Node")
    assert len(scrape.series(TWIN_TURNS, kind=kind, status="True")) == (kind != "Node")
    assert [(element[0], element[1]) for element in recorded_events(seen)] == [(kind, "Ready")]


def test_reasons_with_odd_text_stay_readable() -> None:
    seen = ObservedCluster()
    seen.put(a_claim(is_now("Launched", "False", reason='said "no"\n')))
    assert shown(seen.scrape(), COUNT) == [("Launched", "False", 'said "no"\n')]


def test_without_details_single_objects_have_no_series_and_no_events() -> None:
    """OPS-O11, OPS-320"""
    seen = ObservedCluster(only_essentials=True)
    seen.put(a_claim(is_now("Ready", "True")), node_pool(limits={"cpu": "1"}), node("n", {"cpu": "1"}))
    seen.put(a_claim(is_now("Ready", "False")))
    families = set(seen.scrape().types())
    assert not [name for name in families if name.startswith("operator_")]
    gone = {"karpenter_pods_state", "karpenter_nodepools_limit", "karpenter_nodes_allocatable"}
    assert not gone & families
    kept = {"karpenter_nodepools_allowed_disruptions", "karpenter_cluster_state_node_count"}
    assert kept <= families
    assert recorded_events(seen) == []
