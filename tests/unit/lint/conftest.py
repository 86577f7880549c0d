"""``karpenter lint`` as its users see it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from karpenter.cli.main import app

Findings = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def _without_region(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def lint() -> Callable[..., Result]:
    """The command with these arguments."""

    def run(*arguments: str | Path, stdin: str | None = None) -> Result:
        return CliRunner().invoke(app, ["lint", *map(str, arguments)], input=stdin, catch_exceptions=False)

    return run


@pytest.fixture
def findings(lint: Callable[..., Result], tmp_path: Path) -> Callable[..., Findings]:
    """The findings in a text, or in files by their names."""

    def run(*texts: str, **named: str) -> Findings:
        for number, text in enumerate(texts):
            (tmp_path / f"input-{number}.yaml").write_text(text)
        for name, text in named.items():
            (tmp_path / name.replace("__", ".")).write_text(text)
        result = lint("-f", tmp_path, "-o", "json")
        assert result.exit_code in (0, 1), result.output
        found: Findings = json.loads(result.stdout)["findings"]
        return found

    return run
