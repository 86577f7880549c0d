"""`karpenter plan` on the shared scenarios: price against the lower bound, and how long a decision takes.

Targets hold in dollars alone (no node fee, no limits of exposure, no cost of interruptions); the defaults are shown beside them.
Lower bounds and the reference's prices are those of the scenarios' own README, worked out by somebody else; where it has none,
the plan's own bound is taken.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.figures import Figure


@dataclass(frozen=True)
class Scenario:
    """Lower bound and the reference's price in USD/h where they are known; targets: price / bound, seconds to decide."""

    bound: float | None
    reference: float | None
    ratio: float
    seconds: float


SCENARIOS: dict[str, Scenario] = {
    "web-20": Scenario(0.518, 0.612, 1.05, 0.3),
    "web-100": Scenario(2.555, 3.060, 1.03, 0.3),
    "web-500": Scenario(12.818, 17.992, 1.015, 0.6),
    "web-2000": Scenario(50.759, 67.313, 1.012, 1.5),
    "web-spot-20": Scenario(0.181, 0.216, 1.05, 0.3),
    "web-spot-100": Scenario(0.895, 1.063, 1.03, 0.3),
    "web-spot-500": Scenario(4.479, 7.005, 1.015, 0.6),
    "web-spot-2000": Scenario(17.608, 26.254, 1.012, 1.5),
    "gpu-trace-40": Scenario(45.82, 64.05, 1.05, 0.3),
    "gpu-trace-500": Scenario(444.18, 648.10, 1.045, 0.6),
    "gpu-trace-2000": Scenario(1663.41, 2722.92, 1.04, 1.5),
    "diverse-500": Scenario(99.95, 165.87, 1.18, 0.3),
    "diverse-2000": Scenario(412.06, 694.02, 1.15, 0.8),
    "diverse-10000": Scenario(None, None, 1.15, 2.5),
}
IN_DOLLARS = ("--node-fee", "0", "--exposure", "off", "--interruption-cost", "0", "--max-pods-per-node", "0")
_REPEATS = 5


def figures(shared: Path) -> Iterator[Figure]:
    """Decision time (median of five processes) and price per scenario; nothing when the scenarios are not there."""
    folder = shared / "scenarios"
    for name, scenario in SCENARIOS.items():
        if (folder / f"{name}.json").is_file():
            yield from _measured(folder, name, scenario)


def _measured(folder: Path, name: str, scenario: Scenario) -> Iterator[Figure]:
    runs = [_plan(folder, name, *IN_DOLLARS) for _ in range(_REPEATS)]
    yield Figure(f"plan {name}: decision", _median(runs, "decisionSeconds"), "s", scenario.seconds, _left(runs[0]))
    yield Figure(
        f"plan {name}: price / bound", _ratio(runs[0], scenario), "", scenario.ratio, _dollars(runs[0], scenario)
    )
    yield Figure(f"plan {name}: whole process", _median(runs, "wallSeconds"), "s")
    usual = _plan(folder, name)
    yield Figure(f"plan {name}: price / bound by default", _ratio(usual, scenario), "", note=_left(usual))


def _ratio(plan: dict[str, Any], scenario: Scenario) -> float:
    cost = plan["cost"]
    return float(cost["perHour"] / (scenario.bound or cost["lowerBoundPerHour"]))


def _dollars(plan: dict[str, Any], scenario: Scenario) -> str:
    cost = plan["cost"]
    reference = f", reference {scenario.reference:.3f}" if scenario.reference is not None else ""
    return f"{cost['perHour']:.3f} $/h, own bound {cost['lowerBoundPerHour']:.3f}{reference}"


def _left(plan: dict[str, Any]) -> str:
    return f"{len(plan['nodeClaims'])} claims, {len(plan['unschedulable'])} pods left"


def _median(runs: list[dict[str, Any]], member: str) -> float:
    return float(sorted(run["timings"][member] for run in runs)[len(runs) // 2])


def types_file(name: str) -> str:
    """The instance types of a scenario."""
    return "types-linear-400.json" if name.startswith("diverse") else "types-us-east-1.json"


def _plan(folder: Path, name: str, *options: str) -> dict[str, Any]:
    command = [
        str(Path(sys.executable).with_name("karpenter")),
        *("plan", "-f", str(folder / f"{name}.json")),
        *("--instance-types", str(folder / types_file(name)), "-o", "json", *options),
    ]
    done = subprocess.run(command, check=True, capture_output=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found
