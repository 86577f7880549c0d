"""``karpenter explain node`` and ``karpenter plan --consolidate``: why nodes stay, which would go, and what that saves."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
import typer
import yaml
from typer.testing import CliRunner, Result

from karpenter.api import kinds
from karpenter.cli import cluster_reader, planning_options
from karpenter.cli.cluster_objects import FREEZE_KINDS, ClusterObjects
from karpenter.cli.main import app
from karpenter.cli.render_disruption import budget_status_text, opening_text
from karpenter.disruption.decide.budget_status import BudgetStatus
from karpenter.disruption.decide.command import DisruptionReason
from karpenter.settings import Settings, resolve_settings
from support.manifest_builders import Json, Plan, pod, pool
from support.terminal_text import TerminalText

Explain = Callable[..., Result]
Written = Callable[..., Path]
END = datetime(2027, 1, 1, tzinfo=UTC)
LARGE = {"cpu": "8", "memory": "16Gi", "pods": "110"}
NO_QUIET_TIME = {"consolidationPolicy": "WhenEmptyOrUnderutilized", "consolidateAfter": "0s"}


@pytest.fixture
def explain(types: Path) -> Explain:
    """``karpenter explain node`` with the three types and these arguments."""

    def run(*arguments: str | Path) -> Result:
        given = ["explain", "node", *map(str, arguments), "--instance-types", str(types)]
        return CliRunner().invoke(app, given, catch_exceptions=False)

    return run


def of_pool(*budgets: Json, **disruption: object) -> Json:
    return pool(disruption=NO_QUIET_TIME | {"budgets": list(budgets)} | disruption)


def node_and_claim(name: str, **annotations: str) -> list[Json]:
    """An initialized a.large and its claim, as a snapshot of a cluster holds them."""
    own = {
        "karpenter.sh/nodepool": "default",
        "node.kubernetes.io/instance-type": "a.large",
        "topology.kubernetes.io/zone": "zone-a",
        "karpenter.sh/capacity-type": "on-demand",
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
    }
    started = {"karpenter.sh/registered": "true", "karpenter.sh/initialized": "true", "kubernetes.io/hostname": name}
    amounts = {"capacity": LARGE, "allocatable": LARGE}
    born = "2026-01-01T00:00:00Z"
    done = {"type": "Initialized", "status": "True", "reason": "Initialized", "lastTransitionTime": born}
    ready = {"type": "Ready", "status": "True", "reason": "Ready", "lastTransitionTime": born}
    reference = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}
    return [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": own | started, "annotations": annotations},
            "spec": {"providerID": f"p://{name}"},
            "status": amounts | {"conditions": [ready]},
        },
        {
            "apiVersion": "karpenter.sh/v1",
            "kind": "NodeClaim",
            "metadata": {"name": f"claim-{name}", "labels": own, "creationTimestamp": born},
            "spec": {"nodeClassRef": reference, "requirements": []},
            "status": amounts | {"providerID": f"p://{name}", "nodeName": name, "conditions": [done]},
        },
    ]


def running(name: str, node: str, cpu: str, **annotations: str) -> Json:
    result = pod(name, cpu, nodeName=node)
    reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "rs", "controller": True}
    result["metadata"] = {"name": name, "annotations": annotations, "ownerReferences": [reference]}
    return result | {"status": {"phase": "Running"}}


def frozen(reason: str = "release week") -> Json:
    result: Json = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"reason": reason}}
    return result | {"metadata": {"name": "karpenter-freeze", "namespace": "kube-system"}}


def cluster(*further: Json, budgets: tuple[Json, ...] = ()) -> list[Json]:
    """Two nodes, one of which could hold the pods of both."""
    pods = [running("a-0", "a", "1"), running("b-0", "b", "4")]
    return [of_pool(*budgets), *node_and_claim("a"), *node_and_claim("b"), *pods, *further]


def test_a_node_that_would_go_says_what_becomes_of_its_pods_and_what_it_saves(
    explain: Explain, written: Written
) -> None:
    result = explain("a", "-f", written("a.json", *cluster()))
    assert result.exit_code == 0
    first, *rest = result.stdout.splitlines()
    assert first.startswith("Node a can be disrupted now: ")
    assert "restarts 1 pod" in first
    assert any("assumed: consolidateAfter has elapsed" in line for line in rest)


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("name", ["a", "ip-10-0-0-1.internal"])
def test_a_narrow_terminal_is_enough_for_the_answer_and_for_the_error(
    name: str, width: int, types: Path, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 16 B: lines break between words, on standard output and on standard error."""
    terminals = {"stdout": TerminalText(), "stderr": TerminalText()}
    for stream, text in terminals.items():
        monkeypatch.setattr(sys, stream, text)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    file = written("a.json", *cluster(frozen("a reason that somebody wrote at length, so that all others know it")))
    words = ["explain", "node", name, "-v", "-f", str(file), "--instance-types", str(types)]
    with suppress(SystemExit, typer.Exit):
        typer.main.get_command(app).main(words, prog_name="karpenter", standalone_mode=False)
    lines = [line for text in terminals.values() for line in text.plain_lines()]
    assert len(lines) > 1
    assert [line for line in lines if len(line) > width] == []


