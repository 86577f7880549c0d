"""Which labels, annotations, taints and finalizers are ours, and what they are called (API §11, SCH §7, AWS §3)."""

from __future__ import annotations

import pytest

from karpenter.api import label_domains
from karpenter.model import labels
from karpenter.model.requirements import requirements_from_labels
from karpenter.providers.aws import aws_labels

#: As the specification lists them.
CORE = (
    "karpenter.sh/nodepool topology.kubernetes.io/zone topology.kubernetes.io/region node.kubernetes.io/instance-type "
    "kubernetes.io/arch kubernetes.io/os karpenter.sh/capacity-type node.kubernetes.io/windows-build"
)
EC2 = (
    "capacity-reservation-id capacity-reservation-type capacity-reservation-interruptible instance-hypervisor "
    "instance-encryption-in-transit-supported instance-category instance-capability-flex instance-family "
    "instance-generation instance-size instance-local-nvme instance-cpu instance-cpu-manufacturer "
    "instance-cpu-sustained-clock-speed-mhz instance-memory instance-ebs-bandwidth instance-network-bandwidth "
    "instance-gpu-name instance-gpu-manufacturer instance-gpu-count instance-gpu-memory instance-accelerator-name "
    "instance-accelerator-manufacturer instance-accelerator-count instance-tenancy placement-group-id "
    "placement-group-partition"
)


def test_well_known_labels_are_those_of_the_specification() -> None:
    """SCH-168, API-427, API-428: pods may ask for these although no NodePool defines them."""
    assert set(CORE.split()) == labels.CORE_WELL_KNOWN
    assert {f"karpenter.k8s.aws/{name}" for name in EC2.split()} | {"topology.k8s.aws/zone-id"} == labels.AWS_WELL_KNOWN


@pytest.mark.parametrize(
    "key",
    [
        "karpenter.sh/registered",
        "karpenter.sh/initialized",
        "karpenter.sh/do-not-sync-taints",
        "karpenter.k8s.aws/ec2nodeclass",
        "karpenter.k8s.aws/instance-pods",
    ],
)
def test_labels_of_nodes_that_requirements_may_not_use_are_restricted(key: str) -> None:
    """API-429"""
    assert labels.is_restricted(key, labels.WELL_KNOWN)


@pytest.mark.parametrize(
    "key", ["kubernetes.io/team", "node-restriction.kubernetes.io/a", "x.k8s.io/b", "example.com/c"]
)
def test_labels_of_other_domains_are_free(key: str) -> None:
    """API-436"""
    assert not labels.is_restricted(key, labels.WELL_KNOWN)


def test_admission_lets_the_ec2_keys_and_the_node_class_through() -> None:
    """API-432, API-433: in NodeOverlays, too, the NodePool may be asked for."""
    assert label_domains.ADMITTED_LABELS["karpenter.k8s.aws"] == {
        *(f"karpenter.k8s.aws/{name}" for name in EC2.split()),
        "karpenter.k8s.aws/ec2nodeclass",
    }
    assert "karpenter.sh/nodepool" in label_domains.ADMITTED_LABELS["karpenter.sh"]
    assert "karpenter.sh/nodepool" in label_domains.LABELS_ADMITTED_IN_OVERLAYS["karpenter.sh"]


def test_a_label_is_a_requirement_of_one_value() -> None:
    """API-409"""
    requirement = requirements_from_labels({"team": "a"})["team"]
    assert (requirement.operator, requirement.values) == ("In", {"a"})


def test_annotations_have_the_names_users_know() -> None:
    """AWS-062, API-454, API-460, API-461: those of classes and of NodeClaims on EC2; API-453, API-458 those of core."""
    assert [
        aws_labels.NODE_CLASS_HASH,
        aws_labels.NODE_CLASS_HASH_VERSION,
        aws_labels.TAGGED,
        aws_labels.CLUSTER_NAME_TAGGED,
        aws_labels.INSTANCE_PROFILE_NAME,
    ] == [
        "karpenter.k8s.aws/ec2nodeclass-hash",
        "karpenter.k8s.aws/ec2nodeclass-hash-version",
        "karpenter.k8s.aws/tagged",
        "compatibility.karpenter.k8s.aws/cluster-name-tagged",
        "karpenter.k8s.aws/instance-profile-name",
    ]
    assert [labels.NODE_POOL_HASH, labels.NODE_POOL_HASH_VERSION, labels.PRICE_OVERLAY, labels.CAPACITY_OVERLAY] == [
        "karpenter.sh/nodepool-hash",
        "karpenter.sh/nodepool-hash-version",
        "karpenter.sh/price-overlay-applied",
        "karpenter.sh/capacity-overlay-applied",
    ]
