"""The demo's story and its picture, in virtual time."""

from __future__ import annotations

import asyncio
import io
import re
from datetime import UTC, datetime
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from karpenter.api import kinds
from karpenter.cli.demo_chart import PriceChart, Step
from karpenter.cli.demo_scenario import ScenarioPlayer, build_scenario
from karpenter.cli.demo_screen import DemoScreen
from karpenter.instancetypes import ec2_packaged_types
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.providers.simulated import Faults
from karpenter.providers.simulated.fault_rules import InsufficientCapacityRule
from karpenter.simulation import LoopClock, SimulationConfig, run_virtual, running_cluster

START = datetime(2026, 1, 1, tzinfo=UTC)
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def _few_types() -> tuple[InstanceType, ...]:
    """General, computing and memory types of one generation: choosing among all makes these tests four times as long."""
    return tuple(
        sold for sold in ec2_packaged_types.packaged_instance_types() if sold.name.startswith(("m6i.", "c6i.", "r6i."))
    )


class Recorder:
    """A narrator that keeps what it is told."""

    def __init__(self) -> None:
        self.phases: list[str] = []
        self.notes: list[str] = []

    def phase(self, headline: str) -> None:
        self.phases.append(headline)

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.mark.parametrize("pod_count", [1, 7, 150])
def test_all_pods_belong_either_to_the_day_or_to_the_rush(pod_count: int) -> None:
    demo_scenario = build_scenario(pod_count, 3)
    assert (
        sum(
            deployment.spec.replicas or 0
            for deployment in (*demo_scenario.base_deployments, *demo_scenario.peak_deployments)
        )
        == pod_count
    )
    assert demo_scenario.base_deployments


def test_pods_that_get_no_node_are_complained_about() -> None:
    nothing_to_be_had = Faults(insufficient_capacity=(InsufficientCapacityRule(),))
    few = tuple(sold for sold in ec2_packaged_types.packaged_instance_types() if sold.name.startswith("m5."))

    async def main(clock: LoopClock) -> list[str]:
        async with running_cluster(clock, SimulationConfig(few, faults=nothing_to_be_had)) as stage:
            teller = ScenarioPlayer(stage, build_scenario(2, 1), Recorder())
            await teller.create_pools()
            await teller.run_load_peak()
            return teller.failures

    complaints = run_virtual(main, START)
    assert len(complaints) == 1
    assert complaints[0].startswith("2 pods did not become ready (")


def test_the_story_compares_prices_survives_an_interruption_explains_a_pod_and_consolidates() -> None:
    """Each phase ends with its figures, and nothing is left at the end."""
    narrator = Recorder()

    async def main(clock: LoopClock) -> ScenarioPlayer:
        async with running_cluster(clock, SimulationConfig(_few_types())) as stage:
            teller = ScenarioPlayer(stage, build_scenario(24, 1), narrator)
            await teller.run_until_load_falls()
            await teller.scale_to_zero()
            events = (await stage.kube.list(kinds.EVENT)).items
            assert "SpotInterrupted" in {event.reason for event in events}, "as the console shows it"
            return teller

    teller = run_virtual(main, START)
    assert teller.failures == []
    notes = "\n".join(narrator.notes)
    assert re.search(r"^paid \$\S+/h; classic packing of these pods \$\S+/h, lower bound \$\S+/h$", notes, re.MULTILINE)
    survived = re.search(r"^survived: (\d+) pods? moved, all pods are ready$", notes, re.MULTILINE)
    assert survived is not None
    assert int(survived[1]) > 0
    assert re.search(r"^unschedulable: nearest is NodePool \S+ the pod is \S+ CPU short on", notes, re.MULTILINE)
    assert re.search(r"^consolidation: \$\S+/h -> \$\S+/h, \d+ of \d+ pods? restarted$", notes, re.MULTILINE)
    assert all(prices.lower_bound <= min(paid, prices.classic) + 1e-9 for paid, prices in teller.comparisons)
    assert [price for _, price in teller.bounds][-1] == 0.0


def test_the_chart_draws_each_change_as_a_step_and_names_the_phases() -> None:
    chart = PriceChart([Step(0, 0.0), Step(10, 2.0)], [Step(0, 1.0)], [(0, "a <b>"), (10, "c")], 20.0)
    root = ET.fromstring(chart.svg())
    lines = {line.get("class"): line.get("points") for line in root.iter("{http://www.w3.org/2000/svg}polyline")}
    assert lines == {
        "paid": "60.0,280.0 450.0,280.0 450.0,40.0 840.0,40.0",
        "bound": "60.0,160.0 840.0,160.0",
    }
    titles = [title.text for title in root.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == ["USD per hour in the demo, against the lower bound", "a <b>", "c"]


def test_every_frame_fits_the_terminal_and_counts_what_it_does_not_show() -> None:
    """A small and a large terminal show the same story."""
    sizes = ((80, 24), (140, 80))
    shown = {size: io.StringIO() for size in sizes}

    async def main(clock: LoopClock) -> None:
        async with running_cluster(clock, SimulationConfig(_few_types())) as stage:
            screens = [DemoScreen(_console(text, *size), stage, START, 200.0) for size, text in shown.items()]
            teller = ScenarioPlayer(stage, build_scenario(60, 1), screens[0])
            showing = [asyncio.create_task(screen.run()) for screen in screens]
            await teller.create_pools()
            await teller.run_load_peak()
            for task in showing:
                task.cancel()

    run_virtual(main, START)
    for (width, height), text in shown.items():
        frames = [_CONTROL.sub("", frame) for frame in text.getvalue().split("\x1b[H")]
        assert len(frames) > 10
        for frame in frames:
            lines = frame.split("\n")
            assert len(lines) <= height
            assert max(map(len, lines)) <= width
        assert bool(re.search(r"\.\.\. and \d+ more", text.getvalue())) == (height == 24)
        assert "spot" in text.getvalue()
        assert "launched" in text.getvalue()


def _console(written: io.StringIO, width: int, height: int) -> Console:
    return Console(file=written, force_terminal=True, width=width, height=height, color_system=None)
