"""What the user data of every AMI family contains (AWS-220 to AWS-224)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from karpenter.api.scheduling_constraints import Taint
from karpenter.model import durations, labels, taints
from karpenter.providers.aws.aws_settings import AwsClusterInfo
from karpenter.providers.aws.bootstrap.bootstrap_token import JoinParameters
from karpenter.providers.aws.userdata.kubelet_settings import KubeletSettings

#: Domains a kubelet may not give itself labels of; the controllers put those on the Node when it registers.
_RESTRICTED_DOMAINS = ("kubernetes.io", "k8s.io", "node-restriction.kubernetes.io")


#: Flags whose values are lists or maps.
_QUOTED_FLAGS = frozenset(
    {
        "node-labels",
        "register-with-taints",
        "system-reserved",
        "kube-reserved",
        "eviction-hard",
        "eviction-soft",
        "eviction-soft-grace-period",
    }
)


class UserDataError(ValueError):
    """The class's own user data cannot be joined with ours. The text says why; nothing can be launched until it is changed."""


@dataclass(frozen=True)
class BootstrapOptions:
    """All that goes into an instance's user data.

    ``labels`` are the claim's and the launch's capacity type, ``taints`` the claim's, startup taints last: what is missing of our
    own is added here, and labels a kubelet may not set are left out. ``kubelet_spec`` is the class's map as its
    owner wrote it, ``kubelet_settings`` what it comes to on the type, ``max_pods`` the pods the type runs.
    ``image_version`` is Bottlerocket's only (``versions.image_version``). ``join`` is None where the user data of
    family Custom is not a template.
    """

    cluster: AwsClusterInfo
    family: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    kubelet_spec: Mapping[str, object]
    kubelet_settings: KubeletSettings
    max_pods: int
    custom_user_data: str = ""
    raid0: bool = False
    image_version: str = ""
    join: JoinParameters | None = None


@dataclass(frozen=True)
class KubeletArguments:
    """The arguments of an instance's kubelet, made from ``BootstrapOptions``."""

    options: BootstrapOptions
    labels: Mapping[str, str] = field(init=False)
    taints: tuple[Taint, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", _kubelet_labels(self.options.labels))
        object.__setattr__(self, "taints", taints.merge_taints(self.options.taints, (labels.UNREGISTERED_TAINT,)))

    @property
    def max_pods(self) -> int:
        """The owner's number, else that of the type (AWS-223)."""
        own = self.number("maxPods")
        return self.options.max_pods if own is None else own

    @cached_property
    def cluster_dns(self) -> tuple[str, ...]:
        """The owner's servers, else the cluster's, if known (AWS-222)."""
        dns_ip = self.options.cluster.dns_ip
        return self.options.kubelet_settings.cluster_dns or ((dns_ip,) if dns_ip else ())

    @property
    def node_labels(self) -> str:
        """``--node-labels`` and its value, keys sorted (AWS-236)."""
        pairs = ",".join(f"{key}={value}" for key, value in self.labels.items())
        return f'--node-labels="{pairs}"'

    def number(self, name: str) -> int | None:
        """A whole number of the owner's map, None where there is none."""
        value = self.options.kubelet_spec.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def boolean(self, name: str) -> bool | None:
        """A truth value of the owner's map, None where there is none."""
        value = self.options.kubelet_spec.get(name)
        return value if isinstance(value, bool) else None

    def string_map(self, name: str) -> dict[str, str]:
        """A map of texts of the owner's map, keys sorted; empty where there is none."""
        value = self.options.kubelet_spec.get(name)
        if not isinstance(value, Mapping):
            return {}
        return dict(sorted((str(key), str(entry)) for key, entry in value.items()))


def _kubelet_labels(node_labels: Mapping[str, str]) -> dict[str, str]:
    """What the kubelet registers its node with, keys sorted (AWS-220)."""
    all_labels = {**node_labels, labels.DO_NOT_SYNC_TAINTS: "true"}
    return {key: all_labels[key] for key in sorted(all_labels) if not _is_restricted_for_kubelet(key)}


def _is_restricted_for_kubelet(key: str) -> bool:
    domain, slash, _ = key.partition("/")
    return bool(slash) and any(domain == own or domain.endswith("." + own) for own in _RESTRICTED_DOMAINS)


def kubelet_extra_args(arguments: KubeletArguments) -> str:
    """All flags in their fixed order, those not set left out, maps sorted by key: equal settings are equal texts (AWS-237)."""
    return " ".join(_flag_text(flag, value) for flag, value in kubelet_flags(arguments))


def _flag_text(flag: str, value: str) -> str:
    """A flag; lists and maps are in quotes."""
    return f'--{flag}="{value}"' if flag in _QUOTED_FLAGS else f"--{flag}={value}"


def go_duration(text: str) -> str:
    """A duration as the kubelet writes it: ``2m`` is ``2m0s``. What is none is left as it is."""
    try:
        return durations.duration_text(durations.parse_duration(text))
    except durations.DurationError:
        return text


def grace_periods(arguments: KubeletArguments) -> dict[str, str]:
    """``evictionSoftGracePeriod`` in the kubelet's own form (AWS-232)."""
    return {signal: go_duration(text) for signal, text in arguments.string_map("evictionSoftGracePeriod").items()}


def kubelet_flags(arguments: KubeletArguments) -> Iterator[tuple[str, str]]:
    """Flags of the kubelet, without dashes, and their values in their fixed order; those not set left out (AWS-237)."""
    reserved = arguments.options.kubelet_settings
    yield "node-labels", _joined(arguments.labels, "=")
    yield "register-with-taints", ",".join(taints.taint_text(taint) for taint in arguments.taints)
    yield "max-pods", str(arguments.max_pods)
    yield from _number_flag(arguments, "podsPerCore", "pods-per-core")
    yield from _map_flag("system-reserved", reserved.system_reserved, "=")
    yield from _map_flag("kube-reserved", reserved.kube_reserved, "=")
    yield from _map_flag("eviction-hard", arguments.string_map("evictionHard"), "<")
    yield from _map_flag("eviction-soft", arguments.string_map("evictionSoft"), "<")
    yield from _map_flag("eviction-soft-grace-period", grace_periods(arguments), "=")
    yield from _number_flag(arguments, "evictionMaxPodGracePeriod", "eviction-max-pod-grace-period")
    yield from _number_flag(arguments, "imageGCHighThresholdPercent", "image-gc-high-threshold")
    yield from _number_flag(arguments, "imageGCLowThresholdPercent", "image-gc-low-threshold")
    quota = arguments.boolean("cpuCFSQuota")
    if quota is not None:
        yield "cpu-cfs-quota", str(quota).lower()


def _number_flag(arguments: KubeletArguments, name: str, flag: str) -> Iterator[tuple[str, str]]:
    value = arguments.number(name)
    if value is not None:
        yield flag, str(value)


def _map_flag(flag: str, values: Mapping[str, str], sign: str) -> Iterator[tuple[str, str]]:
    if values:
        yield flag, _joined(values, sign)


def _joined(values: Mapping[str, str], sign: str) -> str:
    return ",".join(f"{key}{sign}{values[key]}" for key in sorted(values))
