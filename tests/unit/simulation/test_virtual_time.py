"""Virtual time: jumps instead of waits, the same every time, and no silent hang."""

from __future__ import annotations

import asyncio
import random
import selectors
import socket
import time
from datetime import UTC, datetime, timedelta

import pytest

from karpenter.simulation import virtual_time
from karpenter.simulation.virtual_time import (
    Deadlock,
    LoopClock,
    PacedLoop,
    Spinning,
    VirtualLoop,
    VirtualTimeError,
    run_paced,
    run_virtual,
)

START = datetime(2026, 3, 1, tzinfo=UTC)
DAY = 86400.0


@pytest.mark.speed
def test_a_month_of_timers_passes_without_waiting() -> None:
    async def main(clock: LoopClock) -> int:
        ticks = 0
        while clock.now() < START + timedelta(days=30):
            await asyncio.sleep(60)
            ticks += 1
        return ticks

    began = time.monotonic()
    assert run_virtual(main, START) == 30 * 24 * 60
    assert time.monotonic() - began < 20


def test_a_single_wait_longer_than_a_day_ends_at_its_time() -> None:
    async def main(clock: LoopClock) -> datetime:
        await asyncio.sleep(40 * DAY)
        return clock.now()

    assert run_virtual(main, START) == START + timedelta(days=40)


def _story(seed: int) -> list[tuple[datetime, str]]:
    async def main(clock: LoopClock) -> list[tuple[datetime, str]]:
        log: list[tuple[datetime, str]] = []
        queue: asyncio.Queue[str] = asyncio.Queue()
        dice = random.Random(seed)

        async def producer(name: str) -> None:
            for number in range(50):
                await asyncio.sleep(dice.choice((0, 0.5, 1, 1, 7.25)))
                queue.put_nowait(f"{name}-{number}")

        async def consumer(name: str) -> None:
            while True:
                obj = await queue.get()
                log.append((clock.now(), f"{name} took {obj}"))
                await asyncio.sleep(dice.random())

        consumers = [asyncio.create_task(consumer(f"consumer-{n}")) for n in range(3)]
        await asyncio.gather(*(producer(f"producer-{n}") for n in range(5)))
        await asyncio.sleep(600)
        for task in consumers:
            task.cancel()
        return log

    return run_virtual(main, START)


def test_the_same_program_runs_the_same_way_twice() -> None:
    first = _story(7)
    assert len(first) == 250
    assert first == _story(7)
    assert first != _story(8)


def test_time_stands_still_while_the_program_computes() -> None:
    async def main(clock: LoopClock) -> tuple[datetime, datetime]:
        before = clock.now()
        sum(range(300_000))
        await asyncio.sleep(0)
        return before, clock.now()

    before, after = run_virtual(main, START)
    assert before == after == START


def test_a_time_out_fires_at_its_virtual_time() -> None:
    async def main(clock: LoopClock) -> datetime:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 3600)
        return clock.now()

    assert run_virtual(main, START) == START + timedelta(hours=1)


def test_tasks_that_wait_for_each_other_are_a_deadlock_that_names_them() -> None:
    async def main(clock: LoopClock) -> None:
        await asyncio.create_task(asyncio.Event().wait(), name="waits-for-nobody")

    with pytest.raises(Deadlock, match="waits-for-nobody") as caught:
        run_virtual(main, START)
    assert "no timer" in str(caught.value)


def test_a_loop_that_turns_without_time_passing_is_reported() -> None:
    loop = VirtualLoop(max_turns=1000)

    async def spin() -> None:
        while True:
            await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=lambda: loop) as runner, pytest.raises(Spinning, match="1000 times"):
        runner.run(spin())


def test_many_turns_are_allowed_when_time_passes_between_them() -> None:
    loop = VirtualLoop(max_turns=100)

    async def work() -> float:
        for _ in range(50):
            for _ in range(50):
                await asyncio.sleep(0)
            await asyncio.sleep(1)
        return loop.time()

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        assert runner.run(work()) == 50


def test_work_for_a_thread_runs_on_the_spot() -> None:
    async def main(clock: LoopClock) -> tuple[int, datetime]:
        return await asyncio.to_thread(sum, [1, 2, 3]), clock.now()

    assert run_virtual(main, START) == (6, START)


def test_an_error_in_work_for_a_thread_reaches_the_caller() -> None:
    async def main(clock: LoopClock) -> int:
        return await asyncio.to_thread(int, "seven")

    with pytest.raises(ValueError, match="seven"):
        run_virtual(main, START)


def test_sockets_are_refused_in_virtual_time() -> None:
    async def main(clock: LoopClock) -> None:
        with socket.socket() as plug:
            asyncio.get_running_loop().add_reader(plug, lambda: None)

    with pytest.raises(VirtualTimeError, match="PacedLoop"):
        run_virtual(main, START)


