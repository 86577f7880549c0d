"""The benchmarks are not run by the tests, but what they import exists."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MODULES = sorted(file.stem for file in (ROOT / "bench").glob("*.py") if not file.stem.startswith("__"))


@pytest.mark.parametrize("module", MODULES)
def test_a_benchmark_finds_what_it_imports(module: str) -> None:
    importlib.import_module(f"bench.{module}")
    assert f"bench.{module}" in sys.modules
