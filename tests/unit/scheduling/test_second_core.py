"""The second core: which work may use it, and a thread that outlives its decision."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from math import inf
from pathlib import Path

import numpy as np
import pytest

from karpenter.scheduling.search import linear_program, second_core
from karpenter.scheduling.search.linear_program import BackgroundCosts, LinearProgram, SparseColumns


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("max 100000\n", inf),
        ("100000 100000\n", 1.0),
        ("250000 100000", 2.5),
        ("-1\n 100000\n", inf),
        ("", inf),
        ("5 0", inf),
    ],
)
def test_a_limit_of_the_container_says_how_many_cores_it_allows(text: str, cores: float) -> None:
    assert second_core.cores_of_quota(text) == cores


@pytest.mark.parametrize(
    ("limit", "expected"), [("100000 100000", False), ("200000 100000", True), ("max 100000", True)]
)
def test_a_container_with_less_than_two_cores_uses_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, expected: bool
) -> None:
    """The packaged chart limits the controller to one."""
    (tmp_path / "cpu.max").write_text(limit)
    monkeypatch.setattr(second_core, "_QUOTA_FILES", ((tmp_path / "cpu.max",),))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    assert second_core.has_second_core.__wrapped__() is expected


def large_program(columns: int = 2_000) -> LinearProgram:
    """Each column covers one row; the least cost is the number of rows."""
    at = np.arange(columns)
    matrix = SparseColumns(np.arange(columns + 1), at, np.ones(columns))
    return LinearProgram(np.ones(columns), matrix, np.ones(columns), np.full(columns, np.inf))


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_program, "has_second_core", lambda: True)


def test_a_program_is_solved_in_a_thread(two_cores: None) -> None:
    costs = BackgroundCosts([large_program()])
    assert costs._thread is not None
    assert costs.wait() == [pytest.approx(2_000)]


def test_an_error_of_the_solver_ends_the_decision(two_cores: None) -> None:
    """Not "no bound": that would be another plan."""
    costs = BackgroundCosts([large_program()])
    costs._solvers.clear()
    costs.wait()

    class Failing:
        def run(self) -> None:
            raise MemoryError("the solver")

    costs._solvers.append(Failing())
    costs._run()
    with pytest.raises(MemoryError, match="the solver"):
        costs.wait()


def test_where_no_thread_can_be_started_the_caller_solves(two_cores: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert BackgroundCosts([large_program()]).wait() == [pytest.approx(2_000)]


_GIVEN_UP = """
from karpenter.scheduling.search import linear_program
linear_program.has_second_core = lambda: True
from tests.unit.scheduling.test_second_core import large_program
linear_program.BackgroundCosts([large_program(10_000)])
raise SystemExit(7)
"""


def test_a_process_ends_as_it_wants_while_a_program_is_being_solved() -> None:
    """A thread that Python ends within the solver would abort the process."""
    root = Path(__file__).parents[3]
    ended = subprocess.run([sys.executable, "-c", _GIVEN_UP], cwd=root, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (7, "")
