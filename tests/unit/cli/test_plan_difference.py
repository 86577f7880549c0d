"""``karpenter plan --diff``: what a change of manifests does to nodes, price and pods."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from typer.testing import CliRunner, Result

from karpenter.cli.main import app
from support.manifest_builders import Json, Plan, pod, pool

Written = Callable[..., Path]
SMALL, SECOND, HUGE = pod("small"), pod("second"), pod("small", "64")


def _schema(name: str) -> Draft202012Validator:
    printed = CliRunner().invoke(app, ["schema", name], catch_exceptions=False)
    schema = json.loads(printed.stdout)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


@pytest.fixture
def diff(plan: Plan, written: Written) -> Callable[..., Result]:
    """Run ``plan --diff`` on two sets of pods for one NodePool."""

    def run(old: tuple[Json, ...], new: tuple[Json, ...], *arguments: object) -> Result:
        sides = written("old.json", pool(), *old), written("new.json", pool(), *new)
        return plan("--diff", *sides, *arguments)

    return run


def test_more_pods_cost_more_nodes_and_dollars(diff: Callable[..., Result]) -> None:
    shown = json.loads(diff((SMALL,), tuple(pod(f"p{number}", "3") for number in range(4)), "-o", "json").stdout)
    assert shown["new"]["nodes"] >= shown["old"]["nodes"] == 1
    assert shown["changePerHour"] == pytest.approx(shown["new"]["perHour"] - shown["old"]["perHour"], abs=1e-6)
    assert shown["changePerHour"] > 0
    assert shown["changePerMonth"] == pytest.approx(shown["changePerHour"] * 730, abs=0.01)
    assert sum(node["new"] - node["old"] for node in shown["nodes"]) == shown["new"]["nodes"] - shown["old"]["nodes"]


def test_a_pod_that_loses_its_place_is_named_with_its_reason(diff: Callable[..., Result]) -> None:
    shown = json.loads(diff((SMALL, SECOND), (HUGE, SECOND), "-o", "json").stdout)
    assert [lost["pod"] for lost in shown["losePlace"]] == ["default/small"]
    assert "CPU" in shown["losePlace"][0]["message"]
    page = diff((SMALL, SECOND), (HUGE, SECOND)).stdout
    assert "1 pod would lose its place:\n  default/small: " in page


def test_a_pod_that_gets_a_place_is_named(diff: Callable[..., Result]) -> None:
    assert "1 pod would get a place: default/small" in diff((HUGE,), (SMALL,)).stdout


def test_equal_inputs_have_no_difference(diff: Callable[..., Result]) -> None:
    assert diff((SMALL,), (SMALL,)).stdout.startswith("No difference: the same nodes, and the same pods wait.\n")


@pytest.mark.parametrize(
    ("old", "new", "exit_code"),
    [((SMALL,), (SMALL,), 0), ((), (SMALL,), 2), ((SMALL,), (HUGE,), 3), ((HUGE,), (HUGE,), 0)],
    ids=["equal", "a node more", "a pod loses its place", "a pod waits in both"],
)
def test_the_exit_code_says_what_differs(
    diff: Callable[..., Result], old: tuple[Json, ...], new: tuple[Json, ...], exit_code: int
) -> None:
    assert diff(old, new, "--detailed-exitcode").exit_code == exit_code


def test_markdown_is_a_table_for_a_pull_request(diff: Callable[..., Result]) -> None:
    lines = diff((SMALL,), (HUGE,), "-o", "markdown").stdout.splitlines()
    assert lines[:3] == ["### Karpenter plan", "", "|  | old | new | change |"]
    tables = [line for line in lines if line.startswith("|")]
    assert all(line.endswith(" |") for line in tables)
    assert "| nodes | 1 | 0 | -1 |" in lines
    assert "| pods that wait | 0 | 1 | +1 |" in lines
    assert any(line.startswith("- default/small: ") for line in lines)


def test_files_of_both_sides_are_given_once(plan: Plan, written: Written) -> None:
    common, old, new = written("common.json", pool()), written("old.json", SMALL), written("new.json", SMALL, SECOND)
    shown = json.loads(plan("-f", common, "--diff", old, new, "-o", "json").stdout)
    assert (shown["old"]["nodes"], shown["new"]["nodes"]) == (1, 1)


@pytest.mark.parametrize("width", [80, 60])
def test_the_page_keeps_every_figure_on_narrow_terminals(
    diff: Callable[..., Result], width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    page = diff((SMALL,), (HUGE,)).stdout
    shown = json.loads(diff((SMALL,), (HUGE,), "-o", "json").stdout)
    assert f"{shown['nodes'][0]['price']:.4f}" in page


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ("--diff", "cluster", "FILE", "-f", "FILE"),
            "--diff with the cluster takes no -f: its objects are those of the cluster",
        ),
        (
            ("--diff", "FILE", "FILE", "--compare", "classic"),
            "--diff excludes --compare, --consolidate and --record: run karpenter plan for each input",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(
    plan: Plan, written: Written, arguments: tuple[str, ...], line: str
) -> None:
    file = written("a.json", pool(), SMALL)
    result = plan(*(file if word == "FILE" else word for word in arguments))
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", f"{line}\n")


@pytest.mark.parametrize("objects", [(), (SMALL,), (SMALL, pod("huge", "64"))], ids=["nothing", "a node", "a pod left"])
@pytest.mark.parametrize("arguments", [(), ("--compare", "classic"), ("--consolidate",)], ids=" ".join)
def test_a_plan_in_json_is_as_its_schema_says(
    plan: Plan, written: Written, objects: tuple[Json, ...], arguments: tuple[str, ...]
) -> None:
    shown = plan("-f", written("a.json", pool(limits={"cpu": "64"}), *objects), "-o", "json", *arguments).stdout
    _schema("plan").validate(json.loads(shown))


def test_the_plan_of_every_example_is_as_its_schema_says(plan: Plan) -> None:
    examples = Path(__file__).parents[3] / "examples"
    _schema("plan").validate(json.loads(plan("-f", examples, "-o", "json").stdout))


def test_a_difference_in_json_is_as_its_schema_says(diff: Callable[..., Result]) -> None:
    shown = json.loads(diff((SMALL, SECOND), (HUGE,), "-o", "json").stdout)
    _schema("plan-difference").validate(shown)
    with pytest.raises(ValidationError, match="surprise"):
        _schema("plan-difference").validate(shown | {"surprise": 1})
