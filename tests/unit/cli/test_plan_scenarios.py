"""Plans for whole scenarios are complete, legal and the same every time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from karpenter.cli.main import app
from support.legality import faults

SCENARIOS = Path(__file__).resolve().parents[3].parent / "shared" / "scenarios"
TYPES = SCENARIOS / "types-us-east-1.json"
FILES = sorted(file for shape in ("web-*", "gpu-trace-*") for file in SCENARIOS.glob(f"{shape}.json"))
SECONDS = ("decisionSeconds", "catalogueSeconds", "wallSeconds")

pytestmark = pytest.mark.skipif(not FILES, reason="the scenarios are not beside the checkout")


def arguments(file: Path) -> list[str]:
    return ["plan", "-f", str(file), "--instance-types", str(TYPES), "-o", "json"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_pod_of_a_scenario_is_placed_legally_once(file: Path) -> None:
    result = CliRunner().invoke(app, arguments(file), catch_exceptions=False)
    assert (result.exit_code, result.stderr) == (0, "")
    objects = json.loads(file.read_text())["items"]
    assert list(faults(objects, json.loads(TYPES.read_text()), json.loads(result.stdout))) == []


def without_seconds(output: str) -> str:
    return "\n".join(line for line in output.splitlines() if not any(f'"{name}"' in line for name in SECONDS))


def test_the_same_input_gives_the_same_bytes_whatever_the_hash_seed() -> None:
    outputs = {
        without_seconds(
            subprocess.run(
                [sys.executable, "-m", "karpenter.cli.main", *arguments(SCENARIOS / "gpu-trace-40.json")],
                env={**os.environ, "PYTHONHASHSEED": seed},
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
        for seed in ("0", "1", "4711")
    }
    assert len(outputs) == 1