def test_what_the_program_raises_reaches_the_caller() -> None:
    async def main(clock: LoopClock) -> None:
        await asyncio.sleep(1)
        raise LookupError("gone")

    with pytest.raises(LookupError, match="gone"):
        run_virtual(main, START)


def test_a_paced_run_takes_its_share_of_real_time_and_ends_at_the_same_virtual_time() -> None:
    async def main(clock: LoopClock) -> datetime:
        for _ in range(10):
            await asyncio.sleep(30)
        return clock.now()

    began = time.monotonic()
    assert run_paced(main, START, speed=3000) == START + timedelta(minutes=5)
    assert time.monotonic() - began >= 0.09


class _RealClock:
    """Stands in for the module ``time`` of the loop: real time passes where the test says so, and while the loop waits."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def wait(self, timeout: float | None = None) -> list[object]:
        self.seconds += timeout or 0.0
        return []


@pytest.fixture
def real_clock(monkeypatch: pytest.MonkeyPatch) -> _RealClock:
    clock = _RealClock()
    monkeypatch.setattr(virtual_time, "time", clock)
    monkeypatch.setattr(selectors.DefaultSelector, "select", clock.wait)
    return clock


@pytest.mark.parametrize(
    ("computing", "expected"),
    [
        pytest.param(3.0, 10.0, id="less-than-all-waits"),
        pytest.param(9.5, 10.5, id="more-than-all-waits"),
    ],
)
def test_what_a_paced_run_computes_is_taken_off_its_later_waits(
    real_clock: _RealClock, computing: float, expected: float
) -> None:
    """Ten waits of a second each; the first is far shorter than the computing before it."""

    async def main(clock: LoopClock) -> datetime:
        await asyncio.sleep(1)
        before = clock.now()
        real_clock.seconds += computing
        assert clock.now() == before, "time stands still while the program computes"
        for _ in range(9):
            await asyncio.sleep(1)
        return clock.now()

    assert run_paced(main, START, speed=1) == START + timedelta(seconds=10)
    assert real_clock.seconds == pytest.approx(expected)


def test_a_paced_run_that_was_stopped_for_an_hour_keeps_its_pace_afterwards(real_clock: _RealClock) -> None:
    """A laptop that slept: the show goes on, it does not rush to its end."""

    async def main(_: LoopClock) -> float:
        await asyncio.sleep(1)
        real_clock.seconds += 3600
        begun = real_clock.seconds
        for _ in range(100):
            await asyncio.sleep(1)
        return real_clock.seconds - begun

    assert run_paced(main, START, speed=1) == pytest.approx(90, abs=1)


def test_another_pace_begins_without_a_backlog(real_clock: _RealClock) -> None:
    async def main(_: LoopClock) -> float:
        await asyncio.sleep(0)
        real_clock.seconds += 5
        loop = asyncio.get_running_loop()
        assert isinstance(loop, PacedLoop)
        loop.set_speed(2.0)
        begun = real_clock.seconds
        await asyncio.sleep(4)
        return real_clock.seconds - begun

    assert run_paced(main, START, speed=50) == pytest.approx(2)


def test_a_paced_run_serves_sockets_while_it_waits() -> None:
    async def main(clock: LoopClock) -> tuple[bytes, bool]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.readline())
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"hello\n")
        line = await reader.readline()
        writer.close()
        await writer.wait_closed()
        server.close()
        return line, clock.now() < START + timedelta(hours=1)

    assert run_paced(main, START, speed=10) == (b"hello\n", True)


@pytest.mark.parametrize("speed", [0, -1])
def test_a_pace_that_goes_nowhere_is_refused(speed: float) -> None:
    with pytest.raises(ValueError, match="greater than 0"):
        PacedLoop(speed)


def test_a_start_without_a_time_zone_is_refused() -> None:
    async def main(clock: LoopClock) -> None:
        return None

    with pytest.raises(ValueError, match="time zone"):
        LoopClock(asyncio.SelectorEventLoop, datetime(2026, 3, 1))  # noqa: DTZ001


def test_random_numbers_are_the_same_in_every_run_and_outside_they_go_on_where_they_were() -> None:
    """The jitter of a relist moves a timer, and with it the order of all timers due at one instant."""

    async def main(_: LoopClock) -> list[float]:
        await asyncio.sleep(random.random())
        return [random.random(), random.uniform(1, 2)]

    random.seed(5)
    expected = random.random()
    random.seed(5)
    first = run_virtual(main, START)
    assert random.random() == expected
    assert run_virtual(main, START) == first
