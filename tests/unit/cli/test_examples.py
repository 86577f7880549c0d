"""The examples as a whole make a sensible plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from karpenter.cli.main import app

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def test_the_plan_of_all_examples_buys_small_nodes_for_the_pods_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest node is a quarter of a dollar; the pods that ask for a GPU or for 500 CPU say what is missing."""
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    result = CliRunner().invoke(app, ["plan", "-f", str(EXAMPLES), "-o", "json"], catch_exceptions=False)
    assert (result.exit_code, result.stderr) == (0, "")
    loads = json.loads(result.stdout)
    assert {name for claim in loads["nodeClaims"] for name in claim["pods"]} == {
        "shop/web-1",
        "shop/web-2",
        "shop/search",
    }
    assert max(claim["cheapest"]["price"] for claim in loads["nodeClaims"]) < 0.25
    waiting = {unschedulable["pod"]: unschedulable["sentence"] for unschedulable in loads["unschedulable"]}
    assert waiting.keys() == {"shop/training", "shop/monolith"}
    assert "CPU short on" in waiting["shop/monolith"]
