"""The process that collects the tests for all workers of a parallel run, which are its forks. See ``forked_workers``.

It imports nothing of xdist before pytest does, as a worker.
"""

from __future__ import annotations

import ast
import json
import os
import selectors
import socket
import sys
import traceback
import warnings
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import _pytest.config
import pytest
from _pytest.capture import CaptureManager
from _pytest.tmpdir import TempPathFactory

from support import fork_request

if TYPE_CHECKING:
    from xdist.remote import WorkerInteractor


class Collected:
    """Plug-in of the collector and its forks: what xdist starts as a whole run is the rest of a run that has collected."""

    def __init__(self) -> None:
        self.session: pytest.Session
        self._failures: list[pytest.CollectReport] = []
        self._worker: WorkerInteractor
        self._path = sys.path

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Keep what each worker is to report."""
        if not report.passed:
            self._failures.append(report)

    def pytest_plugin_registered(self, plugin: object) -> None:
        """The one that xdist registers in a worker."""
        if type(plugin).__name__ == "WorkerInteractor":  # of a module that xdist has sent
            self._worker = plugin

    @pytest.hookimpl(tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> pytest.ExitCode | int:
        """In a fork, in place of a run from its start."""
        sys.path = self._path  # xdist has replaced it
        _separate(config)
        session, worker = self.session, self._worker
        worker.pytest_sessionstart(session)
        worker.pytest_collection()
        for report in self._failures:
            worker.pytest_collectreport(report)
        worker.pytest_collection_finish(session)
        try:
            session.exitstatus = _run(config, session)
        finally:
            config.hook.pytest_sessionfinish(session=session, exitstatus=session.exitstatus)
            config._ensure_unconfigure()
        return session.exitstatus


def _separate(config: pytest.Config) -> None:
    """What a fork must not share with its neighbours: the file of captured output, the folder of temporary files."""
    capture: CaptureManager = config.pluginmanager.getplugin("capturemanager")
    capture.start_global_capturing()
    capture.suspend_global_capture()
    folders: TempPathFactory = config._tmp_path_factory
    folders._given_basetemp = Path(config.option.basetemp).absolute()


def _run(config: pytest.Config, session: pytest.Session) -> pytest.ExitCode | int:
    """As ``_pytest.main.wrap_session`` does."""
    try:
        config.hook.pytest_runtestloop(session=session)
    except session.Failed:
        return pytest.ExitCode.TESTS_FAILED
    except (KeyboardInterrupt, pytest.exit.Exception):
        config.hook.pytest_keyboard_interrupt(excinfo=pytest.ExceptionInfo.from_current())
        return pytest.ExitCode.INTERRUPTED
    except BaseException:
        config.notify_exception(pytest.ExceptionInfo.from_current(), config.option)
        return pytest.ExitCode.INTERNAL_ERROR
    return pytest.ExitCode.TESTS_FAILED if session.testsfailed else pytest.ExitCode.OK


def serve() -> None:
    """The collector: collects, and forks for each request until its controller closes standard input."""
    sys.argv = sys.argv[:1]
    order = json.loads(sys.stdin.readline())
    sys.path[:] = order["path"]
    listener = socket.socket(fileno=order["listener"])
    try:
        config = _collected(order["arguments"])
        _fork_for_each(listener, config)
    except (KeyboardInterrupt, pytest.UsageError):
        os._exit(pytest.ExitCode.USAGE_ERROR)  # controller and workers say so
    except Exception:
        traceback.print_exc()
        os._exit(pytest.ExitCode.INTERNAL_ERROR)


def _collected(arguments: list[str]) -> pytest.Config:
    """The configuration of a worker that has collected."""
    config = _pytest.config._prepareconfig(arguments, None)
    from xdist.remote import setup_config

    setup_config(config, None)
    config.workerinput = {"workerid": "gw0", "workercount": 1}
    config.workeroutput = {}
    collected = Collected()
    config.pluginmanager.register(collected, "collected")
    config._do_configure()
    session = collected.session = pytest.Session.from_config(config)
    session.exitstatus = pytest.ExitCode.OK
    config.hook.pytest_sessionstart(session=session)
    config.hook.pytest_collection(session=session)
    capture: CaptureManager = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()
    return config


def _fork_for_each(listener: socket.socket, config: pytest.Config) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        selector.register(sys.stdin, selectors.EVENT_READ)
        while all(key.fileobj is listener for key, _ in selector.select()):
            request, _ = listener.accept()
            if _fork() == 0:
                break
            request.close()
        else:
            with suppress(ChildProcessError):
                while os.wait():
                    pass
            return
    listener.close()
    _become_worker(request, config)


def _fork() -> int:
    with suppress(ChildProcessError):  # what it has forked and has not ended
        while os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG):
            pass
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # the other threads are of numpy, which stops them for a fork
        return os.fork()


def _become_worker(request: socket.socket, config: pytest.Config) -> NoReturn:
    """Serve the controller from the place of the process that asked."""
    _, streams, _, _ = socket.recv_fds(request, 1, 2)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    request.send(fork_request.TAKEN)
    _pytest.config._prepareconfig = lambda *_: config  # the first thing that xdist calls
    with os.fdopen(os.dup(0)) as commands:
        source = ast.literal_eval(commands.readline())
    exec(source, {"__name__": "__main__"})
    sys.exit(0)
