"""Distinct rows and numbers, as `numpy.unique` finds them: that loads numpy's masked arrays, and compares rows byte by byte."""

from __future__ import annotations

import numpy as np

from karpenter.scheduling.search.linear_program import FloatArray, IntArray


def distinct_rows(rows: FloatArray | IntArray) -> tuple[IntArray, IntArray]:
    """Where each distinct row is first, in ascending order of rows, and the number of each row in that order."""
    order = np.lexsort(rows.T[::-1])
    ordered = rows[order]
    begins = np.ones(len(rows), dtype=bool)
    begins[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    numbers = np.empty(len(rows), dtype=np.intp)
    numbers[order] = np.cumsum(begins) - 1
    return order[begins], numbers


def distinct_numbers(numbers: IntArray) -> IntArray:
    """The distinct ones of numbers that are not negative, in ascending order."""
    return np.flatnonzero(np.bincount(numbers))
