"""The command line as a whole: help, version, pipes, colours."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from io import StringIO
from pathlib import Path

import pytest
from rich.text import Text
from typer.testing import CliRunner

from karpenter.cli.main import COMMANDS, app
from karpenter.cli.render_common import console_for
from support.installed_program import KARPENTER


@pytest.mark.parametrize("arguments", [[], ["-h"], ["--help"]])
def test_help_lists_every_command_with_its_summary(arguments: list[str]) -> None:
    said = CliRunner().invoke(app, arguments).output
    for name, entry in COMMANDS.items():
        assert f"{name:<12}{entry.summary}" in said


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_under_both_names(name: str) -> None:
    short, long = (CliRunner().invoke(app, [name, option]) for option in ("-h", "--help"))
    assert short.exit_code == long.exit_code == 0
    assert short.output == long.output


@pytest.mark.parametrize("name", COMMANDS)
def test_help_says_what_an_option_takes_and_not_that_it_is_text(name: str) -> None:
    said = CliRunner().invoke(app, [name, "-h"]).output.split()
    assert not {"TEXT", "STRING", "INTEGER", "FLOAT"} & set(said)


@pytest.mark.parametrize("arguments", [["version"], ["--version"]])
def test_the_version_is_one_line(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, arguments)
    assert (result.exit_code, len(result.output.splitlines())) == (0, 1)
    assert result.output.startswith("karpenter ")


@pytest.mark.parametrize("name", ["plan", "lint", "convert"])
def test_an_error_about_a_file_without_its_option_names_the_option(name: str) -> None:
    result = CliRunner().invoke(app, [name, "shop.yaml"], prog_name="karpenter")
    assert result.exit_code == 2
    assert f"give files with -f: karpenter {name} -f shop.yaml" in " ".join(result.stderr.split())


def test_a_command_without_files_refuses_an_argument_without_advice() -> None:
    result = CliRunner().invoke(app, ["version", "shop.yaml"])
    assert (result.exit_code, "-f" in result.stderr) == (2, False)
    assert "Got unexpected extra argument(s) (shop.yaml)" in result.stderr


def test_kubectl_finds_it_as_a_plugin() -> None:
    """kubectl runs a program `kubectl-NAME` of the path for `kubectl NAME`."""
    programs = {entry.name: entry.value for entry in metadata.entry_points(group="console_scripts")}
    assert programs["kubectl-karpenter"] == programs["karpenter"]
    plugin = Path(sys.executable).with_name("kubectl-karpenter")
    done = subprocess.run([plugin, "version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("karpenter ")


def test_a_command_runs_with_the_garbage_collector_and_one_thread_of_linear_algebra() -> None:
    """Imports run without the collector. A controller that went on so would never free a cycle."""
    checks = (
        "import gc, os, sys; from karpenter.cli import entry_point, main; "
        "main.version = lambda: print(gc.isenabled(), os.environ['OPENBLAS_NUM_THREADS']); "
        "sys.argv = ['karpenter', 'version']; entry_point.main()"
    )
    said = subprocess.run([sys.executable, "-c", checks], capture_output=True, text=True, check=True)
    assert said.stdout == "True 1\n"


def test_help_imports_no_command() -> None:
    script = (
        "import sys; from karpenter.cli.main import app; app(['--help'], standalone_mode=False); print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    own = {name for name in loaded if name.startswith("karpenter")}
    assert own == {
        "karpenter",
        "karpenter.version",
        "karpenter.cli",
        "karpenter.cli.main",
        "karpenter.cli.option_values",
    }
    assert not {"numpy", "msgspec", "botocore", "yaml", "rich.console"} & set(loaded)


def test_help_of_a_command_does_not_import_the_engine() -> None:
    script = (
        "import sys; from karpenter.cli.main import app; app(['run', '-h'], standalone_mode=False); print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    assert not {"karpenter.scheduling.solver", "karpenter.disruption.decide.disruption_problem", "highspy"} & set(
        loaded
    )


def test_a_reader_that_closes_the_pipe_early_hears_no_complaint() -> None:
    with subprocess.Popen([KARPENTER, "crds"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""


@pytest.mark.parametrize("no_color", [None, "1"])
def test_colours_are_off_without_a_terminal_and_with_no_color(
    no_color: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(StringIO):
        def isatty(self) -> bool:
            return no_color is not None

    monkeypatch.setenv("TERM", "xterm-256color")
    if no_color:
        monkeypatch.setenv("NO_COLOR", no_color)
    out = Terminal()
    console_for(out, 80).print(Text("red", style="red"))
    assert "\x1b[31m" not in out.getvalue()
