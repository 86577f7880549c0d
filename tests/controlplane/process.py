"""Watching a `karpenter run` process from outside: its log, memory and CPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path


def moment(line: Mapping[str, object]) -> datetime:
    """When a log line was written."""
    return datetime.fromisoformat(str(line["time"]))


class Controller:
    """A running controller process."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log

    def lines(self, message: str) -> list[dict[str, object]]:
        """Log lines with this message."""
        written = (text for text in self._log.read_text().splitlines() if text.startswith("{") and text.endswith("}"))
        return [line for line in map(json.loads, written) if line["message"] == message]

    def await_line(self, message: str, seconds: float = 30.0) -> None:
        """Wait until the message is in the log."""
        end = time.monotonic() + seconds
        while not self.lines(message):
            if time.monotonic() > end or self._process.poll() is not None:
                raise TimeoutError(f"the controller never logged {message!r}:\n{self._log.read_text()[-2000:]}")
            time.sleep(0.02)

    @property
    def resident_mb(self) -> float:
        """Resident memory now."""
        return int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]) * 4096 / 1e6

    @property
    def cpu_seconds(self) -> float:
        """User and system time so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def controller(kubeconfig: str, *flags: str) -> Iterator[Controller]:
    """Start `karpenter run` on a cluster and stop it with SIGTERM; it must end with 0."""
    program = Path(sys.executable).with_name("karpenter")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        environment = {**os.environ, "KUBECONFIG": kubeconfig}
        with log.open("wb") as out:
            process = subprocess.Popen(
                [str(program), "run", "--provider", "simulated", "--health-probe-port", "0", *flags],
                env=environment,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        try:
            yield Controller(process, log)
            process.send_signal(signal.SIGTERM)
            if process.wait(30):
                raise RuntimeError(f"the controller ended with {process.returncode}:\n{log.read_text()[-2000:]}")
        finally:
            process.kill()
            process.wait()
