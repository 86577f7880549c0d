"""What people meet on the way to a working installation: no permission, no valid token, no CustomResourceDefinitions.

A plan ends with one line that says how to mend it. The controller says the same once, is alive but not ready, and becomes ready
by itself when somebody has mended it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from controlplane.harness import ControlPlane, Json
from controlplane.process import Controller, controller
from karpenter.api import crds

pytestmark = pytest.mark.cluster

_DEADLINE_SECONDS = 90.0
_COMPLAINT = "the API server cannot be used"
_BINDING: Json = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "nobody-may-everything"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
    "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "nobody"}],
}


@pytest.fixture
def bare() -> Iterator[ControlPlane]:
    """A control plane that has never heard of us."""
    with ControlPlane() as running:
        yield running


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with ControlPlane() as running:
        running.apply(*crds.crds())
        yield running


@pytest.fixture
def token_file(plane: ControlPlane, tmp_path: Path) -> Path:
    """A token the server does not know, beside a kubeconfig that uses it."""
    content = json.loads(Path(plane.kubeconfig).read_text())
    path = tmp_path / "token"
    path.write_text("expired")
    content["users"][0]["user"] = {"tokenFile": str(path)}
    (tmp_path / "kubeconfig").write_text(json.dumps(content))
    return path


def plan(kubeconfig: str) -> tuple[int, str, list[str]]:
    """Exit code, output, and lines of error of a plan for the cluster."""
    program = Path(sys.executable).with_name("karpenter")
    ended = subprocess.run(
        [str(program), "plan"],
        env={**os.environ, "KUBECONFIG": kubeconfig},
        capture_output=True,
        text=True,
        timeout=_DEADLINE_SECONDS,
        check=False,
    )
    return ended.returncode, ended.stdout, ended.stderr.splitlines()


def test_a_plan_without_permission_names_the_permission(plane: ControlPlane) -> None:
    code, output, (line,) = plan(plane.kubeconfig_of("nobody"))
    assert (code, output) == (1, "")
    assert line.startswith("nobody may not list ")
    assert plane.server in line
    assert "grant it with a ClusterRole" in line


def test_a_plan_with_a_token_nobody_knows_asks_to_log_in(token_file: Path) -> None:
    code, output, (line,) = plan(str(token_file.with_name("kubeconfig")))
    assert (code, output) == (1, "")
    assert "does not accept the credentials" in line
    assert "log in again" in line


def test_a_plan_without_definitions_says_how_to_install_them(bare: ControlPlane) -> None:
    code, output, (line,) = plan(bare.kubeconfig)
    assert (code, output) == (1, "")
    assert "karpenter.sh/v1" in line
    assert "karpenter crds | kubectl apply -f -" in line


class Probed:
    """A running controller and its health port."""

    def __init__(self, running: Controller, port: int) -> None:
        self._running = running
        self._port = port

    def probe(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def until(self, holds: Callable[[], bool]) -> None:
        end = time.monotonic() + _DEADLINE_SECONDS
        while not holds():
            assert time.monotonic() < end, self.probe("/readyz")
            time.sleep(0.1)

    def is_ready(self) -> bool:
        return self.probe("/readyz")[0] == 200

    def complaints(self) -> list[str]:
        return [str(line["error"]) for line in self._running.lines(_COMPLAINT)]

    def until_said(self, *parts: str) -> None:
        """Wait until lines that contain these texts have been logged, one for each."""
        self.until(lambda: all(any(part in line for line in self.complaints()) for part in parts))

    def check_waiting(self, reason: str) -> None:
        """Alive and not ready, for a reason that is told; nothing was said twice."""
        assert self.probe("/healthz")[0] == 200
        status, body = self.probe("/readyz")
        assert status == 500
        assert reason in body
        assert len(set(self.complaints())) == len(self.complaints())

    def check_mended(self) -> None:
        """Ready by itself, and nothing was said twice on the way."""
        self.until(self.is_ready)
        self._running.await_line("the API server can be used again")
        self._running.await_line("Starting Controller")
        assert len(set(self.complaints())) == len(self.complaints())


@pytest.fixture
def start() -> Iterator[Callable[[str], Probed]]:
    from contextlib import ExitStack

    with ExitStack() as stack:

        def begin(kubeconfig: str) -> Probed:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = int(free.getsockname()[1])
            running = stack.enter_context(controller(kubeconfig, "--health-probe-port", str(port)))
            running.await_line("starting")
            running.await_line(_COMPLAINT)
            return Probed(running, port)

        yield begin


Start = Callable[[str], Probed]


def test_a_controller_without_permission_is_ready_once_the_role_is_bound(plane: ControlPlane, start: Start) -> None:
    """OPS-364"""
    probed = start(plane.kubeconfig_of("nobody"))
    wanted = ("pods", "nodes", "nodepools.karpenter.sh", "nodeclaims.karpenter.sh", "daemonsets.apps", "configmaps")
    probed.until_said(*(f"nobody may not list {resource}" for resource in wanted))
    probed.check_waiting('User "nobody" cannot list')
    plane.apply(_BINDING)
    try:
        probed.check_mended()
    finally:
        plane.request("DELETE", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/nobody-may-everything")


def test_a_controller_whose_token_expired_goes_on_with_the_next_one(
    plane: ControlPlane, token_file: Path, start: Start
) -> None:
    """OPS-364"""
    probed = start(str(token_file.with_name("kubeconfig")))
    probed.until_said("does not accept the credentials")
    probed.check_waiting("Unauthorized")
    assert len(probed.complaints()) == 1
    token_file.write_text(plane.tokens["admin"])
    probed.check_mended()


def test_a_controller_without_definitions_is_ready_once_they_are_applied(bare: ControlPlane, start: Start) -> None:
    """OPS-364"""
    probed = start(bare.kubeconfig)
    kinds = ("nodepools of karpenter.sh/v1", "nodeclaims of karpenter.sh/v1", "kwoknodeclasses of karpenter.kwok.sh")
    probed.until_said(*kinds)
    probed.check_waiting("does not serve nodepools of karpenter.sh/v1")
    assert len(probed.complaints()) == len(kinds)
    assert all("karpenter crds | kubectl apply -f -" in line for line in probed.complaints())
    bare.apply(*crds.crds())
    probed.check_mended()
