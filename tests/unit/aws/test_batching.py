"""Batching of requests in a time window into one call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import pytest

from karpenter.providers.aws.instance.fleet_launcher import FLEET_BATCH_WINDOW
from karpenter.providers.aws.instance.instance_provider import DESCRIBE_WINDOW, TERMINATE_WINDOW
from karpenter.providers.aws.request_batching import BatchRequestUnanswered, RequestBatcher, RequestBatchWindow
from karpenter.simulation import virtual_time as virtual
from karpenter.simulation.virtual_time import LoopClock
from support.launch_environment import START


@dataclass
class RecordingExecutor:
    """Answers requests with themselves and records the batches and their times."""

    batches: list[tuple[str, tuple[int, ...], float]] = field(default_factory=list)
    sizes: list[tuple[int, float]] = field(default_factory=list)
    fault: Exception | None = None
    answered: int = 1000
    running: int = 0
    most: int = 0
    takes: float = 0.0

    async def work(self, bucket: str, requests: Sequence[int]) -> Sequence[int | Exception]:
        self.batches.append((bucket, tuple(requests), asyncio.get_running_loop().time()))
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(self.takes)
        self.running -= 1
        if self.fault is not None:
            raise self.fault
        return [ValueError(str(request)) if request < 0 else request for request in requests][: self.answered]

    def window_closed(self, size: int, open_seconds: float) -> None:
        self.sizes.append((size, round(open_seconds, 3)))

    def batcher(
        self, workers: int = 100, more_expected: Callable[[], bool] = lambda: False, **window: float
    ) -> RequestBatcher[str, int, int]:
        times = RequestBatchWindow(**{"idle_seconds": 0.035, **window})
        return RequestBatcher(times, self.work, self, workers, more_expected)


def run_scenario(scenario: Callable[[RecordingExecutor], Awaitable[None]]) -> None:
    async def main(clock: LoopClock) -> None:
        await scenario(RecordingExecutor())

    virtual.run_virtual(main, START)


def test_requests_within_the_idle_time_are_one_call() -> None:
    """AWS-T750."""

    async def scenario(executor: RecordingExecutor) -> None:
        batcher = executor.batcher()
        assert await asyncio.gather(*(batcher.submit("a", element) for element in range(5))) == [0, 1, 2, 3, 4]
        assert [requests for _, requests, _ in executor.batches] == [(0, 1, 2, 3, 4)]
        assert executor.sizes == [(5, 0.035)]

    run_scenario(scenario)


def test_buckets_are_not_mixed() -> None:
    """AWS-T751."""

    async def scenario(executor: RecordingExecutor) -> None:
        batcher = executor.batcher()
        await asyncio.gather(batcher.submit("a", 1), batcher.submit("b", 2))
        assert sorted(bucket for bucket, _, _ in executor.batches) == ["a", "b"]

    run_scenario(scenario)


def test_a_window_with_continuous_requests_closes_every_second() -> None:
    """AWS-T755."""

    async def scenario(executor: RecordingExecutor) -> None:
        batcher = executor.batcher()
        asked = []
        for element in range(100):
            asked.append(asyncio.ensure_future(batcher.submit("a", element)))
            await asyncio.sleep(0.03)
        await asyncio.gather(*asked)
        assert [round(moment, 1) for _, _, moment in executor.batches] == [1.0, 2.0, 3.0]

    run_scenario(scenario)


def test_a_window_stays_open_for_expected_requests() -> None:
    """In a busy process, related requests come a quarter of a second apart; AWS-750 alone would cause forty calls."""

    async def scenario(executor: RecordingExecutor) -> None:
        left = [40]
        batcher = executor.batcher(more_expected=lambda: left[0] > 0)
        asked = []
        for element in range(40):
            left[0] -= 1
            asked.append(asyncio.ensure_future(batcher.submit("ab"[element % 2], element)))
            await asyncio.sleep(0.24)
        await asyncio.gather(*asked)
        assert [(bucket, len(requests)) for bucket, requests, _ in executor.batches] == [("a", 20), ("b", 20)]
        assert executor.batches[-1][2] < 39 * 0.24 + 0.08

    run_scenario(scenario)


def test_an_expected_request_that_never_comes_keeps_a_window_open_for_a_second() -> None:
    async def scenario(executor: RecordingExecutor) -> None:
        batcher = executor.batcher(more_expected=lambda: True)
        await batcher.submit("a", 1)
        assert executor.batches[0][2] == pytest.approx(1.0, abs=0.05)

    run_scenario(scenario)


def test_continuous_expected_requests_keep_a_window_open_for_ten_seconds() -> None:
    async def scenario(executor: RecordingExecutor) -> None:
        batcher = executor.batcher(more_expected=lambda: True)
        asked = []
        for element in range(60):
            asked.append(asyncio.ensure_future(batcher.submit("a", element)))
            await asyncio.sleep(0.5)
        await asyncio.gather(*asked)
        assert [round(moment) for _, _, moment in executor.batches] == [10, 21, 31]

    run_scenario(scenario)


def test_a_full_window_closes_even_if_more_requests_are_expected() -> None:
    async def scenario(executor: RecordingExecutor) -> None:
        batcher = executor.batcher(maximum_requests=2, more_expected=lambda: True)
        await asyncio.gather(batcher.submit("a", 1), batcher.submit("a", 2))
        assert executor.batches == [("a", (1, 2), 0.0)]

    run_scenario(scenario)


def test_a_full_window_closes_at_once() -> None:
    """AWS-753."""

    async def scenario(executor: RecordingExecutor) -> None:
        batcher = executor.batcher(maximum_requests=2)
        await asyncio.gather(*(batcher.submit("a", element) for element in range(5)))
        assert [requests for _, requests, _ in executor.batches] == [(0, 1), (2, 3), (4,)]
        assert [moment for _, _, moment in executor.batches[:2]] == [0.0, 0.0]

    run_scenario(scenario)


def test_each_caller_gets_its_own_error_and_all_get_an_error_of_the_call() -> None:
    async def scenario(executor: RecordingExecutor) -> None:
        batcher = executor.batcher()
        mixed = await asyncio.gather(batcher.submit("a", 1), batcher.submit("a", -1), return_exceptions=True)
        assert mixed[0] == 1
        assert isinstance(mixed[1], ValueError)
        executor.fault = KeyError("no")
        failed = await asyncio.gather(batcher.submit("a", 1), batcher.submit("a", 2), return_exceptions=True)
        assert failed == [executor.fault, executor.fault]

    run_scenario(scenario)


def test_a_request_without_an_answer_is_an_error() -> None:
    """AWS-753."""

    async def scenario(executor: RecordingExecutor) -> None:
        executor.answered = 1
        batcher = executor.batcher()
        gather = await asyncio.gather(batcher.submit("a", 1), batcher.submit("a", 2), return_exceptions=True)
        assert gather[0] == 1
        assert isinstance(gather[1], BatchRequestUnanswered)
        assert str(gather[1]) == "error making call"

    run_scenario(scenario)


def test_a_cancelled_request_does_not_affect_the_others() -> None:
    async def scenario(executor: RecordingExecutor) -> None:
        batcher = executor.batcher()
        impatient = asyncio.ensure_future(batcher.submit("a", 1))
        patient = asyncio.ensure_future(batcher.submit("a", 2))
        await asyncio.sleep(0.01)
        impatient.cancel()
        assert await patient == 2
        assert executor.batches[0][1] == (1, 2)

    run_scenario(scenario)


def test_a_limited_number_of_windows_is_executed_at_once() -> None:
    """AWS-753."""

    async def scenario(executor: RecordingExecutor) -> None:
        executor.takes = 1.0
        batcher = executor.batcher(workers=2)
        await asyncio.gather(*(batcher.submit(str(element), element) for element in range(6)))
        assert executor.most == 2

    run_scenario(scenario)


@pytest.mark.parametrize("gap", [0.034, 0.036])
def test_the_idle_time_is_counted_from_the_last_request(gap: float) -> None:
    async def scenario(executor: RecordingExecutor) -> None:
        batcher = executor.batcher()
        first = asyncio.ensure_future(batcher.submit("a", 1))
        await asyncio.sleep(gap)
        await batcher.submit("a", 2)
        await first
        assert len(executor.batches) == (1 if gap < 0.035 else 2)

    run_scenario(scenario)


def test_the_windows_are_those_of_the_specification() -> None:
    """OPS-724: fleets wait for 35 ms and take up to 1000 requests, other calls 100 ms and 500; none more than a second."""
    assert RequestBatchWindow(0.035, 1.0, 1000) == FLEET_BATCH_WINDOW
    assert RequestBatchWindow(0.1, 1.0, 500) == DESCRIBE_WINDOW == TERMINATE_WINDOW
