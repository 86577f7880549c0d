"""Reads user data as the images do: the bootstrap configuration of an instance, or the reason why it cannot join the cluster.

Written from what nodeadm, the EKS bootstrap scripts, Bottlerocket and the kubelet accept, independently of what the provider
writes, so that tests find errors in either.
"""

from __future__ import annotations

import base64
import binascii
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import Message
from typing import Any

import yaml

from karpenter.api.scheduling_constraints import Taint
from support.kubeadm_join import JoinRefused, join_arguments

_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
#: Label prefixes that a kubelet may set on its Node although Kubernetes owns the domain.
_OWN_PREFIXES = ("kubelet.kubernetes.io", "node.kubernetes.io")
_OWN_LABELS = frozenset(
    {
        "kubernetes.io/hostname",
        "kubernetes.io/arch",
        "kubernetes.io/os",
        "beta.kubernetes.io/arch",
        "beta.kubernetes.io/os",
        "beta.kubernetes.io/instance-type",
        "topology.kubernetes.io/zone",
        "topology.kubernetes.io/region",
        "failure-domain.beta.kubernetes.io/zone",
        "failure-domain.beta.kubernetes.io/region",
    }
)
_KUBELET_FLAGS = frozenset(
    {
        "node-labels",
        "register-with-taints",
        "max-pods",
        "pods-per-core",
        "system-reserved",
        "kube-reserved",
        "eviction-hard",
        "eviction-soft",
        "eviction-soft-grace-period",
        "eviction-max-pod-grace-period",
        "image-gc-high-threshold",
        "image-gc-low-threshold",
        "cpu-cfs-quota",
        "v",
    }
)
_SCRIPT_FLAGS = frozenset(
    {
        "apiserver-endpoint",
        "b64-cluster-ca",
        "ip-family",
        "dns-cluster-ip",
        "use-max-pods",
        "kubelet-extra-args",
        "container-runtime",
        "service-ipv6-cidr",
        "local-disks",
    }
)
_WORD = re.compile(r"""'(?:[^']|'')*'|"(?:[^"`]|`.|"")*"|[^\s'"]+""")


class BootstrapError(Exception):
    """The instance boots and never registers a Node; the message is the reason."""


@dataclass(frozen=True)
class BootstrapConfig:
    """What user data configures. With an empty ``certificate`` or ``endpoint`` the instance reads them from EKS.

    ``cluster`` is empty where user data does not name it (kubeadm).
    """

    cluster: str
    endpoint: str = ""
    certificate: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    max_pods: int | None = None
    reserved: Mapping[str, str] = field(default_factory=dict)


def read(user_data: str, image_name: str) -> BootstrapConfig:
    """Read base64 user data as an image of that name does. Raises ``BootstrapError``."""
    try:
        text = base64.b64decode(user_data, validate=True)
    except binascii.Error as error:
        raise BootstrapError(f"the user data is not base64: {error}") from None
    joining = _reader(image_name, text)(text)
    if joining.certificate:
        _check_certificate(joining.certificate)
    for key in joining.labels:
        _check_label(key)
    return joining


def _reader(image_name: str, text: bytes) -> Callable[[bytes], BootstrapConfig]:
    """The reader of an image; for a custom image, chosen by the form of the user data. All images run a kubeadm script."""
    if b"kubeadm join" in text:
        return _kubeadm
    if image_name.startswith("amazon-eks-node-al2023"):
        return _nodeadm
    if image_name.startswith("amazon-eks"):
        return _script
    if image_name.startswith("bottlerocket"):
        return _bottlerocket
    if image_name.startswith("Windows_Server"):
        return _powershell
    readers_by_mark = (
        (b"node.eks.aws", _nodeadm),
        (b"bootstrap.sh", _script),
        (b"[settings", _bottlerocket),
        (b"<powershell>", _powershell),
    )
    return next((reader for mark, reader in readers_by_mark if mark in text), _nothing)


def _nothing(text: bytes) -> BootstrapConfig:
    raise BootstrapError("nothing in the user data joins a cluster")


def _check_certificate(value: str) -> None:
    try:
        base64.b64decode(value, validate=True)
    except binascii.Error:
        raise BootstrapError("the cluster's certificate is not base64") from None


def _check_label(key: str) -> None:
    """The kubelet refuses to start with labels it may not set on itself."""
    domain = key.rpartition("/")[0]
    foreign = any(domain == name or domain.endswith(f".{name}") for name in ("kubernetes.io", "k8s.io"))
    own = key in _OWN_LABELS or any(domain == name or domain.endswith(f".{name}") for name in _OWN_PREFIXES)
    # kubelet.kubernetes.io and node.kubernetes.io only; node-restriction is what the kubelet must not touch.
    if foreign and not own:
        raise BootstrapError(
            f"kubelet: unknown 'kubernetes.io' or 'k8s.io' labels specified with --node-labels: [{key}]"
        )


# -- MIME -----------------------------------------------------------------------------------------------------------------