def test_every_blocker_has_a_line(explain: Explain, written: Written) -> None:
    blocked = [
        of_pool({"nodes": "0"}),
        *node_and_claim("a", **{"karpenter.sh/do-not-disrupt": "true"}),
        running("x", "a", "1", **{"karpenter.sh/do-not-disrupt": "true"}),
    ]
    lines = explain("a", "-f", written("a.json", *blocked)).stdout.splitlines()
    assert lines[0] == "Node a kept: blocked by 3 causes"
    assert [line[4:].split(":")[0] for line in lines[1:4]] == ["node", "pod", "budget"]


def test_json_yaml_and_table_say_the_same(explain: Explain, written: Written) -> None:
    file = written("a.json", *cluster(budgets=({"nodes": "0"},)))
    loads = json.loads(explain("claim-a", "-f", file, "-o", "json").stdout)
    assert (loads["node"], loads["nodeClaim"], loads["state"]) == ("a", "claim-a", "blocked")
    assert [(blocker["cause"], blocker["until"]) for blocker in loads["blockers"]] == [("budget", None)]
    assert loads["withoutBudgets"]["nodes"] == ["a"]
    assert [budget_window["allowedFrom"] for budget_window in loads["budgetWindows"]] == [None]
    assert loads["price"] == 0.35
    assert yaml.safe_load(explain("a", "-f", file, "-o", "yaml").stdout) == loads
    page = explain("a", "-f", file, "-o", "table").stdout
    assert loads["blockers"][0]["text"] in page
    assert page == explain("a", "-f", file).stdout


def test_a_node_that_others_move_to_says_so(explain: Explain, written: Written) -> None:
    first = explain("b", "-f", written("a.json", *cluster())).stdout.splitlines()[0]
    assert first == "Node b kept: 1 pod of disrupted nodes are planned for it"


def test_a_node_that_waits_for_others_shows_what_budgets_allow(explain: Explain, written: Written) -> None:
    empty = [of_pool({"nodes": "1"}), *node_and_claim("a"), *node_and_claim("b")]
    loads = json.loads(explain("b", "-f", written("a.json", *empty), "-o", "json").stdout)
    assert (loads["state"], loads["blockers"], loads["command"]) == ("waiting-for-budget", [], None)
    page = explain("b", "-f", written("a.json", *empty)).stdout
    assert page.startswith("Node b waiting for budget: other nodes of its NodePool are disrupted first")
    assert 'NodePool "default" allows 1 node(s) at a time for Empty' in page


