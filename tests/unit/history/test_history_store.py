"""The history file: what is written is read again, within its bounds."""

from __future__ import annotations

import itertools
import re
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from karpenter.history.history_records import (
    ClusterSample,
    DecisionRecord,
    InterruptionRecord,
    NodeFacts,
    PendingReason,
    SpendingPart,
)
from karpenter.history.history_store import (
    SCHEMA,
    TABLES,
    HistoryBounds,
    HistoryStore,
    HistoryUnreadable,
    readable_history,
)
from karpenter.model.budget_windows import TimeSpan
from support.builders import NOW, seconds

LONG_AGO = NOW - timedelta(days=365)
BOUNDS = HistoryBounds(timedelta(days=30), 64 * 2**20)


def store(tmp_path: Path, bounds: HistoryBounds = BOUNDS) -> HistoryStore:
    return HistoryStore(tmp_path / "deep" / "history.db", bounds)


def decision(name: str = "d", **fields: object) -> DecisionRecord:
    node = NodeFacts("n", "np", "m", "z1", "spot", 1.5, 3, 0.25)
    values = {"saving_per_hour": 0.5, "before": (node,), "after": (NodeFacts("r"),), **fields}
    return DecisionRecord(name, NOW, "disruption", "Underutilized", "-1 node", "under way", **values)


def sample(at: float = 0, parts: int = 1) -> ClusterSample:
    spent = tuple(SpendingPart("namespace", f"team-{number:04}", 0.5, 2) for number in range(parts))
    return ClusterSample(seconds(at), 3.0, 2.5, None, 4, 1, 0.5, 0.25, spent, (PendingReason("no room", 1),))


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    history = store(tmp_path)
    history.add_decisions([decision()])
    history.add_sample(sample())
    history.add_interruptions([InterruptionRecord(NOW, "SpotInterrupted", "n", "soon")])
    assert history.decisions(LONG_AGO, 10) == (decision(),)
    assert history.decision("d") == decision()
    assert history.decision("other") is None
    (read,) = history.samples(LONG_AGO, 10)
    assert (read.at, read.price_per_hour, read.bound_per_hour, read.nodes) == (NOW, 3.0, None, 4)
    assert stored(history, "spending") == [(NOW.timestamp(), "namespace", "team-0000", 0.5, 2)]
    assert stored(history, "pending") == [(NOW.timestamp(), "no room", 1)]
    assert history.interruptions(LONG_AGO, 10) == (InterruptionRecord(NOW, "SpotInterrupted", "n", "soon"),)


def test_a_decision_is_replaced_by_its_later_state(tmp_path: Path) -> None:
    history = store(tmp_path)
    history.add_decisions([decision()])
    later = DecisionRecord("d", NOW, "disruption", "Underutilized", "-1 node", "succeeded", ended_at=seconds(60))
    history.add_decisions([later])
    assert history.decisions(LONG_AGO, 10) == (later,)


def test_many_samples_are_thinned_evenly_and_the_latest_stays(tmp_path: Path) -> None:
    history = store(tmp_path)
    for minute in range(25):
        history.add_sample(sample(60 * minute))
    read = history.samples(LONG_AGO, 10)
    assert len(read) <= 10
    assert read[-1].at == seconds(60 * 24)
    assert len({later.at - earlier.at for earlier, later in itertools.pairwise(read)}) == 1


def test_entries_beyond_the_age_go(tmp_path: Path) -> None:
    history = store(tmp_path, HistoryBounds(timedelta(hours=1), 2**30))
    history.add_decisions([decision()])
    history.add_sample(sample())
    history.add_sample(sample(3601))
    assert [read.at for read in history.samples(LONG_AGO, 10)] == [seconds(3601)]
    assert history.decisions(LONG_AGO, 10) == ()
    assert len(stored(history, "spending")) == 1


def test_the_file_stays_below_its_size(tmp_path: Path) -> None:
    limit = 300_000
    history = store(tmp_path, HistoryBounds(timedelta(days=30), limit))
    for minute in range(60):
        history.add_sample(sample(60 * minute, parts=300))
    assert history.file.stat().st_size <= limit * 1.2
    kept = history.samples(LONG_AGO, 1000)
    assert 5 < len(kept) < 60
    assert kept[-1].at == seconds(60 * 59)


def test_deleted_rows_free_space_in_the_file_system(tmp_path: Path) -> None:
    history = store(tmp_path, HistoryBounds(timedelta(hours=1), 2**30))
    for minute in range(20):
        history.add_sample(sample(60 * minute, parts=300))
    full = history.file.stat().st_size
    history.add_sample(sample(24 * 3600))
    assert history.file.stat().st_size < full / 3


