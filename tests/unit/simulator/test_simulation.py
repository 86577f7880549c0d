"""Runs of ``karpenter simulate``: the production controllers serve the pods, and the report says what that cost."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from karpenter.cli import simulate_options, simulate_runner, study_inputs
from karpenter.cli.main import app
from karpenter.simulator.simulation_run import Progress
from support.manifest_builders import type_of

POOL = """
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: default}
spec:
  template:
    spec:
      requirements: []
      nodeClassRef: {group: karpenter.kwok.sh, kind: KWOKNodeClass, name: default}
  disruption: {consolidateAfter: 1m, budgets: [{nodes: 100%}]}
"""
_ONE_POD_FOR_A_DAY = ("web,0,86400,,1500,1024",)
HEADER = "name,creation_s,deletion_s,runtime_s,cpu_milli,memory_mib"


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    """A NodePool, and types with 2 and 8 CPU for $0.1 and $0.35 an hour."""
    (tmp_path / "pools.yaml").write_text(POOL)
    types = [type_of("a.small", 2, 4, 0.1), type_of("a.large", 8, 16, 0.35)]
    (tmp_path / "types.json").write_text(json.dumps(types))
    return ["simulate", "-f", str(tmp_path / "pools.yaml"), "--instance-types", str(tmp_path / "types.json")]


@pytest.fixture
def drips(tmp_path: Path) -> str:
    """A scenario of few pods: a job every minute."""
    path = tmp_path / "drips.yaml"
    path.write_text("days: 0.012\nworkloads:\n  - {kind: drips, name: jobs, perHour: 60, runMinutes: 4, cpu: 1500m}\n")
    return str(path)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, catch_exceptions=False)


def simulate(tmp_path: Path, arguments: list[str], *rows: str, header: str = HEADER) -> dict[str, Any]:
    """The report of a trace."""
    trace = tmp_path / "trace.csv"
    trace.write_text("\n".join((header, *rows)) + "\n")
    result = run(*arguments, "--trace", str(trace), "-o", "json")
    assert (result.exit_code, result.stderr) == (0, "")
    (report,) = json.loads(result.stdout)["reports"]
    return dict(report)


def test_the_lower_bound_of_a_shorter_last_step_counts_the_pods_of_that_time(
    tmp_path: Path, arguments: list[str]
) -> None:
    """Steps take ten minutes; the last one of this study takes eight."""
    report = simulate(tmp_path, [*arguments, "--days", "0.0125"], *_ONE_POD_FOR_A_DAY)
    (rate,) = {sample["lowerBoundUsdPerHour"] for sample in report["timeline"]}
    assert report["cost"]["lowerBoundUsd"] == pytest.approx(rate * 0.3, abs=0.005)


def test_one_pod_costs_its_node_from_launch_to_removal(tmp_path: Path, arguments: list[str]) -> None:
    report = simulate(tmp_path, arguments, "web,0,7200,,1800,1024", "last,10800,10801,,1800,1024")
    assert report["nodes"]["launched"] == 1
    # Two hours with the pod at $0.1 an hour; the node comes and goes within minutes of it.
    assert 0.2 <= report["cost"]["usd"] <= 0.22
    gap = report["cost"]["gapUsd"]
    assert sum(gap.values()) == pytest.approx(report["cost"]["usd"] - report["cost"]["lowerBoundUsd"], abs=1e-9)
    assert report["waiting"]["arrivals"]["pods"] >= 1
    assert report["waiting"]["arrivals"]["p50Seconds"] > 45
    assert report["restarts"]["total"] == 0


def test_a_job_ends_after_its_run_time_and_not_after_its_wait(tmp_path: Path, arguments: list[str]) -> None:
    report = simulate(tmp_path, arguments, "job,0,,3600,1800,1024", "last,7200,7201,,100,128")
    (capacity,) = report["capacity"]
    assert 1.0 < capacity["nodeHours"] < 1.2


def test_a_pod_that_is_moved_counts_as_a_restart_with_its_cause(tmp_path: Path, arguments: list[str]) -> None:
    """The large node is for five pods; when four leave, the fifth moves to a small one."""
    rows = [f"web-{number},0,3600,,1500,1024" for number in range(4)]
    report = simulate(tmp_path, arguments, *rows, "stays,0,14400,,1500,1024")
    assert report["restarts"]["byCause"] == {"Underutilized": 1}
    assert report["moves"]["total"] == 1
    assert report["moves"]["perDay"] == pytest.approx(6.0), "one in four hours"
    assert report["capacity"][-1]["instanceType"] == "a.small"
    assert report["waiting"]["restarts"]["pods"] == 1
    (move,) = (line for line in report["decisions"] if line["reason"] == "Underutilized")
    assert (len(move["nodes"]), move["replacements"], move["pods"], move["outcome"]) == (1, 1, 1, "succeeded")
    assert move["savingUsdPerHour"] == pytest.approx(0.25)
    ended = [event for event in report["events"] if event["event"] == "ended" and event["reason"] == "Underutilized"]
    assert [event["node"] for event in ended] == move["nodes"]
    launched = [event["instanceType"] for event in report["events"] if event["event"] == "launched"]
    assert launched == ["a.large", "a.small"]


@pytest.mark.parametrize(
    ("budget", "restarts"), [("maxUnavailable: 0", 0), ("maxUnavailable: 50%", 1), ("minAvailable: 1", 0)]
)
def test_disruption_budgets_of_the_files_hold(tmp_path: Path, arguments: list[str], budget: str, restarts: int) -> None:
    """Of the controller of a simulated pod there is no object; how many pods it wants is known all the same."""
    (tmp_path / "budget.yaml").write_text(
        "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: stays}\n"
        f"spec: {{{budget}, selector: {{matchLabels: {{app: stays}}}}}}\n"
    )
    rows = [*(f"web-{number},0,3600,,1500,1024," for number in range(4)), "stays,0,14400,,1500,1024,stays"]
    files = [*arguments, "-f", str(tmp_path / "budget.yaml")]
    report = simulate(tmp_path, files, *rows, header=f"{HEADER},workload")
    assert report["restarts"]["total"] == restarts


def test_a_budget_in_percent_follows_a_workload_that_shrinks(tmp_path: Path, arguments: list[str]) -> None:
    """Four of five pods leave. Half of one, rounded up, may go; half of five would want two to stay."""
    (tmp_path / "budget.yaml").write_text(
        "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: web}\n"
        "spec: {maxUnavailable: 50%, selector: {matchLabels: {app: web}}}\n"
    )
    (tmp_path / "together.yaml").write_text('settings: {exposure: "off"}\n')
    rows = [*(f"web-{number},0,3600,,1500,1024,web" for number in range(4)), "web-4,0,14400,,1500,1024,web"]
    files = [*arguments, "-f", str(tmp_path / "budget.yaml"), "--policy", str(tmp_path / "together.yaml")]
    report = simulate(tmp_path, files, *rows, header=f"{HEADER},workload")
    assert report["restarts"]["total"] == 1


def test_a_budget_in_percent_over_pods_of_a_job_lets_none_go(tmp_path: Path, arguments: list[str]) -> None:
    """Jobs have no replicas, so the API server cannot count."""
    (tmp_path / "budget.yaml").write_text(
        "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: stays}\n"
        "spec: {maxUnavailable: 100%, selector: {matchLabels: {app: stays}}}\n"
    )
    rows = [*(f"web-{number},0,3600,,1500,1024," for number in range(4)), "stays,0,,14000,1500,1024,stays"]
    files = [*arguments, "-f", str(tmp_path / "budget.yaml")]
    assert simulate(tmp_path, files, *rows, header=f"{HEADER},workload")["restarts"]["total"] == 0


def test_pods_no_node_pool_can_hold_are_named_and_cost_nothing(tmp_path: Path, arguments: list[str]) -> None:
    report = simulate(tmp_path, arguments, "whale,0,3600,,64000,1024", "web,0,3600,,500,512")
    assert report["waiting"]["unschedulable"] == ["whale"]
    waited = report["waiting"]["podHoursByCause"]
    assert waited["no NodePool can hold the pod"] == pytest.approx(1.0, abs=0.01), "an hour of one pod"
    assert waited["start of a node"] == pytest.approx(45 / 3600, abs=0.01)
    assert waited["room on a node"] == waited["still waiting at the end"] == 0
    assert report["nodes"]["launched"] == 1


def test_the_same_seed_gives_the_same_report_byte_for_byte(arguments: list[str], drips: str) -> None:
    def report(seed: str) -> str:
        return run(*arguments, "--scenario", drips, "--seed", seed, "-o", "json").stdout

    first = report("1")
    assert json.loads(first)["reports"][0]["waiting"]["arrivals"]["pods"] > 10
    assert report("1") == first
    assert report("2") != first


@pytest.mark.parametrize(
    ("rules", "nodes"), [("", 1), (", podAntiAffinity: [{topologyKey: kubernetes.io/hostname}]", 3)]
)
def test_pods_of_a_scenario_that_must_be_apart_are_on_nodes_of_their_own(
    tmp_path: Path, arguments: list[str], rules: str, nodes: int
) -> None:
    path = tmp_path / "apart.yaml"
    generator = f"{{kind: rollOuts, name: web, replicas: 3, everyHours: 10000, cpu: 100m{rules}}}"
    path.write_text(f"days: 0.01\nworkloads:\n  - {generator}\n")
    report = json.loads(run(*arguments, "--scenario", str(path), "-o", "json").stdout)["reports"][0]
    assert (report["nodes"]["launched"], report["waiting"]["stillWaiting"]) == (nodes, 0)


def test_the_page_says_how_long_a_short_study_was(arguments: list[str], drips: str) -> None:
    assert run(*arguments, "--scenario", drips).stdout.startswith("drips: 0.012 days, seed 1\n")


def test_a_study_of_files_says_how_long_it_is_where_days_does_not(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (simulate_options, study_inputs):
        monkeypatch.setattr(module, "CLUSTER_DAYS", 0.02)
    pods = tmp_path / "pods.yaml"
    pods.write_text("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c}]}\n")
    said = run(*arguments, "-f", str(pods), "--pattern", "steady").stderr
    assert said == "karpenter simulate: 0.02 days are simulated; --days gives another number\n"
    assert run(*arguments, "-f", str(pods), "--pattern", "steady", "--days", "0.01").stderr == ""


@pytest.mark.parametrize("command", ["simulate", "tune"])
@pytest.mark.parametrize("flag", ["--kubeconfig", "--context"])
def test_a_cluster_is_named_for_studies_of_a_cluster_only(command: str, flag: str) -> None:
    result = run(command, "--scenario", "web", flag, "dev")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "--kubeconfig and --context are for --from-cluster: leave them out without it\n"


def test_a_comparison_shows_both_policies_and_ends_with_a_recommendation(
    arguments: list[str], drips: str, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    compared = (*arguments, "--scenario", drips, "--compare", "lean,karpenter")
    document = json.loads(run(*compared, "--seeds", "2", "-o", "json", "--html", str(page)).stdout)
    assert [(report["policy"], report["seed"]) for report in document["reports"]] == [
        ("lean", 1),
        ("lean", 2),
        ("karpenter", 1),
        ("karpenter", 2),
    ]
    # The figures are those of the first.
    assert "drips: 0.012 days, seed 1 (seeds 1 to 2 are compared below)" in page.read_text()
    (difference,) = document["comparison"]["policies"]
    monthly = [report["cost"]["usdPerMonth"] for report in document["reports"]]
    mean = (monthly[2] - monthly[0] + monthly[3] - monthly[1]) / 2
    assert difference["usdPerMonth"]["mean"] == pytest.approx(mean, abs=0.02)
    assert document["comparison"]["recommendation"].endswith(".")


def test_runs_side_by_side_give_the_report_of_runs_in_turn(arguments: list[str], drips: str) -> None:
    compared = (*arguments, "--scenario", drips, "--compare", "lean,karpenter", "-o", "json")
    assert run(*compared, "--executor", "processes:2").stdout == run(*compared).stdout


def test_a_comparison_in_markdown_closes_with_the_recommendation(tmp_path: Path, arguments: list[str]) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(f"{HEADER}\nweb,60,900,,1500,1024\n")
    page = run(*arguments, "--trace", str(trace), "--compare", "lean,karpenter", "-o", "markdown").stdout
    assert "### compared with lean" in page
    assert page.rstrip().endswith(".")


def test_a_world_delays_registration_and_takes_spot_instances_back(tmp_path: Path, arguments: list[str]) -> None:
    """At this rate an instance lasts 21 hours on average, so that a day of one pod meets an end with this seed."""
    world = tmp_path / "world.yaml"
    world.write_text("registration: {median: 5m}\ninterruptions: [{perMonth: 0.999999999999999}]\n")
    report = simulate(tmp_path, [*arguments, "--world", str(world)], *_ONE_POD_FOR_A_DAY)
    assert report["waiting"]["arrivals"]["p50Seconds"] > 300
    assert report["restarts"]["byCause"] == {"Interrupted": report["restarts"]["total"]}
    assert report["nodes"]["launched"] == 1 + report["restarts"]["total"]


def test_an_instance_that_is_lost_without_warning_has_its_own_cause(tmp_path: Path, arguments: list[str]) -> None:
    world = tmp_path / "world.yaml"
    world.write_text("losses: [{perMonth: 0.999999999999999}]\n")
    report = simulate(tmp_path, [*arguments, "--world", str(world)], *_ONE_POD_FOR_A_DAY)
    assert report["restarts"]["total"] > 0
    assert report["restarts"]["byCause"] == {"NodeLost": report["restarts"]["total"]}


def test_a_type_that_is_out_of_stock_is_replaced_by_another(tmp_path: Path, arguments: list[str]) -> None:
    world = tmp_path / "world.yaml"
    world.write_text("stockOuts: [{instanceType: a.small, everyHours: 0.0001, minutes: 100000}]\n")
    report = simulate(tmp_path, [*arguments, "--world", str(world)], "web,60,3600,,1500,1024")
    assert [share["instanceType"] for share in report["capacity"]] == ["a.large"]


def test_ctrl_c_ends_all_runs_with_the_report_so_far(
    arguments: list[str], drips: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(progress: object, task: object, state: Progress) -> None:
        if state.seconds >= 900:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(simulate_runner, "_advance", interrupt)
    # As at the start of a process, whatever a test before this one left.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        result = run(*arguments, "--scenario", drips, "--compare", "lean,karpenter", "-o", "json")
    finally:
        signal.signal(signal.SIGINT, handler)
    assert result.exit_code == 130
    assert result.stderr == "karpenter simulate: interrupted; the report covers the time until then\n"
    (report,) = json.loads(result.stdout)["reports"]
    assert report["partial"]
    assert report["days"] == pytest.approx(900 / 86400, abs=0.001)
    assert len(report["timeline"]) == 900 / 60


def test_a_run_that_cannot_begin_neither_makes_nor_changes_the_page(arguments: list[str], tmp_path: Path) -> None:
    kept, new = tmp_path / "kept.html", tmp_path / "new.html"
    kept.write_text("a page")
    for page in (kept, new):
        assert run(*arguments, "--scenario", "nothing", "--html", str(page)).exit_code == 2
    assert (kept.read_text(), new.exists()) == ("a page", False)
    result = run(*arguments, "--scenario", "web", "--html", str(tmp_path))
    assert (result.exit_code, result.stderr) == (2, f"--html {tmp_path}: cannot be written (Is a directory)\n")


@pytest.mark.parametrize(
    ("further", "complaint"),
    [
        ((), "there are no pods to simulate: give --trace, --scenario, or manifests with pods or workloads"),
        (("--scenario", "nothing"), "there is no scenario 'nothing'; choose batch, office, web, or a YAML file"),
        (("--scenario", "web", "--policy", "nothing"), "there is no policy 'nothing'; choose lean, karpenter"),
        (
            ("--scenario", "web", "--seeds", "3"),
            "--seeds needs --compare, and with --trace also --world; a trace has no random",
        ),
        (
            ("--scenario", "web", "--executor", "cloud"),
            "there is no executor 'cloud'; choose processes, processes:N or",
        ),
        (("--trace", "/nowhere.csv"), "/nowhere.csv: cannot be read (No such file or directory)"),
        (("--scenario", "web", "--from-day", "2"), "--from-day is a day of a trace: give --trace, or leave it out"),
        (
            ("--scenario", "web", "--pattern", "daily"),
            "--pattern is for the pods of -f and --from-cluster: leave it out",
        ),
        (("--scenario", "web", "--policy", "lean", "--compare", "lean"), "--policy and --compare exclude each other"),
    ],
)
def test_wrong_input_ends_in_one_line(arguments: list[str], further: tuple[str, ...], complaint: str) -> None:
    result = run(*arguments, *further)
    assert result.exit_code == 2
    assert result.stderr.startswith(complaint)
    assert result.stderr.count("\n") == 1
