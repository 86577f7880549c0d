"""Credentials from a helper program (``users[].user.exec`` of a kubeconfig, ``client.authentication.k8s.io``).

The program is run when credentials are first needed, again shortly before they expire, and when the server refuses them: one run
at a time. All waiting requests share its outcome, including a failure. After a run there is a pause of a few seconds; otherwise a
server that refuses everything would have the program run without pause. If a renewal fails, credentials that have not expired
stay in use.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum

import msgspec

from karpenter.kube import tls
from karpenter.kube.credentials import Credentials, CredentialsRefused, bearer_header
from karpenter.kube.protocol import JsonObject
from karpenter.model.clock import Clock, SystemClock

EXEC_API_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")

_REFRESH_BEFORE_EXPIRY = timedelta(seconds=30)
_MIN_RUN_INTERVAL = timedelta(seconds=5)
#: How long a program may take by itself, and when a person has to do something.
_RUN_TIMEOUT_SECONDS = 60.0
_INTERACTIVE_TIMEOUT_SECONDS = 600.0
_MAX_STDERR_LENGTH = 300


class InteractiveMode(StrEnum):
    """Whether a program talks to the person at the terminal."""

    NEVER = "Never"
    IF_AVAILABLE = "IfAvailable"
    ALWAYS = "Always"


@dataclass(frozen=True, slots=True)
class ExecPlugin:
    """A helper program as the kubeconfig names it; ``cluster_info`` describes the cluster where ``provideClusterInfo`` is set."""

    api_version: str
    command: str
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    install_hint: str = ""
    interactive_mode: InteractiveMode = InteractiveMode.IF_AVAILABLE
    cluster_info: Callable[[], JsonObject] | None = None


class _ExecStatus(msgspec.Struct, rename="camel"):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: datetime | None = None


class _ExecCredential(msgspec.Struct, rename="camel"):
    api_version: str = ""
    kind: str = ""
    status: _ExecStatus | None = None


@dataclass(frozen=True, slots=True)
class _RunSuccess:
    """What a run gave, and when."""

    credentials: Credentials
    at: datetime
    expires: datetime | None


@dataclass(frozen=True, slots=True)
class _RunFailure:
    """Why a run gave nothing, and when."""

    error: CredentialsRefused
    at: datetime


class ExecIdentity:
    """The identity a program gives."""

    def __init__(self, plugin: ExecPlugin, clock: Clock | None = None) -> None:
        self._plugin = plugin
        self._clock = clock or SystemClock()
        self._last_success: _RunSuccess | None = None
        self._last_failure: _RunFailure | None = None
        self._running: asyncio.Task[_RunSuccess | _RunFailure] | None = None

    def available(self) -> Credentials:
        """See ``Identity.available``."""
        return self._last_success.credentials if self._last_success is not None else Credentials()

    async def current(self) -> Credentials:
        """See ``Identity.current``."""
        given = self._last_success
        if given is None:
            return await self._run_once()
        if self._is_recent(given.at) or not self._expires_within(given, _REFRESH_BEFORE_EXPIRY):
            return given.credentials
        try:
            return await self._run_once()
        except CredentialsRefused:
            if self._expires_within(given, timedelta()):
                raise
            return given.credentials

    async def refreshed(self, refused: Credentials) -> Credentials:
        """See ``Identity.refreshed``."""
        given = self._last_success
        if given is not None and (given.credentials != refused or self._is_recent(given.at)):
            return given.credentials
        return await self._run_once()

    def _expires_within(self, given: _RunSuccess, span: timedelta) -> bool:
        return given.expires is not None and given.expires - span <= self._clock.now()

    def _is_recent(self, moment: datetime) -> bool:
        return self._clock.now() - moment < _MIN_RUN_INTERVAL

    async def _run_once(self) -> Credentials:
        """What the run that is going on gives; one is begun where there is none."""
        failed = self._last_failure
        if failed is not None and self._is_recent(failed.at):
            raise CredentialsRefused(str(failed.error))
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run_plugin())
        # One waiter that gives up does not take the run away from the others.
        outcome = await asyncio.shield(self._running)
        if isinstance(outcome, _RunFailure):
            raise CredentialsRefused(str(outcome.error)) from outcome.error
        return outcome.credentials

    async def _run_plugin(self) -> _RunSuccess | _RunFailure:
        try:
            status = _parse_exec_credential(self._plugin, await _plugin_output(self._plugin))
            credentials = _credentials_of_status(self._plugin, status)
        except CredentialsRefused as error:
            self._last_failure = _RunFailure(error, self._clock.now())
            return self._last_failure
        self._last_failure = None
        self._last_success = _RunSuccess(credentials, self._clock.now(), _with_utc(status.expiration_timestamp))
        return self._last_success


async def _plugin_output(plugin: ExecPlugin) -> bytes:
    """What the program writes. Raises ``CredentialsRefused``."""
    interactive = _is_interactive(plugin)
    spec: dict[str, object] = {"interactive": interactive}
    if plugin.cluster_info is not None:
        spec["cluster"] = plugin.cluster_info()
    request = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
    environment = {**os.environ, **plugin.environment, "KUBERNETES_EXEC_INFO": msgspec.json.encode(request).decode()}
    pipe = asyncio.subprocess.PIPE
    # The user has to see the program's prompts, and to answer them.
    stdin, stderr = (None, None) if interactive else (asyncio.subprocess.DEVNULL, pipe)
    try:
        process = await asyncio.create_subprocess_exec(
            plugin.command,
            *plugin.arguments,
            env=environment,
            stdin=stdin,
            stdout=pipe,
            stderr=stderr,
            # So that what it started can be ended with it. A program that talks to a person has to keep the terminal.
            start_new_session=not interactive,
        )
    except OSError as error:
        hint = f"; {' '.join(plugin.install_hint.split())}" if plugin.install_hint else ""
        raise CredentialsRefused(f"cannot run {plugin.command}: {error.strerror}{hint}") from error
    return await _wait_for_output(
        plugin, process, _INTERACTIVE_TIMEOUT_SECONDS if interactive else _RUN_TIMEOUT_SECONDS
    )


def _is_interactive(plugin: ExecPlugin) -> bool:
    is_terminal = sys.stdin is not None and sys.stdin.isatty()
    if plugin.interactive_mode is InteractiveMode.ALWAYS and not is_terminal:
        raise CredentialsRefused(f"{plugin.command} needs a terminal (interactiveMode: Always), and there is none here")
    return is_terminal and plugin.interactive_mode is not InteractiveMode.NEVER


async def _wait_for_output(plugin: ExecPlugin, process: asyncio.subprocess.Process, timeout_seconds: float) -> bytes:
    try:
        output, complaint = await asyncio.wait_for(process.communicate(), timeout_seconds)
    except TimeoutError as error:
        raise CredentialsRefused(f"{plugin.command} gave no answer within {timeout_seconds:g} s") from error
    finally:
        if process.returncode is None:
            _kill(process)
            await process.wait()
    if process.returncode != 0:
        text = " ".join((complaint or b"").decode(errors="replace").split())[:_MAX_STDERR_LENGTH]
        raise CredentialsRefused(f"{plugin.command} failed with code {process.returncode}: {text}")
    return output


def _kill(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        if os.getpgid(process.pid) == process.pid:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


def _parse_exec_credential(plugin: ExecPlugin, output: bytes) -> _ExecStatus:
    from karpenter.api.kinds import without_nulls

    try:
        credential = msgspec.convert(without_nulls(msgspec.json.decode(output)), _ExecCredential)
    except msgspec.MsgspecError as error:
        raise CredentialsRefused(f"{plugin.command} wrote no ExecCredential: {error}") from error
    if (credential.kind, credential.api_version) != ("ExecCredential", plugin.api_version):
        raise CredentialsRefused(
            f"{plugin.command} wrote {credential.kind or 'no kind'} of {credential.api_version or 'no version'}; "
            f"the kubeconfig asks for ExecCredential of {plugin.api_version}"
        )
    if credential.status is None:
        raise CredentialsRefused(f"{plugin.command} wrote an ExecCredential without a status")
    return credential.status


def _credentials_of_status(plugin: ExecPlugin, status: _ExecStatus) -> Credentials:
    certificate, key = status.client_certificate_data.encode(), status.client_key_data.encode()
    if not status.token and not certificate and not key:
        raise CredentialsRefused(f"{plugin.command} gave neither a token nor a client certificate")
    if bool(certificate) != bool(key):
        raise CredentialsRefused(f"{plugin.command} gave only one of client certificate and key")
    try:
        if certificate:
            tls.check_client_certificate(certificate, key)
    except tls.UnusableCertificate as error:
        raise CredentialsRefused(f"{plugin.command}: {error}") from error
    return Credentials(bearer_header(status.token) if status.token else "", certificate, key)


def _with_utc(moment: datetime | None) -> datetime | None:
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment
