"""How long the commands of the first hour take, as whole processes. What is measured is CPU: it leaves out other processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

pytestmark = pytest.mark.speed

ROOT = Path(__file__).parents[3]
COMMAND = Path(sys.executable).with_name("karpenter")


def cpu_seconds(arguments: Sequence[str]) -> float:
    """The least of some runs; the first writes what Python keeps."""
    return min(_cpu_of_one_run(arguments) for _ in range(6))


def _cpu_of_one_run(arguments: Sequence[str]) -> float:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with subprocess.Popen([COMMAND, *arguments], cwd=ROOT, env=kept, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_utime + usage.ru_stime


@pytest.mark.parametrize(
    ("arguments", "seconds"),
    [
        pytest.param(["--help"], 0.3, id="help"),
        pytest.param(["plan", "--help"], 0.3, id="help-of-plan"),
        pytest.param(["plan", "-f", "examples/shop.yaml"], 0.7, id="plan-of-a-small-file"),
    ],
)
def test_a_command_starts_at_once(arguments: list[str], seconds: float) -> None:
    assert cpu_seconds(arguments) < seconds


def test_the_demo_tells_its_story_in_half_a_minute() -> None:
    begun = time.monotonic()
    done = subprocess.run([COMMAND, "demo"], capture_output=True, text=True, check=True)
    assert time.monotonic() - begun < 35
    assert "left at the end    nothing" in done.stdout
