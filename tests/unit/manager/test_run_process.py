"""``karpenter run`` as a process: mistakes of its user end it with one line, an API server that is away does not."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from controlplane.ports import free_port
from karpenter.cli.main import app
from karpenter.manager_process import own_pod
from support.installed_program import KARPENTER

COMMAND = (KARPENTER, "run")
LONGEST_SECONDS = 30


TOKEN = "s3cr3t-t0ken"


def kubeconfig(folder: Path, server: str = "http://127.0.0.1:1") -> Path:
    path = folder / "kubeconfig"
    cluster = {"name": "c", "cluster": {"server": server}}
    context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
    user = {"name": "u", "user": {"token": TOKEN}}
    content = {"apiVersion": "v1", "kind": "Config", "current-context": "x"}
    path.write_text(json.dumps(content | {"clusters": [cluster], "contexts": [context], "users": [user]}))
    return path


def surroundings(folder: Path, **variables: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KUBE", "KARPENTER"))}
    return {**kept, "HOME": str(folder), **variables}


def refused(folder: Path, *arguments: str, **variables: str) -> tuple[int, list[str]]:
    """Exit code and lines on standard error of a run that must end by itself; in this process, for it costs a second less."""
    kept = surroundings(folder, **variables)
    environment = {name: kept.get(name) for name in {*os.environ, *kept}}
    ended = CliRunner().invoke(app, ["run", *arguments], env=environment)
    return ended.exit_code, ended.stderr.splitlines()


@pytest.mark.parametrize(
    ("arguments", "variables", "says"),
    [
        (("--batch-max-duration", "soon"), {}, ("--batch-max-duration", "'soon'")),
        ((), {"LOG_LEVEL": "trace"}, ("LOG_LEVEL", "'trace'", "debug, info or error")),
        (("--provider", "moon"), {}, ("--provider", "'moon'", "simulated")),
    ],
    ids=["flag", "OPS-O3-variable", "provider"],
)
def test_a_bad_setting_ends_the_process_with_one_line(
    tmp_path: Path, arguments: tuple[str, ...], variables: Mapping[str, str], says: tuple[str, ...]
) -> None:
    """OPS-303, OPS-304"""
    code, lines = refused(tmp_path, *arguments, **variables)
    assert code == 2
    assert len(lines) == 1
    assert all(part in lines[0] for part in ("karpenter run: ", *says))


@pytest.mark.parametrize(
    ("option", "content"),
    [
        ("--instance-types", "[{]"),
        ("--instance-types", '[{"name": 5}]'),
        ("--simulated-faults-file", "lost: [{after: soon}]"),
        ("--simulated-faults-file", "wrong: 1"),
    ],
    ids=["types-syntax", "types-content", "faults-duration", "faults-field"],
)
def test_a_file_that_cannot_be_used_ends_the_process_with_one_line(tmp_path: Path, option: str, content: str) -> None:
    path = tmp_path / "given.yaml"
    path.write_text(content)
    code, lines = refused(tmp_path, option, str(path), KUBECONFIG=str(kubeconfig(tmp_path)))
    assert code == 2
    assert len(lines) == 1
    assert "given.yaml" in lines[0]


@pytest.mark.parametrize("option", ["--instance-types", "--simulated-faults-file"])
def test_a_missing_file_is_named_even_where_no_cluster_is(tmp_path: Path, option: str) -> None:
    code, lines = refused(tmp_path, option, str(tmp_path / "absent.yaml"), KUBECONFIG=str(tmp_path / "no-cluster"))
    assert code == 2
    assert len(lines) == 1
    assert "absent.yaml" in lines[0]


def test_without_a_cluster_the_process_says_where_it_looked(tmp_path: Path) -> None:
    code, lines = refused(tmp_path, KUBECONFIG=str(tmp_path / "absent"))
    assert code == 1
    assert len(lines) == 1
    assert lines[0].startswith("karpenter run: ")
    assert "absent" in lines[0]


class Running:
    """A process that runs until told otherwise, and what it has logged so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[dict[str, Any]] = []
        self.raw: list[str] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.raw.append(line)
                if line.startswith("{"):
                    self.lines.append(json.loads(line))
                self._changed.notify_all()

    def said(self, message: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["message"] == message]

    def wait_for(self, message: str) -> dict[str, Any]:
        with self._changed:
            assert self._changed.wait_for(lambda: self.said(message), LONGEST_SECONDS), "".join(self.raw)
        return self.said(message)[0]

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(LONGEST_SECONDS)
        self._reader.join(LONGEST_SECONDS)
        return code


