"""Nodes whose pods hold devices that several nodes reach are disrupted like others: pods move to nodes that reach the devices.

K15-168, K15-170, K15-173: what a claim gives back when its pod leaves, the claim of its successor gets again.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import msgspec
import pytest

from karpenter.api.core import Node, Pod
from karpenter.api.meta import Wire
from karpenter.api.resource_claims import (
    AllocationResult,
    DeviceAllocationResult,
    DeviceRequest,
    DeviceRequestAllocationResult,
    DeviceTaint,
    ResourceClaim,
    ResourceClaimConsumerReference,
    ResourceClaimStatus,
    ResourceSlice,
)
from karpenter.api.scheduling_constraints import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from karpenter.disruption.decide.command import Command
from karpenter.model import labels
from support.builders import details, existing, left, node, plan
from support.device_builders import (
    DRIVER,
    claim_template,
    device,
    device_class,
    every,
    exactly,
    gpus,
    of_template,
    published,
    resource_claim,
    slice_spec,
    using,
)
from support.disruption_cases import decide, drifted, gone, pool, replacement_types, running, why


def in_zone(zone: str) -> NodeSelector:
    required = NodeSelectorRequirement(key=labels.ZONE, operator="In", values=(zone,))
    return NodeSelector(node_selector_terms=(NodeSelectorTerm(match_expressions=(required,)),))


def fabric(count: int, zone: str = "", **fields: object) -> ResourceSlice:
    """A pool of devices that the nodes of a zone reach, or all nodes."""
    reached: dict[str, object] = {"node_selector": in_zone(zone)} if zone else {"all_nodes": True}
    name = zone or "fabric"
    return published(name, slice_spec(*(device(f"d{at}", **fields) for at in range(count)), pool=name, **reached))


def held(
    name: str, pod_names: Iterable[str], *devices: tuple[str, str], request: DeviceRequest | None = None
) -> ResourceClaim:
    """A claim that holds devices (pool and name), where its pool says so reached in a zone only, as the scheduler writes it."""
    asked = resource_claim(name, request or exactly("r", len(devices)), by=pod_names)
    zones = {owner for owner, _ in devices if owner.startswith("z")}
    results = tuple(
        DeviceRequestAllocationResult(request="r", driver=DRIVER, pool=owner, device=each) for owner, each in devices
    )
    allocation = AllocationResult(
        devices=DeviceAllocationResult(results=results), node_selector=in_zone(min(zones)) if zones else None
    )
    return msgspec.structs.replace(asked, status=msgspec.structs.replace(asked.status, allocation=allocation))


def user(name: str, on: str, *claims: str, cpu: float = 1, **spec: object) -> Pod:
    """A running pod of a ReplicaSet whose claims were made from templates."""
    made: dict[str, str | None] = {f"t-{each}": each for each in claims}
    bare = of_template(name, *made, made=made, requests={"cpu": str(cpu)}, node_name=on, **spec)
    return _owned(bare)


def _owned(bare: Pod) -> Pod:
    (plain,) = [each for each in running("x", "m", 1) if isinstance(each, Pod)]
    owners = plain.metadata.owner_references
    return msgspec.structs.replace(bare, metadata=msgspec.structs.replace(bare.metadata, owner_references=owners))


def foreign(zone: str = "z1") -> Node:
    """A node with room that may not be disrupted."""
    return node("b", {"cpu": 4, "memory": "64Gi", "pods": 50}, labels={labels.ZONE: zone})


GPU = [device_class(), claim_template("t-c", exactly())]


def test_a_pod_whose_device_every_node_reaches_moves_with_it_and_its_node_goes() -> None:
    """K15-173: the only device there is; nothing is launched for it."""
    world = [pool(), GPU, fabric(1), running("a"), foreign(), held("c", ["p"], ("fabric", "d0"))]
    solution = decide(world, user("p", "a", "c"))
    assert gone(solution) == ["a"]
    assert [placed.node_name for placed in solution.commands[0].placed_on_existing] == ["b"]


@pytest.mark.parametrize(("zone", "goes"), [("z1", ["a"]), ("z2", [])])
def test_a_pod_moves_only_where_the_selector_of_its_slice_admits(zone: str, goes: list[str]) -> None:
    """K15-170: the other node is in that zone, or in another one."""
    world = [pool(), GPU, fabric(1, "z1"), running("a", "s"), foreign(zone)]
    solution = decide(world, held("c", ["p"], ("z1", "d0")), user("p", "a", "c"))
    assert gone(solution) == goes


def test_a_large_node_is_replaced_by_a_small_one_where_the_device_is_reached() -> None:
    """K15-170, K15-231: zone z2 has the same types at the same price."""
    world = [pool(), GPU, fabric(1, "z2"), running("a", "l", zone="z2"), held("c", ["p"], ("z2", "d0"))]
    solution = decide(world, user("p", "a", "c"))
    assert (gone(solution), replacement_types(solution)) == (["a"], ["s"])
    (planned,) = solution.commands[0].replacements
    assert planned.cheapest_offering.zone == "z2"


def test_a_drifted_node_is_replaced_while_its_pod_holds_the_last_device() -> None:
    world = [pool(), GPU, fabric(1), running("a", conditions=drifted()), held("c", ["p"], ("fabric", "d0"))]
    solution = decide(world, user("p", "a", "c"))
    assert (gone(solution), replacement_types(solution)) == (["a"], ["s"])


def test_a_node_stays_and_says_why_when_the_device_of_its_pod_would_not_be_given_again() -> None:
    """K15-172: the device has got a taint since, and no other is free."""
    taint = DeviceTaint(key="worn", value="out", effect="NoSchedule")
    world = [pool(), GPU, fabric(1, taints=(taint,)), running("a", conditions=drifted()), foreign()]
    solution = decide(world, held("c", ["p"], ("fabric", "d0")), user("p", "a", "c"))
    assert gone(solution) == []
    assert "default/p" in why(solution, "a")


def test_a_claim_that_pods_elsewhere_share_stays_allocated_while_one_pod_moves() -> None:
    """K15-152: its other consumer keeps the allocation, and so the place."""
    for zone, goes in (("z1", ["a"]), ("z2", [])):
        shared = held("c", ["p", "q"], ("z1", "d0"))
        pods = [_owned(using(name, "c", requests={"cpu": "1"}, node_name=on)) for name, on in (("p", "a"), ("q", "o"))]
        nodes = [running("a", "s"), foreign(zone), node("o", {"cpu": 1, "pods": 1}, labels={labels.ZONE: "z1"})]
        assert gone(decide(pool(), GPU, fabric(1, "z1"), nodes, shared, pods)) == goes


def test_a_pod_with_a_device_of_its_node_and_one_of_the_fabric_needs_a_node_with_both() -> None:
    """K15-163: the device of the node is allocated anew, the other is kept."""
    claims = [
        held("net", ["p"], ("fabric", "d0")),
        resource_claim("own", exactly(), held=[("a", "gpu-0")], on="a", by=["p"]),
    ]
    for with_gpu, goes in ((True, ["a"]), (False, [])):
        slices = [
            fabric(1),
            *(published(f"s-{name}", slice_spec(*gpus(1), node=name)) for name in "ab"[: 1 + with_gpu]),
        ]
        world = [pool(), GPU, slices, running("a"), foreign(), claims]
        assert gone(decide(world, user("p", "a", "net", "own"))) == goes


def test_a_claim_for_all_devices_keeps_its_node() -> None:
    """What all of them are depends on the node."""
    all_of_them = held("c", ["p"], ("fabric", "d0"), request=every())
    solution = decide(pool(), GPU, fabric(1), running("a"), foreign(), all_of_them, user("p", "a", "c"))
    assert gone(solution) == []


def test_a_pod_of_a_node_that_leaves_gets_a_node_before_it_is_evicted() -> None:
    """K15-161, K15-168: its device is free by then; a more important pod that waits would have it."""
    leaving = running("a", "s", deleted=True)
    world = [pool(), GPU, fabric(1), leaving, held("c", ["p"], ("fabric", "d0")), user("p", "a", "c")]
    assert left(plan(world)) == []
    assert len(plan(world).new_claims) == 1
    assert left(plan(world, of_template("first", "t-c", priority=1000))) == ["p"]


@pytest.mark.parametrize("seed", range(60))
def test_whatever_goes_the_devices_are_found_anew_where_the_pods_go(seed: int) -> None:
    """K15-164, K15-168, K15-170: the moved pods wait with claims that hold nothing, pinned to their nodes: all get devices."""
    dice = Random(f"network devices {seed}")
    slices = [fabric(dice.randint(1, 3)), fabric(dice.randint(1, 2), "z1"), fabric(dice.randint(1, 2), "z2")]
    free = [(each.spec.pool.name, one.name) for each in slices for one in each.spec.devices]
    dice.shuffle(free)
    zones = {f"n{at}": dice.choice(("z1", "z2")) for at in range(dice.randint(2, 5))}
    nodes = [running(name, dice.choice("ml"), zone=zone) for name, zone in zones.items()]
    pods: list[Pod] = []
    claims: list[ResourceClaim] = []
    for name, zone in zones.items():
        for number in range(dice.randint(0, 2)):
            mine = next((each for each in free if each[0] in ("fabric", zone)), None)
            if mine is not None:
                free.remove(mine)
                claims.append(held(f"c-{name}-{number}", [f"p-{name}-{number}"], mine))
                pods.append(user(f"p-{name}-{number}", name, claims[-1].metadata.name, cpu=0.5))
    solution = decide(pool(), GPU, slices, nodes, claims, pods)
    for command in solution.commands:
        _check_found_anew(command, [*map(_with_own_label, _flat(nodes)), *slices, *GPU, pool()], pods, claims)


_OWN = "example.com/host"


def _flat(nodes: Iterable[Iterable[Wire]]) -> list[Wire]:
    return [each for group in nodes for each in group]


def _with_own_label(wire: Wire) -> Wire:
    """A node with a label that pods may be pinned by."""
    if not isinstance(wire, Node):
        return wire
    meta = wire.metadata
    return msgspec.structs.replace(
        wire, metadata=msgspec.structs.replace(meta, labels={**meta.labels, _OWN: meta.name})
    )


def _check_found_anew(
    command: Command, world: Iterable[object], pods: Iterable[Pod], claims: Iterable[ResourceClaim]
) -> None:
    targets = {pod.metadata.name: placed.node_name for placed in command.placed_on_existing for pod in placed.pods}
    kept = [each for each in pods if each.metadata.name not in targets]
    pinned = [_waiting(each, targets[each.metadata.name]) for each in pods if each.metadata.name in targets]
    moved = {f"c-{name.removeprefix('p-')}" for name in targets}
    anew = [_given_back(claim) if claim.metadata.name in moved else claim for claim in claims]
    removed = set(gone([command]))
    there = [each for each in world if not (isinstance(each, Node) and each.metadata.name in removed)]
    result = plan(there, kept, pinned, anew)
    assert not set(left(result)) & set(targets), details(result)
    assert sum(existing(result).values()) >= len(pinned)


def _waiting(moved: Pod, on: str) -> Pod:
    made = {each.name: each.resource_claim_name for each in moved.status.resource_claim_statuses}
    selector = {_OWN: on}
    return of_template(moved.metadata.name, *made, made=made, requests={"cpu": "0.5"}, node_selector=selector)


def _given_back(claim: ResourceClaim) -> ResourceClaim:
    consumers: tuple[ResourceClaimConsumerReference, ...] = ()
    return msgspec.structs.replace(claim, status=ResourceClaimStatus(allocation=None, reserved_for=consumers))
