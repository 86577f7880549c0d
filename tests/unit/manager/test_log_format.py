"""The form of log lines of ``karpenter run``: text for people where they go to a terminal, JSON otherwise (OPS §2)."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from controlplane.timeouts import scaled_timeout
from support.installed_program import KARPENTER

COMMAND = (KARPENTER, "run")
#: What is logged once the process is as far as it gets without an API server.
AWAITED = "the API server cannot be used"


class Ended(NamedTuple):
    """How a process ended, and what it wrote to its standard output."""

    exit_code: int
    lines: list[str]


@contextmanager
def terminal_or_pipe(*, is_terminal: bool) -> Iterator[tuple[int, int]]:
    """Both ends: the one to read, and the one that a process writes to."""
    reading, writing = pty.openpty() if is_terminal else os.pipe()
    try:
        yield reading, writing
    finally:
        os.close(reading)


def logged(folder: Path, *arguments: str, is_terminal: bool, **variables: str) -> Ended:
    """The log of a process that is ended once it waits for its API server."""
    config = folder / "kubeconfig"
    cluster, context = {"server": "http://127.0.0.1:1"}, {"cluster": "c", "user": "u"}
    named = {"clusters": [{"name": "c", "cluster": cluster}], "users": [{"name": "u", "user": {"token": "t"}}]}
    config.write_text(json.dumps({**named, "contexts": [{"name": "x", "context": context}], "current-context": "x"}))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KUBE", "KARPENTER", "LOG_"))}
    environment = {**kept, "HOME": str(folder), "KUBECONFIG": str(config), **variables}
    ports = ("--metrics-port", "0", "--health-probe-port", "0")
    with terminal_or_pipe(is_terminal=is_terminal) as (reading, writing):
        command = [*COMMAND, *ports, "--disable-leader-election", *arguments]
        with subprocess.Popen(command, env=environment, stdout=writing, stderr=subprocess.DEVNULL) as process:
            os.close(writing)
            written = read_until(reading, AWAITED.encode())
            process.send_signal(signal.SIGTERM)
            written += read_until(reading, None)
            return Ended(process.wait(scaled_timeout(30)), written.decode().splitlines())


def read_until(reading: int, awaited: bytes | None) -> bytes:
    """What is written up to some bytes and the end of their line, or to the end."""
    written = b""
    while awaited is None or awaited not in written or not written.endswith(b"\n"):
        try:
            part = os.read(reading, 65536)
        except OSError:  # a terminal whose last writer is gone
            part = b""
        if not part:
            break
        written += part
    return written


@pytest.mark.parametrize(
    ("arguments", "is_terminal", "is_json"),
    [
        ((), True, False),
        ((), False, True),
        pytest.param(("--log-format", "auto"), True, False, marks=pytest.mark.soak),
        (("--log-format", "json"), True, True),
        (("--log-format", "console"), False, False),
    ],
)
def test_log_lines_are_text_in_a_terminal_and_json_otherwise(
    tmp_path: Path, arguments: tuple[str, ...], is_terminal: bool, is_json: bool
) -> None:
    ended = logged(tmp_path, *arguments, is_terminal=is_terminal)
    assert ended.exit_code == 0
    lines = [line for line in ended.lines if line.strip()]
    assert any(AWAITED in line for line in lines)
    assert [line for line in lines if line.startswith("{") != is_json and not line[0].isspace()] == []
    if is_json:
        assert all({"level", "time", "message"} <= json.loads(line).keys() for line in lines)


def test_colours_of_log_lines_can_be_switched_off(tmp_path: Path) -> None:
    ended = logged(tmp_path, is_terminal=True, NO_COLOR="1", TERM="xterm-256color")
    assert not any("\x1b" in line for line in ended.lines)


def test_lines_that_go_to_a_file_too_are_json(tmp_path: Path) -> None:
    """Log files are read by programs."""
    file = tmp_path / "log"
    ended = logged(tmp_path, "--log-output-paths", f"stdout,{file}", is_terminal=True)
    assert all(line.startswith("{") for line in ended.lines if line.strip())
    assert [json.loads(line)["message"] for line in file.read_text().splitlines()]
