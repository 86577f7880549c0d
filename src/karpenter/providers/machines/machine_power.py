"""Switching hosts: the contract, and drivers that are programs in a directory.

A driver is called as ``DRIVER on|off|status HOST`` with the host's variables in its environment, as ``MACHINE_<NAME>``. It
exits with 0, and ``status`` prints ``on`` or ``off``. The directory belongs to whoever runs the controller: an object in the
cluster names a driver and cannot say what it runs.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from karpenter.model.texts import shorten

#: Seconds after which a driver counts as failed.
COMMAND_TIMEOUT_SECONDS = 60.0
_MOST_OUTPUT = 300


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
    """Runs drivers of a directory. Each call takes a thread while its program runs."""

    def __init__(self, directory: str, timeout_seconds: float = COMMAND_TIMEOUT_SECONDS) -> None:
        self._directory = Path(directory)
        self._timeout_seconds = timeout_seconds

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
        return await asyncio.to_thread(self._run_blocking, driver, action, host, variables)

    def _run_blocking(self, driver: str, action: str, host: str, variables: Mapping[str, str]) -> str:
        program = self._directory / driver
        environment = {**os.environ, **{f"MACHINE_{name}": value for name, value in variables.items()}}
        words = f"{driver} {action} {host}"
        try:
            # The name of a driver has no slash (admission, and checked again here), so it stays inside the directory.
            if program.parent != self._directory or not self._directory.name:
                raise PowerFailed(f"no power driver {driver!r}: set --machine-power-directory")
            result = subprocess.run(
                [str(program), action, host],
                env=environment,
                capture_output=True,
                text=True,
                timeout=self._timeout_seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise PowerFailed(f"{words} did not end within {self._timeout_seconds:g} s") from None
        except OSError as error:
            raise PowerFailed(f"{words}: {program}: {error.strerror}") from None
        if result.returncode != 0:
            said = shorten((result.stderr or result.stdout).strip(), _MOST_OUTPUT)
            raise PowerFailed(f"{words} ended with {result.returncode}: {said}")
        return result.stdout
