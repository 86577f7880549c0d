"""``plan --record`` and ``karpenter replay``: the same solution, byte for byte, in another process and on another day."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from karpenter.cli.main import app
from karpenter.disruption.decide.disruption_decision import decide_disruption
from karpenter.disruption.decide.disruption_problem import DisruptionProblem, DisruptionSolution
from karpenter.disruption.decide.disruption_problem_file import write_disruption_problem
from karpenter.disruption.disruption_recorder import DisruptionRecorder
from karpenter.scheduling.problem import build_problem, instance_types_of
from karpenter.scheduling.problem_file import FORMAT, read_problem, write_problem
from karpenter.scheduling.solver import solve
from support.agreement_scenarios import TYPES, Scenario, scenarios
from support.applied_commands import QUIET
from support.builders import NOW, flatten, indexes, snapshot
from support.disruption_cases import KINDS, pool, running

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "shop.yaml"


def replay(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["replay", *map(str, arguments)])


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("problems") / "shop.json"
    result = CliRunner().invoke(app, ["plan", "-f", str(EXAMPLE), "--record", str(file)])
    assert result.exit_code == 0, result.output
    return file


def test_a_recorded_plan_replays(recorded: Path) -> None:
    result = replay(recorded)
    assert result.exit_code == 0, result.output
    assert "byte for byte" in result.stderr
    planned = CliRunner().invoke(app, ["plan", "-f", str(EXAMPLE), "-o", "json"])
    again = replay(recorded, "-o", "json")
    assert json.loads(again.stdout)["nodeClaims"] == json.loads(planned.stdout)["nodeClaims"]


def test_a_difference_is_shown(recorded: Path, tmp_path: Path) -> None:
    document = json.loads(recorded.read_bytes())
    document["solution"]["content"]["newClaims"][0]["cheapestOffering"]["pricePerHour"] = 0.001
    changed = tmp_path / "changed.json"
    changed.write_text(json.dumps(document))
    result = replay(changed)
    assert result.exit_code == 1
    assert result.stdout.startswith("solution.content.newClaims[0].cheapestOffering.pricePerHour: recorded 0.001, now ")
    assert result.stderr.count("\n") == 1
    assert "differs" in result.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a problem file"),
        (b"[]", "not a problem file"),
        (b"{}", "format is None"),
        (b'{"format": "karpenter.sh/problem/v9"}', "expected 'karpenter.sh/problem/v1'"),
        (json.dumps({"format": FORMAT}).encode(), "problem is missing"),
        (json.dumps({"format": FORMAT, "problem": 1}).encode(), "problem: expected an object"),
        (json.dumps({"format": FORMAT, "problem": {"pods": {"a/b": {"spec": 1}}}}).encode(), "problem.pods.a/b"),
    ],
    ids=["empty", "array", "object", "version", "no-problem", "number", "pod"],
)
def test_what_is_no_problem_file_is_refused_in_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "bad.json"
    file.write_bytes(content)
    result = replay(file)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"{file}: ")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_members_of_a_known_file_that_are_wrong_are_named(recorded: Path, tmp_path: Path) -> None:
    for change, message in (
        (lambda problem: problem.update(now="yesterday"), "problem.now"),
        (lambda problem: problem["options"].update(effort=3), "SchedulingOptions has no effort"),
        (lambda problem: problem["catalogOfNodePool"].update(web=7), "problem.catalogOfNodePool"),
        (lambda problem: problem["snapshot"]["podGroups"][0].update(pods=["no/such"]), "there is no pod 'no/such'"),
        (lambda problem: problem.pop("snapshot"), "snapshot is missing"),
    ):
        document = json.loads(recorded.read_bytes())
        change(document["problem"])
        file = tmp_path / "wrong.json"
        file.write_text(json.dumps(document))
        result = replay(file)
        assert result.exit_code == 2, message
        assert message in result.stderr


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    result = replay(tmp_path / "none.json")
    assert result.exit_code == 2
    assert "cannot be read" in result.stderr


def test_a_place_that_cannot_be_written_ends_the_command(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["plan", "-f", str(EXAMPLE), "--record", str(tmp_path / "no" / "such")])
    assert result.exit_code == 2
    assert "cannot be written" in result.stderr


def record(scenario: Scenario, folder: Path) -> Path:
    objects = scenario.cluster().objects()
    prepared = indexes(scenario.pools, TYPES)
    problem = build_problem(snapshot(objects), prepared, NOW)
    file = folder / f"{scenario.name}.json"
    file.write_bytes(write_problem(problem, solve(problem, prepared)))
    return file


_SOLVE_ALL = """
import sys
from karpenter.scheduling.problem_file import read_problem, solution_bytes
from karpenter.scheduling.solver import solve
for path in sys.argv[1:]:
    recorded = read_problem(open(path, "rb").read())
    if solution_bytes(recorded.problem, solve(recorded.problem)) != recorded.solution_bytes:
        print(path)
