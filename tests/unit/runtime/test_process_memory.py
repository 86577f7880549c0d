"""How the controller's process uses memory."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from karpenter.cli import run_command
from karpenter.cli.main import app

#: Prints how often the cyclic garbage collector runs while 200 000 objects are made that stay.
_COUNT_COLLECTIONS = """
import gc, sys
from karpenter.runtime.process_memory import set_up_memory
if sys.argv[1] == "set":
    set_up_memory()
runs = []
gc.callbacks.append(lambda phase, info: runs.append(info) if phase == "stop" else None)
kept = [[] for _ in range(200_000)]
print(len(runs))
"""
#: Prints how many arenas the C library has made for eight threads that all hold memory at once.
_COUNT_ARENAS = """
import ctypes, sys, threading
from karpenter.runtime.process_memory import set_up_memory
if sys.argv[1] == "set":
    set_up_memory()
all_hold = threading.Barrier(8)
def hold():
    mine = [bytearray(100_000) for _ in range(10)]
    all_hold.wait()
threads = [threading.Thread(target=hold) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
out = libc.fdopen(1, b"w")
libc.malloc_info(0, ctypes.c_void_p(out))
libc.fflush(ctypes.c_void_p(out))
"""
#: Prints the bytes that asyncio allocates for a TLS connection.
_MEASURE_TLS = """
import asyncio, ssl, sys, tracemalloc
from asyncio.sslproto import SSLProtocol
from karpenter.runtime.process_memory import set_up_memory
if sys.argv[1] == "set":
    set_up_memory()
async def main():
    loop = asyncio.get_running_loop()
    context = ssl.create_default_context()
    tracemalloc.start()
    kept = [SSLProtocol(loop, asyncio.Protocol(), context, loop.create_future(), server_hostname="a") for _ in range(10)]
    print(tracemalloc.get_traced_memory()[0] // len(kept))
asyncio.run(main())
"""


def test_the_controller_sets_up_its_memory_before_anything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Imports make a quarter of a million objects, all of which stay."""
    calls: list[str] = []
    monkeypatch.setattr("karpenter.runtime.process_memory.set_up_memory", lambda: calls.append("memory"))

    def stop(*_: object) -> None:
        calls.append("settings")
        raise SystemExit

    monkeypatch.setattr(run_command, "resolve_or_exit", stop)
    CliRunner().invoke(app, ["run"])
    assert calls == ["memory", "settings"]


def _output(script: str, mode: str) -> str:
    """What a script prints in a process of its own: both settings are the whole process's."""
    return subprocess.run([sys.executable, "-c", script, mode], check=True, capture_output=True, text=True).stdout


def test_the_cyclic_garbage_collector_runs_seldom_where_objects_stay() -> None:
    assert int(_output(_COUNT_COLLECTIONS, "not set")) > 20
    assert 0 < int(_output(_COUNT_COLLECTIONS, "set")) <= 10


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="the C library has no arenas")
def test_threads_share_two_arenas() -> None:
    assert _output(_COUNT_ARENAS, "not set").count("<heap nr=") > 2
    assert _output(_COUNT_ARENAS, "set").count("<heap nr=") == 2


def test_a_tls_connection_allocates_a_small_buffer() -> None:
    assert int(_output(_MEASURE_TLS, "not set")) > 200_000
    assert int(_output(_MEASURE_TLS, "set")) < 100_000
