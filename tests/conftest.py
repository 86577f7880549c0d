"""Fixtures every test may use: the real control plane, started once per run and only for tests that ask for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest

from controlplane import binaries
from controlplane.harness import ControlPlane

#: Fixtures that need the control plane's binaries.
_CLUSTER_FIXTURES = frozenset({"control_plane", "working_control_plane"})


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _CLUSTER_FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("cluster")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build before the first test starts: the build takes minutes and no test's time limit should pay for it."""
    wanted = any(item.get_closest_marker("cluster") for item in session.items)
    if not wanted or session.config.option.collectonly or binaries.is_ready():
        return
    reporter = session.config.pluginmanager.getplugin("terminalreporter")
    if reporter:
        reporter.write_line("building the test control plane, once (about five minutes on two cores) ...")
    # A failure is told by the tests that need the control plane; all others still run.
    with suppress(binaries.BuildFailed):
        binaries.folder()


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """etcd and kube-apiserver; shared by all tests, so each works in names of its own."""
    with ControlPlane() as running:
        yield running


@pytest.fixture(scope="session")
def working_control_plane() -> Iterator[ControlPlane]:
    """As ``control_plane`` and a separate one, with kube-scheduler and the workload controllers."""
    with ControlPlane(scheduler=True, controllers=True) as running:
        yield running
