"""What the performance suite needs beside a cluster, and what it measures: memory and CPU of the controller, time, utilization.

The suite finds the controller's pod by the leader's lease and reads its metrics through the API server's pod proxy, on port 8080.
Here the controller is a process beside the cluster, so a relay on this machine's addresses stands for the pod.

One figure is a Go runtime's: the heap that is live. The relay gives the process's anonymous memory in its place, which is never
less than what is live. It has the interpreter, numpy and their allocators' reserves in it, so the suite's limits on it are raised
by a constant, with the suite's own means (`KARPENTER_PERF_THRESHOLDS`); the table has the raised limits.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from conformance import stand_ins
from conformance.suites import METRICS_PORT
from controlplane.harness import ControlPlane
from controlplane.process import Controller
from karpenter.api import kinds

_FIGURES: Mapping[str, tuple[str, str]] = {
    "TotalTime": ("time", "min"),
    "TotalReservedCPUUtil": ("CPU requested", "%"),
    "TotalReservedMemoryUtil": ("memory requested", "%"),
    "KarpenterP95HeapMB": ("controller memory, 95th percentile", "MB"),
    "KarpenterAvgCPUCores": ("controller CPU, average", "cores"),
}
_HEAP = "KarpenterP95HeapMB"
#: What limits on the heap of a Go process are raised by for a Python process.
_MORE_MEMORY_MB = 100.0
_LIMIT = re.compile(r"(\w+)Report\.(\w+)\)\.To\(BeNumerically\(\"([<>])\", \w+Threshold\(\"([^\"]+)\", ([\d.]+)")
_SPEC = re.compile(r"\bIt\(\"([^\"]+)\"")
_DURATION = re.compile(r"([\d.]+)(h|ms|m|s)")
_MINUTES = {"h": 60.0, "m": 1.0, "s": 1 / 60, "ms": 1 / 60_000}


@dataclass(frozen=True)
class Limit:
    """A figure of a phase of a spec that has to be below (``<``) or above (``>``) an amount.

    ``key`` is what the suite calls spec and phase where it is told another limit.
    """

    key: str
    phase: str
    figure: str
    sign: str
    amount: float


@dataclass(frozen=True)
class Measurement:
    """What a phase came to, by figure; figures that were not measured are missing."""

    figures: Mapping[str, float]


def limits_by_spec(sources: Iterable[str]) -> dict[str, list[Limit]]:
    """The limits that the sources of the suite assert, by the text of the spec."""
    limits: dict[str, list[Limit]] = {}
    for source in sources:
        starts = [(match.start(), match.group(1)) for match in _SPEC.finditer(source)]
        for (start, text), (end, _) in zip(starts, [*starts, (len(source), "")][1:], strict=True):
            limits[text] = [
                Limit(key, phase, figure, sign, _scaled(figure, float(amount)))
                for phase, figure, sign, key, amount in _LIMIT.findall(source[start:end])
                if figure in _FIGURES
            ]
    return limits


def _scaled(figure: str, amount: float) -> float:
    if figure == _HEAP:
        return amount + _MORE_MEMORY_MB
    return amount * 100 if _FIGURES[figure][1] == "%" else amount


def suite_environment(limits: Mapping[str, Iterable[Limit]]) -> dict[str, str]:
    """The environment in which the suite asserts the raised limits."""
    raised = {
        limit.key: {"heap_mb": limit.amount} for phases in limits.values() for limit in phases if limit.figure == _HEAP
    }
    return {"KARPENTER_PERF_THRESHOLDS": json.dumps(raised)}


def measurements(output: str) -> list[Measurement]:
    """The phases that a spec reported, in their order."""
    return [Measurement(dict(_measured(part))) for part in output.split("PERFORMANCE REPORT ===")[1:]]


def _measured(report: str) -> Iterator[tuple[str, float]]:
    patterns = {
        "TotalReservedCPUUtil": r"^CPU Utilization: ([\d.]+)%",
        "TotalReservedMemoryUtil": r"^Memory Utilization: ([\d.]+)%",
        _HEAP: r"^Karpenter Heap \(P95/Avg/Max\): ([\d.]+) /",
        "KarpenterAvgCPUCores": r"^Karpenter CPU \(P95/Avg/Max\): [\d.]+ / ([\d.]+) /",
    }
    time = re.search(r"^Total Time: (\S+)", report, re.MULTILINE)
    if time is not None:
        yield "TotalTime", sum(float(number) * _MINUTES[unit] for number, unit in _DURATION.findall(time.group(1)))
    for figure, pattern in patterns.items():
        match = re.search(pattern, report, re.MULTILINE)
        if match is not None:
            yield figure, float(match.group(1))


def figures_table(limits: Mapping[str, list[Limit]], measured: Mapping[str, list[Measurement]]) -> str:
    """A table of limits beside what was measured, for the specs that reported anything."""
    lines = ["| Spec | Phase | Figure | Limit | Measured |", "|---|---|---|---|---|"]
    for spec, phases in measured.items():
        names = list(dict.fromkeys(limit.phase for limit in limits.get(spec, ())))
        by_name = dict(zip(names, phases, strict=False))
        for limit in limits.get(spec, ()):
            name, unit = _FIGURES[limit.figure]
            value = by_name[limit.phase].figures.get(limit.figure) if limit.phase in by_name else None
            shown = "not measured" if value is None else f"{value:.2f} {unit}"
            lines.append(f"| {spec} | {limit.phase} | {name} | {limit.sign} {limit.amount:g} {unit} | {shown} |")
    return "\n".join(lines) + "\n"


def sources(suite: Path) -> list[str]:
    """The sources of a suite's folder."""
    return [path.read_text() for path in sorted(suite.glob("*_test.go"))]


@contextmanager
def controller_pod(plane: ControlPlane, running: Controller) -> Iterator[None]:
    """A pod in the cluster whose metrics are the controller's."""
    address = _own_address()
    server = ThreadingHTTPServer(("", METRICS_PORT), _relay_of(running))
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        plane.apply(stand_ins.LEASE, stand_ins.pod(stand_ins.CONTROLLER_POD))
        asyncio.run(_give_address(plane, address))
        yield
    finally:
        server.shutdown()
        server.server_close()


async def _give_address(plane: ControlPlane, address: str) -> None:
    status = {"status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}}
    async with plane.client() as kube:
        await kube.patch(kinds.POD, stand_ins.CONTROLLER_POD, status, stand_ins.NAMESPACE, subresource="status")


def _own_address() -> str:
    """An address of this machine that is not the loopback's, which the API server does not relay to. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("198.51.100.1", 9))
        return str(probe.getsockname()[0])


def _relay_of(running: Controller) -> type[BaseHTTPRequestHandler]:
    class Relay(BaseHTTPRequestHandler):
        """Answers with the controller's metrics."""

        def do_GET(self) -> None:
            if self.path != "/metrics":
                self.send_error(404)
                return
            heap = f"# TYPE go_gc_heap_live_bytes gauge\ngo_gc_heap_live_bytes {running.anonymous_bytes}\n"
            body = (running.exposition() + heap).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing: the suite asks every five seconds."""

    return Relay
