"""Bottlerocket: settings as TOML, ours written into the owner's (AWS-250 to AWS-256).

Keys that we do not set stay as the owner wrote them, in any table: the image knows its settings, we do not.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import cast

import tomli_w

from karpenter.api.ec2_node_class import AMI, EC2NodeClass
from karpenter.api.scheduling_constraints import Taint
from karpenter.providers.aws.userdata.ami_families import alias_version
from karpenter.providers.aws.userdata.bootstrap_options import (
    BootstrapOptions,
    KubeletArguments,
    UserDataError,
    grace_periods,
)

_Table = dict[str, object]

_MOUNT_COMMAND = "000-mount-instance-storage"
_STORAGE_COMMAND = ("apiclient", "ephemeral-storage")
#: Directories that older versions must be given; newer ones know them.
_DIRECTORIES = ("--dirs", "/var/lib/containerd", "/var/lib/kubelet", "/var/log/pods")
_BINDS_BY_ITSELF = (1, 46, 0)
_LATEST = "latest"
_VERSION_PATTERN = re.compile(r"v?(\d+)\.(\d+)\.(\d+)", re.ASCII)


def bottlerocket_user_data(options: BootstrapOptions) -> str:
    """The owner's settings with ours in them. Raises ``UserDataError`` where the owner's are no TOML."""
    settings = _parse_toml(options.custom_user_data)
    words = KubeletArguments(options)
    own = _table(settings, "settings", "kubernetes")
    labels = {**_table(own, "node-labels"), **words.labels}
    own |= _cluster_settings(options) | _kubelet_table(words, own)
    own["node-labels"] = dict(sorted(labels.items()))
    own["node-taints"] = _taint_settings(words.taints)
    if options.raid0:
        commands = _table(settings, "settings", "bootstrap-commands")
        mount = _mount_command(options.image_version)
        commands[_MOUNT_COMMAND] = {"commands": mount, "essential": True, "mode": "always"}
    return _to_toml(settings)


def _to_toml(settings: _Table) -> str:
    try:
        return tomli_w.dumps(settings)
    except RecursionError as error:
        raise UserDataError("userData of Bottlerocket has tables nested beyond all measure") from error


def _parse_toml(custom: str) -> _Table:
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


def _cluster_settings(options: BootstrapOptions) -> _Table:
    cluster = options.cluster
    authority = {"cluster-certificate": cluster.ca_bundle} if cluster.ca_bundle else {}
    return {"cluster-name": cluster.name, "api-server": cluster.endpoint, **authority}


def _kubelet_table(arguments: KubeletArguments, own: Mapping[str, object]) -> _Table:
    """Settings of the class's kubelet map; those it does not have are left to the owner's TOML (AWS-252)."""
    reserved = arguments.options.kubelet_settings
    table: _Table = {"max-pods": arguments.max_pods}
    if arguments.cluster_dns and (reserved.cluster_dns or "cluster-dns-ip" not in own):
        table["cluster-dns-ip"] = arguments.cluster_dns[0]
    maps = {
        "system-reserved": reserved.system_reserved,
        "kube-reserved": reserved.kube_reserved,
        "eviction-hard": arguments.string_map("evictionHard"),
        "eviction-soft": arguments.string_map("evictionSoft"),
        "eviction-soft-grace-period": grace_periods(arguments),
    }
    table |= {name: dict(sorted(values.items())) for name, values in maps.items() if values}
    return table | dict(_scalar_settings(arguments))


def _scalar_settings(arguments: KubeletArguments) -> Iterator[tuple[str, object]]:
    grace = arguments.number("evictionMaxPodGracePeriod")
    if grace is not None:
        yield "eviction-max-pod-grace-period", grace
    for name, setting in (("High", "high"), ("Low", "low")):
        percent = arguments.number(f"imageGC{name}ThresholdPercent")
        if percent is not None:
            yield f"image-gc-{setting}-threshold-percent", str(percent)
    quota = arguments.boolean("cpuCFSQuota")
    if quota is not None:
        yield "cpu-cfs-quota-enforced", quota


def _taint_settings(taints: tuple[Taint, ...]) -> _Table:
    """All taints, by key; they replace the owner's (AWS-253)."""
    settings: dict[str, object] = {}
    for key in sorted({taint.key for taint in taints}):
        settings[key] = [f"{taint.value}:{taint.effect}" for taint in taints if taint.key == key]
    return settings


def _mount_command(version: str) -> list[list[str]]:
    """The commands that set up instance-store disks; older versions need the directories to bind (AWS-255)."""
    directories = () if _binds_by_itself(version) else _DIRECTORIES
    return [[*_STORAGE_COMMAND, "init"], [*_STORAGE_COMMAND, "bind", *directories]]


def _binds_by_itself(version: str) -> bool:
    match = _VERSION_PATTERN.fullmatch(version)
    return version == _LATEST or (match is not None and tuple(map(int, match.groups())) >= _BINDS_BY_ITSELF)


def bottlerocket_version(node_class: EC2NodeClass) -> str:
    """``latest``, or a version such as ``v1.46.0``; empty where nothing names one."""
    return alias_version(node_class.spec) or next(_named_versions(node_class), "")


def _named_versions(node_class: EC2NodeClass) -> Iterator[str]:
    """Versions in names: of the terms, of the images the terms name by id, of any image of the family."""
    for term in node_class.spec.ami_selector_terms:
        yield from _versions_in(term.name or "")
    amis = node_class.status.amis
    image_ids = {term.id for term in node_class.spec.ami_selector_terms if term.id is not None}
    yield from _image_versions(tuple(ami for ami in amis if ami.id in image_ids))
    yield from _image_versions(tuple(ami for ami in amis if "bottlerocket" in ami.name.lower()))


def _image_versions(amis: tuple[AMI, ...]) -> Iterator[str]:
    for ami in amis:
        yield from _versions_in(ami.name)


def _versions_in(name: str) -> Iterator[str]:
    yield from (word for word in name.split("-") if word.startswith("v") and "." in word)
