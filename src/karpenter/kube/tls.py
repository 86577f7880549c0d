"""TLS contexts: which API server is trusted, and the client certificate presented to it.

It accepts what Go's TLS accepts, because all other clients of the cluster do: authorities without the extensions that RFC 5280
requires (older managed clusters have such), and a certificate that is trusted itself without its issuer.
"""

from __future__ import annotations

import os
import re
import ssl
import sys
import tempfile
from dataclasses import dataclass, field
from functools import lru_cache

from karpenter.kube.reloaded_files import ReloadedTexts

#: Where distributions have their authorities, for a Python that was built to look elsewhere.
_AUTHORITY_FILES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/tls/cert.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
_HASHED_NAME = re.compile(r"[0-9a-f]{8}\.\d+")


class UnusableCertificate(Exception):
    """Certificates or a key TLS can do nothing with; the message says which."""


@dataclass(frozen=True, slots=True)
class ServerTrust:
    """How servers are verified.

    ``authorities`` hold one text of PEM certificates, None for those of the system. ``server_name`` is the name the server's
    certificate has to be for, empty for the one in the URL.
    ``skips_verification`` accepts every certificate.
    """

    authorities: ReloadedTexts | None = None
    server_name: str = ""
    skips_verification: bool = False


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """What one TLS context is made of, in PEM; empty where there is nothing. Equal material makes equal contexts."""

    authorities: bytes = b""
    certificate: bytes = field(default=b"", repr=False)
    key: bytes = field(default=b"", repr=False)


def current_material(trust: ServerTrust, certificate: bytes, key: bytes) -> TlsMaterial:
    """The material as it is now. Raises ``SourceUnreadable``."""
    (authorities,) = trust.authorities.current() if trust.authorities is not None else (b"",)
    return TlsMaterial(authorities, certificate, key)


def ssl_context(trust: ServerTrust, material: TlsMaterial) -> ssl.SSLContext:
    """The context for new connections. Raises ``UnusableCertificate``.

    Clients with equal material share it, so the system's certificate authorities are read once. It is never modified.
    """
    return _shared_context(material, skips_verification=trust.skips_verification)


def system_context() -> ssl.SSLContext:
    """The context for servers for which the authorities of the system vouch. Raises ``UnusableCertificate``."""
    return ssl_context(ServerTrust(), TlsMaterial())


def check_client_certificate(certificate: bytes, key: bytes) -> None:
    """Raises ``UnusableCertificate`` unless they are a pair. Nothing of them is kept."""
    _new_context(TlsMaterial(b"", certificate, key), skips_verification=True)


@lru_cache(maxsize=4)
def _shared_context(material: TlsMaterial, *, skips_verification: bool) -> ssl.SSLContext:
    """A process has several clients of one cluster. Reading a hundred authorities takes 30 ms and half a megabyte."""
    return _new_context(material, skips_verification=skips_verification)


def _new_context(material: TlsMaterial, *, skips_verification: bool) -> ssl.SSLContext:
    made = _verifying_context(material.authorities, skips_verification=skips_verification)
    made.set_alpn_protocols(["http/1.1"])
    if material.certificate:
        _load_client_certificate(made, material)
    return made


def _verifying_context(authorities: bytes, *, skips_verification: bool) -> ssl.SSLContext:
    if skips_verification:
        trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        return trusting
    try:
        made = ssl.create_default_context(cadata=authorities.decode("ascii")) if authorities else _trusting_the_system()
    except (ssl.SSLError, ValueError) as error:
        reason = _short_reason(error)
        raise UnusableCertificate(f"certificate-authority holds no certificates in PEM ({reason})") from error
    made.verify_flags &= ~ssl.VERIFY_X509_STRICT
    made.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return made


def _trusting_the_system() -> ssl.SSLContext:
    """The authorities that ``SSL_CERT_FILE`` and ``SSL_CERT_DIR`` name, else those of the system."""
    named = os.environ.get("SSL_CERT_FILE")
    if named and not os.path.isfile(named):
        raise UnusableCertificate(f"SSL_CERT_FILE names {named}, and there is no such file")
    if sys.platform == "darwin" and not named:
        import truststore

        return truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made = ssl.create_default_context()
    if not _has_known_authorities(ssl.get_default_verify_paths()):
        for file in filter(os.path.isfile, _AUTHORITY_FILES):
            made.load_verify_locations(file)
            break
    return made


def _has_known_authorities(paths: ssl.DefaultVerifyPaths) -> bool:
    """Whether Python finds any where it looks: a file, or a folder with names by which OpenSSL looks them up."""
    file: str | None = paths.cafile  # None where there is no such file; the same for the folder
    folder: str | None = paths.capath
    return file is not None or (folder is not None and any(map(_HASHED_NAME.fullmatch, os.listdir(folder))))


def _load_client_certificate(context: ssl.SSLContext, material: TlsMaterial) -> None:
    # The library only reads certificates from files.
    with tempfile.NamedTemporaryFile(prefix="karpenter-") as file:
        file.write(material.certificate + b"\n" + material.key + b"\n")
        file.flush()
        try:
            context.load_cert_chain(file.name, password=_refuse_password)
        except (ssl.SSLError, ValueError, OSError) as error:
            raise UnusableCertificate(
                f"the client certificate and its key are not a pair in PEM ({_short_reason(error)})"
            ) from error


def _refuse_password() -> str:
    raise ValueError("the key is encrypted")


def _short_reason(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return str(reason or error)
