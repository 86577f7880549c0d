"""Every scenario of this folder is also written to a problem file and replayed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from karpenter.scheduling.problem import Problem
from karpenter.scheduling.solution import Solution
from support import builders
from support.replay_check import check_replay


@pytest.fixture(autouse=True)
def replayed() -> Iterator[None]:
    """The last problem of a test, replayed: of a test that solves many, one stands for all."""
    last: list[tuple[Problem, Solution]] = []

    def remember(problem: Problem, solution: Solution) -> None:
        last[:] = [(problem, solution)]

    builders.on_solved.append(remember)
    yield
    builders.on_solved.remove(remember)
    for problem, solution in last:
        check_replay(problem, solution)