@pytest.mark.parametrize(
    ("allowed", "freeze", "opens_at", "expected"),
    [
        (1, "", None, "opens when one of them is gone or ready again"),
        (1, "", END, "opens when one of them is gone or ready again; opens 2027-01-01T00:00:00Z at the latest"),
        (0, "", END, "opens 2027-01-01T00:00:00Z"),
        (0, "", None, "opens not within 31 days"),
        (1, "frozen", None, "opens not within 31 days"),
    ],
)
def test_a_budget_that_nodes_use_up_opens_with_them_and_not_by_the_calendar(
    allowed: int, freeze: str, opens_at: datetime | None, expected: str
) -> None:
    status = BudgetStatus(
        "np", DisruptionReason.EMPTY, allowed, 0, "spec.disruption.budgets[0]", freeze, opens_at=opens_at
    )
    assert opening_text(status) == expected
    assert budget_status_text(status).endswith(f"; {expected}")


def test_a_budget_that_does_not_open_soon_says_so(explain: Explain, written: Written) -> None:
    page = explain("a", "-f", written("a.json", *cluster(budgets=({"nodes": "0"},)))).stdout
    assert "(spec.disruption.budgets[0]); opens not within 31 days" in page


def test_the_gate_of_spot_to_spot_consolidation_is_taken_as_the_controller_takes_it() -> None:
    """DIS-200"""
    settings = resolve_settings({"feature_gates": "SpotToSpotConsolidation=true"}, {})
    assert planning_options.disruption_options(settings).spot_to_spot
    assert not planning_options.disruption_options(Settings()).spot_to_spot


def test_gates_that_cannot_be_read_end_with_one_line(explain: Explain, written: Written) -> None:
    wrong = explain("a", "-f", written("a.json", *cluster()), "--feature-gates", "SpotToSpotConsolidation=perhaps")
    assert wrong.exit_code == 2
    assert wrong.stderr.startswith("karpenter explain: --feature-gates=")


def test_a_claim_without_a_node_can_be_asked_about(explain: Explain, written: Written) -> None:
    _node, claim = node_and_claim("a")
    page = explain("claim-a", "-f", written("a.json", of_pool(), claim)).stdout
    assert "node: Nodeclaim does not have an associated node" in page


def test_a_freeze_in_the_files_is_a_blocker(explain: Explain, written: Written) -> None:
    result = explain("a", "-f", written("a.json", *cluster(frozen())))
    assert "freeze: " in result.stdout
    assert "release week" in result.stdout


def test_an_unknown_node_ends_with_one_line_and_names_that_are_near(explain: Explain, written: Written) -> None:
    result = explain("claim-x", "-f", written("a.json", *cluster()))
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.splitlines()[-1] == (
        "no Node or NodeClaim claim-x in the input; did you mean claim-b or claim-a?"
    )
    empty = explain("n", "-f", written("b.json", pool()))
    assert empty.stderr.splitlines()[-1] == "no Node or NodeClaim n in the input; it has none"


def test_without_files_the_cluster_is_read_together_with_its_freeze(
    explain: Explain, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def read(_settings: object, further: object) -> ClusterObjects:
        asked.append(further)
        return ClusterObjects(from_cluster=True)

    monkeypatch.setattr(cluster_reader, "read_cluster", read)
    result = explain("n")
    assert result.exit_code == 2
    assert asked == [FREEZE_KINDS]
    assert [kind.name for kind in FREEZE_KINDS] == [kinds.CONFIG_MAP.name]
    assert "no Node or NodeClaim n in the cluster" in result.stderr


def test_a_daemon_set_that_does_not_fit_is_reported(explain: Explain, written: Written) -> None:
    template = {"spec": {"containers": [{"name": "a", "image": "a", "resources": {"requests": {"cpu": "1300m"}}}]}}
    agent: Json = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "agent", "namespace": "kube-system"},
        "spec": {"selector": {}, "template": template},
    }
    file = written("a.json", of_pool(), *node_and_claim("a"), running("full", "a", "7"), agent)
    assert "DaemonSet kube-system/agent does not fit: 0.3 CPU short" in explain("a", "-f", file).stdout
    (actual,) = json.loads(explain("a", "-f", file, "-o", "json").stdout)["daemonSetsThatDoNotFit"]
    assert actual["short"] == {"cpu": "300m"}


