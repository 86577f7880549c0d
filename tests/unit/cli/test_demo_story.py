"""The demo's story and its picture, in virtual time."""

from __future__ import annotations

import asyncio
import io
import re
from datetime import UTC, datetime

import pytest
from rich.console import Console

from karpenter.cli.demo_scenario import ScenarioPlayer, build_scenario
from karpenter.cli.demo_screen import DemoScreen
from karpenter.instancetypes import ec2_catalog
from karpenter.providers.simulated import Faults
from karpenter.providers.simulated.fault_rules import InsufficientCapacityRule
from karpenter.simulation import LoopClock, SimulationConfig, run_virtual, running_cluster

START = datetime(2026, 1, 1, tzinfo=UTC)
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@pytest.mark.parametrize("pod_count", [1, 7, 150])
def test_all_pods_belong_either_to_the_day_or_to_the_rush(pod_count: int) -> None:
    told = build_scenario(pod_count, 3)
    assert (
        sum(deployment.spec.replicas or 0 for deployment in (*told.base_deployments, *told.peak_deployments))
        == pod_count
    )
    assert told.base_deployments


def test_pods_that_get_no_machine_are_complained_about() -> None:
    nothing_to_be_had = Faults(insufficient_capacity=(InsufficientCapacityRule(),))

    async def main(clock: LoopClock) -> list[str]:
        async with running_cluster(
            clock, SimulationConfig(ec2_catalog.packaged_instance_types(), faults=nothing_to_be_had)
        ) as stage:
            teller = ScenarioPlayer(stage, build_scenario(2, 1), lambda _headline: None)
            await teller.create_pools()
            await teller.run_load_peak()
            return teller.failures

    complaints = run_virtual(main, START)
    assert len(complaints) == 1
    assert complaints[0].startswith("2 pods did not become ready (")


@pytest.mark.parametrize(("width", "height"), [(80, 24), (140, 80)])
def test_every_frame_fits_the_terminal_and_counts_what_it_does_not_show(width: int, height: int) -> None:
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, width=width, height=height, color_system=None)

    async def main(clock: LoopClock) -> None:
        async with running_cluster(clock, SimulationConfig(ec2_catalog.packaged_instance_types())) as stage:
            screen = DemoScreen(console, stage, START, 40.0)
            teller = ScenarioPlayer(stage, build_scenario(500, 1), screen.phase)
            showing = asyncio.create_task(screen.run())
            await teller.create_pools()
            await teller.run_load_peak()
            showing.cancel()

    run_virtual(main, START)
    frames = [_CONTROL.sub("", frame) for frame in written.getvalue().split("\x1b[H")]
    assert len(frames) > 10
    for frame in frames:
        lines = frame.split("\n")
        assert len(lines) <= height
        assert max(map(len, lines)) <= width
    assert bool(re.search(r"\.\.\. and \d+ more", written.getvalue())) == (height == 24)
    assert "spot" in written.getvalue()
    assert "bought" in written.getvalue()
