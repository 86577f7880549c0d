"""Devices of types in instance-type files (SCH-784)."""

from __future__ import annotations

import json

import pytest

from karpenter.instancetypes.instance_type_file import (
    InstanceTypeFileError,
    instance_type_file_schema,
    parse_instance_types,
)

OFFERING = {
    "price": 1.0,
    "requirements": [
        {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]},
        {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["z1"]},
    ],
}
SLICE = {"driver": "gpu.example.com", "pool": {"name": "gpus"}, "devices": [{"name": "gpu-0"}, {"name": "gpu-1"}]}


def file_of(**fields: object) -> bytes:
    entry = {
        "name": "g",
        "architecture": "amd64",
        "operatingSystems": ["linux"],
        "resources": {"cpu": "4", "memory": "8Gi"},
        "offerings": [OFFERING],
        **fields,
    }
    return json.dumps([entry]).encode()


def test_a_type_has_the_slices_that_its_nodes_will_publish() -> None:
    group = {"attribute": "gpu.example.com/link", "pool": "gpus", "devices": ["gpu-0", "gpu-1"]}
    (parsed,) = parse_instance_types(file_of(devices=[SLICE], deviceBindingGroups=[group]))
    (template,) = parsed.devices.slices
    assert [each.name for each in template.devices] == ["gpu-0", "gpu-1"]
    assert template.pool.resource_slice_count == 1
    assert [each.devices for each in parsed.devices.binding_groups] == [("gpu-0", "gpu-1")]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"driver": ""}, "[0].devices[0].driver: expected the name of a DRA driver"),
        ({"nodeName": "n"}, "[0].devices[0]: expected no nodeName"),
        ({"devices": [{"name": 1}]}, "[0].devices[0].devices[0].name: expected `str`"),
    ],
)
def test_devices_that_make_no_sense_are_named_by_their_place(fields: dict[str, object], text: str) -> None:
    with pytest.raises(InstanceTypeFileError) as raised:
        parse_instance_types(file_of(devices=[{**SLICE, **fields}]))
    assert text in str(raised.value)


def test_the_schema_describes_devices() -> None:
    schema = instance_type_file_schema()
    assert "devices" in schema["$defs"]["InstanceType"]["properties"]
    assert {"ResourceSliceSpec", "BindingGroup"} <= set(schema["$defs"])
