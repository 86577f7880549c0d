"""Ubuntu on EKS: where Canonical names its images, and which user data is a whole bootstrap of its own (API-860)."""

from __future__ import annotations

ARCHITECTURES = ("amd64", "arm64")
#: Canonical's public SSM parameter for images of a Kubernetes minor and an architecture.
IMAGE_PARAMETER = "/aws/service/canonical/ubuntu/eks/22.04/{version}/stable/current/{arch}/hvm/ebs-gp2/ami-id"
ROOT_DEVICE = "/dev/sda1"
ROOT_VOLUME_SIZE = "20Gi"
_EKS_BOOTSTRAP = "/etc/eks/bootstrap.sh"


def image_parameters(version: str, template: str = IMAGE_PARAMETER) -> tuple[str, ...]:
    """The names of the parameters for Kubernetes ``version`` (``1.33``), one per architecture."""
    return tuple(template.replace("{version}", version).replace("{arch}", arch) for arch in ARCHITECTURES)


def is_self_contained(user_data: str) -> bool:
    """Whether user data is a script that lets the node join by itself: it does not call the bootstrap script of EKS."""
    return user_data.startswith("#!") and _EKS_BOOTSTRAP not in user_data
