"""``karpenter plan`` and ``explain`` with gangs."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from karpenter.cli.main import app

EXAMPLE = Path(__file__).parents[3] / "examples" / "gang.yaml"


def plan(file: Path, *options: str) -> str:
    return " ".join(CliRunner().invoke(app, ["plan", "-f", str(file), *options]).output.split())


def limited(tmp_path: Path) -> Path:
    file = tmp_path / "gang.yaml"
    text = EXAMPLE.read_text(encoding="utf-8")
    assert 'limits: {cpu: "64"}' in text
    file.write_text(text.replace('limits: {cpu: "64"}', "limits: {cpu: 8}"), encoding="utf-8")
    return file


def test_a_plan_names_the_domain_of_a_gang_that_is_complete() -> None:
    assert "PodGroup default/train: 4 pods with a place, it needs 4, all in us-east-1" in plan(EXAMPLE)


def test_json_lists_gangs_with_their_outcome(tmp_path: Path) -> None:
    whole = {"complete": True, "placed": 4}
    none = {"complete": False, "placed": 0}
    for file, expected in ((EXAMPLE, whole), (limited(tmp_path), none)):
        (gang,) = json.loads(CliRunner().invoke(app, ["plan", "-f", str(file), "-o", "json"]).stdout)["gangs"]
        assert list(gang) == ["name", "complete", "minimum", "running", "placed", "domain"]
        assert {**gang, **expected, "name": "PodGroup default/train", "minimum": 4} == gang
        assert (gang["domain"] is not None) == gang["complete"]


def test_a_gang_in_a_file_says_that_the_controller_needs_the_gate() -> None:
    notice = "PodGroups count in this plan; the controller ignores them without --feature-gates GangScheduling=true"
    assert notice in plan(EXAMPLE)
    assert notice not in plan(EXAMPLE, "--feature-gates", "GangScheduling=true")


def test_a_plan_launches_nothing_for_a_gang_beyond_a_limit_and_names_the_pod_that_is_missing(tmp_path: Path) -> None:
    output = plan(limited(tmp_path))
    assert "$0.000 per hour for 0 new nodes with 0 pods; 4 pods unschedulable" in output
    assert "needs places for at least 4 pods at once, 2 would have one in us-east-1" in output
    assert "missing default/train-" in output