# -- plan --consolidate -------------------------------------------------------------------------------------------------------


def test_a_plan_shows_consolidation_only_on_request(plan: Plan, written: Written) -> None:
    file = written("a.json", *cluster())
    assert "Nodes to disrupt" not in plan("-f", file).stdout
    page = plan("-f", file, "--consolidate").stdout
    assert "Nodes to disrupt" in page
    assert "saves $" in page
    assert "assumed: consolidateAfter has elapsed for claim-a, claim-b" in page


def test_what_budgets_hold_back_is_shown_with_the_moment_they_allow_it(plan: Plan, written: Written) -> None:
    always_closed: Json = {"nodes": "0", "reasons": ["Underutilized"], "schedule": "0 0 1 1 *", "duration": "8784h"}
    page = plan("-f", written("a.json", *cluster(budgets=(always_closed,))), "--consolidate").stdout
    assert "now: none" in page
    assert "without budgets: " in page
    assert "opens not within 31 days" in page


def test_json_has_the_moves_beside_the_plan(plan: Plan, written: Written) -> None:
    loads = json.loads(plan("-f", written("a.json", *cluster()), "--consolidate", "-o", "json").stdout)
    assert loads["nodeClaims"] == []
    disruption = loads["disruption"]
    (move, *_) = disruption["now"]
    assert move["reason"] == "Underutilized"
    assert disruption["savingPerHour"]["now"] > 0
    assert [budget_window["allowedFrom"] is not None for budget_window in disruption["budgetWindows"]] == [True]
    assert disruption["assumed"]["consolidatable"] == ["claim-a", "claim-b"]


def test_json_of_a_comparison_has_the_moves_too(plan: Plan, written: Written) -> None:
    arguments = ("--consolidate", "--compare", "classic", "-o", "json")
    loads = json.loads(plan("-f", written("a.json", *cluster()), *arguments).stdout)
    assert {"comparison", "disruption"} <= loads.keys()


def test_a_tight_cluster_has_nothing_to_give_back(plan: Plan, written: Written) -> None:
    full = [of_pool(), *node_and_claim("a"), running("full", "a", "7500m")]
    page = plan("-f", written("a.json", *full), "--consolidate").stdout
    assert "  none: all nodes are needed or blocked" in page
    assert "kept by" not in page


def test_nodes_in_their_quiet_time_are_counted(plan: Plan, written: Written) -> None:
    resting = [of_pool(consolidateAfter="87600h"), *node_and_claim("a")]
    page = plan("-f", written("a.json", *resting), "--consolidate").stdout
    assert "  waiting for consolidateAfter: 1 node, the first until 2035-12-30T00:00:00Z" in page


def test_nodes_that_are_too_young_are_counted_beside_those_that_are_kept(plan: Plan, written: Written) -> None:
    slow = of_pool()
    slow["metadata"]["annotations"] = {"karpenter.sh/minimum-node-age": "87600h"}
    nodes = [
        *node_and_claim("a"),
        *node_and_claim("b"),
        *node_and_claim("c", **{"karpenter.sh/do-not-disrupt": "true"}),
    ]
    busy = [running("one", "a", "1"), running("two", "b", "1")]
    page = plan("-f", written("a.json", slow, *nodes, *busy), "--consolidate").stdout
    assert "  blocked by other causes than budgets: 1 node " in page
    assert "  younger than the minimum node age: 2 nodes, the first until 2035-12-30T00:00:00Z" in page


def test_how_many_nodes_something_else_keeps_is_counted(plan: Plan, written: Written) -> None:
    held = node_and_claim("c", **{"karpenter.sh/do-not-disrupt": "true"})
    page = plan("-f", written("a.json", *cluster(*held)), "--consolidate").stdout
    assert "  blocked by other causes than budgets: 1 node (see karpenter explain node NAME)" in page
