"""Settings for manifests of older releases."""

from __future__ import annotations

from dataclasses import dataclass

from karpenter.model import setting_kinds as kinds
from karpenter.model.setting_kinds import setting


@dataclass(frozen=True, repr=False, eq=False)
class OlderVersionSettings:
    """Manifests of older releases."""

    disable_webhook: bool = setting(
        kinds.SWITCH,
        "false",
        "Run without the conversion webhook. Requests for v1beta1 fail then; v1 needs no webhook.",
    )
    webhook_port: int = setting(kinds.PORT, "8443", "Port of the conversion webhook, and of its Service.")
    karpenter_service: str = setting(
        kinds.TEXT,
        "",
        "Service where the API server finds the conversion webhook. Without it and --webhook-url there is no webhook.",
    )
    webhook_url: str = setting(
        kinds.ENDPOINT, "", "Where the API server finds the conversion webhook of a controller outside of the cluster."
    )
    default_instance_profile: str = setting(
        kinds.TEXT, "", "Instance profile of AWSNodeTemplates, inline providers and v1beta1 classes that name none."
    )
    default_node_role: str = setting(
        kinds.TEXT, "", "IAM role of these, where there is no default instance profile either."
    )
