"""Credentials a helper program hands out (``users[].user.exec`` of a kubeconfig, ``client.authentication.k8s.io``).

The program is run when credentials are first needed, again shortly before they expire, and when the server refuses them: one run
at a time, whose outcome everybody who waits for it shares, its failure included. Right after a run there is no other for a
few seconds, or a server that refuses everything would have the program run without pause. Where a renewal fails, what
has not expired yet goes on being used.
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
from karpenter.kube.credentials import Credentials, CredentialsRefused, bearer
from karpenter.kube.protocol import JsonObject
from karpenter.model.clock import Clock, SystemClock

VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")

_EARLY = timedelta(seconds=30)
_PAUSE = timedelta(seconds=5)
#: How long a program may take by itself, and when a person has to do something.
_RUN_SECONDS = 60.0
_INTERACTIVE_RUN_SECONDS = 600.0
_LONGEST_COMPLAINT = 300


class InteractiveMode(StrEnum):
    """Whether a program talks to the person at the terminal."""

    NEVER = "Never"
    IF_AVAILABLE = "IfAvailable"
    ALWAYS = "Always"


@dataclass(frozen=True, slots=True)
class Program:
    """A helper program as the kubeconfig names it; ``cluster`` describes the cluster to it where it wants to know."""

    api_version: str
    command: str
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    install_hint: str = ""
    interactive_mode: InteractiveMode = InteractiveMode.IF_AVAILABLE
    cluster: Callable[[], JsonObject] | None = None


class _Status(msgspec.Struct, rename="camel"):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: datetime | None = None


class _ExecCredential(msgspec.Struct, rename="camel"):
    api_version: str = ""
    kind: str = ""
    status: _Status | None = None


@dataclass(frozen=True, slots=True)
class _Given:
    """What a run gave, and when."""

    credentials: Credentials
    at: datetime
    expires: datetime | None


@dataclass(frozen=True, slots=True)
class _Failed:
    """Why a run gave nothing, and when."""

    error: CredentialsRefused
    at: datetime


class Helper:
    """The identity a program gives."""

    def __init__(self, program: Program, clock: Clock | None = None) -> None:
        self._program = program
        self._clock = clock or SystemClock()
        self._given: _Given | None = None
        self._failed: _Failed | None = None
        self._run: asyncio.Task[_Given | _Failed] | None = None

    def at_hand(self) -> Credentials:
        """See ``Identity.at_hand``."""
        return self._given.credentials if self._given is not None else Credentials()

    async def current(self) -> Credentials:
        """See ``Identity.current``."""
        given = self._given
        if given is None:
            return await self._fetched()
        if self._is_recent(given.at) or not self._expires_within(given, _EARLY):
            return given.credentials
        try:
            return await self._fetched()
        except CredentialsRefused:
            if self._expires_within(given, timedelta()):
                raise
            return given.credentials

    async def renewed(self, refused: Credentials) -> Credentials:
        """See ``Identity.renewed``."""
        given = self._given
        if given is not None and (given.credentials != refused or self._is_recent(given.at)):
            return given.credentials
        return await self._fetched()

    def _expires_within(self, given: _Given, span: timedelta) -> bool:
        return given.expires is not None and given.expires - span <= self._clock.now()

    def _is_recent(self, moment: datetime) -> bool:
        return self._clock.now() - moment < _PAUSE

    async def _fetched(self) -> Credentials:
        """What the run that is going on gives; one is begun where there is none."""
        failed = self._failed
        if failed is not None and self._is_recent(failed.at):
            raise CredentialsRefused(str(failed.error))
        if self._run is None or self._run.done():
            self._run = asyncio.create_task(self._attempt())
        # One waiter that gives up does not take the run away from the others.
        outcome = await asyncio.shield(self._run)
        if isinstance(outcome, _Failed):
            raise CredentialsRefused(str(outcome.error)) from outcome.error
        return outcome.credentials

    async def _attempt(self) -> _Given | _Failed:
        try:
            status = _parsed(self._program, await _output(self._program))
            credentials = _credentials(self._program, status)
        except CredentialsRefused as error:
            self._failed = _Failed(error, self._clock.now())
            return self._failed
        self._failed = None
        self._given = _Given(credentials, self._clock.now(), _aware(status.expiration_timestamp))
        return self._given


async def _output(program: Program) -> bytes:
    """What the program writes. Raises ``CredentialsRefused``."""
    interactive = _is_interactive(program)
    spec: dict[str, object] = {"interactive": interactive}
    if program.cluster is not None:
        spec["cluster"] = program.cluster()
    request = {"apiVersion": program.api_version, "kind": "ExecCredential", "spec": spec}
    environment = {**os.environ, **program.environment, "KUBERNETES_EXEC_INFO": msgspec.json.encode(request).decode()}
    pipe = asyncio.subprocess.PIPE
    # A person has to see what the program asks, and to answer.
    stdin, stderr = (None, None) if interactive else (asyncio.subprocess.DEVNULL, pipe)
    try:
        process = await asyncio.create_subprocess_exec(
            program.command,
            *program.arguments,
            env=environment,
            stdin=stdin,
            stdout=pipe,
            stderr=stderr,
            # So that what it started can be ended with it. A program that talks to a person has to keep the terminal.
            start_new_session=not interactive,
        )
    except OSError as error:
        hint = f"; {' '.join(program.install_hint.split())}" if program.install_hint else ""
        raise CredentialsRefused(f"cannot run {program.command}: {error.strerror}{hint}") from error
    return await _finished(program, process, _INTERACTIVE_RUN_SECONDS if interactive else _RUN_SECONDS)


def _is_interactive(program: Program) -> bool:
    is_terminal = sys.stdin is not None and sys.stdin.isatty()
    if program.interactive_mode is InteractiveMode.ALWAYS and not is_terminal:
        raise CredentialsRefused(
            f"{program.command} wants to talk to a person (interactiveMode: Always), and there is no terminal here"
        )
    return is_terminal and program.interactive_mode is not InteractiveMode.NEVER


async def _finished(program: Program, process: asyncio.subprocess.Process, most_seconds: float) -> bytes:
    try:
        output, complaint = await asyncio.wait_for(process.communicate(), most_seconds)
    except TimeoutError as error:
        raise CredentialsRefused(f"{program.command} gave no answer within {most_seconds:g} s") from error
    finally:
        if process.returncode is None:
            _end(process)
            await process.wait()
    if process.returncode != 0:
        text = " ".join((complaint or b"").decode(errors="replace").split())[:_LONGEST_COMPLAINT]
        raise CredentialsRefused(f"{program.command} failed with code {process.returncode}: {text}")
    return output


def _end(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        if os.getpgid(process.pid) == process.pid:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


def _parsed(program: Program, output: bytes) -> _Status:
    from karpenter.api.kinds import without_nulls

    try:
        found = msgspec.convert(without_nulls(msgspec.json.decode(output)), _ExecCredential)
    except msgspec.MsgspecError as error:
        raise CredentialsRefused(f"{program.command} wrote no ExecCredential: {error}") from error
    if (found.kind, found.api_version) != ("ExecCredential", program.api_version):
        raise CredentialsRefused(
            f"{program.command} wrote {found.kind or 'no kind'} of {found.api_version or 'no version'}; "
            f"the kubeconfig asks for ExecCredential of {program.api_version}"
        )
    if found.status is None:
        raise CredentialsRefused(f"{program.command} wrote an ExecCredential without a status")
    return found.status


def _credentials(program: Program, status: _Status) -> Credentials:
    certificate, key = status.client_certificate_data.encode(), status.client_key_data.encode()
    if not status.token and not certificate and not key:
        raise CredentialsRefused(f"{program.command} gave neither a token nor a client certificate")
    if bool(certificate) != bool(key):
        raise CredentialsRefused(f"{program.command} gave only one of client certificate and key")
    try:
        tls.context(tls.Trust(is_blind=True), tls.Papers(b"", certificate, key))
    except tls.Unusable as error:
        raise CredentialsRefused(f"{program.command}: {error}") from error
    return Credentials(bearer(status.token) if status.token else "", certificate, key)


def _aware(moment: datetime | None) -> datetime | None:
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment
