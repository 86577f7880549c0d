"""How often the controller's process looks for garbage."""

from __future__ import annotations

import gc

import pytest
import typer
from typer.testing import CliRunner

from karpenter.cli import run_command
from karpenter.cli.main import app
from karpenter.runtime.garbage_collection import THRESHOLDS


def test_the_controller_collects_garbage_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is set before anything is imported: imports make a quarter of a million objects, all of which stay."""
    seen: list[tuple[int, int, int]] = []

    def stop(*_: object) -> None:
        seen.append(gc.get_threshold())
        raise typer.Exit

    monkeypatch.setattr(run_command, "resolve_or_exit", stop)
    before = gc.get_threshold()
    try:
        CliRunner().invoke(app, ["run"])
    finally:
        gc.set_threshold(*before)
    assert seen == [THRESHOLDS]
