"""Runs of ``karpenter tune`` in processes and on a Dask cluster."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from distributed import LocalCluster
from typer.testing import CliRunner, Result

from karpenter.cli import tune_runner
from karpenter.cli.main import app
from karpenter.cli.tune_runner import TuneOptions, TuneResult
from karpenter.settings import Settings
from karpenter.simulator.policy import read_policy
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
"""
SCENARIO = "days: 0.02\nworkloads:\n  - {kind: drips, name: jobs, perHour: 30, runMinutes: 8, cpu: 1500m}\n"
SPACE = "parameters:\n  consolidateAfter: {choices: [0s, Never]}\n"


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A short scenario, and two candidates: empty nodes go at once, or never."""
    tmp_path = tmp_path_factory.mktemp("tune")
    for name, text in (("pools.yaml", POOL), ("drips.yaml", SCENARIO), ("space.yaml", SPACE)):
        (tmp_path / name).write_text(text)
    (tmp_path / "types.json").write_text(json.dumps([type_of("a.small", 2, 4, 0.1)]))
    options = {
        "-f": "pools.yaml",
        "--instance-types": "types.json",
        "--scenario": "drips.yaml",
        "--space": "space.yaml",
    }
    paths = [part for option, name in options.items() for part in (option, str(tmp_path / name))]
    return ["tune", *paths, "--trials", "4"]


@pytest.fixture(scope="module")
def searches() -> dict[TuneOptions, TuneResult]:
    """What was searched in this file so far."""
    return {}


@pytest.fixture
def _searched_once(searches: dict[TuneOptions, TuneResult], monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that print one search differently share it."""
    search = tune_runner.run_tuning

    def run_tuning(options: TuneOptions, settings: Settings) -> TuneResult:
        if options not in searches:
            searches[options] = search(options, settings)
        return searches[options]

    monkeypatch.setattr(tune_runner, "run_tuning", run_tuning)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, catch_exceptions=False)


def tuned(*arguments: str) -> dict[str, Any]:
    result = run(*arguments, "-o", "json")
    assert (result.exit_code, result.stderr) == (0, "")
    return dict(json.loads(result.stdout))


@pytest.mark.usefixtures("_searched_once")
def test_processes_and_dask_give_the_same_search(arguments: list[str]) -> None:
    """Nodes that never go are dearer; both candidates are simulated once."""
    in_processes = tuned(*arguments, "--executor", "processes:1")
    assert [each["policy"].get("consolidateAfter") for each in in_processes["candidates"]].count("Never") == 1
    by_name = {each["policy"].get("consolidateAfter"): each for each in in_processes["candidates"]}
    assert by_name["Never"]["usdPerMonth"]["mean"] > by_name["0s"]["usdPerMonth"]["mean"]
    with LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None, host="127.0.0.1", protocol="tcp"
    ) as cluster:
        port = cluster.scheduler_address.rpartition(":")[2]
        assert tuned(*arguments, "--executor", f"dask://127.0.0.1:{port}") == in_processes


@pytest.mark.usefixtures("_searched_once")
def test_the_policies_of_the_front_are_files_that_simulate_takes(arguments: list[str], tmp_path: Path) -> None:
    result = run(*arguments, "--executor", "processes:1", "--policies", str(tmp_path / "front"), "-o", "name")
    assert result.exit_code == 0
    files = sorted((tmp_path / "front").iterdir())
    assert sorted(f"policy/{file.stem}" for file in files) == sorted(result.stdout.split())
    for file in files:
        assert read_policy(str(file)).file.profile == yaml.safe_load(file.read_text())["profile"]


@pytest.mark.parametrize(
    ("extra", "complaint"),
    [
        (["--executor", "cloud"], "there is no executor 'cloud'; choose processes, processes:N or dask://HOST:PORT"),
        (["--trace", "month.csv"], "karpenter tune needs one of --trace FILE, --scenario NAME, --from-cluster and -f"),
    ],
)
def test_wrong_input_is_reported_in_one_line(arguments: list[str], extra: list[str], complaint: str) -> None:
    result = run(*arguments, *extra)
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_search_that_cannot_begin_makes_no_directory(arguments: list[str], tmp_path: Path) -> None:
    result = run(*arguments, "--executor", "cloud", "--policies", str(tmp_path / "front"))
    assert (result.exit_code, list(tmp_path.glob("front"))) == (2, [])


def test_policies_that_cannot_be_written_are_reported_before_the_search(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = run(*arguments, "--executor", "cloud", "--policies", str(tmp_path / "file" / "front"))
    said = f"--policies {tmp_path}/file/front: cannot be written ({tmp_path}/file is no directory)\n"
    assert (result.exit_code, result.stderr) == (2, said)


def test_a_missing_optimiser_is_named_with_how_to_install_it(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    result = run(*arguments, "--executor", "processes:1")
    assert (result.exit_code, result.stderr) == (2, "karpenter tune needs Optuna: pip install 'karpenter[tune]'\n")
