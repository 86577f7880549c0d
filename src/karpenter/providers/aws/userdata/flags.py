"""Kubelet settings as command line flags, for families whose boot program takes them (AWS-227 to AWS-237)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from karpenter.model import durations, taints
from karpenter.providers.aws.userdata.inputs import KubeletWords


def kubelet_extra_args(words: KubeletWords) -> str:
    """All flags in their fixed order, those not set left out, maps sorted by key: equal settings are equal texts (AWS-237)."""
    return " ".join(_flags(words))


def go_duration(text: str) -> str:
    """A duration as the kubelet writes it: ``2m`` is ``2m0s``. What is none is left as it is."""
    try:
        return durations.text(durations.parse(text))
    except durations.DurationError:
        return text


def grace_periods(words: KubeletWords) -> dict[str, str]:
    """``evictionSoftGracePeriod`` in the kubelet's own form (AWS-232)."""
    return {signal: go_duration(text) for signal, text in words.texts("evictionSoftGracePeriod").items()}


def _flags(words: KubeletWords) -> Iterator[str]:
    reserved = words.given.reserved
    yield words.node_labels
    yield f'--register-with-taints="{",".join(taints.text(taint) for taint in words.taints)}"'
    yield f"--max-pods={words.max_pods}"
    yield from _number(words, "podsPerCore", "pods-per-core")
    yield from _map("system-reserved", reserved.system_reserved, "=")
    yield from _map("kube-reserved", reserved.kube_reserved, "=")
    yield from _map("eviction-hard", words.texts("evictionHard"), "<")
    yield from _map("eviction-soft", words.texts("evictionSoft"), "<")
    yield from _map("eviction-soft-grace-period", grace_periods(words), "=")
    yield from _number(words, "evictionMaxPodGracePeriod", "eviction-max-pod-grace-period")
    yield from _number(words, "imageGCHighThresholdPercent", "image-gc-high-threshold")
    yield from _number(words, "imageGCLowThresholdPercent", "image-gc-low-threshold")
    quota = words.flag("cpuCFSQuota")
    if quota is not None:
        yield f"--cpu-cfs-quota={str(quota).lower()}"


def _number(words: KubeletWords, name: str, flag: str) -> Iterator[str]:
    value = words.number(name)
    if value is not None:
        yield f"--{flag}={value}"


def _map(flag: str, values: Mapping[str, str], sign: str) -> Iterator[str]:
    if values:
        yield f'--{flag}="{",".join(f"{key}{sign}{values[key]}" for key in sorted(values))}"'
