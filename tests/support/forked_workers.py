"""Workers of a parallel run are forks of one process that has collected the tests (Linux; elsewhere each worker collects).

Importing all tests and what they test takes ten seconds of CPU, twice that in a fresh clone. pytest-xdist has every worker do it.

    controller (pytest -n)          starts one collector, and for each worker ``fork_request.py`` in place of Python
    collector (``collector.py``)    collects as a worker would, then forks for each request that comes
    fork of the collector           takes over standard input and output of the request, and serves execnet and xdist from there

A request that gets no fork, as when arguments are wrong, becomes an ordinary worker: what is wrong is said there.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from execnet import XSpec
from xdist import plugin as xdist_plugin

from support import fork_request

_TESTS: Final = str(Path(__file__).parents[1])
_START: Final = "import sys; sys.path.insert(0, sys.argv[1]); from support import collector; collector.serve()"
#: A fork that hangs ends fifteen seconds after its controller.
_END_SECONDS: Final = 30.0


class Collector:
    """Plug-in of the controller: starts the process that collects, and has workers become forks of it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_setupnodes(self, config: pytest.Config, specs: list[XSpec]) -> None:
        """Before workers start."""
        local = [spec for spec in specs if spec.popen and not spec.python]
        name = f"karpenter-tests-{os.getpid()}"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(fork_request.address(name))
            listener.listen(len(local))
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, _TESTS],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=[listener.fileno()],
                text=True,
            )
            arguments = [str(argument) for argument in config.invocation_params.args]
            order = {"listener": listener.fileno(), "arguments": arguments, "path": xdist_plugin._sys_path}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        for spec in local:
            spec.python = f"{sys.executable} -I -S {fork_request.__file__} {name}"

    def pytest_unconfigure(self) -> None:
        """End the collector; its forks end with what they were started for."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(_END_SECONDS)
