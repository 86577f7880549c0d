"""Worlds: delays, stock-outs, interruptions and losses, drawn from a seed."""

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path
from statistics import mean, median, quantiles

import pytest

from karpenter.instancetypes.ec2_spot_interruptions import monthly_interruption_share
from karpenter.providers.simulated.fault_rules import SimulatedLaunch
from karpenter.simulator.scenario_file import read_scenario, read_world
from karpenter.simulator.workload import WorkloadError
from karpenter.simulator.world import Delay, InterruptionRate, MonthlyRate, StockOut, World, WorldFaults

SPOT = SimulatedLaunch("default", "m5.large", "zone-a", "spot")
ON_DEMAND = SimulatedLaunch("default", "m5.large", "zone-a", "on-demand")
MONTH_SECONDS = 730 * 3600


def faults(world: World, seed: int = 1) -> WorldFaults:
    return WorldFaults(world, seed, lambda: 0.0)


def test_a_delay_has_the_median_and_the_95_percent_quantile_that_were_asked_for() -> None:
    dice = random.Random(1)
    drawn = [Delay("45s", "90s").draw_seconds(dice) for _ in range(4000)]
    assert median(drawn) == pytest.approx(45, rel=0.03)
    assert quantiles(drawn, n=20)[-1] == pytest.approx(90, rel=0.06)
    assert Delay("45s").draw_seconds(dice) == 45


def test_a_monthly_rate_is_the_share_of_instances_that_meet_it_within_a_month() -> None:
    playing = faults(World(interruptions=[InterruptionRate(capacity_type="spot", per_month=0.2)]))
    fates = [playing.schedule_faults(SPOT, timedelta()) for _ in range(4000)]
    within = mean(fate.interrupted_seconds is not None and fate.interrupted_seconds < MONTH_SECONDS for fate in fates)
    assert within == pytest.approx(0.2, abs=0.02)
    assert {fate.notice_seconds for fate in fates} == {120.0}
    assert playing.schedule_faults(ON_DEMAND, timedelta()).interrupted_seconds is None


def test_interruptions_come_as_often_as_the_spot_instance_advisor_says_of_the_type() -> None:
    playing = faults(World(interruptions=[InterruptionRate(capacity_type="spot", per_month="advisor")]))

    def share_within_a_month(zone: str, instance_type: str) -> float:
        launch = SimulatedLaunch("default", instance_type, zone, "spot")
        fates = [playing.schedule_faults(launch, timedelta()) for _ in range(2000)]
        return mean(fate.interrupted_seconds is not None and fate.interrupted_seconds < MONTH_SECONDS for fate in fates)

    known = [("us-east-1a", "m5.large"), ("ap-northeast-2b", "m5.large"), ("zone-a", "not.known")]
    for zone, instance_type in known:
        expected = monthly_interruption_share(zone, instance_type)
        assert share_within_a_month(zone, instance_type) == pytest.approx(expected, abs=0.025)
    assert playing.schedule_faults(ON_DEMAND, timedelta()).interrupted_seconds is None


def test_an_offering_is_out_of_stock_for_the_share_of_time_that_the_rule_gives() -> None:
    now = 0.0
    world = World(stock_outs=[StockOut(instance_type="m5.*", every_hours=3, minutes=60)])
    playing = WorldFaults(world, 1, lambda: now)
    out = []
    for minute in range(0, 400 * 24 * 60, 10):
        now = minute * 60.0
        out.append(playing.is_out_of_capacity(SPOT))
    assert not out[0]
    assert mean(out) == pytest.approx(0.25, abs=0.03)
    assert not playing.is_out_of_capacity(SimulatedLaunch("", "c5.large", "zone-a", "spot"))


def test_stock_outs_depend_on_the_seed_and_the_time_and_not_on_what_was_launched_before() -> None:
    def history(seed: int, asked: tuple[SimulatedLaunch, ...]) -> list[bool]:
        now = 0.0
        playing = WorldFaults(World(stock_outs=[StockOut(every_hours=2, minutes=60)]), seed, lambda: now)
        seen = []
        for hour in range(200):
            now = hour * 3600.0
            seen.append([playing.is_out_of_capacity(launch) for launch in asked][-1])
        return seen

    assert history(1, (SPOT,)) == history(1, (ON_DEMAND, SPOT))
    assert history(1, (SPOT,)) != history(2, (SPOT,))


def test_the_first_rule_that_fits_a_launch_counts() -> None:
    rates = [MonthlyRate(instance_type="m5.*", per_month=0.0), MonthlyRate(per_month=0.99)]
    playing = faults(World(losses=rates))
    assert playing.schedule_faults(SPOT, timedelta()).lost_seconds is None
    other = SimulatedLaunch("default", "c5.large", "zone-a", "spot")
    assert playing.schedule_faults(other, timedelta()).lost_seconds is not None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("registration: {median: soon}\n", "line 1: registration.median: "),
        ("podStart:\n  median: 9s\n  p95: 3s\n", "line 3: podStart.p95: 3s is less than the median 9s"),
        ("interruptions:\n- perMonth: often\n", "line 2: interruptions[0].perMonth: "),
        ("losses:\n- perMonth: advisor\n", "line 2: losses[0].perMonth: "),
        ("losses:\n- perMonth: 1.5\n", "line 2: losses[0].perMonth: "),
        ("stockOuts:\n- {everyHours: 3, minute: 5}\n", "line 2: there is no field 'minute'"),
        ("priceDrift:\n- {everyHours: 0.5, spread: 0.1}\n", "line 2: priceDrift[0].everyHours: "),
        ("priceDrift:\n- {everyHours: 6, spread: 2}\n", "line 2: priceDrift[0].spread: "),
    ],
)
def test_a_bad_world_is_refused_with_the_line(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "world.yaml"
    file.write_text(text)
    with pytest.raises(WorkloadError) as error:
        read_world(file)
    assert str(error.value).startswith(f"{file}: {complaint}")


def test_a_scenario_brings_its_world_with_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    workloads = "workloads:\n- {kind: drips, name: jobs}\n"
    file.write_text(f"world:\n  registration: {{median: 2m}}\n{workloads}")
    assert read_scenario(str(file)).world.registration == Delay("2m")
    file.write_text(f"{workloads}world:\n  registration:\n    median: x\n")
    with pytest.raises(WorkloadError, match=r"line 5: registration\.median: "):
        read_scenario(str(file))
