"""Switching hosts: the contract, and drivers that are programs in a directory.

A driver is called as ``DRIVER on|off|status HOST`` with the host's variables in its environment, as ``MACHINE_<NAME>``. It
exits with 0, and ``status`` prints ``on`` or ``off``. The operator of the controller owns the directory: an object in the cluster
names a driver but cannot choose what it runs.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from karpenter.model.texts import shorten

#: Seconds after which a driver counts as failed: a call of the provider runs three of them within its time-out of a minute.
COMMAND_TIMEOUT_SECONDS = 15.0
#: Drivers that run at the same time.
_MAX_CONCURRENT = 16
#: Characters of a driver's output in messages.
_MOST_OUTPUT = 300
_MOST_KEPT_BYTES = 65_536
_LAST_OUTPUT_SECONDS = 0.5


class PowerFailed(Exception):
    """A host could not be switched, or not be asked; the message says what the driver said."""


class MachinePower(Protocol):
    """What switches hosts. All methods raise ``PowerFailed``, and may be repeated."""

    async def on(self, driver: str, host: str, variables: Mapping[str, str]) -> None:
        """Power a host on."""

    async def off(self, driver: str, host: str, variables: Mapping[str, str]) -> None:
        """Power a host off, or ask it to shut down."""

    async def is_on(self, driver: str, host: str, variables: Mapping[str, str]) -> bool:
        """Whether a host has power."""


class PowerCommands:
    """Runs drivers of a directory, a bounded number at a time. A driver that takes too long is killed with all it started."""

    def __init__(self, directory: str, timeout_seconds: float = COMMAND_TIMEOUT_SECONDS) -> None:
        self._directory = Path(directory)
        self._timeout_seconds = timeout_seconds
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT)

    async def on(self, driver: str, host: str, variables: Mapping[str, str]) -> None:
        """Run ``DRIVER on HOST``."""
        await self._run(driver, "on", host, variables)

    async def off(self, driver: str, host: str, variables: Mapping[str, str]) -> None:
        """Run ``DRIVER off HOST``."""
        await self._run(driver, "off", host, variables)

    async def is_on(self, driver: str, host: str, variables: Mapping[str, str]) -> bool:
        """Run ``DRIVER status HOST``."""
        answer = (await self._run(driver, "status", host, variables)).strip()
        if answer not in ("on", "off"):
            raise PowerFailed(f"{driver} status {host} printed {shorten(answer, _MOST_OUTPUT)!r}, neither on nor off")
        return answer == "on"

    async def _run(self, driver: str, action: str, host: str, variables: Mapping[str, str]) -> str:
        program = self._directory / driver
        # The name of a driver has no slash (admission, and checked again here), so it stays inside the directory.
        if program.parent != self._directory or not self._directory.name:
            raise PowerFailed(f"no power driver {driver!r}: set --machine-power-directory")
        environment = {**os.environ, **{f"MACHINE_{name}": value for name, value in variables.items()}}
        words = f"{driver} {action} {host}"
        async with self._slots:
            code, output, errors = await self._run_program((str(program), action, host), environment)
        if code != 0:
            said = shorten((errors or output).strip(), _MOST_OUTPUT)
            raise PowerFailed(f"{words} ended with {code}: {said}")
        return output

    async def _run_program(self, command: tuple[str, str, str], environment: Mapping[str, str]) -> tuple[int, str, str]:
        """Exit code, output and errors of a program, which leads a session of its own. Raises ``PowerFailed``."""
        words = " ".join((Path(command[0]).name, *command[1:]))
        loop = asyncio.get_running_loop()
        try:
            transport, driver = await loop.subprocess_exec(
                _DriverProtocol, *command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True
            )
        except OSError as error:
            raise PowerFailed(f"{words}: {command[0]}: {error.strerror}") from None
        try:
            async with asyncio.timeout(self._timeout_seconds):
                await driver.exited.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_OUTPUT_SECONDS):
                    await driver.closed.wait()
        except TimeoutError:
            raise PowerFailed(f"{words} did not end within {self._timeout_seconds:g} s") from None
        finally:
            if not driver.exited.is_set():
                with suppress(ProcessLookupError):
                    os.killpg(transport.get_pid(), signal.SIGKILL)
                await driver.exited.wait()
            transport.close()
        return transport.get_returncode() or 0, driver.text(1), driver.text(2)


class _DriverProtocol(asyncio.SubprocessProtocol):
    """Keeps the beginning of what a driver writes, and reads the rest so that the driver never blocks.

    What the driver leaves running in the background may hold its output open: ``exited`` comes first, ``closed`` maybe never.
    """

    def __init__(self) -> None:
        self.exited = asyncio.Event()
        self.closed = asyncio.Event()
        self._kept: dict[int, bytearray] = {1: bytearray(), 2: bytearray()}

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Called by the loop."""
        kept = self._kept[fd]
        kept.extend(data[: _MOST_KEPT_BYTES - len(kept)])

    def process_exited(self) -> None:
        """Called by the loop."""
        self.exited.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop when the process has ended and its output is closed."""
        self.closed.set()

    def text(self, fd: int) -> str:
        """What was written to standard output (1) or standard error (2)."""
        return self._kept[fd].decode(errors="replace")
