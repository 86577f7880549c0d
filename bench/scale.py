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
from dataclasses import dataclass
from pathlib import Path

from bench.figures import Figure
from karpenter.runtime.leader_election import LeaseDurations
from karpenter.simulation.apiserver.http_front import kubeconfig_for


@dataclass(frozen=True)
class ClusterSize:
    """A cluster, what changes in it, and what filling, memory, rest and change may take at most."""

    nodes: int
    pods: int
    events_per_second: int
    filled_seconds: float
    first_snapshot_seconds: float
    resident_mb: float
    rest_cores: float
    churn_cores: float

    def __str__(self) -> str:
        return f"{self.nodes} nodes, {self.pods} pods"


_LARGE = ClusterSize(5_000, 50_000, 1_000, 20.0, 0.2, 700.0, 0.05, 0.5)
_LARGEST = ClusterSize(15_000, 200_000, 2_000, 60.0, 1.0, 900.0, 0.05, 0.3)
_REST_SECONDS = 40
_IDLE_SECONDS = 60
_CHURN_SECONDS = 30
#: A leader that has not renewed its lease for so long stops.
_RENEWAL_SECONDS = LeaseDurations().renew_deadline_seconds
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def figures() -> Iterator[Figure]:
    """Everything the scale targets name, in the order it is measured."""
    yield from _figures(_LARGE)


def largest_figures() -> Iterator[Figure]:
    """The same for a cluster three times the size that Kubernetes is tested with."""
    yield from _figures(_LARGEST)


def _figures(size: ClusterSize) -> Iterator[Figure]:
    with _process("scale_server", str(size.nodes), str(size.pods)) as server, tempfile.TemporaryDirectory() as folder:
        url = _line(server)
        path = Path(folder) / "kubeconfig"
        path.write_text(kubeconfig_for(url))
        with _process("scale_controller", str(path)) as controller:
            told = json.loads(_line(controller))
            yield Figure("caches filled over HTTP", told["filled_seconds"], "s", size.filled_seconds, str(size))
            first, *later = told["snapshot_seconds"]
            yield Figure("first snapshot, CPU", first, "s", size.first_snapshot_seconds, str(size))
            yield Figure("snapshot when nothing changed, CPU", min(later), "s", 0.2, str(size))
            resident = _resident_mb(controller.pid)
            yield _lease(controller, "filling and three snapshots")
            yield Figure("controller resident when filled", resident, "MB", size.resident_mb, str(size))
            time.sleep(_REST_SECONDS)
            resting, note = _cores(controller.pid, _IDLE_SECONDS), f"over {_IDLE_SECONDS} s"
            yield Figure("cores used at rest", resting, "core", size.rest_cores, note)
            yield from _churn(server, controller, size)
            server.kill()  # first: it would complain of a client that went in the middle of a request


def _churn(server: subprocess.Popen[str], controller: subprocess.Popen[str], size: ClusterSize) -> Iterator[Figure]:
    assert server.stdin is not None
    server.stdin.write(f"churn {size.events_per_second} {_CHURN_SECONDS}\n")
    server.stdin.flush()
    before = _cpu_seconds(controller.pid)
    count = int(_line(server).split()[1])
    used = (_cpu_seconds(controller.pid) - before) / _CHURN_SECONDS
    note = f"{count / _CHURN_SECONDS:.0f} events a second over {_CHURN_SECONDS} s"
    yield Figure(f"cores used by {size.events_per_second} pod events a second", used, "core", size.churn_cores, note)
    yield Figure("controller resident after them", _resident_mb(controller.pid), "MB", size.resident_mb)
    yield _lease(controller, "rest and events")


def _lease(controller: subprocess.Popen[str], during: str) -> Figure:
    assert controller.stdin is not None
    controller.stdin.write("\n")
    controller.stdin.flush()
    return Figure("longest between two renewals of the lease", float(_line(controller)), "s", _RENEWAL_SECONDS, during)


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
        raise RuntimeError(f"{process.args!r} ended with code {process.wait()}")
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
