"""What user data contains so that an instance joins with kubeadm: its JoinConfiguration, v1beta3 and v1beta4 (AWS-925), the
hashes of the authorities (AWS-921), and shell snippets for what only the instance itself can know (AWS-917, AWS-926). Pure.

The fields are those of https://kubernetes.io/docs/reference/config-api/kubeadm-config.v1beta4/. The snippets are POSIX shell and
need ``curl``; the one that reads a parameter needs the AWS command line.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import yaml
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509 import load_pem_x509_certificates

from karpenter.api.scheduling_constraints import Taint
from karpenter.providers.aws.bootstrap.bootstrap_token import NODE_NAME_SOURCES
from karpenter.providers.aws.userdata.bootstrap_options import KubeletArguments, UserDataError, kubelet_flags

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


@lru_cache(maxsize=4)
def ca_hashes(ca_bundle: str) -> tuple[str, ...]:
    """SHA-256 of each authority's SubjectPublicKeyInfo in DER (RFC 7469), lower-case hex, in the order of the bundle.

    ``ca_bundle`` is base64 of PEM. Raises ``UserDataError`` where it holds no certificate.
    """
    try:
        certificates = load_pem_x509_certificates(base64.b64decode(ca_bundle, validate=True))
    except (binascii.Error, ValueError) as error:
        advice = "set --cluster-ca-bundle to base64 of its PEM"
        raise UserDataError(f"the certificate of the cluster's CA is not known; {advice}") from error
    keys = (certificate.public_key() for certificate in certificates)
    return tuple(
        hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest() for key in keys
    )


_METADATA = """\
IMDS=http://169.254.169.254/latest
IMDS_TOKEN=$(curl -sf --retry 5 -X PUT "$IMDS/api/token" -H "X-aws-ec2-metadata-token-ttl-seconds: 300")
imds() { curl -sf --retry 5 -H "X-aws-ec2-metadata-token: $IMDS_TOKEN" "$IMDS/meta-data/$1"; }
PROVIDER_ID="aws:///$(imds placement/availability-zone)/$(imds instance-id)\""""


def provider_id(node_name_source: str) -> str:
    """Sets ``PROVIDER_ID``, and ``NODE_NAME`` where a source is given (a key of ``NODE_NAME_SOURCES``)."""
    if not node_name_source:
        return _METADATA
    return f'{_METADATA}\nNODE_NAME="$(imds {NODE_NAME_SOURCES[node_name_source]})"'


def token_from_parameter(parameter: str, region: str) -> str:
    """Sets ``BOOTSTRAP_TOKEN`` from an SSM parameter, which the instance's role must be allowed to read."""
    query = "--with-decryption --query Parameter.Value --output text"
    return f'BOOTSTRAP_TOKEN="$(aws ssm get-parameter --region {region} --name {parameter} {query})"'
