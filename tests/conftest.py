"""Fixtures every test may use: the real control plane, started once per run and only for tests that ask for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import settings

from controlplane import binaries
from controlplane.harness import ControlPlane

#: Fixtures that need the control plane's binaries.
_CLUSTER_FIXTURES = frozenset({"control_plane", "working_control_plane"})


# Examples of property tests are derived from the code of the test: a run passes or fails as the run before did. Random
# examples belong to `make soak` (`--hypothesis-profile=soak`), which prints the seed that repeats its run. An example found
# there is kept as an explicit `@example`. Tests set no `derandomize` of their own.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("soak", derandomize=False, deadline=None, max_examples=5_000, print_blob=True)
settings.load_profile("repeatable")


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
