"""kubeadm's JoinConfiguration, v1beta3 and v1beta4 (AWS-925). Pure.

The fields are those of https://kubernetes.io/docs/reference/config-api/kubeadm-config.v1beta4/.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import yaml

from karpenter.api.scheduling_constraints import Taint
from karpenter.providers.aws.userdata.bootstrap_options import KubeletArguments, kubelet_flags

#: The first minor version whose kubeadm reads v1beta4.
_FIRST_WITH_V1BETA4 = 31
_IN_TAINTS = "register-with-taints"
_UNFOLDED = 2**31


@dataclass(frozen=True)
class JoinTarget:
    """What an instance joins: ``host:port``, the token, hashes without prefix, ``major.minor`` of the cluster.

    ``node_name`` is empty where the host's name is the Node's.
    """

    endpoint: str
    token: str
    ca_hashes: tuple[str, ...]
    version: str
    node_name: str = ""


def join_document(arguments: KubeletArguments, target: JoinTarget) -> str:
    """The YAML document, without a line break at its end."""
    is_v1beta4 = int(target.version.partition(".")[2]) >= _FIRST_WITH_V1BETA4
    name = {"name": target.node_name} if target.node_name else {}
    document = {
        "apiVersion": f"kubeadm.k8s.io/{'v1beta4' if is_v1beta4 else 'v1beta3'}",
        "kind": "JoinConfiguration",
        "discovery": {
            "bootstrapToken": {
                "apiServerEndpoint": target.endpoint,
                "token": target.token,
                "caCertHashes": [f"sha256:{digest}" for digest in target.ca_hashes],
            },
            "tlsBootstrapToken": target.token,
        },
        "nodeRegistration": {
            **name,
            "taints": [_taint_entry(taint) for taint in arguments.taints],
            "kubeletExtraArgs": _extra_arguments(_kubelet_arguments(arguments), is_v1beta4),
            "ignorePreflightErrors": [],
        },
    }
    return yaml.safe_dump(document, sort_keys=False, width=_UNFOLDED, allow_unicode=True).rstrip("\n")


def _kubelet_arguments(arguments: KubeletArguments) -> Mapping[str, str]:
    """The kubelet's flags. The instance itself fills in its provider ID (AWS-926)."""
    flags = {name: value for name, value in kubelet_flags(arguments) if name != _IN_TAINTS}
    return {**flags, "provider-id": "${PROVIDER_ID}"}


def _extra_arguments(arguments: Mapping[str, str], is_v1beta4: bool) -> object:
    if is_v1beta4:
        return [{"name": name, "value": value} for name, value in sorted(arguments.items())]
    return dict(sorted(arguments.items()))


def _taint_entry(taint: Taint) -> dict[str, str]:
    return {"key": taint.key, **({"value": taint.value} if taint.value else {}), "effect": taint.effect}
