"""The tables that are part of the package (``data/SOURCES.md`` tells where each comes from)."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path

_DATA = Path(__file__).with_name("data")


def packaged_rows(table: str) -> Iterator[Mapping[str, str]]:
    """The rows of a table, such as ``ec2_regions.csv``, by the names of its columns."""
    with (_DATA / table).open(encoding="utf-8") as file:
        yield from csv.DictReader(file)
