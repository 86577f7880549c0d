"""``karpenter lint`` as its users see it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from karpenter.cli import plan_instance_types
from karpenter.cli.main import app
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.instancetypes.type_index import TypeIndex

Findings = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def _without_region(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(variable, raising=False)


#: Indexes by what they are made of, with the types, whose identities must not be given to others.
_INDEXES: dict[tuple[object, ...], tuple[TypeIndex, tuple[InstanceType, ...]]] = {}


@pytest.fixture(autouse=True)
def _shared_indexes(monkeypatch: pytest.MonkeyPatch) -> None:
    """One index of EC2's types for all tests: it depends on nothing but the types, and is most of the time of a call."""

    def shared(types: Iterable[InstanceType], well_known: frozenset[str]) -> TypeIndex:
        kept = tuple(types)
        key = (*map(id, kept), well_known)
        if key not in _INDEXES:
            _INDEXES[key] = (TypeIndex(kept, well_known), kept)
        return _INDEXES[key][0]

    monkeypatch.setattr(plan_instance_types, "TypeIndex", shared)


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
