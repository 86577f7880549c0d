"""What every family tells its machines (AWS-220 to AWS-224)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from karpenter.api.core import Taint
from karpenter.model import labels, taints
from karpenter.providers.aws.kubelet.resolved import Resolved
from karpenter.providers.aws.settings import Cluster

#: Domains a kubelet may not give itself labels of; the controllers put those on the Node when it registers.
_NOT_BY_KUBELET = ("kubernetes.io", "k8s.io", "node-restriction.kubernetes.io")


class UserDataError(ValueError):
    """The class's own user data cannot be joined with ours. The text says why; nothing can be launched until it is changed."""


@dataclass(frozen=True)
class Bootstrap:
    """All that goes into a machine's user data.

    ``labels`` are the claim's and the launch's capacity type, ``taints`` the claim's, startup taints last: what is missing of our
    own is added here, and labels a kubelet may not set are left out. ``kubelet`` is the class's map as its owner wrote it,
    ``reserved`` what it comes to on the type, ``max_pods`` the pods the type runs. ``custom`` is the class's own user data.
    ``image_version`` is Bottlerocket's only (``versions.image_version``).
    """

    cluster: Cluster
    family: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    kubelet: Mapping[str, object]
    reserved: Resolved
    max_pods: int
    custom: str = ""
    raid0: bool = False
    image_version: str = ""


@dataclass(frozen=True)
class KubeletWords:
    """What the kubelet of a machine is told, put together from a ``Bootstrap``."""

    given: Bootstrap
    labels: Mapping[str, str] = field(init=False)
    taints: tuple[Taint, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", _labels(self.given.labels))
        object.__setattr__(self, "taints", taints.merge(self.given.taints, (labels.UNREGISTERED_TAINT,)))

    @property
    def max_pods(self) -> int:
        """The owner's number, else that of the type (AWS-223)."""
        own = self.number("maxPods")
        return self.given.max_pods if own is None else own

    @cached_property
    def cluster_dns(self) -> tuple[str, ...]:
        """The owner's servers, else the cluster's, if known (AWS-222)."""
        known = self.given.cluster.dns_ip
        return self.given.reserved.cluster_dns or ((known,) if known else ())

    @property
    def node_labels(self) -> str:
        """``--node-labels`` and its value, keys sorted (AWS-236)."""
        pairs = ",".join(f"{key}={value}" for key, value in self.labels.items())
        return f'--node-labels="{pairs}"'

    def number(self, name: str) -> int | None:
        """A whole number of the owner's map, None where there is none."""
        value = self.given.kubelet.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def flag(self, name: str) -> bool | None:
        """A truth value of the owner's map, None where there is none."""
        value = self.given.kubelet.get(name)
        return value if isinstance(value, bool) else None

    def texts(self, name: str) -> dict[str, str]:
        """A map of texts of the owner's map, keys sorted; empty where there is none."""
        value = self.given.kubelet.get(name)
        if not isinstance(value, Mapping):
            return {}
        return dict(sorted((str(key), str(item)) for key, item in value.items()))


def _labels(given: Mapping[str, str]) -> dict[str, str]:
    """What the kubelet registers its node with, keys sorted (AWS-220)."""
    told = {**given, labels.DO_NOT_SYNC_TAINTS: "true"}
    return {key: told[key] for key in sorted(told) if not _is_not_by_kubelet(key)}


def _is_not_by_kubelet(key: str) -> bool:
    domain, slash, _ = key.partition("/")
    return bool(slash) and any(domain == own or domain.endswith("." + own) for own in _NOT_BY_KUBELET)
