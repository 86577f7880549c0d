"""Workers write the bytecode of test files in shares, as pytest reads it."""

from __future__ import annotations

from pathlib import Path

import pytest
from _pytest.assertion import rewrite

from support import bytecode


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    for name in ("conftest", "test_first", "test_second", "helper"):
        (tmp_path / f"{name}.py").write_text("def test_it() -> None:\n    assert 1\n")
    return bytecode.files_of([str(tmp_path)])


def test_all_shares_together_write_what_pytest_reads(files: list[Path], pytestconfig: pytest.Config) -> None:
    assert [file.stem for file in files] == ["conftest", "test_first", "test_second"]
    for number in range(2):
        bytecode.write_share(pytestconfig, files, number, 2)
    for file in files:
        assert rewrite._read_pyc(file, bytecode.bytecode_of(file)) is not None


def test_one_share_leaves_the_files_of_the_others(files: list[Path], pytestconfig: pytest.Config) -> None:
    bytecode.write_share(pytestconfig, files, 1, 2)
    assert [bytecode.bytecode_of(file).exists() for file in files] == [False, True, False]


def test_what_is_written_stays(files: list[Path], pytestconfig: pytest.Config) -> None:
    bytecode.write_share(pytestconfig, files, 0, 1)
    target = bytecode.bytecode_of(files[0])
    target.write_bytes(b"kept")
    bytecode.write_share(pytestconfig, files, 0, 1)
    assert target.read_bytes() == b"kept"


def test_a_file_that_cannot_be_parsed_is_left_to_the_collection(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    broken = tmp_path / "test_broken.py"
    broken.write_text("def (")
    bytecode.write_share(pytestconfig, [broken], 0, 1)
    assert not bytecode.bytecode_of(broken).exists()


def test_a_test_named_alone_is_of_its_file(files: list[Path]) -> None:
    assert bytecode.files_of([f"{files[1]}::test_it"]) == [files[1]]
