"""Karpenter's own scheduler beside ours: the same pods, NodePools and instance types, on the same computer in the same minute.

`tests/reference` calls the scheduler of Karpenter's public Go module; it is built on first use, which takes minutes. Both read
the shared scenario files. Runs take turns, so that other work slows both; CPU time is shown because it depends less on that.
Nothing is measured where the scenarios are missing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.figures import Figure
from bench.plans import SCENARIOS, types_file
from controlplane.gobuild import CHECKOUT, GoModule
from karpenter.cli.entry_point import BLAS_THREADS

MODULE = GoModule("Karpenter's scheduler", CHECKOUT / "tests" / "reference", (1, 26, 10))
_COMMANDS = {"decide": ("build", "-trimpath", ".")}
_REPEATS = int(os.environ.get("KARPENTER_BENCH_REPEATS", "3"))
#: Karpenter takes half a minute and more for them.
_LONG = frozenset({"diverse-10000"})


def figures(shared: Path) -> Iterator[Figure]:
    """For each scenario: seconds of Karpenter, ours, how many times as fast, and both prices."""
    folder = shared / "scenarios"
    wanted = os.environ.get("KARPENTER_BENCH_SCENARIOS", "").split() or [n for n in SCENARIOS if n not in _LONG]
    decide = MODULE.binaries(_COMMANDS) / "decide" if folder.is_dir() else Path()
    for name in wanted:
        if (folder / f"{name}.json").is_file():
            yield from _beside(decide, folder / f"{name}.json", folder / types_file(name), name)


def _beside(decide: Path, objects: Path, types: Path, name: str) -> Iterator[Figure]:
    reference, own = [], []
    for _ in range(_REPEATS):
        reference.append(_run([str(decide), str(objects), str(types)]))
        own.append(_own(objects, types))
    theirs, ours = (min(run["seconds"] for run in runs) for runs in (reference, own))
    cost = f"{reference[0]['perHour']:.3f} $/h on {reference[0]['nodeClaims']} nodes"
    yield Figure(f"beside {name}: Karpenter decides", theirs, "s", note=f"CPU {_cpu(reference):.3f} s, {cost}")
    cost = f"{own[0]['perHour']:.3f} $/h on {own[0]['nodeClaims']} nodes"
    yield Figure(f"beside {name}: we decide", ours, "s", theirs, f"CPU {_cpu(own):.3f} s, {cost}")
    yield Figure(f"beside {name}: as fast, times", theirs / ours, "x", note=f"CPU {_cpu(reference) / _cpu(own):.1f} x")


def _cpu(runs: list[dict[str, float]]) -> float:
    return min(run["cpuSeconds"] for run in runs)


def _own(objects: Path, types: Path) -> dict[str, float]:
    program = Path(__file__).with_name("own_decision.py")
    return _run([sys.executable, str(program), str(objects), str(types)], dict([BLAS_THREADS]))


def _run(command: list[str], environment: Mapping[str, str] | None = None) -> dict[str, float]:
    """``environment``: what the installed program sets for itself."""
    done = subprocess.run(command, check=True, capture_output=True, env={**os.environ, **(environment or {})})
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
