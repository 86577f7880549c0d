"""The savings ledger: what was spent in a period and on what, what each decision saved, and what others would have paid.

All figures are estimates from listed prices, not from a bill: discounts, data transfer, volumes and the control plane are in none
of them. Spending is the integral of sampled prices. A gap between samples longer than ``MAX_GAP`` counts as not known, because no
controller was there to see it; ``known_hours`` says how much of the period the figures cover.

A decision saves, per hour, the price of the nodes that went less that of the nodes that came. It is ``estimated`` with the prices
of the time of the decision, and ``realized`` with the nodes that were really launched once the command succeeded; a failed one
saves nothing. What it saved so far is the realized price times the hours since, at most ``CREDITED`` of them: later than that the
cluster would have changed anyway.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise

from karpenter.history.history_records import MAX_GAP, ClusterSample, DecisionRecord, PartSpending
from karpenter.history.sampling import UNUSED_DIMENSION
from karpenter.model.budget_windows import TimeSpan

CREDITED = timedelta(hours=24)
_HOUR = timedelta(hours=1)


@dataclass(frozen=True)
class LedgerInput:
    """The history of a period: samples in the order of time, what was spent on each part of the price, and decisions."""

    period: TimeSpan
    samples: Sequence[ClusterSample]
    parts: Sequence[PartSpending]
    decisions: Sequence[DecisionRecord]


@dataclass(frozen=True)
class DaySpending:
    """USD of one day in UTC, of all nodes with a known price.

    ``bound`` and ``classic``: of the nodes of NodePools at least, and with classic packing; ``managed`` is what was paid for them
    in the hours in which both are known. ``known_hours``: how much of the day there are samples of.
    """

    day: date
    known_hours: float
    total: float
    managed: float
    bound: float
    classic: float


@dataclass(frozen=True)
class DecisionSaving:
    """What a decision saved: USD per hour as estimated and as realized (None where a price is not known), and USD so far."""

    decision: DecisionRecord
    estimated_per_hour: float | None
    realized_per_hour: float | None
    realized: float


@dataclass(frozen=True)
class SavingsLedger:
    """The ledger of a period. ``parts`` are without unused capacity, which is in ``unused``; dearest first."""

    period: TimeSpan
    days: tuple[DaySpending, ...]
    parts: tuple[PartSpending, ...]
    unused: tuple[PartSpending, ...]
    decisions: tuple[DecisionSaving, ...]

    @property
    def known_hours(self) -> float:
        """Hours of the period that the figures cover."""
        return sum(day.known_hours for day in self.days)

    @property
    def total(self) -> float:
        """USD spent."""
        return sum(day.total for day in self.days)

    @property
    def saved_by_packing(self) -> float:
        """USD that classic packing would have paid more, in the hours in which that is known; negative where it paid less."""
        return sum(day.classic - day.managed for day in self.days)

    @property
    def saved_by_decisions(self) -> float:
        """USD that decisions saved so far."""
        return sum(saving.realized for saving in self.decisions)


def savings_ledger(given: LedgerInput) -> SavingsLedger:
    """The ledger of a period."""
    parts = sorted(given.parts, key=lambda part: (part.dimension, -part.total, part.name))
    return SavingsLedger(
        given.period,
        tuple(_days(given)),
        tuple(part for part in parts if part.dimension != UNUSED_DIMENSION),
        tuple(part for part in parts if part.dimension == UNUSED_DIMENSION),
        tuple(_decision_saving(record, given.period.end) for record in given.decisions if record.kind == "disruption"),
    )


def _known_spans(given: LedgerInput) -> Iterator[TimeSpan]:
    """For each sample the time that its figures stand for: until the next one, unless that is too far away."""
    for sample, following in _with_next(given):
        if following - sample.at <= MAX_GAP:
            yield TimeSpan(sample.at, following)


def _with_next(given: LedgerInput) -> Iterator[tuple[ClusterSample, datetime]]:
    ends = [sample.at for sample in given.samples[1:]] + [given.period.end]
    yield from zip(given.samples, ends, strict=False)


def _hours(span: TimeSpan) -> float:
    return max(0.0, (span.end - span.begin) / _HOUR)


def _days(given: LedgerInput) -> Iterator[DaySpending]:
    by_time = {sample.at: sample for sample in given.samples}
    days: defaultdict[date, list[tuple[ClusterSample, float]]] = defaultdict(list)
    for span in _known_spans(given):
        for piece in _pieces_of_days(span):
            days[piece.begin.date()].append((by_time[span.begin], _hours(piece)))
    for day, pieces in sorted(days.items()):
        yield _day(day, pieces)


def _pieces_of_days(span: TimeSpan) -> Iterator[TimeSpan]:
    """The span, cut at midnight in UTC."""
    begin, end = span.begin.astimezone(UTC), span.end.astimezone(UTC)
    midnight = datetime.combine(begin.date() + timedelta(days=1), datetime.min.time(), UTC)
    edges = [begin, midnight, end] if begin < midnight < end else [begin, end]
    yield from (TimeSpan(first, last) for first, last in pairwise(edges))


def _day(day: date, pieces: Iterable[tuple[ClusterSample, float]]) -> DaySpending:
    known_hours = total = managed = bound = classic = 0.0
    for sample, hours in pieces:
        known_hours += hours
        total += sample.price_per_hour * hours
        if sample.bound_per_hour is not None and sample.classic_per_hour is not None:
            managed += sample.managed_price_per_hour * hours
            bound += sample.bound_per_hour * hours
            classic += sample.classic_per_hour * hours
    return DaySpending(day, known_hours, total, managed, bound, classic)


def _decision_saving(record: DecisionRecord, now: datetime) -> DecisionSaving:
    per_hour = _realized_per_hour(record)
    since = record.ended_at or now
    hours = min(max(now - since, timedelta()), CREDITED) / _HOUR
    return DecisionSaving(record, record.saving_per_hour, per_hour, (per_hour or 0.0) * hours)


def _realized_per_hour(record: DecisionRecord) -> float | None:
    if record.outcome == "failed":
        return 0.0
    prices = [node.price_per_hour for node in (*record.before, *record.after)]
    if record.outcome != "succeeded" or None in prices:
        return None
    went = sum(node.price_per_hour or 0.0 for node in record.before)
    return went - sum(node.price_per_hour or 0.0 for node in record.after)


def by_dimension(parts: Iterable[PartSpending]) -> Mapping[str, tuple[PartSpending, ...]]:
    """The parts by what the price is split by."""
    grouped: defaultdict[str, list[PartSpending]] = defaultdict(list)
    for part in parts:
        grouped[part.dimension].append(part)
    return {dimension: tuple(rows) for dimension, rows in grouped.items()}
