"""`karpenter run` as processes of their own: observed, signalled and killed from outside.

A process gets the arguments and the environment that the Deployment in `deploy/` gives its container, and free ports for probes
and metrics. Tests that need two replicas start two. Start them from the main thread: they die with the thread that started them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from prometheus_client.parser import text_string_to_metric_families

from controlplane import deployed
from controlplane.harness import die_with_parent
from controlplane.ports import free_port
from controlplane.timeouts import scaled_timeout
from support.installed_program import KARPENTER

_END_SECONDS = 40.0
_POLL_SECONDS = 0.05
_ANSWER_SECONDS = 5.0
#: Intervals at which controllers repeat their work, shorter than in production: tests wait for the work, not for its turn.
QUICK: Mapping[str, str] = MappingProxyType(
    {
        "KARPENTER_DISRUPTION_POLL_INTERVAL": "2s",
        "KARPENTER_DISRUPTION_VALIDATION_INTERVAL": "3s",
        "KARPENTER_PROVISIONING_RETRY_INTERVAL": "3s",
        "KARPENTER_GARBAGE_COLLECTION_INTERVAL": "20s",
        "KARPENTER_METRICS_REFRESH_INTERVAL": "2s",
    }
)
#: One of the controllers that a standby does not run.
_LEADERS_CONTROLLER = "provisioner"
_PROGRAM = (KARPENTER,)


#: The value of every sample, by name and labels.
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Controller:
    """A controller process."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, ports: Mapping[str, int]) -> None:
        self._process = process
        self._log = log
        self._ports = ports

    # -- what it says -------------------------------------------------------------------------------------------------

    @property
    def log(self) -> str:
        """Everything it has written."""
        return self._log.read_text()

    def lines(self, message: str = "") -> list[dict[str, object]]:
        """Log lines, all or those with this message."""
        # A text that lacks the message is not decoded: tests ask many times a second.
        encoded = json.dumps(message, ensure_ascii=False)[1:-1]
        written = (
            text for text in self.log.splitlines() if text.startswith("{") and text.endswith("}") and encoded in text
        )
        return [line for line in map(json.loads, written) if not message or line["message"] == message]

    def await_line(self, message: str, seconds: float = 30.0) -> None:
        """Wait until the message is in the log."""
        self.until(lambda: bool(self.lines(message)), f"log {message!r}", seconds)

    @property
    def leads(self) -> bool:
        """Whether it has started the controllers that only the leader runs."""
        return any(line.get("controller") == _LEADERS_CONTROLLER for line in self.lines("Starting Controller"))

    def await_leading(self, seconds: float = 30.0) -> None:
        """Wait until it ``leads``."""
        self.until(lambda: self.leads, "lead", seconds)

    def until(self, condition: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
        """Wait until something about the process holds; ``TimeoutError`` with the end of the log at the deadline or its end."""
        end = time.monotonic() + scaled_timeout(seconds)
        while not condition():
            if time.monotonic() > end or self._process.poll() is not None:
                raise TimeoutError(f"the controller did not {what}:\n{self.log[-2000:]}")
            time.sleep(_POLL_SECONDS)

    def probe(self, path: str) -> tuple[int, str]:
        """Status and body its probe port answers (``/healthz``, ``/readyz``); 0 without an answer."""
        return _fetch(self._ports["HEALTH_PROBE_PORT"], path)

    def is_ready(self) -> bool:
        """Whether a readiness probe succeeds."""
        return self.probe("/readyz")[0] == 200

    def metrics(self) -> Samples:
        """Its metrics now. ``ConnectionError`` without an answer."""
        return scraped(self._ports["METRICS_PORT"])

    def exposition(self) -> str:
        """The body of its metrics endpoint now. ``ConnectionError`` without an answer."""
        return _exposition(self._ports["METRICS_PORT"])

    def disruption_passes(self) -> float:
        """How many times it has considered disruption."""
        return sum(
            value
            for (name, labels), value in self.metrics().items()
            if name == "controller_runtime_reconcile_total" and ("controller", "disruption") in labels
        )

    # -- what is done to it -------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """SIGKILL, as a node does that runs out of memory."""
        self._process.kill()
        self._process.wait()

    def terminate(self) -> int:
        """SIGTERM, as a kubelet does; the exit code, ``TimeoutExpired`` when it takes longer than a pod is given."""
        self._process.terminate()
        return self._process.wait(scaled_timeout(_END_SECONDS))

    def pause(self) -> None:
        """SIGSTOP: it stops without noticing, as on a node that hangs."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT: it goes on where it was paused."""
        self._process.send_signal(signal.SIGCONT)

    def ended(self, seconds: float = _END_SECONDS) -> int:
        """Wait until it ends by itself; its exit code."""
        return self._process.wait(scaled_timeout(seconds))

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    # -- what it costs ------------------------------------------------------------------------------------------------

    @property
    def resident_mb(self) -> float:
        """Resident memory now."""
        return int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]) * 4096 / 1e6

    @property
    def anonymous_bytes(self) -> int:
        """Resident memory now that is no file's."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.partition("RssAnon:")[2].split()[0]) * 1024

    @property
    def cpu_seconds(self) -> float:
        """User and system time so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def controller(
    kubeconfig: str,
    *flags: str,
    environment: Mapping[str, str] = MappingProxyType({}),
    intervals: Mapping[str, str] = QUICK,
    program: Sequence[str] = _PROGRAM,
) -> Iterator[Controller]:
    """Start `karpenter run` on a cluster, with short ``intervals``, and stop it with SIGTERM; it must end with 0.

    ``environment`` comes on top.

    ``program`` is what stands for `karpenter`. A test may end the process before, in whatever way; then how it ended is the
    test's matter.
    """
    arguments: list[str] = deployed.container()["args"]
    with tempfile.TemporaryDirectory() as folder:
        more = {**intervals, **environment}
        running = _started(kubeconfig, (*program, *arguments, *flags), more, Path(folder) / "log")
        try:
            yield running
            if running.is_running and (code := running.terminate()):
                raise RuntimeError(f"the controller ended with {code}:\n{running.log[-2000:]}")
        finally:
            running.kill()


def _started(kubeconfig: str, command: tuple[str, ...], more: Mapping[str, str], log: Path) -> Controller:
    ports = {name: free_port() for name in ("HEALTH_PROBE_PORT", "METRICS_PORT", "WEBHOOK_PORT")}
    environment = {
        **os.environ,
        "KUBECONFIG": kubeconfig,
        **deployed.environment(),
        **{name: str(port) for name, port in ports.items()},
        **more,
    }
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            preexec_fn=die_with_parent(),
        )
    return Controller(process, log, ports)


def scraped(port: int) -> Samples:
    """The metrics served on a port. ``ConnectionError`` where none are served."""
    families = text_string_to_metric_families(_exposition(port))
    return {(sample.name, frozenset(sample.labels.items())): sample.value for one in families for sample in one.samples}


def _exposition(port: int) -> str:
    status, text = _fetch(port, "/metrics")
    if status != 200:
        raise ConnectionError(f"/metrics answered {status}: {text}")
    return text


def _fetch(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=_ANSWER_SECONDS) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)