@contextmanager
def running(folder: Path, *arguments: str, **variables: str) -> Iterator[Running]:
    defaults = {"KUBECONFIG": str(kubeconfig(folder)), "METRICS_PORT": "0", "HEALTH_PROBE_PORT": "0"}
    environment = surroundings(folder, **{**defaults, **variables})
    process = subprocess.Popen(
        [*COMMAND, *arguments], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield Running(process)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def probe(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=LONGEST_SECONDS) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_an_api_server_that_is_away_is_waited_for(tmp_path: Path) -> None:
    """OPS-364: alive, not ready, one clear line per cause, and an orderly end.

    OPS-362, OPS-365, OPS-O10: who does not lead answers with its figures.
    """
    health, metrics = free_port(), free_port()
    with running(tmp_path, "--health-probe-port", str(health), METRICS_PORT=str(metrics)) as process:
        line = process.wait_for("the API server cannot be used")
        assert "cannot reach the API server at http://127.0.0.1:1" in line["error"]
        assert probe(health, "/healthz") == (200, "ok\n")
        status, body = probe(health, "/readyz")
        assert status == 500
        assert "[-]manager failed" in body
        status, body = probe(metrics, "/metrics")
        assert status == 200
        assert 'leader_election_master_status{name="karpenter-leader-election"} 0.0' in body
        assert "karpenter_build_info{" in body
        assert "process_resident_memory_bytes" in body
        assert [probe(metrics, path)[0] for path in ("/debug/pprof/", "/debug/state", "/healthz")] == [404, 404, 404]
        assert process.process.poll() is None
        assert process.end() == 0
        assert len(process.said("the API server cannot be used")) == 1
        assert process.said("All workers finished")
        assert not any("Traceback" in text for text in process.raw)


def test_an_api_server_that_takes_calls_and_never_answers_is_reported(tmp_path: Path) -> None:
    """OPS-111: its silence becomes an error only after minutes."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = f"http://127.0.0.1:{silent.getsockname()[1]}"
        given = tmp_path / "silent"
        given.mkdir()
        config = str(kubeconfig(given, server))
        environment = {"KUBECONFIG": config, "KARPENTER_SYNC_REPORT_DELAY": "2s"}
        with running(tmp_path, "--disable-leader-election", **environment) as process:
            line = process.wait_for("cluster is waiting on sync for extended duration")
            assert line["error"] == "waiting on cluster sync"
            assert line["unsynced"].startswith("waiting for ")
            assert "pods" in line["unsynced"]
            assert not process.said("the API server cannot be used")
            assert process.end() == 0


def test_a_taken_port_is_reported_and_the_rest_goes_on(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with running(tmp_path, "--health-probe-port", str(port)) as process:
            line = process.wait_for("health probes cannot be answered")
            assert str(port) in line["error"]
            assert "--health-probe-port" in line["error"]
            process.wait_for("the API server cannot be used")
            assert process.end() == 0
            assert len(process.said("health probes cannot be answered")) == 1
            assert not any("stacktrace" in line for line in process.lines)


@dataclass(frozen=True)
class Observed:
    """What a process with many settings answered and logged until its end."""

    pages: dict[str, str]
    process: Running
    log: str


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Observed:
    """It acts alone, has profiling pages, settings without effect and a password in its server's address; it logs everything."""
    folder = tmp_path_factory.mktemp("observed")
    log, port = folder / "log", free_port()
    config = str(kubeconfig(folder, f"http://somebody:{TOKEN}@127.0.0.1:1"))
    settings = {
        "FEATURE_GATES": "NodeRepiar=true",
        "KUBERNETES_MIN_VERSION": "1.19.0-0",
        "ENABLE_PROFILING": "true",
        "METRICS_PORT": str(port),
        "LOG_LEVEL": "debug",
        "LOG_OUTPUT_PATHS": f"stdout,{log}",
    }
    with running(folder, "--disable-leader-election", KUBECONFIG=config, **settings) as process:
        process.wait_for("the API server cannot be used")
        pages = {path: probe(port, f"/debug/{path}")[1] for path in ("pprof/", "pprof/goroutine", "state")}
        assert process.end() == 0
    return Observed(pages, process, log.read_text())


def test_profiling_pages_are_served_on_request(observed: Observed) -> None:
    """OPS-366, OPS-372"""
    assert "goroutine" in observed.pages["pprof/"]
    assert "thread " in observed.pages["pprof/goroutine"]
    state = json.loads(observed.pages["state"])
    assert (state["nodes"], state["pendingPods"]) == ([], [])


def test_alone_a_process_acts_without_being_elected(observed: Observed) -> None:
    """OPS-317"""
    assert not any("leader lease" in line["message"] for line in observed.process.lines)


def test_settings_without_effect_are_reported_in_one_line(observed: Observed) -> None:
    (line,) = observed.process.said("some settings have no effect")
    assert line["level"] == "INFO"
    assert line["settings"] == [
        "feature gate NodeRepiar: unknown and ignored; did you mean NodeRepair?",
        "KUBERNETES_MIN_VERSION: nothing reads it",
    ]


def test_no_secret_is_logged_at_any_level(observed: Observed) -> None:
    """Neither tokens nor passwords in addresses, in no line of a process that has much to complain of."""
    (line,) = observed.process.said("starting")
    assert line["server"] == "http://127.0.0.1:1"
    assert line["caller"].startswith("karpenter/manager_process.py:")
    assert TOKEN not in "".join(observed.process.raw)


def test_lines_may_go_to_a_file(observed: Observed) -> None:
    """OPS-324"""
    assert observed.log == "".join(observed.process.raw)


def test_a_log_file_that_cannot_be_written_ends_the_process_with_one_line(tmp_path: Path) -> None:
    code, lines = refused(tmp_path, LOG_OUTPUT_PATHS="/nowhere/log", KUBECONFIG=str(kubeconfig(tmp_path)))
    assert (code, lines) == (2, ["karpenter run: /nowhere/log cannot be written: No such file or directory"])


def test_a_second_signal_ends_a_process_that_takes_its_time(tmp_path: Path) -> None:
    with running(tmp_path) as process:
        process.wait_for("the API server cannot be used")
        process.process.send_signal(signal.SIGTERM)
        process.wait_for("Shutdown signal received, waiting for all workers to finish")
        process.process.send_signal(signal.SIGTERM)
        assert process.process.wait(LONGEST_SECONDS) in (0, -signal.SIGTERM)


def test_a_process_in_a_pod_finds_its_pod() -> None:
    """DIS-469: in a pod the host has its name."""
    assert own_pod({"POD_NAMESPACE": "karpenter"}) == ("karpenter", socket.gethostname())
    assert own_pod({}) is None
