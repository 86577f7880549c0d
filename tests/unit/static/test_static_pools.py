"""Static NodePools: how many claims to create, which to give up, and what a claim of theirs says (SCH §24, DIS §18)."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from karpenter.api.core import Pod
from karpenter.api.karpenter import NodeClaim, NodeClaimStatus, NodePool, NodeSelectorRequirementWithMinValues
from karpenter.api.meta import Condition, ObjectMeta
from karpenter.disruption.decide.command import Command, DisruptionReason
from karpenter.disruption.decide.move_blockers import StaticPoolAtNodeLimit
from karpenter.disruption.decide.static_replacements import StaticReplacements
from karpenter.model import labels
from karpenter.model.pod_disruption import DELETION_COST_ANNOTATION
from karpenter.scheduling.planned_nodeclaims import static_claim
from karpenter.scheduling.solution import NewNodeClaim
from karpenter.state.state_node import NO_NODE_USAGE, build_state_node
from karpenter.static import replicas as static
from karpenter.static.replicas import ReplicaCounts, ScaleUp, StaticClaim
from support import builders
from support.builders import ANY_CAPACITY, NOW, node_pool, owner
from support.disruption_cases import KINDS, running
from support.instance_types import STD


def pool(replicas: int, **limits: str) -> NodePool:
    return node_pool("np", (ANY_CAPACITY,), replicas=replicas, limits=limits)


def member(name: str, *pods: Pod, launched: bool = True, **fields: object) -> StaticClaim:
    status = NodeClaimStatus(provider_id=f"fake:///{name}" if launched else "", node_name=f"node-{name}")
    nodeclaim = static_claim(pool(1), name, labels.WELL_KNOWN)
    spec = msgspec.structs.replace(nodeclaim.spec, expire_after=str(fields.pop("expire_after", "Never")))
    meta = msgspec.structs.replace(nodeclaim.metadata, creation_timestamp=NOW)
    return StaticClaim(msgspec.structs.replace(nodeclaim, metadata=meta, spec=spec, status=status), pods)


def pod(name: str = "p", *, kind: str = "ReplicaSet", protected: bool = False, cost: str = "") -> Pod:
    annotations = {labels.DO_NOT_DISRUPT: "true"} if protected else {}
    annotations |= {DELETION_COST_ANNOTATION: cost} if cost else {}
    meta = {"annotations": annotations, "owner_references": (owner(kind),)}
    return builders.pod(name, {"cpu": "1"}, meta=meta)


@pytest.mark.parametrize(
    ("replicas", "limit", "held", "reserved", "expected"),
    [
        (3, "", ReplicaCounts(), 0, ScaleUp(3, 3)),
        (3, "", ReplicaCounts(active=3), 0, ScaleUp()),
        (3, "", ReplicaCounts(active=5), 0, ScaleUp()),
        (3, "", ReplicaCounts(active=2, pending_disruption=1), 0, ScaleUp()),
        (3, "", ReplicaCounts(active=1, pending_disruption=1), 0, ScaleUp(2, 2)),
        (3, "", ReplicaCounts(active=1, deleting=2), 0, ScaleUp(2, 2)),
        (5, "4", ReplicaCounts(active=1), 0, ScaleUp(4, 3)),
        (5, "4", ReplicaCounts(active=1, deleting=2), 0, ScaleUp(4, 1)),
        (5, "4", ReplicaCounts(active=1), 2, ScaleUp(4, 1)),
        (5, "4", ReplicaCounts(active=1, deleting=3), 0, ScaleUp(4, 0)),
        (5, "2", ReplicaCounts(active=1, deleting=3), 0, ScaleUp(4, 0)),
        (0, "", ReplicaCounts(), 0, ScaleUp()),
    ],
)
def test_what_is_missing_is_created_as_far_as_the_limit_on_nodes_allows(
    replicas: int, limit: str, held: ReplicaCounts, reserved: int, expected: ScaleUp
) -> None:
    """SCH-702, OPS-120"""
    limits = {"nodes": limit} if limit else {}
    assert static.scale_up(pool(replicas, **limits), held, reserved) == expected


def test_claims_are_counted_by_where_they_stand() -> None:
    """SCH-701"""
    stays, starts = member("a"), member("b", launched=False)
    chosen = chosen_one(member("c"))
    deleting = StaticClaim(with_deletion(member("d").claim), is_disrupting=True)
    ending = Condition(type="InstanceTerminating", status="True")
    status = NodeClaimStatus(conditions=(ending,))
    terminating = StaticClaim(msgspec.structs.replace(member("e").claim, status=status))
    assert static.count_replicas([stays, starts, chosen, deleting, terminating]) == ReplicaCounts(2, 1, 2)


def chosen_one(obj: StaticClaim) -> StaticClaim:
    return StaticClaim(obj.claim, obj.pods, is_disrupting=True)


def with_deletion(claim: NodeClaim) -> NodeClaim:
    return msgspec.structs.replace(claim, metadata=msgspec.structs.replace(claim.metadata, deletion_timestamp=NOW))


def given_up(replicas: int, *members: StaticClaim) -> list[str]:
    return [claim.metadata.name for claim in static.scale_down_claims(pool(replicas), members, NOW)]


def test_the_unlaunched_go_first_then_the_empty_then_those_cheapest_to_move() -> None:
    """SCH-703, DIS-561, S-260"""
    members = (
        member("guarded", pod(protected=True, cost="-134217728")),
        member("dear", pod("p"), pod("q")),
        member("cheap", pod()),
        member("daemons", pod(kind="DaemonSet")),
        member("empty"),
        member("unlaunched", launched=False),
    )
    assert given_up(0, *members) == ["unlaunched", "daemons", "empty", "cheap", "dear", "guarded"]
    assert given_up(4, *members) == ["unlaunched", "daemons"]
    assert given_up(6, *members) == []
    assert given_up(9, *members) == []


def test_a_daemon_that_must_not_be_disrupted_keeps_its_node_from_being_empty() -> None:
    """SCH-703"""
    guarded = member("a", pod(kind="DaemonSet", protected=True))
    assert given_up(0, guarded, member("b", pod())) == ["b", "a"]


def test_moving_costs_less_the_nearer_the_end_of_a_node_is() -> None:
    """DIS-112, DIS-113; K15-209: all as of one instant."""
    long_lived = member("long", pod())
    short_lived = member("short", pod("p"), pod("q"), pod("r"), expire_after="1h")
    after = NOW + timedelta(minutes=45)
    order = [claim.metadata.name for claim in static.scale_down_claims(pool(0), [long_lived, short_lived], after)]
    assert order == ["short", "long"]
    assert given_up(0, long_lived, short_lived) == ["long", "short"]


def test_a_pod_with_a_negative_cost_makes_the_others_on_its_node_cheaper() -> None:
    """DIS-111: eviction costs are added up, not clamped at 0 for each pod. One pod of cost 1 is dearer than 1 and -9."""
    relieved = member("relieved", pod("p"), pod("q", cost="-1342177280"))
    plain = member("plain", pod())
    assert given_up(0, plain, relieved) == ["relieved", "plain"]


def test_what_is_already_going_is_not_excess() -> None:
    """DIS-560"""
    going = StaticClaim(with_deletion(member("a").claim))
    chosen = chosen_one(member("b"))
    assert given_up(1, going, chosen, member("c"), member("d")) == ["c"]


def test_new_claims_take_the_lowest_free_slots() -> None:
    """Repeated from the same picture, a creation asks for the same names."""
    kept = pool(3)
    first = taken(kept, 3)
    assert len(set(first)) == 3
    assert taken(kept, 2, first[0], first[2], "other") == [first[1], taken(kept, 1, *first)[0]]
    twin = msgspec.structs.replace(kept, metadata=msgspec.structs.replace(kept.metadata, uid="another"))
    assert not set(taken(twin, 3)) & set(first)


def test_the_claim_after_one_that_has_just_gone_has_another_name_in_the_same_slot() -> None:
    """Who waits by name for a claim to be gone sees it go, and the names of a slot are those of no other slot."""
    kept, zones = spreading(), ("z1", "z2", "z3")
    first = static.free_slots(kept, (), 6, zones)
    former: list[str] = [first[1].name]
    others = [slot.name for slot in first if slot is not first[1]]
    for _ in range(7):
        (again,) = static.free_slots(kept, others, 1, zones, former)
        assert again.zone == first[1].zone
        assert again.name not in {slot.name for slot in first} | set(former)
        assert static.free_slots(kept, [*others, again.name], 1)[0].name not in {slot.name for slot in first}
        former.append(again.name)
    for _ in range(20):
        (again,) = static.free_slots(kept, others, 1, zones, former)
        assert again.name == former[0], "the one that has been gone for longest"
        former.append(former.pop(0))


def taken(of: NodePool, count: int, *names: str) -> list[str]:
    """The names the next claims get."""
    return [slot.name for slot in static.free_slots(of, names, count)]


def spreading(*requirements: NodeSelectorRequirementWithMinValues) -> NodePool:
    nodepool = node_pool("np", requirements, replicas=6)
    spread_annotation = {labels.SPREAD_REPLICAS: labels.ZONE}
    return msgspec.structs.replace(
        nodepool, metadata=msgspec.structs.replace(nodepool.metadata, annotations=spread_annotation)
    )


def test_replicas_are_spread_over_zones_on_request_and_a_lost_one_comes_back_where_it_was() -> None:
    """SCH §24 Beyond"""
    spread = spreading()
    zones = static.spread_zones(spread, STD)
    assert zones == ("z1", "z2", "z3")
    slots = static.free_slots(spread, (), 6, zones)
    assert [slot.zone for slot in slots] == ["z1", "z2", "z3", "z1", "z2", "z3"]
    others = [slot.name for slot in slots if slot is not slots[4]]
    assert static.free_slots(spread, others, 1, zones) == (slots[4],)
    claim = static_claim(spread, "c", labels.WELL_KNOWN, "z2")
    assert {requirement.key: requirement.values for requirement in claim.spec.requirements}[labels.ZONE] == ("z2",)


def test_only_zones_the_pool_can_launch_in_count_and_only_on_request() -> None:
    """SCH §24 Beyond"""
    spot = NodeSelectorRequirementWithMinValues(key=labels.CAPACITY_TYPE, operator="In", values=("spot",))
    assert static.spread_zones(spreading(spot), STD) == ("z1", "z2")
    assert static.spread_zones(pool(3), STD) == ()


def test_a_claim_carries_the_pools_requirements_as_they_are() -> None:
    """SCH-623, API-138, SCH-622"""
    own = NodeSelectorRequirementWithMinValues(key="example.com/team", operator="In", values=("b", "a"))
    types = NodeSelectorRequirementWithMinValues(
        key=labels.INSTANCE_TYPE, operator="In", values=("t1", "t2"), min_values=2
    )
    nodeclaim = static_claim(node_pool("np", (own, types), replicas=1), "np-1", labels.WELL_KNOWN)
    by_key = {requirement.key: requirement for requirement in nodeclaim.spec.requirements}
    assert by_key[labels.INSTANCE_TYPE].values == ("t1", "t2")
    assert by_key[labels.INSTANCE_TYPE].min_values == 2
    assert labels.CAPACITY_TYPE not in by_key
    assert not labels.SIMULATION_ONLY & by_key.keys()
    assert nodeclaim.metadata.labels["example.com/team"] == "a"
    assert labels.MIN_VALUES_RELAXED not in nodeclaim.metadata.annotations
    assert nodeclaim.metadata.annotations[labels.NODE_POOL_HASH]
    assert nodeclaim.spec.resources.requests == {}


@pytest.mark.parametrize(("limit", "exceeded"), [("2", ()), ("1", ("nodes",)), ("3", ())])
def test_limits_are_exceeded_beyond_them_not_at_them(limit: str, exceeded: tuple[str, ...]) -> None:
    """SCH-631, SCH-385: usage equal to a limit blocks nothing."""
    views = [build_state_node(None, member(name).claim, NO_NODE_USAGE, marked=False) for name in ("a", "b")]
    leaving = build_state_node(None, member("c").claim, NO_NODE_USAGE, marked=True)
    assert static.exceeded_limits(pool(3, nodes=limit), [*views, leaving]) == exceeded


def test_a_pool_of_another_name_does_not_count() -> None:
    views = [build_state_node(None, member("a").claim, NO_NODE_USAGE, marked=False)]
    other = msgspec.structs.replace(pool(3, nodes="0"), metadata=ObjectMeta(name="other"))
    assert static.exceeded_limits(other, views) == ()


def test_a_slot_of_a_command_that_is_not_executed_is_released() -> None:
    """K15-212: the next command of the pass takes it, under the same name."""
    full = node_pool("np", (ANY_CAPACITY,), replicas=2, limits={"nodes": "2"})
    wires = [full, *running("n1")]
    slots = StaticReplacements(builders.snapshot(wires), builders.indexes(wires, KINDS))
    first = slots.stage("np")
    assert isinstance(first, NewNodeClaim)
    assert slots.stage("np") == StaticPoolAtNodeLimit("np")
    slots.unstage(Command(DisruptionReason.DRIFTED, (), (first,)))
    again = slots.stage("np")
    assert isinstance(again, NewNodeClaim)
    assert again.name == first.name