def test_a_history_for_reading_only_is_never_written(tmp_path: Path) -> None:
    writer = store(tmp_path)
    writer.add_sample(sample())
    reader = readable_history(writer.file)
    assert [read.at for read in reader.samples(LONG_AGO, 10)] == [NOW]
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        reader.add_sample(sample(60))
    with sqlite3.connect(writer.file) as newer:
        newer.execute("PRAGMA user_version = 99")
    reader.samples(LONG_AGO, 10)
    assert not writer.file.with_name("history.db.other-version").exists()


@pytest.mark.parametrize(
    ("content", "said"), [(b"", "no history; the controller writes one with --history-file"), (b"text", "no history (")]
)
def test_a_file_that_is_no_history_is_rejected_and_stays_unchanged(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "other.db"
    file.write_bytes(content)
    with pytest.raises(HistoryUnreadable, match=re.escape(f"{file}: {said}")):
        readable_history(file)
    assert file.read_bytes() == content


def test_a_reader_sees_the_history_while_it_is_written(tmp_path: Path) -> None:
    history = store(tmp_path)
    history.add_sample(sample())
    with sqlite3.connect(history.file, isolation_level=None) as writer:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("DELETE FROM sample")
        assert len(history.samples(LONG_AGO, 10)) == 1
        writer.execute("ROLLBACK")


def test_a_file_of_another_schema_version_is_put_aside(tmp_path: Path) -> None:
    history = store(tmp_path)
    history.file.parent.mkdir()
    with sqlite3.connect(history.file) as other:
        other.execute("CREATE TABLE theirs (x)")
        other.execute("PRAGMA user_version = 99")
    history.add_sample(sample())
    assert len(history.samples(LONG_AGO, 10)) == 1
    assert history.file.with_name("history.db.other-version").exists()


def test_what_is_no_database_is_an_error_and_stays_as_it_is(tmp_path: Path) -> None:
    history = store(tmp_path)
    history.file.parent.mkdir()
    history.file.write_text("these are somebody's notes, " * 100)
    with pytest.raises(sqlite3.DatabaseError):
        history.add_sample(sample())
    assert history.file.read_text().startswith("these are")


def test_every_table_and_column_is_described() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "history.md").read_text()
    for table in TABLES:
        assert f"`{table}`" in page
    for column in re.findall(r"(\w+) (?:TEXT|REAL|INTEGER)", SCHEMA):
        assert f"`{column}`" in page, column


def stored(history: HistoryStore, table: str) -> list[tuple[object, ...]]:
    """The rows of a table, as other programs read them."""
    with closing(sqlite3.connect(history.file)) as database:
        return database.execute(f"SELECT * FROM {table}").fetchall()


def test_a_large_history_is_summed_in_the_file_and_few_rows_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """100 000 parts of prices: what the console reads does not grow with them."""
    history = HistoryStore(tmp_path / "history.db", HistoryBounds(timedelta(days=30), 2**40))
    history.add_interruptions(())
    samples, parts, begin = 10_000, 10, NOW.timestamp()
    numbers = f"WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {samples - 1})"
    with closing(sqlite3.connect(history.file)) as database, database:
        database.execute(f"{numbers} INSERT INTO sample SELECT {begin} + 60 * i, 10, 10, 5, 1, 0, 0, 0, 0 FROM n")
        for part in range(parts):
            database.execute(
                f"{numbers} INSERT INTO spending SELECT {begin} + 60 * i, 'namespace', 'n{part}', 1, 1 FROM n"
            )
    read: list[int] = []
    rows = HistoryStore._rows

    def counted(
        store: HistoryStore, query: str, values: Sequence[object] | Mapping[str, object]
    ) -> list[tuple[Any, ...]]:
        answer = rows(store, query, values)
        read.append(len(answer))
        return answer

    monkeypatch.setattr(HistoryStore, "_rows", counted)
    hours = samples / 60
    spent = history.spent(TimeSpan(NOW, NOW + timedelta(hours=hours)), 5)
    assert [(part.name, part.total) for part in spent] == [(f"n{part}", pytest.approx(hours)) for part in range(5)]
    shown = history.samples(LONG_AGO, 500)
    assert len(shown) == 500
    assert shown[-1].at == NOW + timedelta(minutes=samples - 1), "the latest sample is among them"
    assert sum(read) <= 5 + 500 + 1


def test_time_without_samples_is_in_no_sum(tmp_path: Path) -> None:
    """The rule of the ledger, for everything that sums prices over time."""
    history = HistoryStore(tmp_path / "history.db", HistoryBounds(timedelta(days=30), 2**30))
    for minute in (0, 10, 40, 50):
        part = SpendingPart("namespace", "shop", 6.0, 1)
        history.add_sample(ClusterSample(seconds(60 * minute), 6.0, 6.0, None, 1, 0, 0.5, 0.5, (part,)))
    (spent,) = history.spent(TimeSpan(NOW, seconds(3600)), 10)
    assert spent.total == pytest.approx(6.0 * 30 / 60), "of the hour half an hour is a gap"
