"""Settings of self-managed clusters (AWS-900, AWS-902, AWS-906, AWS-908, AWS-914, AWS-927, AWS-937)."""
# ruff: noqa: RUF009 - what `setting` returns is a dataclass field, as `field` does

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from karpenter.model import durations
from karpenter.model import setting_kinds as kinds
from karpenter.model.setting_kinds import SettingKind, setting

_SHORTEST_TTL, _LONGEST_TTL = timedelta(minutes=5), timedelta(hours=24)
_GROUP = re.compile(r"system:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]")


class BootstrapMode(StrEnum):
    """What kind of cluster instances join."""

    EKS = "eks"
    KUBEADM = "kubeadm"


class TokenDelivery(StrEnum):
    """How a bootstrap token reaches its instance (AWS-915 to AWS-918)."""

    PER_CLAIM = "per-claim"
    WINDOW = "window"
    PARAMETER = "parameter"
    EXTERNAL = "external"


def _ttl(text: str) -> timedelta:
    value = durations.parse_duration(text)
    if not _SHORTEST_TTL <= value <= _LONGEST_TTL:
        raise ValueError(text)
    return value


def _groups(text: str) -> tuple[str, ...]:
    groups = tuple(part.strip() for part in text.split(","))
    if not all(_GROUP.fullmatch(group) for group in groups):
        raise ValueError(text)
    return groups


_TTL: SettingKind[timedelta] = SettingKind(_ttl, "a duration from 5m to 24h", "DURATION")
_GROUPS: SettingKind[tuple[str, ...]] = SettingKind(
    _groups, "groups of the form system:bootstrappers:NAME", "GROUP,..."
)


@dataclass(frozen=True, repr=False, eq=False)
class SelfManagedSettings:
    """Self-managed clusters on AWS."""

    bootstrap_mode: BootstrapMode = setting(
        kinds.member_of(BootstrapMode), "eks", "The kind of cluster: with kubeadm, EKS is never called."
    )
    bootstrap_default_custom: bool = setting(
        kinds.SWITCH,
        "false",
        "In mode kubeadm, treat every EC2NodeClass of amiFamily Custom as annotated karpenter.k8s.aws/bootstrap: kubeadm.",
    )
    bootstrap_token_ttl: timedelta = setting(_TTL, "15m", "How long a bootstrap token is valid, 5m to 24h.")
    bootstrap_token_delivery: TokenDelivery = setting(
        kinds.member_of(TokenDelivery),
        "per-claim",
        "How a bootstrap token reaches its instance: in user data of its own, in user data that the NodeClaims of ten minutes "
        "share, as an SSM parameter, or not at all.",
    )
    bootstrap_token_groups: tuple[str, ...] = setting(
        _GROUPS,
        "system:bootstrappers:kubeadm:default-node-token",
        "Groups of a kubelet that authenticates with a bootstrap token.",
    )
    set_provider_id: bool = setting(
        kinds.SWITCH,
        "true",
        "In mode kubeadm, write the provider ID of Nodes that joined without one and whose name or address is an instance's.",
    )
    approve_kubelet_serving: bool = setting(
        kinds.SWITCH,
        "false",
        "Approve serving certificates of kubelets whose names and addresses are those of their instance.",
    )


@dataclass(frozen=True)
class BootstrapSettings:
    """The same as the provider uses them."""

    mode: BootstrapMode = BootstrapMode.EKS
    default_custom: bool = False
    token_ttl: timedelta = timedelta(minutes=15)
    token_delivery: TokenDelivery = TokenDelivery.PER_CLAIM
    token_groups: tuple[str, ...] = ("system:bootstrappers:kubeadm:default-node-token",)
    set_provider_id: bool = True
    approve_kubelet_serving: bool = False

    @property
    def is_kubeadm(self) -> bool:
        """Whether the whole cluster is self-managed."""
        return self.mode is BootstrapMode.KUBEADM


def bootstrap_settings_of(settings: SelfManagedSettings) -> BootstrapSettings:
    """The provider's settings from what was declared."""
    return BootstrapSettings(
        mode=settings.bootstrap_mode,
        default_custom=settings.bootstrap_default_custom,
        token_ttl=settings.bootstrap_token_ttl,
        token_delivery=settings.bootstrap_token_delivery,
        token_groups=settings.bootstrap_token_groups,
        set_provider_id=settings.set_provider_id,
        approve_kubelet_serving=settings.approve_kubelet_serving,
    )