def _parts(text: bytes) -> Iterator[tuple[str, str]]:
    """Content types and bodies of MIME parts, as cloud-init and nodeadm split them."""
    if not text.lstrip().startswith((b"MIME-Version:", b"Content-Type:")):
        first = "text/x-shellscript" if text.startswith(b"#!") else "text/plain"
        yield first, text.decode()
        return
    message = message_from_bytes(text.lstrip())
    if not message.is_multipart():
        raise BootstrapError("the user data is MIME without parts")
    for part in message.walk():
        if not part.is_multipart():
            yield part.get_content_type(), _body(part)


def _body(part: Message) -> str:
    payload = part.get_payload(decode=True)
    assert isinstance(payload, bytes)
    return payload.decode()


# -- Amazon Linux 2023 ----------------------------------------------------------------------------------------------------


def _nodeadm(text: bytes) -> BootstrapConfig:
    merged: dict[str, Any] = {}
    for kind, body in _parts(text):
        if kind == "application/node.eks.aws" or (kind == "text/plain" and "node.eks.aws/" in body):
            merged = _merge(merged, _node_config(body))
    if not merged:
        raise BootstrapError("nodeadm: no config in user data")
    cluster = merged.get("cluster") or {}
    for name in ("name", "apiServerEndpoint", "certificateAuthority", "cidr"):
        if not cluster.get(name):
            raise BootstrapError(f"nodeadm: {name} is missing in cluster configuration")
    kubelet = merged.get("kubelet") or {}
    config = kubelet.get("config") or {}
    # systemd splits the flags as a shell would.
    flags = _kubelet_flags(_split(" ".join(kubelet.get("flags") or ())))
    return BootstrapConfig(
        cluster=cluster["name"],
        endpoint=cluster["apiServerEndpoint"],
        certificate=cluster["certificateAuthority"],
        labels=_pairs(flags.get("node-labels", "")),
        taints=tuple(_config_taint(taint) for taint in config.get("registerWithTaints") or ()),
        max_pods=_number(config.get("maxPods")),
        reserved=config.get("kubeReserved") or {},
    )


def _node_config(body: str) -> dict[str, Any]:
    try:
        config = yaml.safe_load(body)
    except yaml.YAMLError as error:
        raise BootstrapError(f"nodeadm: {error}") from None
    if not isinstance(config, dict) or config.get("kind") != "NodeConfig":
        raise BootstrapError("nodeadm: not a NodeConfig")
    if config.get("apiVersion") not in ("node.eks.aws/v1alpha1", "node.eks.aws/v1"):
        raise BootstrapError(f"nodeadm: unknown apiVersion {config.get('apiVersion')}")
    return dict(config.get("spec") or {})


