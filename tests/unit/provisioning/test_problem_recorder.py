"""``run --record-problems``: the latest problems in a directory that never grows beyond its bounds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from karpenter.provisioning.problem_recorder import ProblemRecorder
from karpenter.scheduling.problem import Problem, build_problem
from karpenter.scheduling.problem_file import read_problem, write_problem
from karpenter.scheduling.solution import Solution
from karpenter.scheduling.solver import solve
from support.builders import NOW, indexes, node_pool, pods, seconds, snapshot
from support.instance_types import STD


def problem(*objects: object) -> tuple[Problem, Solution]:
    prepared = indexes([node_pool()], STD)
    result = build_problem(snapshot(node_pool(), *objects), prepared, NOW)
    return result, solve(result, prepared)


async def record(recorder: ProblemRecorder, number: int) -> None:
    """So many passes, a second apart."""
    asked, solution = problem(pods(3, {"cpu": "1"}))
    for second in range(number):
        await recorder.record(replace(asked, now=seconds(second)), solution)


async def test_what_is_recorded_can_be_read(tmp_path: Path) -> None:
    asked, solution = problem(pods(3, {"cpu": "1"}))
    await ProblemRecorder(str(tmp_path / "new")).record(asked, solution)
    [file] = (tmp_path / "new").iterdir()
    assert file.name == "problem-20260101T000000.000000.json"
    assert file.read_bytes() == write_problem(asked, solution)
    assert len(read_problem(file.read_bytes()).solution.new_claims) == len(solution.new_claims)


async def test_the_oldest_go_when_there_are_too_many(tmp_path: Path) -> None:
    (tmp_path / "notes.json").write_text("mine")
    await record(ProblemRecorder(str(tmp_path), max_files=3), 5)
    names = sorted(file.name for file in tmp_path.iterdir())
    assert names == ["notes.json", *(f"problem-20260101T00000{second}.000000.json" for second in (2, 3, 4))]


async def test_the_oldest_go_when_they_are_too_large(tmp_path: Path) -> None:
    size = len(write_problem(*problem(pods(3, {"cpu": "1"}))))
    await record(ProblemRecorder(str(tmp_path), max_bytes=2 * size + size // 2), 4)
    assert len(list(tmp_path.iterdir())) == 2


async def test_one_that_is_too_large_by_itself_is_left_out(tmp_path: Path) -> None:
    await record(ProblemRecorder(str(tmp_path), max_bytes=10), 1)
    assert list(tmp_path.iterdir()) == []


async def test_a_pass_without_pods_is_not_recorded(tmp_path: Path) -> None:
    await ProblemRecorder(str(tmp_path)).record(*problem())
    assert list(tmp_path.iterdir()) == []


async def test_a_directory_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    await record(ProblemRecorder(str(file)), 1)
    assert file.read_text() == ""


async def test_nothing_unfinished_is_left(tmp_path: Path) -> None:
    await record(ProblemRecorder(str(tmp_path)), 2)
    assert not [file for file in tmp_path.iterdir() if file.name.startswith(".")]
