"""Values of options: text is taken as it is, everything else is converted by typer."""

from __future__ import annotations

import sys
from typing import Literal

import pytest
import typer
from typer.testing import CliRunner, Result

from karpenter.cli import main
from karpenter.cli.main import app


def _command(arguments: list[str]) -> Result:
    """A command with an option of each kind, and what it received."""

    def show(
        names: list[str],
        word: Literal["a", "b"] = "a",
        text: str = "",
        pair: tuple[str, str] | None = None,
        number: int = 3,
        upper: str = typer.Option("x", parser=str.upper),
    ) -> None:
        typer.echo(repr((names, word, text, pair, number, upper)))

    single = typer.Typer(rich_markup_mode=None)
    single.command(cls=main._Command)(show)
    return CliRunner().invoke(single, arguments)


@pytest.mark.parametrize(
    ("arguments", "received"),
    [
        (["n"], "(['n'], 'a', '', None, 3, 'X')"),
        (["n", "m", "--word", "b", "--text", "7"], "(['n', 'm'], 'b', '7', None, 3, 'X')"),
        (["n", "--pair", "1", "2", "--number", "5", "--upper", "y"], "(['n'], 'a', '', ('1', '2'), 5, 'Y')"),
    ],
)
def test_options_receive_what_their_annotation_asks_for(arguments: list[str], received: str) -> None:
    assert _command(arguments).stdout == f"{received}\n"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "Missing argument 'names'"),
        (["n", "--word", "c"], "'c' is not one of 'a', 'b'"),
        (["n", "--number", "x"], "unable to parse string as an integer"),
    ],
)
def test_wrong_values_are_refused_in_the_words_of_typer(arguments: list[str], line: str) -> None:
    result = _command(arguments)
    assert result.exit_code == 2
    assert line in result.stderr


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "Missing options: --cluster-name (CLUSTER_NAME), --region (AWS_REGION), --account."),
        (["--region", "eu-west-1"], "Missing options: --cluster-name (CLUSTER_NAME), --account."),
        (["--region", "eu-west-1", "--account", "123456789012"], "Missing option '--cluster-name'"),
    ],
)
def test_all_options_that_are_missing_are_named_at_once(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], line: str
) -> None:
    for variable in ("CLUSTER_NAME", "AWS_REGION"):
        monkeypatch.delenv(variable, raising=False)
    result = CliRunner().invoke(app, ["iam-policy", *arguments])
    assert result.exit_code == 2
    assert line in result.stderr


def test_a_command_with_texts_only_does_not_load_what_converts_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic", None)  # an import of it fails
    assert CliRunner().invoke(app, ["profiles", "-o", "json"]).exit_code == 0
