"""Credentials a helper program hands out (``users[].user.exec`` of a kubeconfig, ``client.authentication.k8s.io``).

The program runs when a token is first needed, again shortly before the token expires, and once more when the server refuses it.
Programs that hand out client certificates instead of tokens are refused with a clear message.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import httpx2
import msgspec

_VERSIONS = frozenset(f"client.authentication.k8s.io/{version}" for version in ("v1", "v1beta1", "v1alpha1"))
_EARLY = timedelta(seconds=30)
_UNAUTHORIZED = 401


class CredentialsRefused(Exception):
    """The helper program gave no usable credentials; the message says what to do."""


class _Status(msgspec.Struct, rename="camel"):
    token: str = ""
    expiration_timestamp: datetime | None = None


class _ExecCredential(msgspec.Struct):
    status: _Status = msgspec.field(default_factory=_Status)


@dataclass(frozen=True, slots=True)
class Program:
    """A helper program as the kubeconfig names it."""

    api_version: str
    command: str
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    install_hint: str = ""


class ProgramAuth(httpx2.Auth):
    """Bearer tokens from a helper program."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._current: _Status | None = None
        self._renewal = asyncio.Lock()

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Send with the current token; when it is refused, once more with a new one."""
        status = await self._renewed(unless=None)
        request.headers["Authorization"] = f"Bearer {status.token}"
        response = yield request
        if response.status_code == _UNAUTHORIZED:
            status = await self._renewed(unless=status)
            request.headers["Authorization"] = f"Bearer {status.token}"
            yield request

    async def _renewed(self, unless: _Status | None) -> _Status:
        """A valid token other than ``unless``; whoever comes first fetches it for all."""
        async with self._renewal:
            current = self._current
            if current is None or current is unless or _expires_soon(current):
                current = self._current = await _run(self._program)
            return current


def _expires_soon(status: _Status) -> bool:
    expiry = status.expiration_timestamp
    return expiry is not None and expiry - _EARLY <= datetime.now(UTC)


async def _run(program: Program) -> _Status:
    if program.api_version not in _VERSIONS:
        raise CredentialsRefused(
            f"{program.command}: the kubeconfig asks for {program.api_version!r}, which is unknown"
        )
    request = {"apiVersion": program.api_version, "kind": "ExecCredential", "spec": {"interactive": False}}
    environment = {**os.environ, **program.environment, "KUBERNETES_EXEC_INFO": msgspec.json.encode(request).decode()}
    pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    try:
        process = await asyncio.create_subprocess_exec(
            program.command, *program.arguments, env=environment, stdin=nothing, stdout=pipe, stderr=pipe
        )
    except OSError as error:
        hint = f"; {program.install_hint}" if program.install_hint else ""
        raise CredentialsRefused(f"cannot run {program.command}: {error.strerror}{hint}") from error
    output, complaint = await process.communicate()
    if process.returncode != 0:
        text = " ".join(complaint.decode(errors="replace").split())
        raise CredentialsRefused(f"{program.command} failed with code {process.returncode}: {text}")
    return _parsed(program, output)


def _parsed(program: Program, output: bytes) -> _Status:
    try:
        status = msgspec.json.decode(output, type=_ExecCredential).status
    except msgspec.MsgspecError as error:
        raise CredentialsRefused(f"{program.command} wrote no ExecCredential: {error}") from error
    if not status.token:
        raise CredentialsRefused(
            f"{program.command} gave no token; client certificates from programs are not supported"
        )
    return status
