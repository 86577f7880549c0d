"""Devices in what-if questions: what disruption asks of nodes whose pods have claims (K15-173, DIS-170)."""

from __future__ import annotations

from karpenter.api.core import Pod
from karpenter.scheduling.problem import build_problem
from karpenter.scheduling.solution import PlacedPods
from karpenter.scheduling.whatif.questions import WhatIf
from karpenter.scheduling.whatif.rescheduling import ReschedulingBase, prepare_rescheduling
from support.builders import NOW, details, left, new_types, node_and_claim, node_pool, plan, pod, snapshot
from support.device_builders import (
    claim_template,
    device_class,
    exactly,
    gpu_type,
    gpus,
    of_template,
    published,
    resource_claim,
    slice_spec,
    using,
)
from support.instance_types import STD, index_of

ROOM: dict[str, str | int] = {"cpu": 8, "memory": "32Gi", "pods": 110}
TYPES = (*STD, gpu_type("g1", 1))


def with_gpus(name: str, count: int) -> list[object]:
    return [*node_and_claim(name, ROOM), published(f"slice-{name}", slice_spec(*gpus(count), node=name))]


def running(name: str, on: str, device: str = "gpu-0") -> list[object]:
    """A running pod that holds a GPU of its node by a claim of its own."""
    held = resource_claim(f"{name}-gpu", exactly(), held=[(on, device)], on=on, by=[name])
    return [held, of_template(name, "one", made={"one": f"{name}-gpu"}, node_name=on)]


def base_of(*objects: object) -> ReschedulingBase:
    index = {"np": index_of(TYPES)}
    world = snapshot(node_pool(), device_class(), claim_template("one", exactly()), *objects)
    return prepare_rescheduling(build_problem(world, index, NOW), index)


def flat(*groups: list[object]) -> list[object]:
    return [each for group in groups for each in (group if isinstance(group, list) else [group])]


def target(base: ReschedulingBase, moving: Pod) -> list[str] | None:
    node = moving.spec.node_name
    result = base.place_on_existing(WhatIf(((moving,),), frozenset({f"p://{node}", f"claim-{node}"})))
    return None if result is None else [placed.node_name for placed in result.placements]


def test_a_pod_with_a_device_moves_where_one_is_free() -> None:
    """K15-173: the device that the moving pod holds is free in the question; devices in use elsewhere are not."""
    moving = running("a", "n1")
    (pod_a,) = [each for each in moving if isinstance(each, Pod)]
    assert target(base_of(*with_gpus("n1", 1), *with_gpus("n2", 1), *moving), pod_a) == ["n2"]
    full = base_of(*with_gpus("n1", 1), *with_gpus("n2", 1), *moving, *running("b", "n2"))
    assert target(full, pod_a) is None


def test_a_decided_move_takes_the_device() -> None:
    """After a move the device of the target is in use, so that the next pod goes elsewhere or stays."""
    first, second = running("a", "n1"), running("c", "n3")
    pods = {each.metadata.name: each for each in (*first, *second) if isinstance(each, Pod)}
    base = base_of(*with_gpus("n1", 1), *with_gpus("n2", 1), *with_gpus("n3", 1), *first, *second)
    assert target(base, pods["c"]) == ["n2"]
    result = base.place_on_existing(WhatIf(((pods["a"],),), frozenset({"p://n1"})))
    assert result is not None
    (placed,) = result.placements
    moved = base.after_move([PlacedPods(placed.node_key, placed.node_name, (pods["a"],))], [pods["a"]], ["p://n1"])
    assert target(moved, pods["c"]) is None
    assert target(base, pods["c"]) == ["n2"]


def test_a_replacement_for_a_pod_with_a_device_has_one() -> None:
    moving = running("a", "n1")
    (pod_a,) = [each for each in moving if isinstance(each, Pod)]
    result = base_of(*with_gpus("n1", 1), *moving).reschedule(WhatIf(((pod_a,),), frozenset({"p://n1"})))
    claims = result.to_planned_claims()
    assert [claim.instance_types[0] for claim in claims] == ["g1"]
    assert claims[0].claim.metadata.annotations["karpenter.sh/requested-dra-drivers"] == "gpu.example.com"


def test_claims_that_are_allocated_in_different_places_leave_no_node() -> None:
    """S-243: two claims that need different places."""
    here = resource_claim("here", exactly(), held=[("n1", "gpu-0")], on="n1", by=["a"])
    there = resource_claim("there", exactly(), held=[("n2", "gpu-0")], on="n2", by=["b"])
    users = [using("a", "here", node_name="n1"), using("b", "there", node_name="n2")]
    world = [*with_gpus("n1", 1), *with_gpus("n2", 1), here, there, *users]
    result = plan(node_pool(), device_class(), world, using("both", "here", "there"), types=TYPES)
    assert left(result) == ["both"]
    assert details(result)


def test_a_claim_that_comes_later_is_planned_then() -> None:
    """S-242: a missing claim defers the pod, which is placed once the claim exists."""
    waiting = using("p", "late")
    world = [node_pool(), device_class(), waiting, pod("plain", {"cpu": 1})]
    assert left(plan(*world, types=TYPES)) == ["p"]
    assert "g1" in new_types(plan(*world, resource_claim("late", exactly()), types=TYPES))
