"""The compiled library fills nodes exactly as the arrays do, and a decision is the same without it."""

from __future__ import annotations

import sys
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from karpenter.scheduling.search import array_filling, compiled_filling
from karpenter.scheduling.search.candidate_nodes import BinType
from karpenter.scheduling.search.filled_patterns import Beginning, FilledPatterns, Filling, FillPerturbation, RankedRows
from karpenter.scheduling.search.offering_rows import CpuSurplusRows
from karpenter.scheduling.search.packing_problem import PackingProblem
from karpenter.scheduling.search.random_rows import SEED, RandomSource
from support.builders import node_pool, plan, pods
from support.instance_types import inc


def _problem(draw: np.random.Generator, groups: int, bins: int) -> PackingProblem:
    """Requests and capacities as whole numbers; equal groups, signatures that reject and burstable bins among them."""
    columns, signatures = 3, 4
    requests = draw.integers(0, 9, (groups, columns)).astype(np.float64)
    requests[groups // 2] = requests[0]
    capacities = draw.integers(4, 60, (bins, columns)).astype(np.float64)
    of_group = draw.integers(0, signatures, groups)
    accepts = draw.random((bins, signatures)) < 0.8
    admits = accepts[:, of_group] & (requests[None] <= capacities[:, None]).all(axis=2)
    surplus_prices = np.where(draw.random(bins) < 0.3, 0.01, 0.0)
    return PackingProblem(
        tuple((group,) for group in range(groups)),
        draw.integers(1, 9, groups).astype(np.float64),
        requests,
        tuple(BinType(("pool", None), row) for row in range(bins)),
        capacities,
        draw.random(bins) + 0.1,
        admits,
        of_group.astype(np.intp),
        accepts,
        draw.random(groups),
        draw.random((bins, columns)),
        columns,
        draw.integers(0, 5, groups).astype(np.float64),
        CpuSurplusRows(draw.random(bins) * 5, surplus_prices, np.zeros(bins)),
        0,
        0.0,
    )


def _filling(draw: np.random.Generator, problem: PackingProblem, lines: int, *, begins: bool) -> Filling:
    groups, bins = len(problem.counts), len(problem.prices)
    rows = lines * bins
    random = RandomSource(int(draw.integers(1 << 30))).next_rows(rows, groups, 3, groups * begins)
    perturbation = FillPerturbation(random, 0.3, 0.5, bins)
    beginning = Beginning(draw.integers(0, groups, rows)) if begins else None
    left = draw.integers(0, 4, (lines, groups)).astype(np.float64)
    return Filling(np.tile(np.arange(bins), lines), problem.pod_values, left, perturbation, beginning)


def _bytes(filled: FilledPatterns) -> tuple[bytes, ...]:
    arrays = (filled.starts, filled.groups, filled.numbers, filled.values, filled.bin_types, filled.prices)
    return tuple(array.tobytes() for array in arrays)


def test_a_library_built_from_another_source_is_not_used(tmp_path: Path) -> None:
    """An editable installation keeps an old one, whose structures are others: memory would be overwritten."""
    if compiled_filling.load_library(compiled_filling.LIBRARY) is None:
        pytest.skip("there is no library of this source")
    content = compiled_filling.LIBRARY.read_bytes()
    mark = zlib.crc32(compiled_filling.LIBRARY.with_suffix(".c").read_bytes()).to_bytes(4, sys.byteorder)
    assert content.count(mark) == 1
    other = tmp_path / "fill_kernel.so"
    other.write_bytes(content.replace(mark, b"none"))
    other.chmod(0o755)
    assert compiled_filling.load_library(other) is None
    assert compiled_filling.load_library(tmp_path / "missing.so") is None


@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_compiled_rows_have_the_bytes_of_array_rows(seed: int, begins: bool) -> None:
    draw = np.random.default_rng(seed)
    problem = _problem(draw, groups=5 + 7 * seed, bins=1 + 3 * seed)
    filling = _filling(draw, problem, lines=1 + seed % 3, begins=begins)
    compiled = compiled_filling.filler(problem)
    if compiled is None:
        pytest.skip("no C compiler built the library")
    steps = 3 + 4 * seed
    filled = compiled(filling, steps)
    assert _bytes(filled) == _bytes(array_filling.filler(problem)(filling, steps))
    rows = RankedRows(draw.permutation(len(filled.values)), np.array([len(filled.values)]), np.array([9.0]))
    take, outcomes = compiled_filling.taker(), []
    for taker in filter(None, (take, array_filling.take)):
        waiting = filling.left[:1].copy()
        outcomes.append((taker(filled, rows, waiting).tobytes(), waiting.tobytes()))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("begins", [False, True])
def test_rows_that_two_threads_fill_have_the_bytes_of_array_rows(begins: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which thread fills which rows differs from call to call, so there are several."""
    monkeypatch.setattr(compiled_filling, "MIN_CELLS_FOR_TWO_THREADS", 0)
    monkeypatch.setattr(compiled_filling, "has_second_core", lambda: True)
    draw = np.random.default_rng(5)
    problem = _problem(draw, groups=150, bins=41)
    filling = _filling(draw, problem, lines=35, begins=begins)
    compiled = compiled_filling.filler(problem)
    if compiled is None:
        pytest.skip("no C compiler built the library")
    expected = _bytes(array_filling.filler(problem)(filling, 30))
    for _ in range(20):
        assert _bytes(compiled(filling, 30)) == expected


@pytest.mark.parametrize("seed", [7, SEED])
def test_random_rows_are_what_one_generator_gives_one_after_the_other(seed: int) -> None:
    """A choice takes half words; the half that it leaves is still there after rows were passed over."""
    source, plain = RandomSource(seed), np.random.Generator(np.random.PCG64(seed))
    for rows, groups, columns, draws in ((3, 5, 2, 5), (4, 1, 3, 0), (1, 9, 1, 9)):
        assert source.generator.choice(11, 3).tolist() == plain.choice(11, 3).tolist()
        drawn = source.next_rows(rows, groups, columns, draws)
        assert drawn.of_groups().tobytes() == plain.random((rows, groups)).tobytes()
        assert drawn.of_columns().tobytes() == plain.random((rows, columns)).tobytes()
        if draws:
            assert drawn.draws().tobytes() == plain.random((rows, groups)).tobytes()


def test_rows_before_the_first_choice_are_those_of_the_generator_too() -> None:
    """They are passed over without numpy's generator, which takes as long to load as a small search."""
    source, plain = RandomSource(), np.random.Generator(np.random.PCG64(SEED))
    for rows, groups, columns, draws in ((1, 0, 0, 0), (1000, 45, 3, 0), (3, 5, 2, 5)):
        drawn = source.next_rows(rows, groups, columns, draws)
        assert drawn.of_groups().tobytes() == plain.random((rows, groups)).tobytes()
        assert drawn.of_columns().tobytes() == plain.random((rows, columns)).tobytes()
        plain.random((rows, draws))
    assert source.generator.choice(11, 3).tolist() == plain.choice(11, 3).tolist()
    assert source.next_rows(2, 3, 1, 0).of_groups().tobytes() == plain.random((2, 3)).tobytes()


def test_a_decision_without_the_library_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a C compiler gets the same plan as any other."""
    objects = [
        node_pool(),
        *(pods(3, {"cpu": f"{100 + 90 * n}m", "memory": f"{2000 - 60 * n}Mi"}, prefix=f"p{n}-") for n in range(30)),
    ]
    usual = plan(*objects, types=list(inc(40)))
    monkeypatch.setattr(compiled_filling, "_library", lambda: None)
    assert plan(*objects, types=list(inc(40))) == usual


def test_a_bound_of_all_pods_does_not_count_for_some_of_them() -> None:
    """A search that ends near its bound would end too early for the rest."""
    whole = replace(_problem(np.random.default_rng(1), 4, 3), lower_bound=5.0)
    assert whole.subset(np.arange(4)).lower_bound == 5.0
    assert whole.subset(np.array([1, 2])).lower_bound == 0.0
