"""``-o`` / ``--output``: the same values for every command, and what each of them prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from karpenter.cli.main import app

EXAMPLES = Path(__file__).parents[3] / "examples"
SHOP = ("-f", str(EXAMPLES / "shop.yaml"))
COMMANDS = {
    "plan": ("plan", *SHOP),
    "explain": ("explain", "pod/web-1", "-n", "shop", *SHOP),
    "budgets": ("budgets", "shop", *SHOP),
    "profiles": ("profiles",),
}
FORMATS = ("table", "wide", "json", "yaml", "markdown", "name")


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("output", FORMATS)
def test_every_command_prints_every_format(command: str, output: str) -> None:
    result = _run(*COMMANDS[command], "-o", output)
    assert result.exit_code == 0
    assert result.stdout.strip()


@pytest.mark.parametrize("command", COMMANDS)
def test_json_and_yaml_carry_the_same(command: str) -> None:
    as_json, as_yaml = (_run(*COMMANDS[command], "-o", output).stdout for output in ("json", "yaml"))
    assert _without_times(json.loads(as_json)) == _without_times(yaml.safe_load(as_yaml))


def _without_times(document: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in document.items() if key not in ("timings", "stretches")}


def test_names_are_those_of_the_nodeclaims_to_launch() -> None:
    planned = json.loads(_run(*COMMANDS["plan"], "-o", "json").stdout)["nodeClaims"]
    names = _run(*COMMANDS["plan"], "-o", "name").stdout.split()
    assert names == [f"nodeclaim.karpenter.sh/{claim['name']}" for claim in planned]
    assert len(names) > 1


def test_wide_tells_reasons_in_full_and_table_does_not() -> None:
    table, wide = (_run(*COMMANDS["plan"], "-o", output).stdout for output in ("table", "wide"))
    assert "requirements=" in wide
    assert "requirements=" not in table
    assert _run(*COMMANDS["plan"], "-v").stdout.count("requirements=") == wide.count("requirements=")


def test_markdown_is_the_page_in_a_block_of_text() -> None:
    page, markdown = (_run("profiles", "-o", output).stdout for output in ("table", "markdown"))
    assert markdown == f"```text\n{page}```\n"


def test_another_value_is_refused_with_the_values_there_are() -> None:
    result = _run("plan", *SHOP, "-o", "xml")
    assert result.exit_code == 2
    listed = ", ".join(f"'{output}'" for output in FORMATS)
    assert f"Invalid value for '-o' / '--output': 'xml' is not one of {listed}." in result.stderr
