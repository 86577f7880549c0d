"""What remains of the gap to the lower bound, by cause: the parts are what the causes withheld, and add up to the gap."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from karpenter.cli.main import app
from karpenter.simulator.cost_gap import GAP_PARTS, cost_gap, gap_document
from karpenter.simulator.gap_probe import WithheldCost
from karpenter.simulator.idle_cost import IdleCost
from support.manifest_builders import type_of

_HEADER = "name,creation_s,deletion_s,runtime_s,cpu_milli,memory_mib"
#: Five pods on one large node; after an hour four leave, and the fifth would do with the small one, which saves $0.25 an hour.
_ROWS = (*(f"web-{number},0,3600,,1500,1024" for number in range(4)), "stays,0,14400,,1500,1024")
_SPOT_AND_ON_DEMAND = "karpenter.sh/capacity-type, operator: In, values: [spot, on-demand]"


def pool(consolidate_after: str, budget: str, requirements: str = "") -> str:
    return f"""
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {{name: default}}
spec:
  template:
    spec:
      requirements: [{requirements}]
      nodeClassRef: {{group: karpenter.kwok.sh, kind: KWOKNodeClass, name: default}}
  disruption: {{consolidateAfter: {consolidate_after}, budgets: [{{nodes: "{budget}"}}]}}
"""


def report_of(folder: Path, node_pool: str, types: list[dict[str, Any]], *further: str, rows: tuple[str, ...]) -> Any:
    (folder / "pools.yaml").write_text(node_pool)
    (folder / "types.json").write_text(json.dumps(types))
    (folder / "trace.csv").write_text("\n".join((_HEADER, *rows)) + "\n")
    arguments = ["simulate", "-f", "pools.yaml", "--instance-types", "types.json", "--trace", "trace.csv", "-o", "json"]
    named = [str(folder / each) if (folder / each).exists() else each for each in arguments]
    result = CliRunner().invoke(app, [*named, *further], catch_exceptions=False)
    assert (result.exit_code, result.stderr) == (0, "")
    (report,) = json.loads(result.stdout)["reports"]
    cost = report["cost"]
    assert sum(cost["gapUsd"].values()) == pytest.approx(cost["usd"] - cost["lowerBoundUsd"], abs=1e-9)
    return report


def _types() -> list[dict[str, Any]]:
    return [type_of("a.small", 2, 4, 0.1), type_of("a.large", 8, 16, 0.35)]


def test_what_a_budget_keeps_from_being_replaced_is_a_cost_of_budgets(tmp_path: Path) -> None:
    report = report_of(tmp_path, pool("1m", "0"), _types(), rows=_ROWS)
    assert report["restarts"]["total"] == 0
    gap = report["cost"]["gapUsd"]
    # Three hours of $0.25, less the minute after which consolidation may look at the node.
    assert gap["budgets"] == pytest.approx(0.75, abs=0.02)
    assert gap["thresholds"] == pytest.approx(0.0, abs=0.02)
    assert gap["spotRisk"] == 0


def test_what_consolidate_after_keeps_from_being_replaced_is_a_cost_of_thresholds(tmp_path: Path) -> None:
    report = report_of(tmp_path, pool("10h", "100%"), _types(), rows=_ROWS)
    assert report["restarts"]["total"] == 0
    gap = report["cost"]["gapUsd"]
    assert gap["thresholds"] == pytest.approx(0.75, abs=0.02)
    assert gap["budgets"] == 0


def test_a_node_that_goes_as_soon_as_it_can_costs_neither_budgets_nor_thresholds_much(tmp_path: Path) -> None:
    report = report_of(tmp_path, pool("1m", "100%"), _types(), rows=_ROWS)
    assert report["restarts"]["byCause"] == {"Underutilized": 1}
    gap = report["cost"]["gapUsd"]
    assert gap["budgets"] == pytest.approx(0.0, abs=0.01)
    assert gap["thresholds"] == pytest.approx(0.0, abs=0.03), "consolidateAfter and validation: about two minutes"


def _spot_in_two_zones() -> list[dict[str, Any]]:
    """A type of two CPU that is cheaper in one zone."""
    types = [type_of("a.small", 2, 4, 0.1)]
    for each in types:
        each["offerings"] = [
            {
                "price": price,
                "requirements": [
                    {"key": "topology.kubernetes.io/zone", "operator": "In", "values": [zone]},
                    {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"]},
                ],
            }
            for zone, price in (("zone-a", 0.1), ("zone-b", 0.12))
        ]
    return types


def test_cheaper_spot_offerings_that_are_passed_over_to_spread_nodes_are_spot_risk(tmp_path: Path) -> None:
    node_pool = pool("1m", "100%", f"{{key: {_SPOT_AND_ON_DEMAND}}}")
    rows = tuple(f"web-{number},0,7200,,1500,1024" for number in range(8))
    report = report_of(tmp_path, node_pool, _spot_in_two_zones(), rows=rows)
    assert report["nodes"]["launched"] == 8
    hours = sum(share["nodeHours"] for share in report["capacity"])
    dearer = report["cost"]["usd"] - 0.1 * hours
    assert dearer > 0.04, "some nodes are in the dearer zone"
    gap = report["cost"]["gapUsd"]
    # Nodes cost no more than that for being spread; the minute without pods is part of the start.
    assert gap["spotRisk"] == pytest.approx(dearer, rel=0.05)


def test_the_parts_of_a_gap_are_exact_and_in_cents_add_up_to_the_figures_shown() -> None:
    third = Fraction(1, 3)
    gap = cost_gap(Fraction(10), IdleCost(third, third), WithheldCost(third, third, third))
    assert gap.total == Fraction(10)
    assert gap.fragmentation == Fraction(10) - 5 * third
    document = gap_document(gap, cost_usd=30.004, bound_usd=20.006)
    assert list(document) == [part.member for part in GAP_PARTS]
    assert round(sum(document.values()), 2) == round(30.0 - 20.01, 2)
