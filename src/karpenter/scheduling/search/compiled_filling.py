"""Rows filled by the library that `fill_kernel.c` compiles to, where it was built; else `array_filling` does the same.

The library is loaded with ctypes: it knows nothing of Python, so one serves every version of it.
"""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from karpenter.scheduling.search.filled_patterns import FilledPatterns, Filling, RankedRows, to_value_units
from karpenter.scheduling.search.packing_problem import PackingProblem
from karpenter.scheduling.search.second_core import has_second_core

#: The compiled library beside this module; the build makes it where there is a C compiler.
LIBRARY = Path(__file__).with_name("fill_kernel.so")
_SOURCE = Path(__file__).with_name("fill_kernel.c")
#: Rows are filled by two threads from so many cells on (rows times steps): that is 0.3 ms, and a thread takes 0.03 ms to start.
MIN_CELLS_FOR_TWO_THREADS = 4_000


class _Problem(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("groups", "columns", "bins", "signatures", "cpu_column")),
        *(
            (name, ctypes.c_void_p)
            for name in (
                "requests",
                "capacities",
                "resource_values",
                "prices",
                "surplus_prices",
                "baselines",
                "max_per_node",
                "admits",
                "rejects",
                "signature_of",
            )
        ),
    ]


class _Filling(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("rows", "steps", "rows_per_left", "plain_rows", "squares")),
        *((name, ctypes.c_void_p) for name in ("bin_types", "pod_values", "value_units", "left", "first_group")),
        *((name, ctypes.c_uint64) for name in ("state_high", "state_low", "increment_high", "increment_low")),
        *((name, ctypes.c_double) for name in ("noise_amount", "weight_amount")),
    ]


class _Filled(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("counts", "groups", "numbers", "values", "bin_types", "prices")]


class _Taking(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("runs", "groups")),
        *(
            (name, ctypes.c_void_p)
            for name in ("starts", "inside", "numbers", "ranked", "until", "most", "waiting", "times")
        ),
    ]


@cache
def _library() -> ctypes.CDLL | None:
    return load_library(LIBRARY)


def load_library(path: Path) -> ctypes.CDLL | None:
    """The library; None where it was not built, or from another version of its source: that has other structures.

    An editable installation keeps its library when the source changes, until it is installed again.
    """
    try:
        library = ctypes.CDLL(str(path))
        built_from = ctypes.c_uint32.in_dll(library, "karpenter_source").value
        return library if built_from == zlib.crc32(_SOURCE.read_bytes()) else None
    except (OSError, ValueError):
        return None


def filler(problem: PackingProblem) -> Callable[[Filling, int], FilledPatterns] | None:
    """What fills rows of the problem, each with so many groups at most; None where the library was not built."""
    library = _library()
    return None if library is None else _CompiledFiller(library, problem).fill


class _CompiledFiller:
    """The arrays of a problem as the library reads them. They live as long as this."""

    def __init__(self, library: ctypes.CDLL, problem: PackingProblem) -> None:
        self._library = library
        self._groups = len(problem.counts)
        self._arrays: tuple[NDArray[np.generic], ...] = (
            *map(
                _floats,
                (problem.requests, problem.capacities, problem.resource_values, problem.prices),
            ),
            *map(_floats, (problem.surplus.prices, problem.surplus.baselines, problem.max_per_node)),
            np.ascontiguousarray(problem.admits, dtype=np.uint8),
            np.ascontiguousarray(~problem.accepts, dtype=np.uint8),
            _whole(problem.signatures),
        )
        self._problem = _Problem(
            self._groups,
            problem.requests.shape[1],
            len(problem.prices),
            problem.accepts.shape[1],
            max(0, problem.cpu_column),
            *(array.ctypes.data for array in self._arrays),
        )

    def fill(self, filling: Filling, steps: int) -> FilledPatterns:
        """Nodes with as many pods as go in. Raises ``MemoryError``."""
        rows = len(filling.bin_types)
        noise, beginning = filling.perturbation, filling.beginning
        given: list[NDArray[np.generic]] = [
            _whole(filling.bin_types),
            *map(_floats, (filling.pod_values, to_value_units(filling.pod_values), filling.left)),
            *([] if beginning is None else [_whole(beginning.first_group)]),
        ]
        request = _Filling(
            *(rows, steps, rows // len(filling.left), noise.plain_rows, beginning is not None),
            *(array.ctypes.data for array in given),
            *([None] if beginning is None else []),
            *noise.random.words,
            *(noise.group_amount, noise.column_amount),
        )
        counts, bin_types = np.empty(rows, dtype=np.int64), np.empty(rows, dtype=np.int64)
        groups, numbers = np.empty(rows * (steps + 1), dtype=np.int64), np.empty(rows * (steps + 1))
        values, prices = np.empty(rows), np.empty(rows)
        made = _Filled(*(array.ctypes.data for array in (counts, groups, numbers, values, bin_types, prices)))
        threads = 2 if rows * steps >= MIN_CELLS_FOR_TWO_THREADS and has_second_core() else 1
        arguments = map(ctypes.byref, (self._problem, request, made))
        failed = self._library.karpenter_fill(*arguments, threads)
        if failed:
            raise MemoryError
        starts = np.concatenate([[0], np.cumsum(counts)])
        return FilledPatterns(starts, groups[: starts[-1]], numbers[: starts[-1]], values, bin_types, prices)


def taker() -> Callable[[FilledPatterns, RankedRows, NDArray[np.float64]], NDArray[np.float64]] | None:
    """What takes rows as `array_filling.take` does; None where the library was not built."""
    library = _library()
    return None if library is None else lambda filled, rows, waiting: _take(library, filled, rows, waiting)


def _take(
    library: ctypes.CDLL, filled: FilledPatterns, rows: RankedRows, waiting: NDArray[np.float64]
) -> NDArray[np.float64]:
    times = np.empty(len(rows.ranked))
    if not waiting.flags.c_contiguous:
        raise ValueError("the library changes contiguous arrays only")
    arrays: tuple[NDArray[np.generic], ...] = (
        *(_whole(filled.starts), _whole(filled.groups), _floats(filled.numbers)),
        *(_whole(rows.ranked), _whole(rows.until), _floats(rows.most), waiting, times),
    )
    library.karpenter_take(ctypes.byref(_Taking(*waiting.shape, *(array.ctypes.data for array in arrays))))
    return times


def _floats(array: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.ascontiguousarray(array, dtype=np.float64)


def _whole(array: NDArray[np.intp]) -> NDArray[np.int64]:
    return np.ascontiguousarray(array, dtype=np.int64)
