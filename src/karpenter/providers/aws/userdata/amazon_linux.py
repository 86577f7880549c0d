"""User data of several parts, as cloud-init and nodeadm read it (AWS-240 to AWS-242, AWS-245)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from email import message_from_string
from email.message import Message
from functools import lru_cache

import yaml

from karpenter.api.scheduling_constraints import Taint
from karpenter.model.bounded_yaml import load_first_yaml
from karpenter.providers.aws.userdata.bootstrap_options import (
    BootstrapOptions,
    KubeletArguments,
    UserDataError,
    kubelet_extra_args,
)
from karpenter.providers.contract import NodeClassNotReady

SHELL_CONTENT_TYPE = 'text/x-shellscript; charset="us-ascii"'
NODE_CONFIG_CONTENT_TYPE = "application/node.eks.aws"

_BOUNDARY = "//"
_MIME_STARTS = ("MIME-Version:", "Content-Type:")


@dataclass(frozen=True)
class MimePart:
    """One part: its headers as they are, in their order, and its text."""

    headers: tuple[tuple[str, str], ...]
    text: str


def mime_part(content_type: str, text: str) -> MimePart:
    """A part of our own."""
    return MimePart((("Content-Type", content_type),), text)


def is_mime(text: str) -> bool:
    """Whether a text says of itself that it is MIME (AWS-242)."""
    return text.strip().startswith(_MIME_STARTS)


def parse_mime_parts(text: str) -> tuple[MimePart, ...]:
    """The parts of a MIME text. Raises ``UserDataError`` where it has none."""
    message = message_from_string(text.strip().replace("\r", ""))
    if message.get_content_maintype() != "multipart":
        raise UserDataError(f"userData is MIME of type {message.get_content_type()}; it must be multipart")
    if not message.is_multipart():
        raise UserDataError("userData is multipart MIME without any part; check its boundary")
    parts = tuple(_part_of_message(inner) for inner in message.get_payload() if isinstance(inner, Message))
    # Without a closing marker Python's parser reads a last boundary as the beginning of one more, empty part.
    filled = tuple(part for part in parts if part.headers or part.text.strip())
    if not filled:
        raise UserDataError("userData is multipart MIME with empty parts only; check its boundary")
    return filled


def join_mime_parts(parts: Iterable[MimePart]) -> str:
    """The parts as one MIME text, without carriage returns (AWS-240). Raises ``UserDataError`` where a part has our boundary."""
    return "\n".join(_mime_lines(parts)).replace("\r", "")


def _mime_lines(parts: Iterable[MimePart]) -> Iterator[str]:
    yield "MIME-Version: 1.0"
    yield f'Content-Type: multipart/mixed; boundary="{_BOUNDARY}"'
    yield ""
    for part in parts:
        if any(line.startswith(f"--{_BOUNDARY}") for line in part.text.splitlines()):
            raise UserDataError(f"userData has a line that starts with --{_BOUNDARY}, which is where its parts end")
        yield f"--{_BOUNDARY}"
        yield from (f"{name}: {value}" for name, value in part.headers)
        yield ""
        yield part.text
    yield f"--{_BOUNDARY}--"
    yield ""


def _part_of_message(message: Message) -> MimePart:
    payload = message.get_payload()
    if isinstance(payload, str):
        return MimePart(tuple((name, str(value)) for name, value in message.items()), payload)
    # A multipart inside: its text begins behind its own headers.
    return MimePart(
        tuple((name, str(value)) for name, value in message.items()), message.as_string().partition("\n\n")[2]
    )


_AL2_SCRIPT_HEAD = (
    "#!/bin/bash -xe",
    "exec > >(tee /var/log/user-data.log | logger -t user-data -s 2>/dev/console) 2>&1",
)


def al2_user_data(options: BootstrapOptions) -> str:
    """The owner's parts, then ours. Raises ``UserDataError``."""
    return join_mime_parts(
        (*_al2_own_parts(options.custom_user_data), mime_part(SHELL_CONTENT_TYPE, _al2_script(options)))
    )


def _al2_own_parts(custom: str) -> tuple[MimePart, ...]:
    if not custom:
        return ()
    return parse_mime_parts(custom) if is_mime(custom) else (mime_part(SHELL_CONTENT_TYPE, custom),)


def _al2_script(options: BootstrapOptions) -> str:
    return "\n".join((*_AL2_SCRIPT_HEAD, " \\\n".join(_al2_command(options)), ""))


