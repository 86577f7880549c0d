"""Plans for whole scenarios are complete, legal and the same every time."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from karpenter.cli.main import app
from support.examples import series
from support.installed_program import KARPENTER
from support.plan_json_checker import faults

SCENARIOS = Path(__file__).resolve().parents[3].parent / "shared" / "scenarios"
TYPES = SCENARIOS / "types-us-east-1.json"
FILES = sorted(file for shape in ("web-*", "gpu-trace-*") for file in SCENARIOS.glob(f"{shape}.json"))
SECONDS = ("decisionSeconds", "catalogueSeconds", "wallSeconds")

#: Those that every run plans; the larger ones are for `make soak`.
_USUAL = ("web-20", "web-500", "web-spot-500", "gpu-trace-40")

pytestmark = pytest.mark.skipif(not FILES, reason="the scenarios are not beside the checkout")


def arguments(file: Path, types: Path = TYPES) -> list[str]:
    return ["plan", "-f", str(file), "--instance-types", str(types), "-o", "json"]


def planned(file: Path, types: Path = TYPES) -> dict[str, Any]:
    """The plan of a scenario, made once for all tests."""
    return _planned(file, types)


@cache  # it tells an argument that is left out from one that has the default
def _planned(file: Path, types: Path) -> dict[str, Any]:
    result = CliRunner().invoke(app, arguments(file, types), catch_exceptions=False)
    assert (result.exit_code, result.stderr) == (0, "")
    return dict(json.loads(result.stdout))


@pytest.mark.parametrize(
    "file", series(FILES, *(file for file in FILES if file.stem in _USUAL)), ids=lambda file: file.stem
)
def test_every_pod_of_a_scenario_is_placed_legally_once(file: Path) -> None:
    objects = json.loads(file.read_text())["items"]
    assert list(faults(objects, json.loads(TYPES.read_text()), planned(file))) == []


def published() -> Iterator[tuple[str, str]]:
    """Scenario and lower bound, as the scenarios' own README has them."""
    page = SCENARIOS / "README.md"
    for name, bound in re.findall(r"^\| ([a-z-]+-\d+) \| ([\d.]+) \|", page.read_text() if FILES else "", re.MULTILINE):
        if (SCENARIOS / f"{name}.json").is_file():
            yield name, bound


@pytest.mark.parametrize(
    ("name", "bound"),
    [pytest.param(*row, marks=() if row[0] in _USUAL else pytest.mark.soak) for row in published()],
)
def test_the_lower_bound_is_that_which_others_have_worked_out(name: str, bound: str) -> None:
    """To the last digit they give: figures from another programme, which shares no code with ours."""
    type_file = SCENARIOS / ("types-linear-400.json" if name.startswith("diverse") else TYPES.name)
    cost = planned(SCENARIOS / f"{name}.json", type_file)["cost"]
    digits = len(bound.partition(".")[2])
    assert cost["lowerBoundPerHour"] == pytest.approx(float(bound), abs=0.51 * 10**-digits)
    assert cost["lowerBoundPerHour"] <= cost["perHour"]


def without_seconds(output: str) -> str:
    return "\n".join(line for line in output.splitlines() if not any(f'"{name}"' in line for name in SECONDS))


def test_the_same_input_gives_the_same_bytes_whatever_the_hash_seed() -> None:
    outputs = {
        without_seconds(
            subprocess.run(
                [KARPENTER, *arguments(SCENARIOS / "gpu-trace-40.json")],
                env={**os.environ, "PYTHONHASHSEED": seed},
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
        for seed in ("0", "4711")
    }
    assert len(outputs) == 1
