"""Device claims in the cluster state: their view for decisions, and devices learned from nodes for their types."""

from __future__ import annotations

from karpenter.api.meta import ObjectMeta, OwnerReference
from karpenter.api.resource_claims import ResourceSlice
from karpenter.model import labels
from karpenter.state.cluster_state import ClusterState
from support.builders import feed, node
from support.device_builders import (
    DRIVER,
    claim_template,
    device,
    device_class,
    exactly,
    gpus,
    published,
    resource_claim,
    slice_spec,
)

TYPED = {labels.INSTANCE_TYPE: "g4"}


def test_claims_are_unknown_to_decisions_until_they_are_enabled() -> None:
    """SCH-781: with the default setting such pods are left alone."""
    state = ClusterState()
    state.devices.set_claim(resource_claim("c", exactly()))
    assert state.snapshot().devices is None
    state.devices.enable()
    devices = state.snapshot().devices
    assert devices is not None
    assert list(devices.claims) == [("default", "c")]


def test_a_snapshot_does_not_change_and_counts_as_a_change_of_the_cluster() -> None:
    state = feed(ClusterState(), [device_class()])
    before, revision = state.snapshot().devices, state.revision
    state.devices.set_template(claim_template("t", exactly()))
    after = state.snapshot().devices
    assert before is not None
    assert after is not None
    assert (len(before.templates), len(after.templates)) == (0, 1)
    assert state.revision > revision
    state.devices.remove_template(("default", "t"))
    state.devices.remove_class("gpu")
    last = state.snapshot().devices
    assert last is not None
    assert (last.templates, last.classes) == ({}, {})


def test_what_a_node_published_is_remembered_when_it_is_gone() -> None:
    """Beyond SCH-784: the next node of the type will have the same devices."""
    state = feed(ClusterState(), [device_class(), published("s", slice_spec(*gpus(2), node="n"))])
    assert state.snapshot().devices.remembered == {}
    state.set_node(node("n", {"cpu": 1}, labels=TYPED))
    learned = state.snapshot().devices.remembered["g4"]
    assert [(len(spec.devices), spec.node_name) for spec in learned] == [(2, None)]
    state.devices.remove_slice("s")
    state.remove_node("n")
    assert state.snapshot().devices.remembered["g4"] == learned


def test_the_node_with_the_most_devices_teaches_and_parts_of_pools_do_not() -> None:
    state = feed(
        ClusterState(),
        [
            device_class(),
            *(node(name, {"cpu": 1}, labels=TYPED) for name in "abc"),
            published("a", slice_spec(*gpus(1), node="a")),
            published("b", slice_spec(*gpus(3), node="b")),
            published("c", slice_spec(*gpus(9), node="c", slices=2)),
        ],
    )
    learned = state.snapshot().devices.remembered["g4"]
    assert [len(spec.devices) for spec in learned] == [3]


def test_a_driver_is_missing_until_all_slices_of_its_newest_generation_are_there() -> None:
    """OPS-044: slices count that are local to the node, by its name or by their owner; others do not."""
    devices = ClusterState().devices
    assert devices.unpublished_driver([DRIVER], "n") == DRIVER
    devices.set_slice(published("elsewhere", slice_spec(device("d"), node="other")))
    devices.set_slice(published("old", slice_spec(device("d"), node="n", generation=1)))
    assert devices.unpublished_driver([DRIVER, "another"], "n") == "another"
    devices.set_slice(published("new-1", slice_spec(device("d"), node="n", generation=2, slices=2)))
    assert devices.unpublished_driver([DRIVER], "n") == DRIVER
    owner = OwnerReference(api_version="v1", kind="Node", name="n", uid="u")
    spec = slice_spec(pool="n", generation=2, slices=2, all_nodes=True)
    devices.set_slice(ResourceSlice(metadata=ObjectMeta(name="new-2", owner_references=(owner,)), spec=spec))
    assert devices.unpublished_driver([DRIVER], "n") == ""
