"""Where the runs of a search are made: in processes of this machine, or on an existing Dask cluster.

Both are executors of ``concurrent.futures``, so a fleet's study needs no scheduler of ours. A run is a function of its study
alone; the study travels with it (about 2 MB with all EC2 types, which is little beside a run of many seconds).
"""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager

from karpenter.runtime import logging
from karpenter.simulator.cost_bound import CostBound
from karpenter.simulator.simulation_report import SimulationReport, StudyLabels, summarize_study
from karpenter.simulator.simulation_run import Progress, Study, run_study
from karpenter.simulator.workload import WorkloadError

_PROCESSES = re.compile(r"processes(?::(?P<count>[1-9][0-9]*))?")
_DASK = re.compile(r"dask://(?P<host>[^/:\s]+|\[[0-9a-fA-F:]+\])(?::(?P<port>[0-9]+))?/?")
_DASK_PORT = 8786
_CONNECT_SECONDS = 10


def simulated_report(
    study: Study, bound: CostBound, on_progress: Callable[[Progress], None] = lambda _: None
) -> SimulationReport:
    """Run a study without a log, and sum it up. Other processes run it, too: it takes and returns plain data."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        logging.configure("error", nowhere)
        labels = StudyLabels(study.workload.name, study.policy.name, study.seed)
        return summarize_study(labels, run_study(study, on_progress), bound)


@contextmanager
def open_executor(address: str) -> Iterator[Executor]:
    """The executor ``processes``, ``processes:N`` or ``dask://HOST[:PORT]``, closed afterwards. Raises ``WorkloadError``.

    Leaving it by an exception abandons the runs under way.
    """
    processes = _PROCESSES.fullmatch(address)
    if processes:
        with _process_pool(int(processes["count"] or os.cpu_count() or 1)) as executor:
            yield executor
        return
    dask = _DASK.fullmatch(address)
    if dask is None:
        raise WorkloadError(f"there is no executor {address!r}; choose processes, processes:N or dask://HOST:PORT")
    with _dask_executor(f"tcp://{dask['host']}:{dask['port'] or _DASK_PORT}") as executor:
        yield executor


@contextmanager
def _process_pool(count: int) -> Iterator[Executor]:
    """New processes, not forks: a fork would copy locks of the threads of this one."""
    executor = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), _ignore_interrupts)
    try:
        yield executor
    except BaseException:
        executor.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            process.terminate()
        raise
    executor.shutdown()


def _ignore_interrupts() -> None:
    """Ctrl-C reaches all processes of a terminal; the first one ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def _dask_executor(address: str) -> Iterator[Executor]:
    try:
        from distributed import Client
    except ImportError:
        raise WorkloadError("--executor dask://HOST needs Dask: pip install 'karpenter[dask]'") from None
    try:
        client = Client(address, timeout=_CONNECT_SECONDS, set_as_default=False)
    except (OSError, TimeoutError) as error:
        raise WorkloadError(f"no Dask scheduler answers at {address} ({type(error).__name__})") from None
    with client, client.get_executor(pure=False) as executor:
        yield executor