"""


@pytest.mark.soak
@pytest.mark.soak
def test_all_shared_scenarios_replay_under_other_hash_seeds(tmp_path: Path, recorded: Path) -> None:
    files = [record(scenario, tmp_path) for scenario in scenarios()] + [recorded]
    assert len(files) > 40
    for seed in ("1", "4242"):
        done = subprocess.run(
            [sys.executable, "-c", _SOLVE_ALL, *map(str, files)],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            check=True,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.stdout == ""


def test_a_file_reads_back_as_it_was_written(recorded: Path) -> None:
    content = recorded.read_bytes()
    recorded_problem = read_problem(content)
    assert write_problem(recorded_problem.problem, recorded_problem.solution) == content


@pytest.fixture
def recorded_disruption(tmp_path: Path) -> tuple[Path, DisruptionSolution]:
    objects = flatten([pool(), running("a", "m", 1), running("b", "m", 3)])
    problem, prepared = DisruptionProblem(snapshot(objects), QUIET), indexes(objects, KINDS)
    solution = decide_disruption(problem, prepared)
    file = tmp_path / "disruption.json"
    file.write_bytes(write_disruption_problem(problem, instance_types_of(prepared), solution))
    return file, solution


def test_a_recorded_disruption_gives_the_same_commands_and_ids(
    recorded_disruption: tuple[Path, DisruptionSolution],
) -> None:
    """The command tells the kind of a problem by its file."""
    file, solution = recorded_disruption
    result = replay(file)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{solution.commands[0].command_id} Underutilized delete [a], saves 2.0000 USD/h\n"
    assert "byte for byte" in result.stderr
    assert json.loads(replay(file, "-o", "json").stdout)["commandIds"] == [solution.commands[0].command_id]


def test_a_difference_of_a_disruption_is_shown(recorded_disruption: tuple[Path, DisruptionSolution]) -> None:
    file, _ = recorded_disruption
    document = json.loads(file.read_bytes())
    document["solution"]["content"]["commands"][0]["savingPerHour"] = 7.0
    file.write_text(json.dumps(document))
    result = replay(file)
    assert result.exit_code == 1
    assert result.stdout.startswith("solution.content.commands[0].savingPerHour: recorded 7.0, now 2.0")


def test_a_disruption_file_that_is_wrong_is_refused_in_one_line(
    recorded_disruption: tuple[Path, DisruptionSolution],
) -> None:
    file, _ = recorded_disruption
    document = json.loads(file.read_bytes())
    document["solution"]["content"]["commands"][0]["candidates"][0]["stateNode"] = "nobody"
    file.write_text(json.dumps(document))
    result = replay(file)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "there is no node 'nobody'" in result.stderr
    assert result.stderr.count("\n") == 1


async def test_a_controller_records_passes_with_candidates(tmp_path: Path) -> None:
    for name, cluster in (("idle", [pool()]), ("busy", [pool(), running("a", "m", 1), running("b", "m", 3)])):
        objects = flatten(cluster)
        problem, prepared = DisruptionProblem(snapshot(objects), QUIET), indexes(objects, KINDS)
        solution = decide_disruption(problem, prepared)
        await DisruptionRecorder(str(tmp_path / name)).record(problem, prepared, solution)
    assert not (tmp_path / "idle").exists()
    [file] = (tmp_path / "busy").iterdir()
    assert file.name.startswith("disruption-")
    assert replay(file).exit_code == 0
