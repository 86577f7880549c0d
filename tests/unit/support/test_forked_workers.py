"""Runs of pytest with workers that are forks of one process, on files of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

_TESTS = Path(__file__).parents[2]
_CONFTEST = """
    from support.forked_workers import Collector

    def pytest_configure(config):
        if not hasattr(config, "workerinput"):
            config.pluginmanager.register(Collector())
"""
_FILE = """
    import os
    from pathlib import Path

    IMPORTED_IN = os.getpid()

    def test_it(tmp_path, request):
        print("printed in {name}")
        Path("{name}.pids").write_text(f"{{IMPORTED_IN}} {{os.getpid()}}")
        tmp_path.joinpath("file").write_text("")
        {end}
"""


def _write(folder: Path, **files: str) -> None:
    (folder / "pytest.ini").write_text(f"[pytest]\npythonpath = {_TESTS}\naddopts = -p no:cacheprovider\n")
    for name, text in {"conftest": _CONFTEST, **files}.items():
        (folder / f"{name}.py").write_text(dedent(text))


def _run(folder: Path, *arguments: str, workers: int = 1) -> tuple[int, str]:
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "xdist", "-n", f"{workers}", "--dist", "loadfile", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder and the output of a run: of three files one fails."""
    folder = tmp_path_factory.mktemp("three-files")
    ends = {"passes": "pass", "fails": "assert request is None", "passes_too": "pass"}
    _write(folder, **{f"test_{name}": _FILE.format(name=name, end=end) for name, end in ends.items()})
    status, output = _run(folder, workers=2)
    assert status == pytest.ExitCode.TESTS_FAILED
    return folder, output


def test_files_are_imported_once_and_run_by_other_processes(finished: tuple[Path, str]) -> None:
    pids = [file.read_text().split() for file in finished[0].glob("*.pids")]
    assert len(pids) == 3
    assert len({importer for importer, _ in pids}) == 1
    assert {runner for _, runner in pids}.isdisjoint(importer for importer, _ in pids)


def test_failures_are_told_with_what_their_tests_printed(finished: tuple[Path, str]) -> None:
    assert re.search(r"1 failed, 2 passed", finished[1])
    assert "printed in fails" in finished[1]
    assert "printed in passes" not in finished[1]


def test_a_file_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    _write(tmp_path, test_broken="import nowhere_to_be_found")
    status, output = _run(tmp_path)
    assert status == pytest.ExitCode.TESTS_FAILED
    assert "No module named 'nowhere_to_be_found'" in output
    assert "1 error" in output


def test_what_cannot_be_collected_ends_the_run_as_without_forks(tmp_path: Path) -> None:
    _write(tmp_path)
    status, output = _run(tmp_path, "nowhere")
    assert status == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "Traceback" not in output
