"""Days of the GPU trace in ``karpenter simulate``: their cost beside the lower bound, how long pods wait, how fast a run is.

The trace (days 115 to 140, 5 326 pods) lies beside the repository; without it there is nothing to measure.
``KARPENTER_BENCH_DAYS`` is how many of the days to run. The target of the speed is that all 25 take a minute on one core.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.figures import Figure

TRACE = "trace_alibaba_gpu2023.csv"
FIRST_DAY = 115
_DAYS = os.environ.get("KARPENTER_BENCH_DAYS", "0.5")
_POLICIES = ("lean", "karpenter")
_SECONDS_PER_DAY = 60 / 25
_COST_OVER_BOUND = 1.20
#: Registration takes 45 s in a simulation without a world; the decision and the binding have 15 s.
_WAIT_SECONDS = 45 + 15
POOL = """
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: default}
spec:
  template:
    spec:
      requirements:
        - {key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}
        - {key: kubernetes.io/arch, operator: In, values: [amd64]}
        - {key: karpenter.k8s.aws/instance-category, operator: In, values: [c, m, r, g, p]}
        - {key: karpenter.k8s.aws/instance-generation, operator: Gt, values: ["2"]}
        - {key: karpenter.k8s.aws/instance-size, operator: NotIn, values: [metal, metal-16xl, metal-24xl, metal-32xl, metal-48xl]}
      nodeClassRef: {group: karpenter.kwok.sh, kind: KWOKNodeClass, name: default}
  disruption: {consolidateAfter: 1m, budgets: [{nodes: 100%}]}
"""


def figures(shared: Path) -> Iterator[Figure]:
    """Cost, waiting time, restarts and speed of each policy."""
    trace = shared / "data" / TRACE
    if not trace.is_file():
        return
    with tempfile.TemporaryDirectory() as folder:
        pools = Path(folder) / "pools.yaml"
        pools.write_text(POOL)
        for policy in _POLICIES:
            before = _cpu_seconds()
            report = _report(trace, pools, policy)
            yield from _measured(report, _cpu_seconds() - before)


def _measured(report: dict[str, Any], cpu_seconds: float) -> Iterator[Figure]:
    name, arrivals = f"simulate gpu trace, {report['policy']}", report["waiting"]["arrivals"]
    cost, restarts = report["cost"], f"{report['restarts']['total']} restarts"
    note = f"{cost['usd']:.0f} $ in {report['days']:.1f} days, {restarts}"
    yield Figure(f"{name}: cost / bound", cost["ratio"], "", _COST_OVER_BOUND, note)
    yield Figure(f"{name}: median wait", arrivals["p50Seconds"], "s", _WAIT_SECONDS, f"{arrivals['pods']} pods")
    yield Figure(f"{name}: CPU time per day", cpu_seconds / report["days"], "s", _SECONDS_PER_DAY)


def _report(trace: Path, pools: Path, policy: str) -> dict[str, Any]:
    program = str(Path(sys.executable).with_name("karpenter"))
    command = [program, "simulate", "--trace", str(trace), "-f", str(pools)]
    window = ["--from-day", str(FIRST_DAY), "--days", _DAYS, "--policy", policy, "-o", "json"]
    ran = subprocess.run([*command, *window], capture_output=True, text=True, check=True)
    (report,) = json.loads(ran.stdout)["reports"]
    return dict(report)


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
