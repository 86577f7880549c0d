"""Certificates for tests of TLS, made with the `openssl` command: authorities, and what they issue to servers and clients."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


@dataclass(frozen=True)
class Certificate:
    """A certificate and its key, as files."""

    certificate_file: Path
    key_file: Path

    @property
    def certificate(self) -> bytes:
        """The certificate in PEM."""
        return self.certificate_file.read_bytes()

    @property
    def key(self) -> bytes:
        """Its key in PEM."""
        return self.key_file.read_bytes()


class Authority(Certificate):
    """Issues certificates."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        made = _made(folder, name, "-x509", *_KEY, "-subj", f"/CN={name}")
        super().__init__(made.certificate_file, made.key_file)

    def issue(self, name: str, *hosts: str) -> Certificate:
        """A certificate for a client or user of that name, or for a server under these hosts (``DNS:x``, ``IP:y``)."""
        names = ("-addext", f"subjectAltName={','.join(hosts)}") if hosts else ()
        issuer = ("-CA", str(self.certificate_file), "-CAkey", str(self.key_file))
        no_authority = ("-addext", "basicConstraints=critical,CA:FALSE")
        return _made(
            self.certificate_file.parent, name, "-x509", *issuer, *_KEY, "-subj", f"/CN={name}", *no_authority, *names
        )


def _made(folder: Path, name: str, *arguments: str) -> Certificate:
    made = Certificate(folder / f"{name}.crt", folder / f"{name}.key")
    files = ("-out", str(made.certificate_file), "-keyout", str(made.key_file))
    done = subprocess.run(["openssl", "req", *arguments, "-days", "2", *files], capture_output=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"these tests make certificates with openssl: {done.stderr.decode()}")
    return made
