"""The history in a SQLite file: a ring, bounded by age and size. Calls block and belong in a thread.

The file is in WAL mode, so others may read while the controller writes. ``SCHEMA`` is described in docs/reference/history.md.
A file of another schema version is put aside, never changed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from karpenter.history.history_records import (
    MAX_GAP,
    UNDER_WAY,
    ClusterSample,
    DecisionRecord,
    InterruptionRecord,
    NodeFacts,
    PartSpending,
)
from karpenter.model.budget_windows import TimeSpan

SCHEMA_VERSION = 1
SCHEMA = """
CREATE TABLE decision (
    id TEXT PRIMARY KEY, at REAL NOT NULL, kind TEXT NOT NULL, reason TEXT NOT NULL, text TEXT NOT NULL, outcome TEXT NOT NULL,
    cause TEXT NOT NULL, ended_at REAL, pods INTEGER NOT NULL, saving_per_hour REAL, before TEXT NOT NULL, after TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX decision_at ON decision (at);
CREATE TABLE sample (
    at REAL PRIMARY KEY, price_per_hour REAL NOT NULL, managed_price_per_hour REAL NOT NULL, bound_per_hour REAL,
    nodes INTEGER NOT NULL, pending_pods INTEGER NOT NULL, cpu_fill REAL NOT NULL, memory_fill REAL NOT NULL,
    classic_per_hour REAL
) WITHOUT ROWID;
CREATE TABLE spending (
    at REAL NOT NULL, dimension TEXT NOT NULL, name TEXT NOT NULL, price_per_hour REAL NOT NULL, count INTEGER NOT NULL,
    PRIMARY KEY (at, dimension, name)
) WITHOUT ROWID;
CREATE TABLE pending (at REAL NOT NULL, reason TEXT NOT NULL, pods INTEGER NOT NULL, PRIMARY KEY (at, reason)) WITHOUT ROWID;
CREATE TABLE interruption (
    at REAL NOT NULL, reason TEXT NOT NULL, node TEXT NOT NULL, message TEXT NOT NULL, PRIMARY KEY (at, reason, node)
) WITHOUT ROWID;
"""
#: Counted from the latest one, which is always among them.
_EVERY_NTH_SAMPLE = """
SELECT * FROM (SELECT *, row_number() OVER (ORDER BY at DESC) - 1 AS number FROM sample WHERE at >= ?)
WHERE number % ? = 0 ORDER BY at
"""
_SPENT = """
WITH span AS (
    SELECT at, lead(at, 1, :end) OVER (ORDER BY at) - at AS seconds FROM sample WHERE at >= :begin AND at < :end
), part AS (
    SELECT dimension, name, sum(price_per_hour * CASE WHEN seconds <= :gap THEN seconds ELSE 0 END) / 3600 AS usd
    FROM spending JOIN span USING (at) GROUP BY dimension, name
), ranked AS (
    SELECT *, row_number() OVER (PARTITION BY dimension ORDER BY usd DESC, name) AS rank FROM part
)
SELECT dimension, name, usd FROM ranked WHERE rank <= :names ORDER BY dimension, rank
"""
#: The tables; each has its time in the column ``at``.
TABLES = ("decision", "sample", "spending", "pending", "interruption")
#: How much of the time span goes at once when the file is too large.
_TRIMMED_SHARE = 0.1
_MAX_TRIMS = 40
_BUSY_SECONDS = 5.0
_NODES_DECODER = msgspec.json.Decoder(tuple[NodeFacts, ...])


@dataclass(frozen=True)
class HistoryBounds:
    """What is kept: entries up to an age, while the file stays below a size in bytes."""

    max_age: timedelta
    max_bytes: int


class HistoryUnreadable(Exception):
    """A file is no history that this release can read; the message says why."""


def readable_history(file: Path) -> HistoryStore:
    """The history in a file that a controller writes, for reading only: nothing is created. Raises ``HistoryUnreadable``."""
    if not file.is_file():
        wrong = "is a directory, not a file" if file.is_dir() else "no such file"
        raise HistoryUnreadable(f"{file}: {wrong}; the controller writes it with --history-file")
    try:
        with closing(_read_only_connection(file)) as database:
            version = _version(database)
    except sqlite3.Error as error:
        raise HistoryUnreadable(f"{file}: no history ({error})") from None
    if version == 0:
        raise HistoryUnreadable(f"{file}: no history; the controller writes one with --history-file")
    if version != SCHEMA_VERSION:
        raise HistoryUnreadable(f"{file}: schema version {version}; this release reads {SCHEMA_VERSION}")
    return HistoryStore(file, HistoryBounds(timedelta.max, 0), read_only=True)


class HistoryStore:
    """The history of one cluster. All methods raise ``sqlite3.Error`` and ``OSError``.

    ``read_only``: the file is never created, changed or put aside; writing raises ``sqlite3.OperationalError``.
    """

    def __init__(self, file: Path, bounds: HistoryBounds, *, read_only: bool = False) -> None:
        self.file = file
        self._bounds = bounds
        self._read_only = read_only

    # -- writing ----------------------------------------------------------------------------------------------------------

    def add_decisions(self, records: Iterable[DecisionRecord]) -> None:
        """Store decisions; a later record of the same ID takes the place of the earlier one."""
        marks = ", ".join("?" * 12)
        with self._writing() as database:
            database.executemany(f"INSERT OR REPLACE INTO decision VALUES ({marks})", map(_decision_values, records))

    def add_sample(self, sample: ClusterSample) -> None:
        """Store a sample, and delete what is out of bounds."""
        at = sample.at.timestamp()
        with self._writing() as database:
            database.execute("INSERT OR REPLACE INTO sample VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", _sample_values(sample))
            database.executemany(
                "INSERT OR REPLACE INTO spending VALUES (?, ?, ?, ?, ?)",
                [(at, part.dimension, part.name, part.price_per_hour, part.count) for part in sample.parts],
            )
            database.executemany(
                "INSERT OR REPLACE INTO pending VALUES (?, ?, ?)",
                [(at, waiting.reason, waiting.pods) for waiting in sample.pending],
            )
        self._trim(sample.at)

    def add_interruptions(self, records: Iterable[InterruptionRecord]) -> None:
        """Store interruptions."""
        rows = [(record.at.timestamp(), record.reason, record.node, record.message) for record in records]
        with self._writing() as database:
            database.executemany("INSERT OR REPLACE INTO interruption VALUES (?, ?, ?, ?)", rows)

    def _trim(self, now: datetime) -> None:
        """Delete what is too old; while the file is too large, the oldest tenth of the rest."""
        oldest = (now - self._bounds.max_age).timestamp()
        with self._opened() as database:
            _delete_before(database, oldest)
            for _ in range(_MAX_TRIMS):
                if _size(database) <= self._bounds.max_bytes:
                    break
                span = _time_span(database)
                if span is None:
                    break
                begin, end = span
                _delete_before(database, begin + max(1e-3, (end - begin) * _TRIMMED_SHARE))
            # Each step gives back one page, and `execute` takes one step only.
            database.executescript("PRAGMA incremental_vacuum")

    # -- reading ----------------------------------------------------------------------------------------------------------

    def decisions(self, since: datetime, limit: int) -> tuple[DecisionRecord, ...]:
        """The latest decisions, the latest first."""
        rows = self._rows("SELECT * FROM decision WHERE at >= ? ORDER BY at DESC, id LIMIT ?", (_at(since), limit))
        return tuple(map(_decision, rows))

    def decisions_under_way(self, limit: int) -> tuple[DecisionRecord, ...]:
        """The latest decisions that have not ended, the latest first."""
        rows = self._rows("SELECT * FROM decision WHERE outcome = ? ORDER BY at DESC, id LIMIT ?", (UNDER_WAY, limit))
        return tuple(map(_decision, rows))

    def decision(self, decision_id: str) -> DecisionRecord | None:
        """One decision; None where it is not (or no longer) known."""
        return next(map(_decision, self._rows("SELECT * FROM decision WHERE id = ?", (decision_id,))), None)

    def samples(self, since: datetime, max_points: int) -> tuple[ClusterSample, ...]:
        """Samples from ``since`` on in the order of time, without parts and reasons; evenly left out beyond ``max_points``."""
        ((count,),) = self._rows("SELECT count(*) FROM sample WHERE at >= ?", (_at(since),))
        step = max(1, -(-count // max_points))
        return tuple(_sample(row[:-1]) for row in self._rows(_EVERY_NTH_SAMPLE, (_at(since), step)))

    def spent(self, period: TimeSpan, max_names: int) -> tuple[PartSpending, ...]:
        """What was spent in a period, by dimension and name, dearest first; at most so many names of each dimension.

        A sample stands for the time until the next one or the end, unless that is further away than ``MAX_GAP``.
        """
        bounds = {
            "begin": _at(period.begin),
            "end": _at(period.end),
            "gap": MAX_GAP.total_seconds(),
            "names": max_names,
        }
        return tuple(PartSpending(*row) for row in self._rows(_SPENT, bounds))

    def interruptions(self, since: datetime, limit: int) -> tuple[InterruptionRecord, ...]:
        """The latest interruptions, the latest first."""
        rows = self._rows(
            "SELECT * FROM interruption WHERE at >= ? ORDER BY at DESC, node LIMIT ?", (_at(since), limit)
        )
        return tuple(InterruptionRecord(_time(row[0]), *row[1:]) for row in rows)

    def _rows(self, query: str, values: Sequence[object] | Mapping[str, object]) -> list[tuple[Any, ...]]:
        with self._opened() as database:
            return database.execute(query, values).fetchall()

    # -- the file ---------------------------------------------------------------------------------------------------------

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """A connection of the calling thread; opening costs a fraction of a millisecond."""
        if self._read_only:
            with closing(_read_only_connection(self.file)) as database:
                yield database
            return
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with closing(self._connect()) as database:
            version = _version(database)
        if version not in (0, SCHEMA_VERSION):
            _put_aside(self.file)
        with closing(self._connect()) as database:
            if _version(database) == 0:
                _create(database)
            yield database

    def _connect(self) -> sqlite3.Connection:
        database = sqlite3.connect(self.file, timeout=_BUSY_SECONDS, isolation_level=None)
        # After a crash of the machine the last seconds may be missing; the file stays sound.
        database.execute("PRAGMA synchronous = NORMAL")
        return database

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction."""
        with self._opened() as database:
            database.execute("BEGIN IMMEDIATE")
            try:
                yield database
            except BaseException:
                database.execute("ROLLBACK")
                raise
            database.execute("COMMIT")


def _read_only_connection(file: Path) -> sqlite3.Connection:
    uri = f"{file.absolute().as_uri()}?mode=ro"
    return sqlite3.connect(uri, uri=True, timeout=_BUSY_SECONDS, isolation_level=None)


def _version(database: sqlite3.Connection) -> int:
    (version,) = database.execute("PRAGMA user_version").fetchone()
    return int(version)


def _create(database: sqlite3.Connection) -> None:
    database.execute("PRAGMA auto_vacuum = INCREMENTAL")  # has no effect later
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("BEGIN IMMEDIATE")
    if _version(database) == 0:  # otherwise another process created it meanwhile
        for statement in SCHEMA.split(";\n"):
            database.execute(statement)
        database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    database.execute("COMMIT")


def _put_aside(file: Path) -> None:
    for path in (file, file.with_name(f"{file.name}-wal"), file.with_name(f"{file.name}-shm")):
        if path.exists():
            path.rename(path.with_name(f"{path.name}.other-version"))


def _size(database: sqlite3.Connection) -> int:
    """Bytes of the pages in use."""
    pages, unused, size = (
        database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - unused) * size)


