"""The identity presented to an API server: tokens, passwords and client certificates, and their renewal.

An ``Identity`` belongs to a ``config.Connection`` and is shared by all its clients: what one of them had to renew, the others
need not. Here are those that lie in the kubeconfig or in files; those of a helper program are in ``exec_credentials``.
"""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass, field
from typing import Protocol

from karpenter.kube.reloaded_files import ReloadedTexts, SourceUnreadable, TextSource


class CredentialsRefused(Exception):
    """There are no usable credentials; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What we show: the ``Authorization`` header, and a client certificate with its key in PEM; empty where there is none."""

    authorization: str = field(default="", repr=False)
    certificate: bytes = field(default=b"", repr=False)
    key: bytes = field(default=b"", repr=False)


class Identity(Protocol):
    """Where credentials come from. The methods raise ``CredentialsRefused``."""

    def available(self) -> Credentials:
        """What there is without waiting; possibly nothing yet."""

    async def current(self) -> Credentials:
        """What to show now, renewed before it expires."""

    async def refreshed(self, refused: Credentials) -> Credentials:
        """What to show instead of what the server did not accept; the same again when there is nothing else."""


class FileIdentity:
    """Credentials that lie in the kubeconfig or in files it names."""

    def __init__(
        self, *, token: TextSource = b"", certificate: TextSource = b"", key: TextSource = b"", authorization: str = ""
    ) -> None:
        """``authorization`` is shown where there is no token."""
        self._sources = ReloadedTexts(token, certificate, key)
        self._authorization = authorization

    def available(self) -> Credentials:
        """See ``Identity.available``."""
        try:
            return self._credentials_of(self._sources.current())
        except SourceUnreadable as error:
            raise CredentialsRefused(str(error)) from error

    async def current(self) -> Credentials:
        """See ``Identity.current``."""
        return self.available()

    async def refreshed(self, refused: Credentials) -> Credentials:
        """See ``Identity.refreshed``: the files may have been rewritten this moment."""
        return self._credentials_of(self._sources.reload())

    def _credentials_of(self, texts: tuple[bytes, ...]) -> Credentials:
        token, certificate, key = texts
        authorization = bearer_header(token.decode("latin-1")) if token else self._authorization
        return Credentials(authorization, certificate, key)


def bearer_header(token: str) -> str:
    """The header for a bearer token."""
    return f"Bearer {token}"


def basic_header(username: str, password: str) -> str:
    """The header for a name and a password."""
    return f"Basic {b64encode(f'{username}:{password}'.encode()).decode()}"
