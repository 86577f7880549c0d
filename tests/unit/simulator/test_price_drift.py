"""Prices that change during a study: their distribution, and what controllers, costs and lower bounds make of them."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import pytest
from typer.testing import CliRunner

from karpenter.cli.main import app
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.providers.simulated.simulated_instances import SimulatedInstance
from karpenter.simulation.run_history import InstanceEnded, InstanceLaunched, InstanceRepriced
from karpenter.simulator.instance_bills import instance_bills
from karpenter.simulator.price_drift import PriceDrift, offering_prices, priced_types
from support.instance_types import offering, shape
from support.manifest_builders import type_of

_HOUR = 3600
_SPOT = ("m", "zone-a", "spot")
_ON_DEMAND = ("m", "zone-a", "on-demand")
_RULES = [PriceDrift(capacity_type="spot", every_hours=6, spread=0.2)]
_TYPES: tuple[InstanceType, ...] = (
    shape("m", {"cpu": "2", "memory": "8Gi"}, (offering("spot", "zone-a", 0.04), offering("on-demand", "zone-a", 0.1))),
)


def history(
    rules: list[PriceDrift], seed: int = 1, days: int = 3000
) -> list[tuple[int, dict[tuple[str, str, str], float]]]:
    """The prices at the start and after each change."""
    return [
        (priced.begin_seconds, offering_prices(priced.types))
        for priced in priced_types(rules, seed, _TYPES, days * 24 * _HOUR)
    ]


def test_prices_start_at_the_list_and_stray_from_it_as_far_as_the_rule_says() -> None:
    prices = history(_RULES)
    assert [at for at, _ in prices[:3]] == [0, 6 * _HOUR, 12 * _HOUR]
    assert prices[0][1][_SPOT] == 0.04
    logarithms = [math.log(price[_SPOT] / 0.04) for _, price in prices]
    assert fmean(logarithms) == pytest.approx(0, abs=0.03)
    assert pstdev(logarithms) == pytest.approx(0.2, rel=0.1)
    assert {price[_ON_DEMAND] for _, price in prices} == {0.1}


def test_no_price_exceeds_the_on_demand_price_of_its_type_and_zone() -> None:
    prices = [price[_SPOT] for _, price in history([PriceDrift(capacity_type="spot", every_hours=6, spread=1)])]
    assert max(prices) == 0.1


def test_prices_depend_on_the_seed_only() -> None:
    assert history(_RULES, days=30) == history(_RULES, days=30)
    assert history(_RULES, seed=2, days=30) != history(_RULES, days=30)


def test_the_first_rule_that_fits_an_offering_counts() -> None:
    rules = [PriceDrift(zone="zone-b", every_hours=1, spread=0.2), PriceDrift(every_hours=12, spread=0.1)]
    prices = [price for _, price in history(rules, days=2)]
    changes = [before[_SPOT] != after[_SPOT] for before, after in pairwise(prices)]
    assert sum(changes) == 3


def test_a_bill_adds_up_the_prices_of_an_instance_between_two_moments() -> None:
    start = datetime(2026, 1, 5, tzinfo=UTC)

    def at(hours: float) -> datetime:
        return start + timedelta(hours=hours)

    record = SimulatedInstance(
        node_name="n",
        claim_name="n",
        claim_uid="u",
        instance_type="m",
        zone="zone-a",
        capacity_type="spot",
        price_per_hour=1.0,
        created_at=start,
        labels={},
        node_labels={},
        taints=(),
        capacity={},
        allocatable={},
    )
    notices = [InstanceLaunched(at(1), record, 1), InstanceEnded(at(5), record, "")]
    (bill,) = instance_bills(notices, [InstanceRepriced(at(3), "n", 2.0)], at(9))
    assert bill.cost_usd(at(0), at(9)) == pytest.approx(2 * 1.0 + 2 * 2.0)
    assert bill.cost_usd(at(2), at(4)) == pytest.approx(1.0 + 2.0)
    (unended,) = instance_bills(notices[:1], [], at(9))
    assert (unended.hours, unended.cost_usd(at(0), at(9))) == (8, pytest.approx(8.0))


@pytest.fixture
def study(tmp_path: Path) -> list[str]:
    """A pod for half a day on a type that is sold as spot only, whose price drifts."""
    pool = {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": "default"},
        "spec": {
            "template": {
                "spec": {
                    "requirements": [],
                    "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"},
                }
            }
        },
    }
    (tmp_path / "pool.json").write_text(json.dumps(pool))
    (tmp_path / "types.json").write_text(json.dumps([type_of("a.small", 2, 4, 0.1)]))
    (tmp_path / "trace.csv").write_text(
        "name,creation_s,deletion_s,runtime_s,cpu_milli,memory_mib\nweb,0,43200,,1500,1024\n"
    )
    files = ["-f", str(tmp_path / "pool.json"), "--instance-types", str(tmp_path / "types.json")]
    return ["simulate", *files, "--trace", str(tmp_path / "trace.csv"), "-o", "json"]


def report_of(arguments: list[str]) -> dict[str, Any]:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert (result.exit_code, result.stderr) == (0, "")
    (report,) = json.loads(result.stdout)["reports"]
    return dict(report)


def test_a_running_instance_pays_the_price_of_the_moment_and_the_bound_follows_it(
    tmp_path: Path, study: list[str]
) -> None:
    (tmp_path / "world.yaml").write_text("priceDrift: [{everyHours: 1, spread: 0.5}]\n")
    drifting = report_of([*study, "--world", str(tmp_path / "world.yaml")])
    steady = report_of(study)
    rates = {sample["usdPerHour"] for sample in drifting["timeline"] if sample["nodes"]}
    assert len(rates) > 4
    assert {sample["usdPerHour"] for sample in steady["timeline"] if sample["nodes"]} == {0.1}
    cost = drifting["cost"]
    assert cost["usd"] == pytest.approx(sum(share["usd"] for share in drifting["capacity"]), abs=0.002)
    assert sum(cost["gapUsd"].values()) == pytest.approx(cost["usd"] - cost["lowerBoundUsd"], abs=0.002)
    assert cost["lowerBoundUsd"] <= cost["usd"]
    assert cost["lowerBoundUsd"] != steady["cost"]["lowerBoundUsd"]