def _time_span(database: sqlite3.Connection) -> tuple[float, float] | None:
    """The times of the oldest and the latest entry; None without any."""
    times = [database.execute(f"SELECT min(at), max(at) FROM {table}").fetchone() for table in TABLES]
    spans = [(first, last) for first, last in times if first is not None]
    return (min(first for first, _ in spans), max(last for _, last in spans)) if spans else None


def _delete_before(database: sqlite3.Connection, at: float) -> None:
    for table in TABLES:
        database.execute(f"DELETE FROM {table} WHERE at < ?", (at,))


# -- rows -----------------------------------------------------------------------------------------------------------------


def _at(moment: datetime) -> float:
    return moment.timestamp()


def _time(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)


def _decision_values(record: DecisionRecord) -> tuple[object, ...]:
    return (
        record.decision_id,
        _at(record.at),
        record.kind,
        record.reason,
        record.text,
        record.outcome,
        record.cause,
        None if record.ended_at is None else _at(record.ended_at),
        record.pods,
        record.saving_per_hour,
        msgspec.json.encode(record.before).decode(),
        msgspec.json.encode(record.after).decode(),
    )


def _decision(row: tuple[Any, ...]) -> DecisionRecord:
    name, at, kind, reason, text, outcome, cause, ended_at, moved, saving, before, after = row
    return DecisionRecord(
        name,
        _time(at),
        kind,
        reason,
        text,
        outcome,
        cause,
        None if ended_at is None else _time(ended_at),
        moved,
        saving,
        _NODES_DECODER.decode(before),
        _NODES_DECODER.decode(after),
    )


def _sample_values(sample: ClusterSample) -> tuple[object, ...]:
    return (
        _at(sample.at),
        sample.price_per_hour,
        sample.managed_price_per_hour,
        sample.bound_per_hour,
        sample.nodes,
        sample.pending_pods,
        sample.cpu_fill,
        sample.memory_fill,
        sample.classic_per_hour,
    )


def _sample(row: tuple[Any, ...]) -> ClusterSample:
    return replace(ClusterSample(_time(row[0]), *row[1:-1]), classic_per_hour=row[-1])
