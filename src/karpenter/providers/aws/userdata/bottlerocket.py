"""Bottlerocket: settings as TOML, ours written into the owner's (AWS-250 to AWS-256).

Keys nobody here knows are the owner's and stay, wherever they stand: the image knows its settings, we do not.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import cast

import tomli_w

from karpenter.api.core import Taint
from karpenter.providers.aws.userdata.flags import grace_periods
from karpenter.providers.aws.userdata.inputs import Bootstrap, KubeletWords, UserDataError

_Table = dict[str, object]

_MOUNT = "000-mount-instance-storage"
_STORAGE = ("apiclient", "ephemeral-storage")
#: Directories older versions have to be told; the newer ones know them.
_DIRECTORIES = ("--dirs", "/var/lib/containerd", "/var/lib/kubelet", "/var/log/pods")
_BINDS_BY_ITSELF = (1, 46, 0)
_LATEST = "latest"
_VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)", re.ASCII)


def write(given: Bootstrap) -> str:
    """The owner's settings with ours in them. Raises ``UserDataError`` where the owner's are no TOML."""
    settings = _parsed(given.custom)
    words = KubeletWords(given)
    own = _table(settings, "settings", "kubernetes")
    labels = {**_table(own, "node-labels"), **words.labels}
    own |= _cluster(given) | _kubelet(words, own)
    own["node-labels"] = dict(sorted(labels.items()))
    own["node-taints"] = _taints(words.taints)
    if given.raid0:
        commands = _table(settings, "settings", "bootstrap-commands")
        commands[_MOUNT] = {"commands": _mounting(given.image_version), "essential": True, "mode": "always"}
    return _text(settings)


def _text(settings: _Table) -> str:
    try:
        return tomli_w.dumps(settings)
    except RecursionError as error:
        raise UserDataError("userData of Bottlerocket has tables nested beyond all measure") from error


def _parsed(custom: str) -> _Table:
    try:
        return tomllib.loads(custom)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UserDataError(f"userData of Bottlerocket must be TOML: {error}") from error


def _table(parent: _Table, *names: str) -> _Table:
    """The table at a path, made where it is missing."""
    for name in names:
        child = parent.setdefault(name, {})
        if not isinstance(child, dict):
            raise UserDataError(f"userData of Bottlerocket has a value at {'.'.join(names)}, where a table must be")
        parent = cast(_Table, child)
    return parent


def _cluster(given: Bootstrap) -> _Table:
    cluster = given.cluster
    authority = {"cluster-certificate": cluster.ca_bundle} if cluster.ca_bundle else {}
    return {"cluster-name": cluster.name, "api-server": cluster.endpoint, **authority}


def _kubelet(words: KubeletWords, own: Mapping[str, object]) -> _Table:
    """Settings of the class's kubelet map; those it does not have are left to the owner's TOML (AWS-252)."""
    reserved = words.given.reserved
    found: _Table = {"max-pods": words.max_pods}
    if words.cluster_dns and (reserved.cluster_dns or "cluster-dns-ip" not in own):
        found["cluster-dns-ip"] = words.cluster_dns[0]
    maps = {
        "system-reserved": reserved.system_reserved,
        "kube-reserved": reserved.kube_reserved,
        "eviction-hard": words.texts("evictionHard"),
        "eviction-soft": words.texts("evictionSoft"),
        "eviction-soft-grace-period": grace_periods(words),
    }
    found |= {name: dict(sorted(values.items())) for name, values in maps.items() if values}
    return found | dict(_plain(words))


def _plain(words: KubeletWords) -> Iterator[tuple[str, object]]:
    grace = words.number("evictionMaxPodGracePeriod")
    if grace is not None:
        yield "eviction-max-pod-grace-period", grace
    for name, setting in (("High", "high"), ("Low", "low")):
        percent = words.number(f"imageGC{name}ThresholdPercent")
        if percent is not None:
            yield f"image-gc-{setting}-threshold-percent", str(percent)
    quota = words.flag("cpuCFSQuota")
    if quota is not None:
        yield "cpu-cfs-quota-enforced", quota


def _taints(taints: tuple[Taint, ...]) -> _Table:
    """All taints, by key; they replace the owner's (AWS-253)."""
    found: dict[str, object] = {}
    for key in sorted({taint.key for taint in taints}):
        found[key] = [f"{taint.value}:{taint.effect}" for taint in taints if taint.key == key]
    return found


def _mounting(version: str) -> list[list[str]]:
    """AWS-255."""
    directories = () if _binds_by_itself(version) else _DIRECTORIES
    return [[*_STORAGE, "init"], [*_STORAGE, "bind", *directories]]


def _binds_by_itself(version: str) -> bool:
    match = _VERSION.fullmatch(version)
    return version == _LATEST or (match is not None and tuple(map(int, match.groups())) >= _BINDS_BY_ITSELF)
