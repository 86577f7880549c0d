"""The cheapest nodes for few pods: what the relaxation leaves out, and which programs are not solved again."""

from __future__ import annotations

import numpy as np
import pytest

from karpenter.scheduling.search import linear_program, node_program, packing_problem
from karpenter.scheduling.search.column_enumeration import CoverProblem
from karpenter.scheduling.search.linear_program import IntegerProgram, SparseColumns, solve_integer_program
from karpenter.scheduling.search.node_program import cheapest_nodes, relaxed_nodes
from karpenter.scheduling.search.packing_problem import HOST_LIMIT_CAPACITY, GroupedCover

GROUPS, CANDIDATES = 5, 14


def random_problem(seed: int) -> CoverProblem:
    """A few pods and nodes of two resources, some nodes burstable; no group fits all nodes."""
    random = np.random.default_rng(seed)
    requests = np.column_stack([random.integers(1, 9, GROUPS) * 250, random.integers(1, 9, GROUPS) * 300]).astype(float)
    cores = random.integers(2, 17, CANDIDATES)
    capacities = np.column_stack([cores * 1000 - 90, cores * random.integers(500, 2_000, CANDIDATES)]).astype(float)
    fits = (requests[None, :, :] <= capacities[:, None, :]).all(axis=2)
    admits = fits & (random.random((CANDIDATES, GROUPS)) < 0.8)
    admits[cores.argmax()] = fits[cores.argmax()]
    burstable = random.random(CANDIDATES) < 0.3
    return CoverProblem(
        random.integers(1, 6, GROUPS).astype(float),
        requests,
        capacities,
        cores * random.uniform(0.03, 0.06, CANDIDATES),
        admits,
        np.where(burstable, capacities[:, 0] * 0.2, np.inf),
        np.where(burstable, 0.00005, 0.0),
        0,
    )


@pytest.mark.parametrize("seed", range(24))
def test_candidates_that_the_relaxation_leaves_out_are_in_no_cheapest_packing(seed: int) -> None:
    """SCH-865: with or without them the least cost is the same, and a known cost that is tight hides nothing."""
    problem = random_problem(seed)
    relaxation = relaxed_nodes(problem)
    assert relaxation is not None
    every = node_program._NodeProgram(problem, np.arange(CANDIDATES)).solved(np.inf)
    assert every is not None
    least, is_optimal = every[2:]
    assert is_optimal
    assert relaxation.cost <= least + 1e-9
    for known in (least, least + 0.01, least * 1.3):
        cover = cheapest_nodes(problem, relaxation, known, 10_000)
        assert cover is not None
        assert cover.bound == pytest.approx(least, abs=1e-7)
        assert cover.is_final


def test_a_pod_alone_on_its_host_beside_one_that_it_repels_leaves_the_proof_right() -> None:
    """SCH-865: with 2^20 units of a host limit beside 1 the solver proved 2.38, where four nodes cost 2.24."""
    whole = float(HOST_LIMIT_CAPACITY)
    cpu, memory = [1000.0, 1000.0, 250.0, 250.0], [500.0] * 4
    host_limits = [
        [whole, 0.0, 1.0, 0.0, 0.0, 0.0],
        [0.0, whole, 0.0, whole, whole, 0.0],
        [0.0, whole, whole, 0.0, 0.0, whole / 2],
        [whole, 0.0, 1.0, 0.0, 0.0, 0.0],
    ]
    problem = CoverProblem(
        np.ones(4),
        np.column_stack([cpu, memory, np.ones(4), host_limits]),
        np.array([[900.0, 2038.0, 3.0, *[whole] * 6], [1900.0, 4086.0, 3.0, *[whole] * 6]]),
        np.array([0.11, 0.21]),
        np.array([[False, False, True, True], [True] * 4]),
        np.array([np.inf, 200.0]),
        np.array([0.0, 0.001]),
        0,
    )
    relaxation = relaxed_nodes(problem)
    assert relaxation is not None
    cover = cheapest_nodes(problem, relaxation, 2.38, 10_000)
    assert cover is not None
    assert (cover.is_final, cover.cost) == (True, pytest.approx(2.24))
    assert sorted(cover.columns.contents.tolist()) == np.eye(4, dtype=int)[::-1].tolist()


def test_some_candidates_are_left_out() -> None:
    """Otherwise the relaxation would be of no use."""
    kept = []
    for seed in range(24):
        relaxation = relaxed_nodes(random_problem(seed))
        assert relaxation is not None
        kept.append((relaxation.reduced_costs <= relaxation.cost * 0.05).mean())
    assert np.mean(kept) < 0.7


def test_a_program_solved_to_its_end_is_not_solved_again_after_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its optimum stays the same, whatever packing the search found."""
    solved: list[float] = []
    monkeypatch.setattr(
        packing_problem, "cheapest_nodes", lambda *given: (solved.append(given[2]), cheapest_nodes(*given))[1]
    )
    grouped = GroupedCover(random_problem(1), tuple((at,) for at in range(GROUPS)), (), is_diverse=False)
    first = grouped.cheapest_cover(100.0)
    assert first is not None
    assert first.is_final
    assert grouped.cheapest_cover_after_search(first.bound + 0.1) is None
    assert solved == [100.0]


def test_the_same_integer_program_is_solved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Orders of domains that differ only in names ask for the same nodes."""
    runs: list[object] = []
    original = linear_program._new_solver
    monkeypatch.setattr(linear_program, "_new_solver", lambda: (runs.append(1), original())[1])

    def program() -> IntegerProgram:
        matrix = SparseColumns.from_dense(np.array([[1.0, 0.0], [1.0, 2.0], [0.0, 3.0]]))
        return IntegerProgram(np.array([1.0, 1.7, 1.125]), matrix, np.array([3.0, 5.0]), np.full(2, np.inf))

    first, second = solve_integer_program(program(), 10), solve_integer_program(program(), 10)
    assert first is second
    assert len(runs) == 1
    solve_integer_program(program(), 11)
    assert len(runs) == 2
