"""The provider ``machines``: power drivers, which are programs."""

from __future__ import annotations

import asyncio
import stat
from contextlib import suppress
from pathlib import Path

import pytest

from karpenter.providers.machines import PowerCommands, PowerFailed

_SCRIPT = """#!/bin/sh
state="$MACHINE_STATE/$2"
case "$1" in
on) : > "$state" ;;
off) rm -f "$state" ;;
status) if [ -e "$state" ]; then echo on; else echo off; fi ;;
esac
"""


def _driver(directory: Path, name: str, script: str) -> None:
    file = directory / name
    file.write_text(script, encoding="utf-8")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)


async def test_a_driver_is_a_program_that_gets_action_host_and_variables(tmp_path: Path) -> None:
    drivers, state = tmp_path / "drivers", tmp_path / "state"
    drivers.mkdir()
    state.mkdir()
    _driver(drivers, "files", _SCRIPT)
    power, variables = PowerCommands(str(drivers)), {"STATE": str(state)}
    assert not await power.is_on("files", "rack1-1", variables)
    await power.on("files", "rack1-1", variables)
    assert [file.name for file in state.iterdir()] == ["rack1-1"]
    assert await power.is_on("files", "rack1-1", variables)
    await power.off("files", "rack1-1", variables)
    assert not await power.is_on("files", "rack1-1", variables)


@pytest.mark.parametrize(
    ("name", "script", "message"),
    [
        ("fails", "#!/bin/sh\necho no route to host >&2\nexit 3\n", "fails status h ended with 3: no route to host"),
        ("odd", "#!/bin/sh\necho maybe\n", "odd status h printed 'maybe', neither on nor off"),
        ("slow", "#!/bin/sh\nexec sleep 60\n", "slow status h did not end within 0.2 s"),
        ("missing", "", "No such file or directory"),
        ("../fails", "", "no power driver '../fails'"),
    ],
)
async def test_the_error_of_a_driver_has_its_output(tmp_path: Path, name: str, script: str, message: str) -> None:
    if script:
        _driver(tmp_path, name, script)
    with pytest.raises(PowerFailed, match=message):
        await PowerCommands(str(tmp_path), timeout_seconds=0.2).is_on(name, "h", {})


async def test_a_driver_that_takes_too_long_is_killed_with_its_child_processes(tmp_path: Path) -> None:
    """A child process must not power the host later, when another NodeClaim may have it."""
    _driver(tmp_path, "slow", f"#!/bin/sh\nsleep 600 &\necho $! > {tmp_path}/child\nwait\n")
    with pytest.raises(PowerFailed, match="did not end within"):
        await PowerCommands(str(tmp_path), timeout_seconds=1.0).on("slow", "h", {})
    child = int((tmp_path / "child").read_text())
    async with asyncio.timeout(10):
        while _runs(child):
            await asyncio.sleep(0.01)


def _runs(pid: int) -> bool:
    with suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


async def test_unlimited_or_binary_output_of_a_driver_is_handled(tmp_path: Path) -> None:
    _driver(tmp_path, "loud", "#!/bin/sh\nhead -c 3000000 /dev/zero | tr '\\0' '\\377'\nexit 4\n")
    with pytest.raises(PowerFailed, match="loud on h ended with 4: \N{REPLACEMENT CHARACTER}") as refused:
        await PowerCommands(str(tmp_path)).on("loud", "h", {})
    assert len(str(refused.value)) < 400


async def test_a_driver_with_a_running_child_process_has_ended(tmp_path: Path) -> None:
    """The child process keeps the output open."""
    _driver(tmp_path, "leaves", "#!/bin/sh\nsleep 5 &\necho on\n")
    assert await PowerCommands(str(tmp_path)).is_on("leaves", "h", {})
