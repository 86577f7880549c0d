"""Annotations of an EC2NodeClass that say how its nodes differ from those of EKS (AWS-930, AWS-931). Pure."""

from __future__ import annotations

from enum import StrEnum

from karpenter.api.ec2_node_class import EC2NodeClass
from karpenter.model import labels
from karpenter.providers.aws.userdata.ami_families import effective_ami_family, has_own_bootstrap

CNI_ANNOTATION = f"{labels.AWS_GROUP}/cni"
#: A network plug-in whose pods need no addresses of the instance, such as Calico or Cilium with overlays.
CNI_OTHER = "other"
RESERVED_MODE_ANNOTATION = f"{labels.AWS_GROUP}/kube-reserved-mode"


class KubeReservedMode(StrEnum):
    """What nodes reserve beside ``spec.kubelet``: the amounts of EKS images, nothing at all, or only what the class says."""

    AWS = "aws"
    NONE = "none"
    EXPLICIT = "explicit"


def has_own_pod_network(node_class: EC2NodeClass) -> bool:
    """Whether pods are not limited by the addresses of network interfaces (AWS-930)."""
    return node_class.metadata.annotations.get(CNI_ANNOTATION) == CNI_OTHER


def kube_reserved_mode(node_class: EC2NodeClass) -> KubeReservedMode:
    """How reserved resources are estimated (AWS-931); ``aws`` where the annotation is absent or unknown."""
    text = node_class.metadata.annotations.get(RESERVED_MODE_ANNOTATION, "")
    return KubeReservedMode(text) if text in set(KubeReservedMode) else KubeReservedMode.AWS


def capacity_problem(node_class: EC2NodeClass) -> str:
    """What is wrong with these annotations; empty where nothing is."""
    annotations = node_class.metadata.annotations
    network = annotations.get(CNI_ANNOTATION)
    if network not in (None, CNI_OTHER):
        return f"annotation {CNI_ANNOTATION} is {network!r}; the only value is {CNI_OTHER}"
    mode = annotations.get(RESERVED_MODE_ANNOTATION)
    if mode is None or mode == KubeReservedMode.AWS:
        return ""
    if mode not in set(KubeReservedMode):
        return f"annotation {RESERVED_MODE_ANNOTATION} is {mode!r}; choose {', '.join(KubeReservedMode)}"
    if not has_own_bootstrap(node_class.spec):
        family = effective_ami_family(node_class.spec)
        return f"annotation {RESERVED_MODE_ANNOTATION}: {mode} needs amiFamily Custom, and this class has {family}"
    kubelet = node_class.spec.kubelet
    if mode == KubeReservedMode.NONE and (kubelet.get("kubeReserved") or kubelet.get("systemReserved")):
        return f"annotation {RESERVED_MODE_ANNOTATION} is none, but spec.kubelet reserves resources; choose explicit"
    return ""