def _al2_command(options: BootstrapOptions) -> Iterator[str]:
    """The call, one line each."""
    words = KubeletArguments(options)
    cluster = options.cluster
    authority = f" --b64-cluster-ca {_shell_quoted(cluster.ca_bundle)}" if cluster.ca_bundle else ""
    endpoint = f"--apiserver-endpoint {_shell_quoted(cluster.endpoint)}"
    yield f"/etc/eks/bootstrap.sh {_shell_quoted(cluster.name)} {endpoint}{authority}"
    if words.cluster_dns:
        server = words.cluster_dns[0]
        if ":" in server:
            yield "--ip-family ipv6"
        yield f"--dns-cluster-ip {_shell_quoted(server)}"
    yield "--use-max-pods false"
    yield f"--kubelet-extra-args {_shell_quoted(kubelet_extra_args(words))}"
    if options.raid0:
        yield "--local-disks raid0"


def _shell_quoted(text: str) -> str:
    """One word for the shell, always in quotes."""
    return "'" + text.replace("'", "'\\''") + "'"


_NODE_CONFIG_HEAD = "# generated by karpenter\n"
#: No line is ever this long: values stay on one line.
_UNFOLDED = 2**31
#: One text of an owner is in many templates, and reading YAML is slow.
_MAX_CACHED_DOCUMENTS = 64
_RESERVED_ATTRIBUTES = (("kubeReserved", "kube_reserved"), ("systemReserved", "system_reserved"))


def al2023_user_data(options: BootstrapOptions) -> str:
    """The owner's entries, then ours, which so win for the same key.

    Raises ``UserDataError``, and ``NodeClassNotReady`` while the cluster's service CIDR is not known (AWS-248).
    """
    if not options.cluster.service_cidr:
        raise NodeClassNotReady("the cluster's service CIDR is not known, and AL2023 nodes cannot join without it")
    text = _NODE_CONFIG_HEAD + yaml.safe_dump(
        _node_config(options), sort_keys=True, width=_UNFOLDED, allow_unicode=True
    )
    return join_mime_parts((*_al2023_own_parts(options.custom_user_data), mime_part(NODE_CONFIG_CONTENT_TYPE, text)))


def _al2023_own_parts(custom: str) -> tuple[MimePart, ...]:
    if not custom:
        return ()
    if is_mime(custom):
        return parse_mime_parts(custom)
    return (mime_part(NODE_CONFIG_CONTENT_TYPE if _is_yaml_map(custom) else SHELL_CONTENT_TYPE, custom),)


@lru_cache(maxsize=_MAX_CACHED_DOCUMENTS)
def _is_yaml_map(text: str) -> bool:
    """Whether a text is a YAML map, as a NodeConfig is (AWS-246). Of several documents the first decides."""
    try:
        return isinstance(load_first_yaml(text), Mapping)
    except yaml.YAMLError:
        return False


def _node_config(options: BootstrapOptions) -> Mapping[str, object]:
    words = KubeletArguments(options)
    cluster = options.cluster
    authority = {"certificateAuthority": cluster.ca_bundle} if cluster.ca_bundle else {}
    spec: dict[str, object] = {
        "cluster": {
            "name": cluster.name,
            "apiServerEndpoint": cluster.endpoint,
            "cidr": cluster.service_cidr,
            **authority,
        },
        "kubelet": {"config": kubelet_configuration(words), "flags": [words.node_labels]},
    }
    if options.raid0:
        spec["instance"] = {"localStorage": {"strategy": "RAID0"}}
    return {"apiVersion": "node.eks.aws/v1alpha1", "kind": "NodeConfig", "spec": spec}


def kubelet_configuration(arguments: KubeletArguments) -> dict[str, object]:
    """The owner's settings, completed by what we know and freed of expressions (AWS-247)."""
    config = {name: value for name, value in arguments.options.kubelet_spec.items() if value is not None}
    config["maxPods"] = arguments.max_pods
    config["registerWithTaints"] = [_taint_entry(taint) for taint in arguments.taints]
    if arguments.cluster_dns:
        config["clusterDNS"] = list(arguments.cluster_dns)
    for name, attribute in _RESERVED_ATTRIBUTES:
        config.pop(name, None)
        values: Mapping[str, str] = getattr(arguments.options.kubelet_settings, attribute)
        if values:
            config[name] = dict(values)
    return config


def _taint_entry(taint: Taint) -> dict[str, str]:
    value = {"value": taint.value} if taint.value else {}
    return {"key": taint.key, **value, "effect": taint.effect}
