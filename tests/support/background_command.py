"""A command that runs beside the tests, such as the linters: its output is shown in one piece, and its failure is the run's."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import tempfile
from contextlib import suppress
from typing import IO

import pytest


class Beside:
    """Plug-in of the process that reports. What CI counts stays in place: pytest's closing line is the last one."""

    def __init__(self, command: str) -> None:
        self.command = command
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed when it has been shown
        self._process: subprocess.Popen[bytes] | None = None

    def pytest_sessionstart(self) -> None:
        """Start the command."""
        self._process = subprocess.Popen(
            shlex.split(self.command), stdout=self._output, stderr=subprocess.STDOUT, start_new_session=True
        )

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Wait for the command; a run whose tests passed fails with it."""
        if session.exitstatus == pytest.ExitCode.INTERRUPTED:
            self._end()
        if self._failed() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show what the command wrote: all of it where it failed, else its last line."""
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").splitlines()
        self._output.close()
        terminalreporter.section(f"{self.command}: {'failed' if self._failed() else 'passed'}", "-")
        for line in lines if self._failed() else lines[-1:]:
            terminalreporter.write_line(line)

    def _failed(self) -> bool:
        return self._process is not None and self._process.wait() != 0

    def _end(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGTERM)
