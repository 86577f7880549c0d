"""The order in which pods are placed."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from karpenter.scheduling.problem import build_problem
from karpenter.scheduling.solver import solve
from karpenter.state import virtual_pods
from karpenter.state.virtual_pods import VirtualPods
from support.builders import NOW, existing, indexes, node_and_claim, node_pool, pod, sizes, snapshot
from support.instance_types import STD


def test_virtual_pods_never_take_the_place_of_real_ones() -> None:
    """§25 Beyond: however small the real pod is, and whatever the last pass planned."""
    virtual = VirtualPods()
    template = pod("", {"cpu": "2"})
    meta = msgspec.structs.replace(
        template.metadata, annotations={virtual_pods.VIRTUAL_POD_ANNOTATION: "true"}, name="b-1", uid="b-1"
    )
    virtual.set_pods("default/b", (msgspec.structs.replace(template, metadata=meta),))
    pool = node_pool()
    there = node_and_claim("n", {"cpu": "2"})
    shown = replace(virtual.added_to(snapshot(pool, there, pod("real", {"cpu": "500m"}))), planned_nodes={"b-1": "n"})
    result = solve(build_problem(shown, indexes([pool], STD), NOW))
    assert (existing(result), sizes(result)) == ({"n": 1}, [1])
    assert [placed_pods.pods[0].metadata.name for placed_pods in result.placed_on_existing] == ["real"]
