"""``karpenter budgets POOL``: when how many of its nodes may go, and what says so."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import msgspec
import pytest
import yaml
from typer.testing import CliRunner, Result

from karpenter.cli import cluster_reader
from karpenter.cli.cluster_objects import ClusterObjects
from karpenter.cli.cluster_reader import ClusterUnreachable, list_pools_and_nodes
from karpenter.cli.main import app
from karpenter.model.clock import SystemClock
from karpenter.simulation.apiserver import MemoryKube, MemoryServer
from support.builders import node_and_claim
from support.manifest_builders import Json, pod, pool

Written = Callable[..., Path]
#: A Monday.
MONDAY = "2026-12-21T00:00:00Z"
OFFICE: Json = {"nodes": "1", "schedule": "0 9 * * mon-fri", "duration": "8h", "reasons": ["Drifted", "Underutilized"]}
WINDOWS = "karpenter.sh/budget-windows"


def budgets(*arguments: object) -> Result:
    given = ["budgets", *map(str, arguments)]
    return CliRunner().invoke(app, given, catch_exceptions=False)


def restricted(*given: Json, **notes: str) -> Json:
    """The pool with these budgets; ``windows``, ``freeze`` and ``until`` are annotations."""
    keys = {"windows": WINDOWS, "freeze": "karpenter.sh/freeze", "until": "karpenter.sh/freeze-until"}
    annotations = {keys[name]: text for name, text in notes.items()}
    result = pool(disruption={"budgets": list(given)})
    return {**result, "metadata": {"name": "default", "annotations": annotations}}


def rows(result: Result) -> list[list[str]]:
    """The lines of the table, each cell a member."""
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    begin = next(number for number, line in enumerate(lines) if line.strip().startswith("from"))
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines[begin + 1 :]]


def test_a_table_shows_what_may_go_when_and_which_budget_says_so(written: Written) -> None:
    file = written("a.json", restricted({"nodes": "10%"}, OFFICE))
    result = budgets("default", "-f", file, "--nodes", 40, "--from", MONDAY, "--days", 1)
    assert result.stdout.splitlines()[0] == "NodePool default: how many of 40 nodes may go at a time (times: UTC)"
    both = "Unhealthy: budgets[0], Empty: budgets[0], Drifted: budgets[1], Underutilized: budgets[1]"
    assert rows(result) == [
        ["Mon 21 Dec 2026 00:00", "Mon 21 Dec 2026 09:00", "4", "4", "4", "4", "budgets[0]"],
        ["Mon 21 Dec 2026 09:00", "Mon 21 Dec 2026 17:00", "4", "4", "1", "1", both],
        ["Mon 21 Dec 2026 17:00", "Tue 22 Dec 2026 00:00", "4", "4", "4", "4", "budgets[0]"],
    ]


def test_the_calendar_among_the_examples_can_be_shown() -> None:
    example = Path(__file__).parents[3] / "examples" / "windows.yaml"
    result = budgets("web", "-f", example, "--nodes", 40, "--from", "2026-12-24T00:00:00Z", "--days", 1)
    assert [cells[2:6] for cells in rows(result)] == [["0", "0", "0", "0"]]


def test_advice_is_printed_above_the_table(written: Written) -> None:
    """DIS §6 Beyond"""
    file = written("a.json", restricted({"nodes": "10%"}, {"nodes": "1"}))
    result = budgets("default", "-f", file, "--from", MONDAY)
    line = "spec.disruption.budgets[0]: has no effect: spec.disruption.budgets[1] always allows as little (1)"
    assert result.stdout.splitlines()[1].startswith(line)
    data = json.loads(budgets("default", "-f", file, "-o", "json").stdout)
    assert [text.startswith(line) for text in data["advice"]] == [True]


def test_a_week_is_shown_unless_more_or_less_is_asked_for(written: Written) -> None:
    file = written("a.json", restricted({"nodes": "0"}))
    ((begin, end, *_),) = rows(budgets("default", "-f", file, "--from", MONDAY))
    assert (begin, end) == ("Mon 21 Dec 2026 00:00", "Mon 28 Dec 2026 00:00")
    assert len(rows(budgets("default", "-f", file))) == 1


def test_the_clocks_of_a_place_can_be_shown(written: Written) -> None:
    file = written("a.json", restricted({"nodes": "0"}))
    ((begin, *_),) = rows(budgets("default", "-f", file, "--from", MONDAY, "--time-zone", "Asia/Seoul"))
    assert begin == "Mon 21 Dec 2026 09:00"


def test_where_no_budget_counts_all_may_go(written: Written) -> None:
    """API-085"""
    ((_, _, *cells),) = rows(budgets("default", "-f", written("a.json", restricted()), "--from", MONDAY))
    assert cells == ["all", "all", "all", "all"]


def test_budgets_that_come_and_go_without_effect_make_no_line(written: Written) -> None:
    file = written("a.json", restricted({"nodes": "1"}, {**OFFICE, "nodes": "5"}))
    assert len(rows(budgets("default", "-f", file, "--nodes", 40, "--from", MONDAY))) == 1


def test_freezes_of_pool_and_cluster_are_shown(written: Written) -> None:
    file = written(
        "a.json",
        restricted({"nodes": "2"}, freeze="release", until="2026-12-21T06:00:00Z"),
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "karpenter-freeze", "namespace": "kube-system"},
            "data": {"reason": "audit", "until": "2026-12-21T12:00:00Z"},
        },
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "other"}, "data": {"until": "banana"}},
    )
    frozen, free = rows(budgets("default", "-f", file, "--from", MONDAY, "--days", 1))
    text = "frozen by ConfigMap kube-system/karpenter-freeze until 2026-12-21T12:00:00Z: audit"
    assert frozen == ["Mon 21 Dec 2026 00:00", "Mon 21 Dec 2026 12:00", "0", "0", "0", "0", text]
    assert free[2:] == ["2", "2", "2", "2", "budgets[0]"]


def test_budgets_that_cannot_be_read_are_shown_closed_and_named(written: Written) -> None:
    """API-088 Beyond"""
    file = written("a.json", restricted({"nodes": "5"}, windows='[{"from": "noon"}]'))
    result = budgets("default", "-f", file, "--from", MONDAY)
    path = f"metadata.annotations[{WINDOWS}][0].from"
    assert result.stdout.splitlines()[1].startswith(f"{path}: 'noon' is not a date and time")
    ((_, _, *cells),) = rows(result)
    assert cells == ["0", "0", "0", "0", path]


@pytest.mark.parametrize(("form", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_programs_get_the_same_as_data(written: Written, form: str, read: Callable[[str], Json]) -> None:
    file = written("a.json", restricted(OFFICE, freeze="release", until="2026-12-21T10:00:00Z"))
    result = budgets("default", "-f", file, "--nodes", 40, "--from", "2026-12-21T09:30:00Z", "--days", 1, "-o", form)
    actual = read(result.stdout)
    assert (actual["nodePool"], actual["nodes"], actual["unavailable"], actual["problems"]) == ("default", 40, 0, [])
    stretches: list[Json] = actual["stretches"]
    frozen, closed, *_ = stretches
    assert frozen["frozen"] == {
        "by": "metadata.annotations[karpenter.sh/freeze]",
        "reason": "release",
        "until": "2026-12-21T10:00:00Z",
    }
    assert (closed["from"], closed["until"]) == ("2026-12-21T10:00:00Z", "2026-12-21T17:00:00Z")
    assert "frozen" not in closed
    one = {"nodes": 1, "limitedBy": "spec.disruption.budgets[0]"}
    free = {"nodes": None, "limitedBy": None}
    assert closed["allowed"] == {"Unhealthy": free, "Empty": free, "Drifted": one, "Underutilized": one}


def stored(name: str, *, ready: bool = True) -> list[Json]:
    """A Node of the pool with its NodeClaim, as manifests."""
    node, claim = node_and_claim(name, {"cpu": "4"}, pool="default")
    result: Json = {"apiVersion": "v1", "kind": "Node", **msgspec.to_builtins(node)}
    if not ready:
        result["status"] = {}
    return [result, {"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", **msgspec.to_builtins(claim)}]


def test_percentages_are_of_the_nodes_in_the_input(written: Written) -> None:
    """DIS-145, DIS-146, K15-206: a node that is only down does not count for repair."""
    nodes_and_claims = [*stored("a"), *stored("b"), *stored("c", ready=False)]
    result = budgets(
        "default", "-f", written("a.json", restricted({"nodes": "50%"}), *nodes_and_claims), "--from", MONDAY
    )
    ((_, _, *cells),) = rows(result)
    assert cells == ["2", "2", "2", "2", "budgets[0]"]
    assert "may go at a time, less the 1 that are unavailable now (Unhealthy: less 0)" in result.stdout


def test_a_budget_for_repair_alone_limits_repair_alone(written: Written) -> None:
    """K15-002, K15-208"""
    file = written("a.json", restricted({"nodes": "5"}, {"nodes": "0", "reasons": ["Unhealthy"]}))
    ((_, _, *cells),) = rows(budgets("default", "-f", file, "--from", MONDAY))
    assert cells[:4] == ["0", "5", "5", "5"]
    assert cells[4] == "Unhealthy: budgets[1], Empty: budgets[0], Drifted: budgets[0], Underutilized: budgets[0]"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["other"], "no NodePool other in the input; choose default"),
        (
            ["default", "--time-zone", "Berlin"],
            "--time-zone: 'Berlin' is not a time zone; did you mean 'Europe/Berlin'?",
        ),
        (["default", "--from", "now"], "--from: 'now' is not a date and time with a UTC offset"),
        (["default", "--from", "9999-12-31T00:00:00Z"], "--from: '9999-12-31T00:00:00Z' is not of this millennium"),
        (["default", "--from", "0001-01-01T00:00:00Z"], "is not of this millennium"),
        (["default", "--days", "0"], "Invalid value for '--days'"),
        (["default", "--nodes", "-1"], "Invalid value for '--nodes'"),
    ],
)
def test_questions_without_an_answer_get_one_line(written: Written, arguments: list[str], line: str) -> None:
    result = budgets(*arguments, "-f", written("a.json", pool()))
    assert result.exit_code == 2
    assert line in result.stderr


def test_a_wrong_object_stops_the_command_unless_it_may_be_left_out(written: Written) -> None:
    bad = restricted({"nodes": 10})
    bad["metadata"] = {"name": "bad"}
    file = written("a.json", pool(), bad)
    refused = budgets("default", "-f", file)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "spec.disruption.budgets[0].nodes" in refused.stderr
    assert budgets("default", "-f", file, "--skip-invalid").exit_code == 0


def test_without_files_the_cluster_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_reader, "read_pools_and_nodes", lambda _settings: ClusterObjects(from_cluster=True))
    result = budgets("default")
    assert (result.exit_code, result.stderr) == (2, "no NodePool default in the cluster; it has none\n")


def test_a_cluster_that_does_not_answer_ends_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_settings: object) -> ClusterObjects:
        raise ClusterUnreachable("nobody there")

    monkeypatch.setattr(cluster_reader, "read_pools_and_nodes", refuse)
    result = budgets("default")
    assert (result.exit_code, result.stderr) == (1, "nobody there\n")


async def test_of_a_cluster_only_nodes_pools_and_the_freeze_are_read() -> None:
    freeze: Json = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "karpenter-freeze", "namespace": "kube-system"},
    }
    waiting = {**pod("a"), "metadata": {"name": "a", "namespace": "default"}}
    server = MemoryServer(SystemClock())
    server.load_objects([pool(), waiting, freeze])
    cluster_objects = await list_pools_and_nodes(MemoryKube(server))
    assert (
        len(cluster_objects.pools),
        len(cluster_objects.config_maps),
        cluster_objects.pods,
        cluster_objects.from_cluster,
    ) == (1, 1, [], True)
    bare = MemoryServer(SystemClock())
    bare.load_objects([pool()])
    assert (await list_pools_and_nodes(MemoryKube(bare))).config_maps == []


class _Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", [60, 80])
def test_the_table_survives_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch, written: Written, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    with pytest.raises(SystemExit) as ended:
        app(["budgets", "default", "-f", str(written("a.json", restricted({"nodes": "5"}))), "--nodes", "9"])
    assert not ended.value.code
    page = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue())
    assert max(map(len, page.splitlines()[1:])) <= columns
    assert "…" not in page
    assert "Under-" in page
    assert "heal-" in page
    assert "budgets[0]" in page
