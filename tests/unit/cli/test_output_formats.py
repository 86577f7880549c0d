"""``-o`` / ``--output``: the same values for every command, and what each of them prints."""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import typer
import yaml
from typer.testing import CliRunner, Result

from karpenter.cli import main, simulate_runner, tune_runner
from karpenter.cli.main import app
from karpenter.cli.render_common import console_for, print_line
from karpenter.cli.simulate_options import SimulateOptions
from karpenter.cli.simulate_runner import SimulationResult
from karpenter.cli.tune_runner import TuneOptions, TuneResult
from karpenter.history.history_records import ClusterSample
from karpenter.history.history_store import HistoryBounds, HistoryStore
from karpenter.settings import Settings
from support.terminal_text import TerminalText

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
SHOP = ("-f", str(EXAMPLES / "shop.yaml"))
_RULES = ROOT / "src" / "karpenter" / "lint" / "examples"
COMMANDS = {
    "plan": ("plan", *SHOP),
    "explain": ("explain", "pod/web-1", "-n", "shop", *SHOP),
    "budgets": ("budgets", "shop", *SHOP),
    "profiles": ("profiles",),
    "schedule": ("schedule", "-f", str(EXAMPLES / "sleep-and-wake.yaml")),
    "adopt": ("adopt", "--check", *SHOP),
    "lint": ("lint", "-f", str(_RULES / "KL001.bad.yaml"), "-f", str(_RULES / "KL002.bad.yaml")),
    "simulate": ("simulate", "--scenario", "office", "--days", "0.02", "--compare", "lean,karpenter"),
    "tune": ("tune", "--scenario", "office", "--days", "0.02", "--trials", "1", "--executor", "processes:1"),
    "savings": ("savings", "history.db"),
    "replay": ("replay", "plan.record"),
    "doctor": ("doctor", "--cluster-name", "shop", *SHOP),
}
FORMATS = ("table", "wide", "json", "yaml", "markdown", "name")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what ``savings`` and ``replay`` read."""
    folder = tmp_path_factory.mktemp("output")
    store = HistoryStore(folder / "history.db", HistoryBounds(timedelta(days=30), 1 << 26))
    for minutes in (60, 30, 0):
        at = datetime.now(UTC) - timedelta(minutes=minutes)
        store.add_sample(ClusterSample(at, 6.0, 6.0, 4.0, 2, 0, 0.5, 0.5, (), classic_per_hour=9.0))
    assert _run("plan", *SHOP, "--record", str(folder / "plan.record")).exit_code == 0
    return folder


@pytest.fixture(autouse=True)
def _without_cloud(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("KUBECONFIG", str(files / "none"))
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True, scope="module")
def _one_simulation() -> Iterator[None]:
    """The formats print one result; it is simulated once."""
    with pytest.MonkeyPatch.context() as patch:
        simulated, tuned = simulate_runner.run_simulation, tune_runner.run_tuning
        simulations: dict[SimulateOptions, SimulationResult] = {}
        searches: dict[TuneOptions, TuneResult] = {}

        def simulate(options: SimulateOptions, settings: Settings) -> SimulationResult:
            if options not in simulations:
                simulations[options] = simulated(options, settings)
            return simulations[options]

        def tune(options: TuneOptions, settings: Settings) -> TuneResult:
            if options not in searches:
                searches[options] = tuned(options, settings)
            return searches[options]

        patch.setattr(simulate_runner, "run_simulation", simulate)
        patch.setattr(tune_runner, "run_tuning", tune)
        yield


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


def _prints_objects(name: str) -> bool:
    """``convert`` prints manifests and ``iam-policy`` documents for AWS: neither has tables."""
    module, _, function = main.COMMANDS[name].target.partition(":")
    parameters = inspect.signature(getattr(importlib.import_module(module), function)).parameters
    return "output" in parameters and parameters["output"].default == "table"


def test_no_command_with_the_option_is_left_out_here() -> None:
    assert set(COMMANDS) == {name for name in main.COMMANDS if _prints_objects(name)}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_prints_every_format(command: str) -> None:
    for output in FORMATS:
        result = _run(*COMMANDS[command], "-o", output)
        assert result.exit_code in (0, 1), result.output
        assert result.stdout.strip() or (command, output) in NAMELESS
        if output in ("json", "yaml"):
            assert yaml.safe_load(result.stdout)


#: They found nothing that has a name: the history has no decision.
NAMELESS = {("savings", "name")}


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("command", COMMANDS)
def test_no_line_is_wider_than_the_terminal(command: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line may be wider only where it is one name that cannot be broken."""
    page = TerminalText()
    monkeypatch.setattr(sys, "stdout", page)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    typer.main.get_command(app).main(list(COMMANDS[command]), prog_name="karpenter", standalone_mode=False)
    lines = page.plain_lines()
    assert lines
    assert [line for line in lines if len(line) > width and len(line.split()) > 1] == []


