"""Exit codes of ``karpenter plan`` for pipelines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support.manifest_builders import Json, Plan, pod, pool

Written = Callable[..., Path]

SMALL, HUGE = pod("small"), pod("huge", "64")


@pytest.mark.parametrize(
    ("waiting", "arguments", "exit_code"),
    [
        ((), ("--detailed-exitcode",), 0),
        ((SMALL,), ("--detailed-exitcode",), 2),
        ((SMALL, HUGE), ("--detailed-exitcode",), 3),
        ((HUGE,), ("--detailed-exitcode",), 3),
        ((SMALL,), ("--fail-on", "unschedulable"), 0),
        ((SMALL, HUGE), ("--fail-on", "unschedulable"), 3),
        ((SMALL, HUGE), (), 0),
    ],
)
def test_the_exit_code_says_what_there_is_to_do(
    plan: Plan, written: Written, waiting: tuple[Json, ...], arguments: tuple[str, ...], exit_code: int
) -> None:
    result = plan("-f", written("a.json", pool(), *waiting), *arguments)
    assert result.exit_code == exit_code
    assert "per hour" in result.stdout


@pytest.mark.parametrize(("arguments", "exit_code"), [((), 2), (("--detailed-exitcode",), 1)])
@pytest.mark.parametrize("mistake", [pod(cpu="1core"), None], ids=["a bad object", "a missing file"])
def test_wrong_input_is_an_error_and_no_change(
    plan: Plan, written: Written, tmp_path: Path, mistake: Json | None, arguments: tuple[str, ...], exit_code: int
) -> None:
    file = written("a.json", mistake) if mistake is not None else tmp_path / "none.yaml"
    result = plan("-f", file, *arguments)
    assert (result.exit_code, result.stdout) == (exit_code, "")
    assert str(file) in result.stderr
