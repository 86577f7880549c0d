"""What was spent and saved: integrals of samples, realized savings, exports for other tools, and the command."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from typer.testing import CliRunner

from karpenter.cli.main import app
from karpenter.console.classic_price import classic_price_per_hour
from karpenter.console.console_view import ConsoleView
from karpenter.console.spending import label_spending, unused_capacity
from karpenter.history.history_records import ClusterSample, DecisionRecord, NodeFacts, SpendingPart
from karpenter.history.history_store import HistoryBounds, HistoryStore
from karpenter.history.ledger_exports import LedgerExport, exported
from karpenter.history.savings_ledger import LedgerInput, SavingsLedger, savings_ledger
from karpenter.model.budget_windows import TimeSpan
from support.builders import pod
from support.console_cases import console_input
from support.disruption_cases import pool, running

EVENING = datetime(2026, 11, 24, 23, tzinfo=UTC)
PERIOD = TimeSpan(EVENING, EVENING + timedelta(hours=3))
#: A sample stands for ten minutes.
TEN = timedelta(minutes=10)


def sample(minutes: int, price: float, classic: float | None = None) -> ClusterSample:
    at = EVENING + timedelta(minutes=minutes)
    bound = None if classic is None else price / 2
    return ClusterSample(at, price, price, bound, 1, 0, 0.5, 0.5, classic_per_hour=classic)


def decision(**fields: object) -> DecisionRecord:
    values = {
        "decision_id": "d1",
        "at": EVENING,
        "kind": "disruption",
        "reason": "Underutilized",
        "text": "-1 node +1 node (underutilized)",
        "outcome": "succeeded",
        "ended_at": EVENING + timedelta(hours=1),
        "pods": 4,
        "saving_per_hour": 1.5,
        "before": (NodeFacts("n1", price_per_hour=3.0),),
        "after": (NodeFacts("n2", price_per_hour=2.0),),
        **fields,
    }
    return DecisionRecord(**values)


def ledger(*samples: ClusterSample, parts: tuple[SpendingPart, ...] = (), **fields: object) -> SavingsLedger:
    with TemporaryDirectory() as folder:
        store = HistoryStore(Path(folder) / "history.db", HistoryBounds(timedelta(days=30), 2**30))
        for sample in samples:
            store.add_sample(replace(sample, parts=parts))
        spent = store.spent(PERIOD, 100)
    return savings_ledger(LedgerInput(PERIOD, samples, spent, (decision(**fields),)))


def test_spending_is_the_integral_of_the_samples_cut_at_midnight() -> None:
    samples = [sample(minutes, 6.0) for minutes in range(0, 120, 10)]
    result = ledger(*samples, sample(120, 12.0))
    first, second = result.days
    assert (first.day, second.day) == (date(2026, 11, 24), date(2026, 11, 25))
    assert (first.known_hours, second.known_hours) == pytest.approx((1.0, 1.0))
    assert (first.total, second.total) == pytest.approx((6.0, 6.0)), (
        "the last sample is an hour from the end: not known"
    )


def test_a_span_across_midnight_belongs_to_both_days() -> None:
    result = ledger(sample(55, 6.0), sample(65, 6.0), sample(75, 6.0))
    assert [day.known_hours for day in result.days] == pytest.approx([5 / 60, 15 / 60])


def test_time_without_samples_counts_as_unknown() -> None:
    result = ledger(sample(0, 6.0), sample(10, 6.0), sample(100, 6.0), sample(110, 6.0))
    assert result.known_hours == pytest.approx(20 / 60)
    assert result.total == pytest.approx(2.0)


def test_classic_packing_is_compared_only_where_it_is_known() -> None:
    result = ledger(sample(0, 6.0), sample(10, 6.0, classic=9.0), sample(20, 6.0))
    assert result.total == pytest.approx(2.0)
    assert result.saved_by_packing == pytest.approx((9.0 - 6.0) / 6)


def test_parts_are_integrated_by_their_dimension_and_unused_capacity_stands_apart() -> None:
    parts = (SpendingPart("namespace", "shop", 4.0, 3), SpendingPart("unused", "starting", 2.0, 1))
    result = ledger(sample(0, 6.0), sample(10, 6.0), sample(20, 6.0), parts=parts)
    assert [(part.name, part.total) for part in result.parts] == [("shop", pytest.approx(4 / 3))]
    assert [(part.name, part.total) for part in result.unused] == [("starting", pytest.approx(2 / 3))]


@pytest.mark.parametrize(
    ("fields", "per_hour", "saved"),
    [
        ({}, 1.0, 2.0),
        ({"outcome": "failed"}, 0.0, 0.0),
        ({"outcome": "under way", "ended_at": None}, None, 0.0),
        ({"after": (NodeFacts("n2", price_per_hour=None),)}, None, 0.0),
        ({"after": (NodeFacts("n2", price_per_hour=3.5),)}, -0.5, -1.0),
        ({"after": (), "ended_at": EVENING - timedelta(days=9)}, 3.0, 72.0),
    ],
    ids=["succeeded", "failed", "under way", "price unknown", "dearer than planned", "credited for a day at most"],
)
def test_a_decision_saves_what_was_really_launched(
    fields: dict[str, object], per_hour: float | None, saved: float
) -> None:
    (row,) = ledger(sample(0, 6.0), **fields).decisions
    assert row.estimated_per_hour == 1.5
    assert row.realized_per_hour == per_hour
    assert row.realized == pytest.approx(saved)


def test_launches_save_nothing_and_are_no_rows() -> None:
    assert ledger(sample(0, 6.0), kind="launch").decisions == ()


PARTS = (
    SpendingPart("namespace", "shop", 6.0, 1),
    SpendingPart("NodePool", "=cmd()", 6.0, 1),
    SpendingPart("label team", "pay", 6.0, 1),
)


def test_csv_has_every_figure_and_no_cell_that_a_spreadsheet_runs() -> None:
    result = ledger(sample(0, 6.0), sample(10, 6.0), parts=PARTS)
    rows = list(csv.DictReader(io.StringIO(exported(result, LedgerExport.CSV, "c"))))
    assert {"kind": "namespace", "name": "shop", "figure": "total", "usd": "1.000000"} in rows
    assert {row["name"] for row in rows if row["kind"] == "NodePool"} == {"'=cmd()"}
    assert {row["kind"] for row in rows} == {"day", "namespace", "NodePool", "label team", "decision"}


def test_opencost_gets_one_allocation_per_namespace() -> None:
    result = ledger(sample(0, 6.0), sample(10, 6.0), parts=PARTS)
    document = json.loads(exported(result, LedgerExport.OPENCOST, "prod"))
    assert document["code"] == 200
    (allocations,) = document["data"]
    assert allocations["shop"]["properties"] == {"cluster": "prod", "namespace": "shop"}
    assert (allocations["shop"]["totalCost"], allocations["shop"]["minutes"]) == (1.0, 10.0)
    assert allocations["shop"]["start"] == "2026-11-24T23:00:00Z"


def test_focus_rows_are_list_costs_with_tags() -> None:
    result = ledger(sample(0, 6.0), sample(10, 6.0), parts=PARTS)
    rows = list(csv.DictReader(io.StringIO(exported(result, LedgerExport.FOCUS, "prod"))))
    by_dimension = {row["x_Dimension"]: row for row in rows}
    assert "BilledCost" not in rows[0]
    assert by_dimension["label team"]["Tags"] == '{"team": "pay"}'
    assert by_dimension["namespace"]["ListCost"] == "1.000000"


def history_file(folder: Path) -> Path:
    """A history with an hour of samples up to now."""
    store = HistoryStore(folder / "history.db", HistoryBounds(timedelta(days=30), 1 << 26))
    now = datetime.now(UTC)
    for minutes in range(60, -1, -10):
        at = now - timedelta(minutes=minutes)
        store.add_sample(ClusterSample(at, 6.0, 6.0, 4.0, 2, 0, 0.5, 0.5, PARTS, classic_per_hour=9.0))
    store.add_decisions([decision(at=now - timedelta(hours=2), ended_at=now - timedelta(hours=1))])
    return store.file


def test_the_command_shows_what_was_spent_and_saved(tmp_path: Path) -> None:
    answer = CliRunner().invoke(app, ["savings", str(history_file(tmp_path)), "--days", "2"])
    assert answer.exit_code == 0
    assert "UTC, 1.0 hours known\n" in answer.stdout
    assert "spent $6.00" in answer.stdout
    assert "1.50 times the lower bound; classic packing would have paid $9.00" in answer.stdout
    assert "decisions saved $1.00" in answer.stdout
    assert "-1 node +1 node (underutilized)" in answer.stdout


def test_the_command_says_of_which_hours_figures_are_that_are_not_of_all(tmp_path: Path) -> None:
    """The bound is computed with every fifth sample, so the first minutes of a history have none."""
    file = history_file(tmp_path)
    store = HistoryStore(file, HistoryBounds(timedelta(days=30), 1 << 26))
    at = datetime.now(UTC) - timedelta(minutes=70)
    store.add_sample(ClusterSample(at, 6.0, 6.0, None, 2, 0, 0.5, 0.5, PARTS, classic_per_hour=None))
    page = CliRunner().invoke(app, ["savings", str(file), "--days", "2"]).stdout
    assert "spent $7.00" in page
    assert "nodes of NodePools $6.00, 1.50 times the lower bound" in page
    assert "would have paid $9.00, in the hours for which all of these are known" in " ".join(page.split())


def test_the_command_gives_every_figure_as_json(tmp_path: Path) -> None:
    answer = CliRunner().invoke(app, ["savings", str(history_file(tmp_path)), "-o", "json"])
    document = json.loads(answer.stdout)
    assert document["savedByPacking"] == pytest.approx(3.0, rel=1e-3)
    assert document["decisions"][0]["realizedSavingPerHour"] == 1.0


@pytest.mark.parametrize("content", [None, b"no database at all, but long enough to look like one" * 20])
def test_a_file_that_is_no_history_is_named_and_left_alone(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "history.db"
    if content is not None:
        file.write_bytes(content)
    answer = CliRunner().invoke(app, ["savings", str(file)])
    assert answer.exit_code == 2
    assert f"karpenter savings: {file}: no" in answer.stderr
    assert list(tmp_path.iterdir()) == ([file] if content is not None else [])


def test_the_price_splits_by_a_label_and_unused_capacity_has_a_reason() -> None:
    mine = pod("mine", {"cpu": "2"}, meta={"labels": {"team": "pay"}}, node_name="n")
    view = ConsoleView(console_input(pool(), running("n", "m", 1), mine))
    by_team = {row.name: row.price_per_hour for row in label_spending(view.nodes, view.given.state_nodes, "team")}
    assert set(by_team) == {"(not requested)", "(no label)", "pay"}
    assert by_team["pay"] == pytest.approx(2 * by_team["(no label)"])
    assert sum(by_team.values()) == pytest.approx(2.0)
    (unused,) = unused_capacity(view.nodes, view.given.state_nodes)
    assert unused.name in ("held", "room between pods")
    assert 0.0 < unused.price_per_hour < 2.0


def test_classic_packing_packs_the_pods_of_the_cluster_anew() -> None:
    given = console_input(pool(), running("n", "m", 1))
    assert classic_price_per_hour(given) == 1.0, "one small pod needs the smallest type"
    assert classic_price_per_hour(console_input(pool())) is None
