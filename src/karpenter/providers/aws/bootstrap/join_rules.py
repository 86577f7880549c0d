"""Annotations of an EC2NodeClass for self-managed clusters. Pure.

They say which classes describe instances that join with kubeadm and what these want (AWS-901, AWS-902), and how their nodes
differ from those of EKS (AWS-930, AWS-931).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from karpenter.api.ec2_node_class import EC2NodeClass
from karpenter.model import labels
from karpenter.providers.aws.bootstrap.bootstrap_settings import BootstrapMode, BootstrapSettings
from karpenter.providers.aws.bootstrap.bootstrap_token import NODE_NAME_SOURCES
from karpenter.providers.aws.userdata.ami_families import effective_ami_family, has_own_bootstrap

BOOTSTRAP_ANNOTATION = f"{labels.AWS_GROUP}/bootstrap"
KUBEADM = "kubeadm"
NODE_NAME_ANNOTATION = f"{labels.AWS_GROUP}/bootstrap-node-name"
COMPRESS_ANNOTATION = f"{labels.AWS_GROUP}/bootstrap-compress"
GZIP = "gzip"
CNI_ANNOTATION = f"{labels.AWS_GROUP}/cni"
#: A network plug-in whose pods need no addresses of the instance, such as Calico or Cilium with overlays.
CNI_OTHER = "other"
RESERVED_MODE_ANNOTATION = f"{labels.AWS_GROUP}/kube-reserved-mode"
#: Annotations that decide what user data contains, so that a change of them is drift (AWS-903).
HASHED_ANNOTATIONS = (BOOTSTRAP_ANNOTATION, NODE_NAME_ANNOTATION, COMPRESS_ANNOTATION, CNI_ANNOTATION)


def joins_with_kubeadm(node_class: EC2NodeClass, settings: BootstrapSettings) -> bool:
    """Whether the user data of the class is a template (AWS-901, AWS-902)."""
    if not has_own_bootstrap(node_class.spec):
        return False
    is_default = settings.mode is BootstrapMode.KUBEADM and settings.default_custom
    annotated = node_class.metadata.annotations.get(BOOTSTRAP_ANNOTATION)
    return annotated == KUBEADM or (is_default and annotated is None)


def uses_kubeadm(settings: BootstrapSettings, classes: Iterable[EC2NodeClass]) -> bool:
    """Whether any class of the cluster joins with kubeadm."""
    return any(joins_with_kubeadm(node_class, settings) for node_class in classes)


def bootstrap_problem(node_class: EC2NodeClass) -> str:
    """What is wrong with the annotations of a class; empty where nothing is (AWS-901)."""
    annotations = node_class.metadata.annotations
    mode = annotations.get(BOOTSTRAP_ANNOTATION)
    if mode not in (None, KUBEADM):
        return f"annotation {BOOTSTRAP_ANNOTATION} is {mode!r}; the only value is {KUBEADM}"
    if mode is not None and not has_own_bootstrap(node_class.spec):
        family = effective_ami_family(node_class.spec)
        return f"annotation {BOOTSTRAP_ANNOTATION} needs amiFamily Custom, and this class has {family}"
    source = annotations.get(NODE_NAME_ANNOTATION)
    if source is not None and source not in NODE_NAME_SOURCES:
        return f"annotation {NODE_NAME_ANNOTATION} is {source!r}; choose {' or '.join(NODE_NAME_SOURCES)}"
    compression = annotations.get(COMPRESS_ANNOTATION)
    if compression not in (None, GZIP):
        return f"annotation {COMPRESS_ANNOTATION} is {compression!r}; the only value is {GZIP}"
    return capacity_problem(node_class)


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
