"""The size of a capacity buffer, and its virtual pods (SCH §25, API §6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from karpenter.api.capacity_buffer import CapacityBuffer, CapacityBufferSpec
from karpenter.api.core import Container, PodSpec, PodTemplateSpec, ResourceRequirements
from karpenter.api.meta import ObjectMeta
from karpenter.api.storage import PersistentVolumeClaimSource, PersistentVolumeSource, Volume
from karpenter.capacitybuffer import buffer_pods
from karpenter.model import pods
from karpenter.model import resources as res
from karpenter.state import virtual_pods
from support.builders import NOW, pod

ONE_CPU = {"cpu": "1", "memory": "1Gi"}


@pytest.mark.parametrize(
    ("spec", "workload", "requests", "expected"),
    [
        ({"replicas": 5}, None, ONE_CPU, 5),
        ({"percentage": 20}, 10, ONE_CPU, 2),
        ({"replicas": 5, "percentage": 80}, 10, ONE_CPU, 8),
        ({"replicas": 9, "percentage": 80}, 10, ONE_CPU, 9),
        ({"replicas": 10, "limits": {"cpu": "3"}}, None, ONE_CPU, 3),
        ({"replicas": 5, "percentage": 80, "limits": {"cpu": "4"}}, 10, ONE_CPU, 4),
        ({"limits": {"cpu": "20", "memory": "40Gi"}}, None, {"cpu": "2", "memory": "4Gi"}, 10),
        ({"percentage": 25}, 10, ONE_CPU, 3),
        ({"percentage": 1}, 10, ONE_CPU, 1),
        ({"percentage": 0}, 10, ONE_CPU, 0),
        ({"percentage": 250}, 2, ONE_CPU, 5),
        ({"percentage": 20}, 0, ONE_CPU, 0),
        ({"percentage": 20, "limits": {"cpu": "4"}}, 0, ONE_CPU, 0),
        ({"percentage": 20, "replicas": 2}, 0, ONE_CPU, 2),
        ({"percentage": 20, "replicas": 3}, None, ONE_CPU, 3),
        ({"percentage": 20, "limits": {"cpu": "4"}}, None, ONE_CPU, 4),
        ({"limits": {"cpu": "4"}}, None, {"cpu": "1"}, 4),
        ({"replicas": 10, "limits": {"cpu": "2"}}, None, {"cpu": "500m"}, 4),
        ({"replicas": 10, "limits": {"cpu": "1900m"}}, None, {"cpu": "500m"}, 3),
        ({"replicas": 3, "limits": {"x/gpu": "1"}}, None, ONE_CPU, 3),
        ({"replicas": 3, "limits": {"cpu": "1"}}, None, {"cpu": "0"}, 3),
        ({"limits": {"x/gpu": "1"}}, None, ONE_CPU, 0),
        ({"replicas": 3, "limits": {"cpu": "-1"}}, None, ONE_CPU, 0),
        ({"replicas": 0, "limits": {"cpu": "4"}}, None, ONE_CPU, 0),
        ({}, 10, ONE_CPU, 0),
    ],
)
def test_a_buffer_has_so_many_virtual_pods(
    spec: dict[str, Any], workload: int | None, requests: Mapping[str, str], expected: int
) -> None:
    """SCH-722 with its Beyond, API-190, API-S124 to API-S128"""
    assert buffer_pods.target_replicas(CapacityBufferSpec(**spec), workload, res.parse_resources(requests)) == expected


def template(**spec: Any) -> PodTemplateSpec:
    container = Container(name="a", resources=ResourceRequirements(requests={"cpu": "1"}, limits={"memory": "1Gi"}))
    return PodTemplateSpec(
        metadata=ObjectMeta(labels={"app": "web"}, annotations={"karpenter.sh/do-not-disrupt": "true"}),
        spec=PodSpec(**{"containers": (container,), **spec}),
    )


BUFFER = CapacityBuffer(metadata=ObjectMeta(name="b", namespace="shop", uid="u"), spec=CapacityBufferSpec())


def test_virtual_pods_are_what_the_specification_says() -> None:
    """SCH-730, API-194, K15-014. API-459: with their annotations."""
    first, second = buffer_pods.build_virtual_pods(BUFFER, template(), 2, NOW)
    meta = first.metadata
    assert (meta.name, meta.namespace, meta.uid) == ("capacity-buffer-b-1", "shop", "u-1")
    assert (second.metadata.name, second.metadata.uid) == ("capacity-buffer-b-2", "u-2")
    assert meta.labels == {"app": "web"}
    assert meta.annotations == {
        "karpenter.sh/capacity-buffer-fake-pod": "true",
        "karpenter.sh/capacity-buffer-name": "b",
        "karpenter.sh/capacity-buffer-namespace": "shop",
    }
    assert (first.spec.priority, first.status.phase, meta.creation_timestamp) == (-2147483648, "", NOW)
    assert pods.is_provisionable(first)


def test_virtual_pods_are_bound_to_no_node_and_no_volume() -> None:
    """SCH-730"""
    volumes = (
        Volume(name="claim", persistent_volume_claim=PersistentVolumeClaimSource(claim_name="data")),
        Volume(name="own", ephemeral=PersistentVolumeSource()),
        Volume(name="scratch"),
    )
    (virtual_pod,) = buffer_pods.build_virtual_pods(BUFFER, template(node_name="n", volumes=volumes), 1, NOW)
    assert virtual_pod.spec.node_name == ""
    assert [volume.name for volume in virtual_pod.spec.volumes] == ["scratch"]


def test_what_a_template_leaves_out_is_filled_in_as_for_real_pods() -> None:
    (virtual_pod,) = buffer_pods.build_virtual_pods(BUFFER, template(), 1, NOW)
    assert pods.pod_requests(virtual_pod) == pods.template_requests(template().spec)
    assert pods.pod_requests(virtual_pod)["memory"] == res.parse_resources({"memory": "1Gi"})["memory"]


def test_virtual_pods_are_distinguished_from_real_ones_whatever_those_contain() -> None:
    (virtual,) = buffer_pods.build_virtual_pods(BUFFER, template(), 1, NOW)
    real = pod("p", {"cpu": "1"})
    stored = msgspec.structs.replace(virtual, metadata=msgspec.structs.replace(virtual.metadata, resource_version="5"))
    assert [virtual_pods.is_virtual_pod(listed_pod) for listed_pod in (virtual, real, stored)] == [True, False, False]
    assert virtual_pods.buffer_key_of(virtual) == "shop/b"
    assert virtual_pods.count_virtual_pods_by_buffer((virtual, real, virtual)) == {"shop/b": 2}
