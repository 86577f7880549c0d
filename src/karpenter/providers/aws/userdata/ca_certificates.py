"""The hashes by which kubeadm recognizes a cluster's certificate authorities (AWS-921). Pure."""

from __future__ import annotations

import base64
import binascii
import hashlib
from functools import lru_cache

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509 import load_pem_x509_certificates

from karpenter.providers.aws.userdata.bootstrap_options import UserDataError


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
