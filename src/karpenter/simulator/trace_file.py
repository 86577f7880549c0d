"""Traces: files with one row per pod.

The project's own format is CSV with a header row, or Parquet with the same columns (it needs the extra ``parquet``). Columns, in
any order:

| column | meaning |
|---|---|
| ``name`` | name of the pod, unique |
| ``creation_s`` | when it arrives, seconds since some start |
| ``deletion_s`` | when it leaves, on the same clock; empty: it stays |
| ``runtime_s`` | instead: how long it runs once it is ready |
| ``cpu_milli``, ``memory_mib`` | requests |
| ``num_gpu`` | optional: whole GPUs (``nvidia.com/gpu``) |
| ``workload`` | optional: the name of its Deployment or Job |

Other columns are ignored, so the published Alibaba GPU trace (columns ``name,creation_s,scheduled_s,deletion_s,cpu_milli,
memory_mib,num_gpu,...``) is read as it is.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from karpenter.model.texts import why_unreadable
from karpenter.simulator.workload import (
    PodLife,
    Workload,
    WorkloadError,
    WorkloadPodTemplate,
    job_template,
    ordered_workload,
    replica_set_template,
    workload_labels,
)

DAY_SECONDS = 86_400
_REQUIRED = ("name", "creation_s", "cpu_milli", "memory_mib")
_GPU = "nvidia.com/gpu"
_MANY_ERRORS = 5
_EXPECTED = "expected a trace with one row per pod, as CSV or Parquet"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", re.ASCII)
_LONGEST_NAME = 253


@dataclass(frozen=True, slots=True)
class TraceWindow:
    """Which part of a trace is used: days since its start. ``days`` None: up to the last arrival or departure."""

    first_day: float = 0.0
    days: float | None = None


def read_trace(path: Path, window: TraceWindow = TraceWindow()) -> Workload:
    """The pods of a trace that are there in the window; those that were there before arrive at its start.

    Raises ``WorkloadError``, which names every bad line up to the fifth.
    """
    rows = list(_parquet_rows(path) if path.suffix == ".parquet" else _rows(path))
    errors: list[str] = []
    seen: dict[str, int] = {}
    lives = [life for line, row in rows if (life := _life_or_error(path, line, row, seen, errors)) is not None]
    if errors:
        more = f"\n{len(errors) - _MANY_ERRORS} more lines" if len(errors) > _MANY_ERRORS else ""
        raise WorkloadError("\n".join(errors[:_MANY_ERRORS]) + more)
    if not lives:
        raise WorkloadError(f"{path}: there are no pods in it")
    workload = _within(path.stem, lives, window)
    if not workload.pods:
        raise WorkloadError(_empty_window(path, lives, window))
    return workload


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, str]]]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            _check_columns(path, reader.fieldnames or ())
            for row in reader:
                yield reader.line_num, row
    except (OSError, UnicodeDecodeError) as error:
        raise WorkloadError(f"{path}: {why_unreadable(error)}; {_EXPECTED}") from None
    except csv.Error as error:
        raise WorkloadError(f"{path}: is no CSV file ({error}); {_EXPECTED}") from None


def _parquet_rows(path: Path) -> Iterator[tuple[int, Mapping[str, str]]]:
    """The rows of a Parquet file as the text that CSV would have. Their numbers count from 1; a missing value is empty."""
    try:
        from pyarrow import ArrowInvalid, parquet
    except ImportError:
        raise WorkloadError(
            f"{path}: Parquet files need the Python package pyarrow: pip install 'karpenter[parquet]'"
        ) from None
    try:
        with path.open("rb") as file:
            table = parquet.read_table(file)
    except OSError as error:
        raise WorkloadError(f"{path}: {why_unreadable(error)}; {_EXPECTED}") from None
    except ArrowInvalid as error:
        raise WorkloadError(f"{path}: is no Parquet file ({error}); {_EXPECTED}") from None
    _check_columns(path, table.column_names)
    for number, row in enumerate(table.to_pylist(), 1):
        yield number, {name: "" if value is None else str(value) for name, value in row.items()}


def _check_columns(path: Path, columns: Iterable[str]) -> None:
    missing = [name for name in _REQUIRED if name not in set(columns)]
    if missing:
        raise WorkloadError(f"{path}: line 1: no column {', '.join(missing)}; a trace needs {', '.join(_REQUIRED)}")


def _life_or_error(
    path: Path, line: int, row: Mapping[str, str], seen: dict[str, int], errors: list[str]
) -> PodLife | None:
    try:
        life = _life(row)
        if life.name in seen:
            raise _BadRow(f"name {life.name!r} stands in line {seen[life.name]} already")
    except _BadRow as error:
        errors.append(f"{path}: line {line}: {error}")
        return None
    seen[life.name] = line
    return life


class _BadRow(ValueError):
    pass


def _life(row: Mapping[str, str]) -> PodLife:
    if None in row.values() or None in row:
        raise _BadRow("it has another number of fields than the header")
    name = row["name"]
    if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
        raise _BadRow(f"name {name!r} is no pod name (lower case letters, digits, - and .)")
    requests = {"cpu": f"{_count(row, 'cpu_milli')}m", "memory": f"{_count(row, 'memory_mib')}Mi"}
    if row.get("num_gpu") and (gpus := _count(row, "num_gpu")):
        requests[_GPU] = str(gpus)
    workload = row.get("workload") or name
    template = WorkloadPodTemplate(workload, requests, labels=workload_labels(workload))
    arrives, leaves = _count(row, "creation_s"), _optional_count(row, "deletion_s")
    if leaves is not None and leaves < arrives:
        raise _BadRow(f"deletion_s {leaves} is before creation_s {arrives}")
    runs = _optional_count(row, "runtime_s")
    if runs is not None and leaves is not None:
        raise _BadRow("it has deletion_s and runtime_s; one of them says when the pod leaves")
    if row.get("workload"):
        template = replica_set_template(template, 1) if runs is None else job_template(template, workload)
    return PodLife(name, template, arrives, leaves, runs)


def _optional_count(row: Mapping[str, str], column: str) -> int | None:
    return _count(row, column) if row.get(column) else None


def _count(row: Mapping[str, str], column: str) -> int:
    text = row[column]
    try:
        number = float(text)
    except ValueError:
        raise _BadRow(f"{column} {text!r} is no number") from None
    if not 0 <= number < 1e12:
        raise _BadRow(f"{column} {text} must not be negative" if number < 0 else f"{column} {text} is out of range")
    return round(number)


def _empty_window(path: Path, lives: list[PodLife], window: TraceWindow) -> str:
    arrivals = [life.arrives_at_seconds for life in lives]
    ends = [life.leaves_at_seconds for life in lives if life.leaves_at_seconds is not None]
    first, last = (f"{moment / DAY_SECONDS:.3g}" for moment in (min(arrivals), max(arrivals + ends)))
    end = "its end" if window.days is None else f"day {window.first_day + window.days:g}"
    return (
        f"{path}: no pod is there from day {window.first_day:g} to {end}; its pods are there from day {first} to day {last}: "
        "choose another --from-day or --days"
    )


def _within(name: str, lives: list[PodLife], window: TraceWindow) -> Workload:
    first = round(window.first_day * DAY_SECONDS)
    last = max(life.leaves_at_seconds or life.arrives_at_seconds for life in lives)
    end = first + round(window.days * DAY_SECONDS) if window.days is not None else last + 1
    shifted = [
        PodLife(
            life.name,
            life.template,
            max(0, life.arrives_at_seconds - first),
            None if life.leaves_at_seconds is None else life.leaves_at_seconds - first,
            life.runs_for_seconds,
        )
        for life in lives
        if life.leaves_at_seconds is None or life.leaves_at_seconds > first
    ]
    return ordered_workload(name, shifted, max(1, end - first))
