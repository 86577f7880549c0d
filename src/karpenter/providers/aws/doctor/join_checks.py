"""Whether nodes can join a self-managed cluster (AWS-936)."""

from __future__ import annotations

from karpenter.kube.errors import KubeError
from karpenter.kube.protocol import Reader
from karpenter.providers.aws.bootstrap.bootstrap_settings import BootstrapSettings, TokenDelivery
from karpenter.providers.aws.bootstrap.prerequisites import missing_prerequisites
from karpenter.providers.aws.doctor.doctor_types import DoctorCheck, DoctorFinding

_JOINING = DoctorCheck("joining")


async def check_joining(kube: Reader, settings: BootstrapSettings) -> list[DoctorFinding]:
    """What the cluster lacks so that nodes can join with a token; nothing outside mode kubeadm and with delivery external."""
    if not settings.is_kubeadm or settings.token_delivery is TokenDelivery.EXTERNAL:
        return []
    try:
        missing = await missing_prerequisites(kube, settings.token_groups)
    except KubeError as error:
        text = f"what nodes need to join cannot be read: {error}"
        return [_JOINING.warning(text, "nothing by itself", "run the command again with rights to read the cluster")]
    if not missing:
        return [_JOINING.ok("nodes can join with bootstrap tokens: cluster-info and the bindings of kubeadm are there")]
    text = f"nodes cannot join with bootstrap tokens; missing: {'; '.join(missing)}"
    fix = "run `kubeadm init phase bootstrap-token` on a node of the control plane"
    return [_JOINING.failure(text, "instances start, do not join, and are terminated", fix)]
