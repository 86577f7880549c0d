"""Whose pods come first."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from karpenter.cluster.virtual import VirtualPods
from karpenter.decide.provision import provision
from karpenter.model import buffers
from support.builders import NOW, existing, indexes, machine, node_pool, pod, sizes, snapshot
from support.shapes import STD


def test_virtual_pods_never_take_the_place_of_real_ones() -> None:
    """§25 Beyond: however small the real pod is, and whatever the last pass planned."""
    virtual = VirtualPods()
    template = pod("", {"cpu": "2"})
    meta = msgspec.structs.replace(template.metadata, annotations={buffers.VIRTUAL: "true"}, name="b-1", uid="b-1")
    virtual.put("default/b", (msgspec.structs.replace(template, metadata=meta),))
    pool = node_pool()
    there = machine("n", {"cpu": "2"})
    shown = replace(virtual.into(snapshot(pool, there, pod("real", {"cpu": "500m"}))), planned={"b-1": "n"})
    result = provision(shown, indexes([pool], STD), NOW)
    assert (existing(result), sizes(result)) == ({"n": 1}, [1])
    assert [item.pods[0].metadata.name for item in result.existing] == ["real"]
