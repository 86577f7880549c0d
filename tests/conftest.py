"""Fixtures every test may use: the real control plane, started once per run and only for tests that ask for it."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import structlog
from hypothesis import settings
from xdist.remote import Producer

from controlplane import binaries, cleanup, definitions
from controlplane.harness import ControlPlane
from helm import charts
from karpenter.api import crds
from karpenter.cli import lazy_dataclasses
from karpenter.runtime import logging as own_logging
from kubeadm import program
from support import bytecode
from support.background_command import Beside
from support.examples import SOAK, SOAK_EXAMPLES
from support.soak import Soak
from support.worker_reports import FailureReports
from support.worker_scopes import Files, longest_first

#: Fixtures that need the control plane's binaries.
_CLUSTER_FIXTURES = frozenset({"control_plane", "working_control_plane"})
_HELM_FIXTURE = "helm_program"
_KUBEADM_FIXTURE = "kubeadm_program"

# Thousands of tests and all that the product imports live until the end: looking for garbage among them takes a fifth of a run.
_ALLOCATIONS_BETWEEN_COLLECTIONS = 100_000
gc.set_threshold(_ALLOCATIONS_BETWEEN_COLLECTIONS, 50, 100)

# As the installed program does: collecting loads more classes than any command, in every worker.
lazy_dataclasses.compile_methods_on_first_call()

# As in the Makefile, for runs without it: workers and processes under test start several times as fast with bytecode.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Examples of property tests are derived from the code of the test: a run passes or fails as the run before did. Random
# examples belong to `make soak` (`--hypothesis-profile=soak`), which prints the seed that repeats its run. An example found
# there is kept as an explicit `@example`. Tests set no `derandomize` of their own, and their counts through `support.examples`.
settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=30)
settings.register_profile(SOAK, derandomize=False, deadline=None, max_examples=SOAK_EXAMPLES, print_blob=True)
settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--beside", metavar="COMMAND", help="run a command beside the tests, and fail with it")


def pytest_configure(config: pytest.Config) -> None:
    command = config.getoption("--beside")
    if command and not hasattr(config, "workerinput") and not config.option.collectonly:
        config.pluginmanager.register(Beside(command), "beside")
    if config.getoption("--hypothesis-profile") == SOAK:
        config.pluginmanager.register(Soak(str(config.getoption("--hypothesis-seed"))), "soak")
    if worker := getattr(config, "workerinput", None):
        number, workers = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
        bytecode.write_share(config, bytecode.files_of(config.args), number, workers)
        config.pluginmanager.register(FailureReports(), "news-only")


@pytest.fixture(autouse=True, scope="module")
def _own_logging() -> Iterator[None]:
    """A command run in this process configures logging, into a stream that ends with the test; others must not write there."""
    yield
    structlog.reset_defaults()
    # What hands the lines of libraries to structlog: after the reset it would print them, into the output of a command.
    logging.captureWarnings(False)
    for handler in tuple(logging.getLogger().handlers):
        if type(handler).__module__ == own_logging.__name__:
            logging.getLogger().removeHandler(handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Files | None:
    return Files(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for obj in items:
        if (_CLUSTER_FIXTURES | {_HELM_FIXTURE}).intersection(getattr(obj, "fixturenames", ())):
            obj.add_marker("cluster")
    items[:] = longest_first(items, lambda item: item.nodeid)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build before the first test starts: the build takes minutes and no test's time limit should pay for it."""
    gc.collect()
    gc.freeze()
    if session.config.option.collectonly:
        return
    if any(obj.get_closest_marker("cluster") and not _needs_helm_only(obj) for obj in session.items):
        _build(session, "the test control plane", binaries.is_ready, binaries.folder)
    if any(_HELM_FIXTURE in getattr(obj, "fixturenames", ()) for obj in session.items):
        _build(session, "Helm", charts.is_ready, charts.binary)
    if any(_KUBEADM_FIXTURE in getattr(obj, "fixturenames", ()) for obj in session.items):
        _build(session, "kubeadm", program.is_ready, program.binary)


def _needs_helm_only(item: pytest.Item) -> bool:
    names = getattr(item, "fixturenames", ())
    return _HELM_FIXTURE in names and not _CLUSTER_FIXTURES.intersection(names)


def _build(session: pytest.Session, what: str, is_ready: Callable[[], bool], build: Callable[[], Path]) -> None:
    if is_ready():
        return
    reporter = session.config.pluginmanager.getplugin("terminalreporter")
    if reporter:
        reporter.write_line(f"building {what}, once (about five minutes on two cores) ...")
    # A failure is told by the tests that need it; all others still run.
    with suppress(binaries.BuildFailed):
        build()


@pytest.fixture(scope="session")
def helm_program() -> Path:
    """Helm, built on first use."""
    return charts.binary()


#: The control planes of this process by the fixture that has them, and which of them stand still.
_planes: dict[str, ControlPlane] = {}
_paused: set[str] = set()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A control plane stands still while the tests of a file use none. Tests may ask for one only when they run."""
    names = getattr(item, "fixturenames", ())
    wanted = _planes.keys() & set(names) or (_planes.keys() if item.get_closest_marker("cluster") else set())
    for name in wanted & _paused:
        _paused.discard(name)
        _planes[name].resume()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is None or nextitem.path == item.path:
        return
    for name in _planes.keys() - _paused:
        _planes[name].pause()
        _paused.add(name)


@contextmanager
def _shared(name: str, plane: ControlPlane) -> Iterator[ControlPlane]:
    with plane:
        _planes[name] = plane
        try:
            yield plane
        finally:
            del _planes[name]
            _paused.discard(name)


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """etcd and kube-apiserver; shared by all tests, so each works in names of its own."""
    with _shared("control_plane", ControlPlane()) as running:
        yield running


@pytest.fixture(scope="session")
def working_control_plane() -> Iterator[ControlPlane]:
    """As ``control_plane`` and a separate one, with kube-scheduler and the workload controllers."""
    with _shared("working_control_plane", ControlPlane(scheduler=True, controllers=True)) as running:
        yield running


@pytest.fixture(scope="module")
def plane(working_control_plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """The working control plane for one file of tests: empty, without rights, with the stored versions of our definitions.

    A file with the mark ``older_versions`` gets the definitions as they are shipped; one that needs more overrides the fixture
    by one that asks for it.
    """
    is_as_shipped = request.node.get_closest_marker("older_versions") is not None
    wanted = crds.custom_resource_definitions() if is_as_shipped else definitions.with_stored_versions()
    working_control_plane.apply(*wanted)
    cleanup.empty(working_control_plane)
    cleanup.forget_rights(working_control_plane)
    yield working_control_plane
    cleanup.empty(working_control_plane)
    cleanup.forget_rights(working_control_plane)
