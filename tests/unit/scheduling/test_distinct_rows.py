"""Distinct rows and numbers are those that numpy finds, in its order: plans depend on both."""

from __future__ import annotations

import numpy as np
import pytest

from karpenter.scheduling.search.distinct_rows import distinct_numbers, distinct_rows


@pytest.mark.parametrize("seed", range(20))
def test_distinct_rows_are_those_of_numpy_in_its_order(seed: int) -> None:
    draw = np.random.default_rng(seed)
    rows = draw.integers(0, 3, (draw.integers(0, 60), draw.integers(1, 5))).astype(np.float64) / 3
    distinct, first, numbers = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    own_first, own_numbers = distinct_rows(rows)
    assert own_first.tolist() == first.tolist()
    assert own_numbers.tolist() == numbers.ravel().tolist()
    assert rows[own_first].tolist() == distinct.tolist()


@pytest.mark.parametrize("seed", range(5))
def test_distinct_numbers_are_those_of_numpy(seed: int) -> None:
    numbers = np.random.default_rng(seed).integers(0, 9, 5 * seed)
    assert distinct_numbers(numbers).tolist() == np.unique(numbers).tolist()
