"""A large cluster: filling the caches, the memory they take, a snapshot, and what news and silence cost.

API server, controller and measurement are three processes; figures of the controller are read from outside.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.figures import Figure
from karpenter.simulation.apiserver.http_front import kubeconfig_for

NODES, PODS = 5_000, 50_000
_EVENTS_PER_SECOND = 1_000
_REST_SECONDS = 40
_IDLE_SECONDS = 60
_CHURN_SECONDS = 30
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def figures() -> Iterator[Figure]:
    """Everything the scale targets name, in the order it is measured."""
    with _process("scale_server", str(NODES), str(PODS)) as server, tempfile.TemporaryDirectory() as folder:
        url = _line(server)
        path = Path(folder) / "kubeconfig"
        path.write_text(kubeconfig_for(url))
        with _process("scale_controller", str(path)) as controller:
            told = json.loads(_line(controller))
            size = f"{NODES} nodes, {PODS} pods"
            yield Figure("caches filled over HTTP", told["filled_seconds"], "s", 20.0, size)
            first, *later = told["snapshot_seconds"]
            yield Figure("first snapshot", first, "s", 0.2, size)
            yield Figure("snapshot when nothing changed", min(later), "s", 0.2, size)
            yield Figure("controller resident when filled", _resident_mb(controller.pid), "MB", 700.0, size)
            time.sleep(_REST_SECONDS)
            yield Figure(
                "cores used at rest", _cores(controller.pid, _IDLE_SECONDS), "core", 0.05, f"over {_IDLE_SECONDS} s"
            )
            yield from _churn(server, controller)
            server.kill()  # first: it would complain of a client that went in the middle of a request


def _churn(server: subprocess.Popen[str], controller: subprocess.Popen[str]) -> Iterator[Figure]:
    assert server.stdin is not None
    server.stdin.write(f"churn {_EVENTS_PER_SECOND} {_CHURN_SECONDS}\n")
    server.stdin.flush()
    before = _cpu_seconds(controller.pid)
    count = int(_line(server).split()[1])
    used = (_cpu_seconds(controller.pid) - before) / _CHURN_SECONDS
    note = f"{count / _CHURN_SECONDS:.0f} events a second over {_CHURN_SECONDS} s"
    yield Figure("cores used by 1000 pod events a second", used, "core", 0.5, note)
    yield Figure("controller resident after them", _resident_mb(controller.pid), "MB", 700.0)


@contextmanager
def _process(module: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", f"bench.{module}", *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"{process.args} ended with code {process.wait()}")
    return line.strip()


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND


def _cores(pid: int, seconds: int) -> float:
    before = _cpu_seconds(pid)
    time.sleep(seconds)
    return (_cpu_seconds(pid) - before) / seconds


def _resident_mb(pid: int) -> float:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024 / 1e6
