"""Settings of the connection to the API server."""

from __future__ import annotations

from dataclasses import dataclass

from karpenter.model import setting_kinds as kinds
from karpenter.model.setting_kinds import setting


@dataclass(frozen=True, repr=False, eq=False)
class KubeClientSettings:
    """API server."""

    kubeconfig: str = setting(
        kinds.FILE,
        "",
        "Kubeconfig file, or several separated by colons; empty means ~/.kube/config, or in a pod its service account.",
    )
    context: str = setting(
        kinds.TEXT, "", "Context of the kubeconfig; empty means its current context.", "KUBECONFIG_CONTEXT"
    )
    kube_client_qps: int = setting(kinds.POSITIVE, "200", "Request rate to the API server.", unit="requests per second")
    kube_client_burst: int = setting(kinds.POSITIVE, "300", "Burst of requests to the API server.", unit="requests")
