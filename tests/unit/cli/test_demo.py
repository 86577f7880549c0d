"""``karpenter demo`` as somebody meets it who just installed the product."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import urllib.request
from pathlib import Path

import pytest
from typer.testing import CliRunner

from controlplane.timeouts import scaled_timeout
from karpenter.cli.main import app
from support.installed_program import KARPENTER

COMMAND = [KARPENTER, "demo", "--speed", "2000"]
SECONDS = scaled_timeout(90)


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=SECONDS, check=False)


def test_without_a_terminal_it_tells_the_story_in_plain_lines_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """The controllers' log goes to the file asked for and nowhere else."""
    file = tmp_path / "controllers.log"
    done = demo("--pods", "16", "--log", str(file))
    messages = [json.loads(line)["message"] for line in file.read_text().splitlines()]
    assert "created nodeclaim" in messages
    assert '"level"' not in done.stdout
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"[\x20-\x7e\n]*", done.stdout), "control codes or unusual characters in plain output"
    lines = done.stdout.splitlines()
    assert lines[0].startswith("karpenter demo: 16 pods, seed 1")
    assert any(
        re.match(r" +\d:\d\d  launched \d+ x \S+ (spot|on-demand) at \$\S+/h (each )?for \d+ pods?$", line)
        for line in lines
    )
    assert any(re.match(r" +\d:\d\d  removed \d+ x \S+ (spot|on-demand) \(empty\), saves \$", line) for line in lines)
    (became_ready,) = (line for line in lines if line.startswith("  pods "))
    ready = re.search(r"(\d+) became ready, restarted ones again; 1 deleted first$", became_ready)
    assert ready is not None
    assert int(ready[1]) >= 16
    assert any(re.search(r"paid at most +\$\S+/h, classic packing \$\S+/h, lower bound \$", line) for line in lines)
    assert any(line.endswith("nothing: no pods, nodes, NodeClaims or instances") for line in lines)
    assert "karpenter plan -f" in done.stdout


def test_its_console_prints_an_address_and_serves_the_page_and_the_history_there() -> None:
    command = [*COMMAND, "--pods", "16", "--console"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        page = opener.open(address, timeout=SECONDS).read().decode()
        history = json.load(opener.open(f"{address.partition('/?')[0]}/api/history", timeout=SECONDS))
        process.terminate()
    assert "karpenter console" in page
    assert set(history) >= {"samples", "spent", "decisions"}


@pytest.mark.soak
def test_the_same_seed_tells_the_same_story_and_another_another() -> None:
    outputs = [demo("--pods", "16", "--seed", seed).stdout.splitlines()[1:] for seed in ("5", "5", "6")]
    assert outputs[0] == outputs[1]
    assert outputs[0] != outputs[2]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--port", "8080"), "--port needs --serve"),
        (("--speed", "0"), "--speed=0 must be greater than 0"),
        (("--svg", "/nowhere/chart.svg"), "--svg=/nowhere/chart.svg: /nowhere is no directory"),
        (("--log", "/nowhere/at/all"), "--log=/nowhere/at/all: cannot be written (No such file or directory)"),
    ],
)
def test_a_wrong_option_is_refused_in_one_line(arguments: tuple[str, ...], said: str) -> None:
    result = CliRunner().invoke(app, ["demo", *arguments])
    assert (result.exit_code, result.stderr) == (2, f"karpenter demo: {said}\n")


def test_a_port_that_is_taken_is_refused_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = demo("--pods", "1", "--serve", "--port", str(port))
    assert done.returncode == 2
    assert (
        done.stderr == f"karpenter demo: --port={port}: Address already in use; choose another, or 0 for a free one\n"
    )


def test_a_reader_that_goes_away_ends_it_without_a_word() -> None:
    with subprocess.Popen(
        [*COMMAND, "--pods", "4"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(SECONDS) == 141
        assert process.stderr.read() == ""


def test_an_interrupt_ends_it_early_and_says_so() -> None:
    slowly = [*COMMAND[:-1], "1", "--pods", "4"]
    with subprocess.Popen(slowly, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while "services arrive" not in process.stdout.readline():
            continue
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=SECONDS)
    assert (process.returncode, complaint) == (130, "karpenter demo: stopped before the end\n")


def test_served_it_lets_visitors_in_stays_until_told_and_ends_cleanly() -> None:
    with subprocess.Popen([*COMMAND, "--pods", "4", "--serve"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        seen: list[str] = []
        while "goes on in real time" not in "".join(seen[-1:]):
            seen.append(process.stdout.readline())
        match = re.search(r"kubectl --server (http://127\.0\.0\.1:\d+) get nodes\n", "".join(seen))
        assert match is not None
        with urllib.request.urlopen(f"{match[1]}/api/v1/pods?labelSelector=app", timeout=SECONDS) as answer:
            pods = json.load(answer)["items"]
        assert {pod["status"]["phase"] for pod in pods} == {"Running"}
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0
    assert rest.splitlines()[-1].startswith("closed; gone with this process: ")
