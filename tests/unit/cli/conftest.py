"""The command line as its users see it: arguments and files in; output, complaints and exit code out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from karpenter.cli.main import app
from support.manifest_builders import Json, Plan, listed, type_of


@pytest.fixture
def types(tmp_path: Path) -> Path:
    """An instance-type file with three types."""
    file = tmp_path / "types" / "types.json"
    file.parent.mkdir()
    result = [type_of("a.small", 2, 4, 0.1), type_of("a.large", 8, 16, 0.35), type_of("b.large", 8, 64, 0.5)]
    file.write_text(json.dumps(result))
    return file


@pytest.fixture
def plan(types: Path) -> Plan:
    """``karpenter plan`` with the three types and these arguments."""

    def run(*arguments: str | Path, stdin: str | bytes | None = None) -> Result:
        given = ["plan", "--instance-types", str(types), *map(str, arguments)]
        return CliRunner().invoke(app, given, input=stdin, catch_exceptions=False)

    return run


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    """Write a file: text as it is, objects as a JSON List."""

    def write(name: str, *content: str | Json) -> Path:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        texts = [element for element in content if isinstance(element, str)]
        objects = [element for element in content if not isinstance(element, str)]
        file.write_text("".join(texts) if texts else json.dumps(listed(*objects)))
        return file

    return write