def test_sentences_break_between_words_and_keep_their_indent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("TERM", "xterm")
    page = TerminalText()
    print_line(console_for(page, 80), f"  one two three four five {'x' * 30} six\nseven")
    assert page.getvalue() == f"  one two three four\n  five\n  {'x' * 30}\n  six\nseven\n"


def test_names_of_findings_are_their_objects_once() -> None:
    names = _run(*COMMANDS["lint"], "-o", "name").stdout.splitlines()
    assert len(names) == len(set(names))
    assert any(name.startswith("NodePool") for name in names)


def test_wide_findings_say_the_fix_and_sarif_stays() -> None:
    assert "  fix: " in _run(*COMMANDS["lint"], "-o", "wide").stdout
    assert "  fix: " not in _run(*COMMANDS["lint"]).stdout
    assert json.loads(_run(*COMMANDS["lint"], "-o", "sarif").stdout)["version"] == "2.1.0"


def test_names_of_a_simulation_are_its_policies() -> None:
    assert _run(*COMMANDS["simulate"], "-o", "name").stdout.split() == ["policy/lean", "policy/karpenter"]


@pytest.mark.parametrize("command", ["plan", "explain", "budgets", "profiles", "lint", "simulate"])
def test_json_and_yaml_carry_the_same(command: str) -> None:
    as_json, as_yaml = (_run(*COMMANDS[command], "-o", output).stdout for output in ("json", "yaml"))
    assert _without_times(json.loads(as_json)) == _without_times(yaml.safe_load(as_yaml))


def _without_times(document: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in document.items() if key not in ("timings", "stretches")}


def test_names_are_those_of_the_nodeclaims_to_launch() -> None:
    planned = json.loads(_run(*COMMANDS["plan"], "-o", "json").stdout)["nodeClaims"]
    names = _run(*COMMANDS["plan"], "-o", "name").stdout.split()
    assert names == [f"nodeclaim.karpenter.sh/{claim['name']}" for claim in planned]
    assert len(names) > 1


def test_wide_tells_reasons_in_full_and_table_does_not() -> None:
    table, wide = (_run(*COMMANDS["plan"], "-o", output).stdout for output in ("table", "wide"))
    assert "requirements=" in wide
    assert "requirements=" not in table
    assert _run(*COMMANDS["plan"], "-v").stdout.count("requirements=") == wide.count("requirements=")


def test_markdown_is_the_page_in_a_block_of_text() -> None:
    page, markdown = (_run("profiles", "-o", output).stdout for output in ("table", "markdown"))
    assert markdown == f"```text\n{page}```\n"


def test_another_value_is_refused_with_the_values_there_are() -> None:
    result = _run("plan", *SHOP, "-o", "xml")
    assert result.exit_code == 2
    listed = ", ".join(f"'{output}'" for output in FORMATS)
    assert f"Invalid value for '-o' / '--output': 'xml' is not one of {listed}." in result.stderr
