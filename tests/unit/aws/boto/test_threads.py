"""The threads that AWS's blocking client runs on."""

from __future__ import annotations

import asyncio
import threading

import pytest

from karpenter.providers.aws.sdk.aws_session import DaemonThreadPool


async def test_a_limited_number_of_threads_runs_at_once_and_all_work_is_done() -> None:
    threads = DaemonThreadPool(3, "test")
    lock, under_way, most = threading.Lock(), 0, 0
    together = threading.Barrier(3)

    def work() -> str:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        together.wait(timeout=20)
        with lock:
            under_way -= 1
        return threading.current_thread().name

    names = await asyncio.gather(*(threads.run(work) for _ in range(30)))
    assert most == 3
    assert set(names) == {"test-1", "test-2", "test-3"}
    threads.close()


async def test_an_idle_thread_is_reused() -> None:
    threads = DaemonThreadPool(5, "test")
    names = {await threads.run(lambda: threading.current_thread().name) for _ in range(20)}
    assert names == {"test-1"}
    threads.close()


async def test_they_do_not_keep_the_process_alive() -> None:
    threads = DaemonThreadPool(1, "test")
    assert await threads.run(lambda: threading.current_thread().daemon)
    threads.close()


async def test_an_exception_of_the_work_is_raised() -> None:
    threads = DaemonThreadPool(1, "test")

    def work() -> None:
        raise LookupError("no")

    with pytest.raises(LookupError):
        await threads.run(work)
    threads.close()


async def test_work_cancelled_before_it_starts_is_not_executed() -> None:
    threads = DaemonThreadPool(1, "test")
    go, done = threading.Event(), []
    first = asyncio.create_task(threads.run(lambda: go.wait(20)))
    second = asyncio.create_task(threads.run(lambda: done.append("second")))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    go.set()
    assert await first
    await threads.run(lambda: done.append("third"))
    assert done == ["third"]
    threads.close()


async def test_after_shutdown_no_work_is_accepted() -> None:
    threads = DaemonThreadPool(1, "test")
    threads.close()
    with pytest.raises(RuntimeError):
        await threads.run(lambda: None)
