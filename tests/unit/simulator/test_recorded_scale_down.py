"""The profile karpenter in a simulation, against what Karpenter did in a recorded run: Deployments scaled down to less than half.

Recorded: 510 pods of thirty Deployments, of which 240 stay; Karpenter came from 22.9 to 7.34 USD per hour (1.18 times the bound)
and restarted all of them. What it began with depends on the waves in which pods come to a live cluster. Here they come at once;
for 500 pods of these sizes at once Karpenter was recorded to launch one node of 17.99 USD per hour.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from karpenter.cli.main import app
from support.manifest_builders import pool
from support.scale_down_case import AFTER, BEFORE, OF_ANY_SIZE, SIZES

_STAYING = AFTER * len(SIZES)
_SCALED_DOWN_AT, _END = 1800, 5400


def _trace() -> str:
    rows = ["name,creation_s,deletion_s,runtime_s,cpu_milli,memory_mib"]
    for app_number, (cpu, memory) in enumerate(SIZES):
        for number in range(BEFORE):
            end = _END if number < AFTER else _SCALED_DOWN_AT
            rows.append(f"a{app_number}-{number},0,{end},,{cpu},{memory}")
    return "\n".join(rows) + "\n"


def test_the_profile_karpenter_reaches_the_recorded_price_and_restarts_all_pods_as_karpenter_did(
    tmp_path: Path,
) -> None:
    requirements = [{"key": each.key, "operator": each.operator, "values": list(each.values)} for each in OF_ANY_SIZE]
    pool_in_use = pool(disruption={"consolidateAfter": "15s", "budgets": [{"nodes": "100%"}]})
    pool_in_use["spec"]["template"]["spec"]["requirements"] = requirements
    (tmp_path / "trace.csv").write_text(_trace())
    (tmp_path / "pool.json").write_text(json.dumps(pool_in_use))
    given = ["--trace", str(tmp_path / "trace.csv"), "-f", str(tmp_path / "pool.json"), "--policy", "karpenter"]
    result = CliRunner().invoke(app, ["simulate", *given, "-o", "json"], catch_exceptions=False)
    assert (result.exit_code, result.stderr) == (0, "")
    (report,) = json.loads(result.stdout)["reports"]

    def price_at(second: int) -> float:
        before = [sample["usdPerHour"] for sample in report["timeline"] if sample["hours"] * 3600 <= second]
        return float(before[-1])

    assert price_at(_SCALED_DOWN_AT - 60) == pytest.approx(17.99, abs=0.01), "one node, as for 500 such pods"
    assert price_at(_END - 120) == pytest.approx(7.34, abs=0.005)
    assert report["restarts"]["byCause"] == {"Underutilized": _STAYING}, "every pod that stays"
