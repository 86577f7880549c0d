"""The serving certificate of the conversion webhook: self-signed, kept in a Secret, renewed long before it ends.

The API server trusts exactly the certificates in ``caBundle`` of a CRD, so the certificate signs itself and needs no authority.
While it is renewed, the bundle holds the old and the new one: replicas change at different moments.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFETIME = timedelta(days=365)
#: A certificate with less time left is replaced.
RENEWAL_MARGIN = timedelta(days=90)
#: How far the clock of the API server may be behind ours.
_CLOCK_DIFFERENCE = timedelta(hours=1)
_CERTIFICATE, _KEY, _TRUSTED = "tls.crt", "tls.key", "ca.crt"


@dataclass(frozen=True, slots=True)
class ServingCertificate:
    """A certificate, its key, and all certificates that clients are to trust, each as PEM."""

    certificate: bytes
    key: bytes
    trusted: bytes

    def __repr__(self) -> str:
        return "ServingCertificate(...)"

    def as_secret_data(self) -> dict[str, str]:
        """As ``data`` of a Secret of type ``kubernetes.io/tls``."""
        files = {_CERTIFICATE: self.certificate, _KEY: self.key, _TRUSTED: self.trusted}
        return {name: b64encode(content).decode() for name, content in files.items()}

    @staticmethod
    def from_secret_data(data: Mapping[str, str]) -> ServingCertificate | None:
        """None where the Secret does not hold a certificate with its key."""
        try:
            certificate, key, trusted = (b64decode(data.get(name, "")) for name in (_CERTIFICATE, _KEY, _TRUSTED))
        except Base64Error:
            return None
        return ServingCertificate(certificate, key, trusted) if certificate and key and trusted else None


def new_certificate(host: str, now: datetime, previous: ServingCertificate | None = None) -> ServingCertificate:
    """A certificate for ``host``. Clients are to trust that of ``previous`` as well."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_DIFFERENCE)
        .not_valid_after(now + LIFETIME)
        .add_extension(x509.SubjectAlternativeName([_general_name(host)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(Encoding.PEM)
    return ServingCertificate(
        pem,
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        pem + (previous.certificate if previous is not None else b""),
    )


def is_usable(kept: ServingCertificate, host: str, now: datetime) -> bool:
    """Whether the certificate is for this host and has enough time left."""
    try:
        certificate = x509.load_pem_x509_certificate(kept.certificate)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        return False
    return _general_name(host) in names and now < certificate.not_valid_after_utc - RENEWAL_MARGIN


def _general_name(host: str) -> x509.GeneralName:
    """A host name or an IP address as certificates name it."""
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)
