"""User data of classes whose instances join with kubeadm: a CA, options, and the field report's text."""

from __future__ import annotations

import base64
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from karpenter.providers.aws.aws_settings import AwsClusterInfo
from karpenter.providers.aws.bootstrap.bootstrap_token import BootstrapToken, JoinParameters
from karpenter.providers.aws.userdata import BootstrapOptions, render_user_data
from support.user_data import given

TOKEN = BootstrapToken("abc123", "0123456789abcdef")
#: The user data of an evaluation of Karpenter for a kubeadm cluster (AWS-871).
FIELD_REPORT = """#!/bin/bash
set -euo pipefail
HOST=$(hostname)
echo "${HOME} ${HOST}" > /var/log/join.log
kubeadm join ${CLUSTER_ENDPOINT}:6443 --token ${BOOTSTRAP_TOKEN} \\
  --discovery-token-ca-cert-hash sha256:${CA_CERT_HASH}
"""


def authority(name: str) -> bytes:
    """A self-signed certificate in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), 1, begin, begin + timedelta(days=365))
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)


def cluster(*authorities: bytes, version: str = "1.33", endpoint: str = "https://10.0.0.10:6443") -> AwsClusterInfo:
    bundle = base64.b64encode(b"".join(authorities)).decode()
    return AwsClusterInfo(
        "prod", "eu-west-1", endpoint, bundle, version, "10.96.0.10", "10.96.0.0/12", full_version=f"{version}.2"
    )


def joining(text: str, of: AwsClusterInfo, join: JoinParameters, **kubelet: object) -> BootstrapOptions:
    return replace(given("Custom", text, **kubelet), cluster=of, join=join)


def rendered(text: str, of: AwsClusterInfo, join: JoinParameters | None = None, **kubelet: object) -> str:
    """User data with replaced variables."""
    default = JoinParameters(claim="web-1", pool="web", node_class="default", token=TOKEN)
    return render_user_data(joining(text, of, join or default, **kubelet)).decode()
