"""`karpenter plan` on the shared scenarios against what the reference does with them (figures of the scenarios' own README)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.figures import Figure

#: Scenario: lower bound USD/h, reference USD/h, seconds a decision may take (what the reference takes; for pods that look at each
#: other much less).
REFERENCE: dict[str, tuple[float | None, float | None, float]] = {
    "gpu-trace-40": (45.82, 64.05, 0.032),
    "gpu-trace-500": (444.18, 648.10, 0.40),
    "gpu-trace-2000": (1663.41, 2722.92, 4.1),
    "web-20": (0.518, 0.612, 0.064),
    "web-100": (2.555, 3.060, 0.12),
    "web-500": (12.818, 17.992, 0.16),
    "web-2000": (50.759, 67.313, 0.84),
    "web-spot-20": (0.181, 0.216, 0.062),
    "web-spot-100": (0.895, 1.063, 0.13),
    "web-spot-500": (4.479, 7.005, 0.16),
    "web-spot-2000": (17.608, 26.254, 0.80),
    "diverse-500": (99.95, 165.87, 0.1),
    "diverse-2000": (412.06, 694.02, 0.3),
    "diverse-10000": (None, None, 1.5),
}
_REPEATS = 5


def figures(shared: Path) -> Iterator[Figure]:
    """Decision time (median of five processes) and price per scenario; nothing when the scenarios are not there."""
    folder = shared / "scenarios"
    for name, (bound, price, seconds) in REFERENCE.items():
        if not (folder / f"{name}.json").is_file():
            continue
        runs = [_plan(folder, name) for _ in range(_REPEATS)]
        decisions = sorted(run["decisionSeconds"] for run in runs)
        plan = runs[0]
        cost = plan["cost"]["perHour"]
        left = f"{len(plan['nodeClaims'])} claims, {len(plan['unschedulable'])} pods left"
        yield Figure(f"plan {name}: decision", decisions[_REPEATS // 2], "s", seconds, left)
        compared = f"{cost / bound:.3f} of the lower bound" if bound is not None else ""
        yield Figure(f"plan {name}: price", cost, "$/h", price, compared)
        yield Figure(f"plan {name}: whole process", sorted(run["wallSeconds"] for run in runs)[_REPEATS // 2], "s")


def _types(name: str) -> str:
    return "types-linear-400.json" if name.startswith("diverse") else "types-us-east-1.json"


def _plan(folder: Path, name: str) -> dict[str, object]:
    command = [
        str(Path(sys.executable).with_name("karpenter")),
        *("plan", "-f", str(folder / f"{name}.json")),
        *("--instance-types", str(folder / _types(name)), "-o", "json"),
    ]
    done = subprocess.run(command, check=True, capture_output=True)
    found: dict[str, object] = json.loads(done.stdout)
    return found
