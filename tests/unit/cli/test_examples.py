"""The examples as a whole make a sensible plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from karpenter.cli.main import app

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def test_the_plan_of_all_examples_launches_small_nodes_for_the_pods_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest node is one for a GPU; two pods say what is missing, 500 CPU on one node and a toleration."""
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    result = CliRunner().invoke(app, ["plan", "-f", str(EXAMPLES), "-o", "json"], catch_exceptions=False)
    assert (result.exit_code, result.stderr.count("Error")) == (0, 0)
    loads = json.loads(result.stdout)
    planned = {name for claim in loads["nodeClaims"] for name in claim["pods"]}
    assert {"shop/web-1", "shop/web-2", "shop/search"} <= planned
    dearest = max(loads["nodeClaims"], key=lambda claim: claim["cheapest"]["price"])
    assert (dearest["nodePool"], dearest["cheapest"]["price"] < 1) == ("gpu", True)
    waiting = {unschedulable["pod"]: unschedulable["sentence"] for unschedulable in loads["unschedulable"]}
    assert waiting.keys() == {"shop/training", "shop/monolith"}
    assert "CPU short on" in waiting["shop/monolith"]
    assert "tolerated the taint nvidia.com/gpu" in waiting["shop/training"]