def _merge(base: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """nodeadm's: later configurations win, kubelet flags add up."""
    merged = dict(base)
    for key, value in over.items():
        if isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = _merge(merged[key], value)
        elif key == "flags" and key in merged:
            merged[key] = [*merged[key], *value]
        else:
            merged[key] = value
    return merged


def _config_taint(taint: Mapping[str, str]) -> Taint:
    return _checked(Taint(key=taint["key"], value=taint.get("value") or "", effect=taint["effect"]))


# -- Amazon Linux 2 -------------------------------------------------------------------------------------------------------


def _script(text: bytes) -> BootstrapConfig:
    scripts = [body for kind, body in _parts(text) if kind == "text/x-shellscript"]
    calls = [words for script in scripts for words in _calls(script)]
    if not calls:
        raise BootstrapError("no shell part calls /etc/eks/bootstrap.sh")
    words = calls[0]
    names = [word for word in words if not word.startswith("--")][:1]
    if not names or words[0].startswith("--"):
        raise BootstrapError("bootstrap.sh: CLUSTER_NAME is not defined")
    arguments = _arguments(words[1:], _SCRIPT_FLAGS, "bootstrap.sh")
    flags = _kubelet_flags(_split(arguments.get("kubelet-extra-args", "")))
    return _of_flags(names[0], arguments.get("apiserver-endpoint", ""), arguments.get("b64-cluster-ca", ""), flags)


def _calls(script: str) -> Iterator[list[str]]:
    """Arguments of every call of the bootstrap script; cloud-init runs only scripts with an interpreter line."""
    if not script.lstrip("\n").startswith("#!"):
        raise BootstrapError("cloud-init: a shell part without an interpreter line")
    for line in script.replace("\\\n", " ").splitlines():
        words = _split(line, comments=True) if "/etc/eks/bootstrap.sh" in line else []
        if words and words[0] == "/etc/eks/bootstrap.sh":
            yield words[1:]


def _split(text: str, *, comments: bool = False) -> list[str]:
    try:
        return shlex.split(text, comments=comments)
    except ValueError as error:
        raise BootstrapError(f"not a command line ({error}): {text}") from None


def _arguments(words: Sequence[str], flags: frozenset[str], program: str) -> dict[str, str]:
    arguments: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if not name.startswith("--") or name[2:] not in flags:
            raise BootstrapError(f"{program}: unknown argument {word}")
        if not equals:
            value = next(rest, "")
        arguments[name[2:]] = value
    return arguments


def _kubelet_flags(words: Sequence[str]) -> dict[str, str]:
    return _arguments(words, _KUBELET_FLAGS, "kubelet")


def _of_flags(cluster: str, endpoint: str, certificate: str, flags: Mapping[str, str]) -> BootstrapConfig:
    return BootstrapConfig(
        cluster=cluster,
        endpoint=endpoint,
        certificate=certificate,
        labels=_pairs(flags.get("node-labels", "")),
        taints=tuple(_flag_taint(text) for text in flags.get("register-with-taints", "").split(",") if text),
        max_pods=_number(flags.get("max-pods")),
        reserved=_pairs(flags.get("kube-reserved", "")),
    )


def _pairs(text: str) -> dict[str, str]:
    pairs = [element.partition("=") for element in text.split(",") if element]
    for key, equals, _ in pairs:
        if not equals:
            raise BootstrapError(f"kubelet: malformed pair, expect string=string: {key}")
    return {key: value for key, _, value in pairs}


def _flag_taint(text: str) -> Taint:
    described, _, effect = text.rpartition(":")
    key, _, value = described.partition("=")
    return _checked(Taint(key=key, value=value, effect=effect))


def _checked(taint: Taint) -> Taint:
    if not taint.key or taint.effect not in _EFFECTS:
        raise BootstrapError(f"kubelet: invalid taint {taint.key}={taint.value}:{taint.effect}")
    return taint


def _number(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not str(value).isdigit():
        raise BootstrapError(f"kubelet: not a number of pods: {value}")
    return int(str(value))


# -- kubeadm --------------------------------------------------------------------------------------------------------------


def _kubeadm(text: bytes) -> BootstrapConfig:
    """A kubeadm configuration has an endpoint and a token, but no cluster name."""
    try:
        return BootstrapConfig("", f"https://{join_arguments(text.decode()).endpoint}")
    except JoinRefused as error:
        raise BootstrapError(str(error)) from None


# -- Bottlerocket ---------------------------------------------------------------------------------------------------------


def _bottlerocket(text: bytes) -> BootstrapConfig:
    try:
        settings = tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BootstrapError(f"early-boot-config: {error}") from None
    kubernetes_settings = settings.get("settings", {}).get("kubernetes", {})
    for name in ("cluster-name", "api-server", "cluster-certificate"):
        if not isinstance(kubernetes_settings.get(name), str) or not kubernetes_settings[name]:
            raise BootstrapError(f"settings.kubernetes.{name} is missing")
    labels = kubernetes_settings.get("node-labels", {})
    if not all(isinstance(value, str) for value in labels.values()):
        raise BootstrapError("settings.kubernetes.node-labels: not texts")
    taints = [
        _flag_taint(f"{key}={value}")
        for key, values in kubernetes_settings.get("node-taints", {}).items()
        for value in (values if isinstance(values, list) else [values])
    ]
    return BootstrapConfig(
        cluster=kubernetes_settings["cluster-name"],
        endpoint=kubernetes_settings["api-server"],
        certificate=kubernetes_settings["cluster-certificate"],
        labels=labels,
        taints=tuple(taints),
        max_pods=_number(kubernetes_settings.get("max-pods")),
        reserved=kubernetes_settings.get("kube-reserved", {}),
    )


# -- Windows --------------------------------------------------------------------------------------------------------------


def _powershell(text: bytes) -> BootstrapConfig:
    match = re.search(r"<powershell>(.*?)</powershell>", text.decode(), re.DOTALL)
    if match is None:
        raise BootstrapError("EC2Launch: no <powershell> in the user data")
    script = match.group(1).replace("`\r\n", " ").replace("`\n", " ")
    variables = re.findall(r"(\$\w+)\s*=\s*[\"'][^\"'\n]*Start-EKSBootstrap\.ps1[\"']", script)
    for line in script.splitlines():
        words = _WORD.findall(line)
        if len(words) > 1 and words[0] == "&" and (words[1] in variables or "Start-EKSBootstrap.ps1" in words[1]):
            return _windows(words[2:])
    raise BootstrapError("nothing calls Start-EKSBootstrap.ps1")


def _windows(words: Sequence[str]) -> BootstrapConfig:
    arguments: dict[str, str] = {}
    for name, value in zip(words[::2], words[1::2], strict=False):
        if not name.startswith("-"):
            raise BootstrapError(f"Start-EKSBootstrap.ps1: unexpected argument {name}")
        arguments[name[1:]] = value[1:-1].replace("''", "'") if value.startswith("'") else value.strip('"')
    if not arguments.get("EKSClusterName"):
        raise BootstrapError("Start-EKSBootstrap.ps1: EKSClusterName is mandatory")
    flags = _kubelet_flags(_split(arguments.get("KubeletExtraArgs", "")))
    endpoint, certificate = arguments.get("APIServerEndpoint", ""), arguments.get("Base64ClusterCA", "")
    return _of_flags(arguments["EKSClusterName"], endpoint, certificate, flags)
