"""Profile ``karpenter`` plans the nodes that Karpenter planned for the recorded scenarios, to the last digit where that needs no
chance; ``lean`` never pays more.

The scenarios are not part of this repository: without them beside it, in ``../shared/scenarios``, the tests are skipped. The
figures are what its README says of Karpenter 1.14.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from karpenter.cli.main import app
from support.examples import series

SCENARIOS = Path(__file__).parents[4] / "shared" / "scenarios"


class Recorded(NamedTuple):
    """What Karpenter decided: dollars per hour as written down, and how many nodes."""

    name: str
    usd_per_hour: str
    claims: int
    types: str = "types-us-east-1.json"
    #: Karpenter orders equal pods by their UIDs, and its domains by chance: another run decides a little differently.
    tolerance: float = 0.0


RECORDED = (
    Recorded("web-20", "0.612", 1),
    Recorded("web-100", "3.060", 1),
    Recorded("web-spot-20", "0.216", 1),
    Recorded("web-spot-100", "1.063", 1),
    Recorded("gpu-trace-40", "64.05", 7),
    Recorded("web-500", "17.992", 1),
    Recorded("web-spot-500", "7.005", 1),
    Recorded("gpu-trace-500", "648.10", 60, tolerance=0.01),
    Recorded("diverse-500", "165.87", 100, "types-linear-400.json", tolerance=0.04),
    Recorded("web-2000", "67.313", 4),
    Recorded("web-spot-2000", "26.254", 4),
)


def planned(recorded: Recorded, profile: str) -> tuple[float, int]:
    """Dollars per hour and nodes of the plan under a profile."""
    options = ["--instance-types", str(SCENARIOS / recorded.types), "--profile", profile, "-o", "json"]
    result = CliRunner().invoke(app, ["plan", "-f", str(SCENARIOS / f"{recorded.name}.json"), *options])
    assert result.exit_code == 0, result.output
    plan = json.loads(result.stdout)
    assert plan["unschedulable"] == []
    return plan["cost"]["perHour"], len(plan["nodeClaims"])


@pytest.mark.parametrize("recorded", series(RECORDED, RECORDED[0], RECORDED[4]), ids=lambda recorded: recorded.name)
def test_the_profile_karpenter_decides_what_karpenter_decided_and_lean_pays_no_more(recorded: Recorded) -> None:
    if not (SCENARIOS / f"{recorded.name}.json").exists():
        pytest.skip("the recorded scenarios are not beside this repository")
    price, claims = planned(recorded, "karpenter")
    decimals = len(recorded.usd_per_hour.partition(".")[2])
    assert round(price, decimals) == pytest.approx(float(recorded.usd_per_hour), rel=recorded.tolerance, abs=1e-9)
    assert claims == pytest.approx(recorded.claims, rel=2 * recorded.tolerance)
    assert planned(recorded, "lean")[0] <= price
