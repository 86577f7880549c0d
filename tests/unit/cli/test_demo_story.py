"""The demo's story and its picture, in virtual time."""

from __future__ import annotations

import asyncio
import io
import re
from datetime import UTC, datetime

import pytest
from rich.console import Console

from karpenter.catalog import ec2
from karpenter.cli.demo_story import Teller, story
from karpenter.cli.demo_view import Screen
from karpenter.providers.simulated import Faults
from karpenter.providers.simulated.faults import InsufficientCapacityRule
from karpenter.sim import Cast, LoopClock, on_stage, run

START = datetime(2026, 1, 1, tzinfo=UTC)
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@pytest.mark.parametrize("pod_count", [1, 7, 150])
def test_all_pods_belong_either_to_the_day_or_to_the_rush(pod_count: int) -> None:
    told = story(pod_count, 3)
    assert sum(item.spec.replicas or 0 for item in (*told.services, *told.rush)) == pod_count
    assert told.services


def test_pods_that_get_no_machine_are_complained_about() -> None:
    nothing_to_be_had = Faults(insufficient_capacity=(InsufficientCapacityRule(),))

    async def main(clock: LoopClock) -> list[str]:
        async with on_stage(clock, Cast(ec2.types(), faults=nothing_to_be_had)) as stage:
            teller = Teller(stage, story(2, 1), lambda _headline: None)
            await teller.set_up()
            await teller.rise_and_fall()
            return teller.complaints

    complaints = run(main, START)
    assert len(complaints) == 1
    assert complaints[0].startswith("2 pods did not become ready (")


@pytest.mark.parametrize(("width", "height"), [(80, 24), (140, 80)])
def test_every_frame_fits_the_terminal_and_counts_what_it_does_not_show(width: int, height: int) -> None:
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, width=width, height=height, color_system=None)

    async def main(clock: LoopClock) -> None:
        async with on_stage(clock, Cast(ec2.types())) as stage:
            screen = Screen(console, stage, START, 40.0)
            teller = Teller(stage, story(500, 1), screen.chapter)
            showing = asyncio.create_task(screen.run())
            await teller.set_up()
            await teller.rise_and_fall()
            showing.cancel()

    run(main, START)
    frames = [_CONTROL.sub("", frame) for frame in written.getvalue().split("\x1b[H")]
    assert len(frames) > 10
    for frame in frames:
        lines = frame.split("\n")
        assert len(lines) <= height
        assert max(map(len, lines)) <= width
    assert bool(re.search(r"\.\.\. and \d+ more", written.getvalue())) == (height == 24)
    assert "spot" in written.getvalue()
    assert "bought" in written.getvalue()
