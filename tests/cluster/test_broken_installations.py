"""What people meet on the way to a working installation: no permission, no valid token, no CustomResourceDefinitions.

A plan ends with one line that says how to mend it. The controller says the same once, is alive but not ready, and becomes ready
by itself when somebody has mended it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from controlplane import cleanup, deployed
from controlplane.deployed import Account
from controlplane.harness import ControlPlane
from controlplane.process import Controller, controller
from karpenter.api import crds
from support.installed_program import KARPENTER

pytestmark = pytest.mark.cluster

_DEADLINE_SECONDS = 90.0
_COMPLAINT = "the API server cannot be used"


@pytest.fixture
def bare(plane: ControlPlane) -> Iterator[ControlPlane]:
    """A control plane that does not know our kinds."""
    cleanup.forget_definitions(plane)
    yield plane
    plane.apply(*crds.custom_resource_definitions())


@pytest.fixture(scope="module")
def account(plane: ControlPlane) -> Iterator[Account]:
    with deployed.installed(plane) as ready:
        yield ready


@pytest.fixture
def expired(account: Account) -> Iterator[Account]:
    """The controller's account with a token the server does not know."""
    account.token_file.write_text("expired")
    yield account
    account.renew()


def plan(kubeconfig: str) -> tuple[int, str, list[str]]:
    """Exit code, output, and lines of error of a plan for the cluster."""
    ended = subprocess.run(
        [KARPENTER, "plan"],
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


def test_a_plan_with_an_invalid_token_asks_to_log_in(expired: Account) -> None:
    code, output, (line,) = plan(expired.kubeconfig)
    assert (code, output) == (1, "")
    assert "does not accept the credentials" in line
    assert "log in again" in line


def test_a_plan_without_definitions_says_how_to_install_them(bare: ControlPlane) -> None:
    code, output, (line,) = plan(bare.kubeconfig)
    assert (code, output) == (1, "")
    assert "karpenter.sh/v1" in line
    assert "karpenter crds | kubectl apply -f -" in line


class Watched:
    """A running controller that cannot do its work yet."""

    def __init__(self, running: Controller) -> None:
        self._running = running

    def complaints(self) -> list[str]:
        return [str(line["error"]) for line in self._running.lines(_COMPLAINT)]

    def until_said(self, *parts: str) -> None:
        """Wait until lines that contain these texts have been logged, one for each."""

        def are_said() -> bool:
            return all(any(part in line for line in self.complaints()) for part in parts)

        self._running.until(are_said, f"complain about {parts}", _DEADLINE_SECONDS)

    def check_waiting(self, reason: str) -> None:
        """Alive and not ready, for a reason that is told; nothing was said twice."""
        self._running.until(lambda: self._running.probe("/healthz")[0] == 200, "be alive", _DEADLINE_SECONDS)
        status, body = self._running.probe("/readyz")
        assert status == 500
        assert reason in body
        assert len(set(self.complaints())) == len(self.complaints())

    def check_mended(self) -> None:
        """Ready by itself, and nothing was said twice on the way."""
        self._running.until(self._running.is_ready, "become ready", _DEADLINE_SECONDS)
        self._running.await_line("the API server can be used again")
        self._running.await_leading()
        assert len(set(self.complaints())) == len(self.complaints())


#: Starts a controller with a kubeconfig and flags.
Start = Callable[..., Watched]


@pytest.fixture
def start() -> Iterator[Start]:
    with ExitStack() as stack:

        def begin(kubeconfig: str, *flags: str) -> Watched:
            running = stack.enter_context(controller(kubeconfig, *flags))
            running.await_line("starting")
            running.await_line(_COMPLAINT)
            return Watched(running)

        yield begin


@pytest.mark.usefixtures("account")
def test_a_controller_that_may_not_stand_for_election_says_so(plane: ControlPlane, start: Start) -> None:
    """OPS-361: it does nothing else before it is elected, so that is the first right it misses."""
    watched = start(plane.kubeconfig_of("nobody"))
    watched.until_said("nobody may not get leases.coordination.k8s.io in namespace kube-system")
    watched.check_waiting('User "nobody" cannot get')
    assert len(watched.complaints()) == 1


@pytest.mark.usefixtures("account")
def test_a_controller_without_permission_is_ready_once_the_role_is_bound(plane: ControlPlane, start: Start) -> None:
    """OPS-364"""
    watched = start(plane.kubeconfig_of("nobody"), "--disable-leader-election")
    wanted = ("pods", "nodes", "nodepools.karpenter.sh", "nodeclaims.karpenter.sh", "daemonsets.apps")
    watched.until_said(*(f"nobody may not list {resource}" for resource in wanted))
    watched.check_waiting('User "nobody" cannot list')
    bindings = deployed.bindings_to("nobody")
    plane.apply(*bindings)
    try:
        watched.check_mended()
    finally:
        plane.delete(*bindings)


def test_a_controller_whose_token_expired_goes_on_with_the_next_one(expired: Account, start: Start) -> None:
    """OPS-364"""
    watched = start(expired.kubeconfig)
    watched.until_said("does not accept the credentials")
    watched.check_waiting("Unauthorized")
    assert len(watched.complaints()) == 1
    expired.renew()
    watched.check_mended()


def test_a_controller_without_definitions_is_ready_once_they_are_applied(bare: ControlPlane, start: Start) -> None:
    """OPS-364"""
    with deployed.installed(bare) as account:
        watched = start(account.kubeconfig)
        kinds = (
            "nodepools of karpenter.sh/v1",
            "nodeclaims of karpenter.sh/v1",
            "kwoknodeclasses of karpenter.kwok.sh",
        )
        watched.until_said(*kinds)
        watched.check_waiting("does not serve nodepools of karpenter.sh/v1")
        assert len(watched.complaints()) == len(kinds)
        assert all("karpenter crds | kubectl apply -f -" in line for line in watched.complaints())
        bare.apply(*crds.custom_resource_definitions())
        watched.check_mended()
