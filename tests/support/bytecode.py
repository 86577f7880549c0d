"""Bytecode of test files, in which pytest has rewritten the assertions: in a fresh clone, workers divide the writing among them.

All workers collect the same files in the same order. Without this each of them rewrites every file, because none is ahead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest
from _pytest.assertion import rewrite


def files_of(arguments: Iterable[str]) -> list[Path]:
    """The files that pytest collects for these arguments, without its filters."""
    return sorted({file for argument in arguments for file in _files(Path(argument.partition("::")[0]).absolute())})


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    for pattern in ("test_*.py", "conftest.py"):
        yield from path.rglob(pattern)


def write_share(config: pytest.Config, files: Sequence[Path], number: int, workers: int) -> None:
    """Write what is missing for a worker's share of the files; other workers write theirs meanwhile."""
    for file in files[number::workers]:
        target = bytecode_of(file)
        # The time is enough here: pytest compares hashes when it reads.
        if not target.exists() or target.stat().st_mtime < file.stat().st_mtime:
            _write(config, file, target)


def bytecode_of(file: Path) -> Path:
    """Where pytest looks for it."""
    return rewrite.get_cache_dir(file) / (file.stem + rewrite.PYC_TAIL)


def _write(config: pytest.Config, file: Path, target: Path) -> None:
    try:
        digest, code = rewrite._rewrite_test(file, config)
    except SyntaxError:
        return  # pytest tells where it collects the file
    target.parent.mkdir(parents=True, exist_ok=True)
    rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, digest, target)
