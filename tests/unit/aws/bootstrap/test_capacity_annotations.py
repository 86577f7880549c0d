"""Capacity of nodes that are not those of EKS: other network plug-ins, other reserved resources (AWS-930, AWS-931)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from karpenter.api.ec2_node_class import EC2NodeClass
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.model import quantity
from karpenter.model import resources as res
from karpenter.providers.aws.aws_settings import AwsClusterInfo
from karpenter.providers.aws.bootstrap import join_rules
from karpenter.providers.aws.nodeclass.nodeclass_hash import node_class_hash
from support import launch_environment
from support.ec2_instance_types import PLAIN, FakeRegion, instance_type_fixture

MIB = 2**20
OTHER = {"karpenter.k8s.aws/cni": "other"}


def _class(annotations: dict[str, str], family: str = "Custom", kubelet: dict[str, Any] | None = None) -> EC2NodeClass:
    spec = msgspec.structs.replace(PLAIN.spec, ami_family=family, kubelet=kubelet or {})
    return launch_environment.replaced_annotations(msgspec.structs.replace(PLAIN, spec=spec), annotations)


async def _medium(node_class: EC2NodeClass) -> InstanceType:
    return (await instance_type_fixture(FakeRegion(names=["t3.medium"]))).types(node_class)["t3.medium"]


def _pods(instance_type: InstanceType) -> int:
    return instance_type.capacity[res.PODS] // quantity.MILLI


def _reserved_mib(instance_type: InstanceType) -> int:
    """Reserved memory without the eviction threshold of 100 MiB."""
    return instance_type.overhead[res.MEMORY] // quantity.MILLI // MIB - 100


@pytest.mark.parametrize("family", ["Custom", "AL2023", "Bottlerocket"])
async def test_with_another_network_plugin_pods_are_the_kubelets_default(family: str) -> None:
    """AWS-930, AWS-T917: 110 pods on a t3.medium, and memory is reserved for so many."""
    instance_type = await _medium(_class(OTHER, family))
    assert (_pods(instance_type), _reserved_mib(instance_type)) == (110, 1465)
    assert _pods(await _medium(_class({}, family))) == 17


async def test_max_pods_of_the_class_wins() -> None:
    """AWS-930: ``maxPods`` or 110."""
    instance_type = await _medium(_class(OTHER, kubelet={"maxPods": 50}))
    assert (_pods(instance_type), _reserved_mib(instance_type)) == (50, 11 * 50 + 255)


@pytest.mark.parametrize(
    ("mode", "kubelet", "cpu_millis", "memory_mib"),
    [
        pytest.param("aws", {}, 70, 1465, id="as EKS images"),
        pytest.param("none", {}, 0, 0, id="nothing"),
        pytest.param("explicit", {}, 0, 0, id="explicit without settings"),
        pytest.param("explicit", {"kubeReserved": {"memory": "300Mi"}}, 0, 300, id="explicit amounts only"),
        pytest.param("explicit", {"systemReserved": {"cpu": "100m", "memory": "50Mi"}}, 100, 50, id="of the system"),
    ],
)
async def test_reserved_resources_are_those_of_the_mode(
    mode: str, kubelet: dict[str, Any], cpu_millis: int, memory_mib: int
) -> None:
    """AWS-931: a kubeadm node reserves nothing by default; eviction thresholds apply."""
    annotations = {**OTHER, "karpenter.k8s.aws/kube-reserved-mode": mode}
    instance_type = await _medium(_class(annotations, kubelet=kubelet))
    assert (instance_type.overhead[res.CPU], _reserved_mib(instance_type)) == (cpu_millis, memory_mib)


@pytest.mark.parametrize(
    ("node_class", "says"),
    [
        (_class({"karpenter.k8s.aws/cni": "calico"}), "the only value is other"),
        (_class({"karpenter.k8s.aws/kube-reserved-mode": "all"}), "choose aws, none, explicit"),
        (_class({"karpenter.k8s.aws/kube-reserved-mode": "none"}, "AL2023"), "needs amiFamily Custom"),
        (
            _class({"karpenter.k8s.aws/kube-reserved-mode": "none"}, kubelet={"kubeReserved": {"cpu": "1"}}),
            "choose explicit",
        ),
    ],
)
def test_an_annotation_that_cannot_be_applied_is_reported(node_class: EC2NodeClass, says: str) -> None:
    """AWS-930, AWS-931: such a class is not valid, reason UnsupportedBootstrap."""
    assert says in join_rules.bootstrap_problem(node_class)


@pytest.mark.parametrize("annotations", [OTHER, {"karpenter.k8s.aws/kube-reserved-mode": "explicit"}, {}])
def test_valid_annotations_are_accepted(annotations: dict[str, str]) -> None:
    """AWS-930, AWS-931."""
    assert join_rules.bootstrap_problem(_class(annotations)) == ""


def test_annotations_that_change_user_data_are_drift() -> None:
    """AWS-903, AWS-930: max pods are in user data; assumed reservations are not."""
    cluster = AwsClusterInfo("c", "eu-west-1", "https://c", "", "1.35")
    plain = node_class_hash(_class({}), cluster)
    assert node_class_hash(_class(OTHER), cluster) != plain
    assert node_class_hash(_class({"karpenter.k8s.aws/bootstrap": "kubeadm"}), cluster) != plain
    assert node_class_hash(_class({"karpenter.k8s.aws/kube-reserved-mode": "none"}), cluster) == plain
