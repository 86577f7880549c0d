"""The text of ``karpenter demo``: events, progress, the summary; and the presenter that prints plain lines."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import Protocol

from rich.console import Console
from rich.text import Text

from karpenter.cli.demo_reference import ReferencePrices
from karpenter.model.texts import count_text
from karpenter.simulation import ClusterCounts, InstanceEnded, InstanceLaunched, InstanceNotice, SimulatedCluster

#: How often plain progress is reported, in seconds of the story.
PROGRESS_SECONDS = 30.0
_TICK_SECONDS = 1.0
_STYLES = {"chapter": "bold", "launched": "green", "ended": "yellow", "progress": "dim", "note": "cyan"}


@dataclass(frozen=True, slots=True)
class DemoLine:
    """A line: when in the run, of what kind (chapter, launched, ended, progress, note), and its text."""

    elapsed: timedelta
    kind: str
    text: str

    def styled(self) -> Text:
        """The line as a terminal shows it."""
        return Text.assemble((f"{elapsed_text(self.elapsed):>6}  ", "dim"), (self.text, _STYLES[self.kind]))


class DemoPresenter(Protocol):
    """Shows a run while it goes on."""

    def phase(self, headline: str) -> None:
        """A phase begins."""

    def note(self, text: str) -> None:
        """Something came out of the phase."""

    def switch_to_real_time(self) -> None:
        """From the next ``run`` on in real time, below what was printed."""

    async def run(self) -> None:
        """Show until cancelled."""


def elapsed_text(elapsed: timedelta) -> str:
    """``m:ss``."""
    minutes, seconds = divmod(int(elapsed.total_seconds()), 60)
    return f"{minutes}:{seconds:02d}"


def dollars(amount: float) -> str:
    """An amount or a price per hour: two digits from ten cents on, more below."""
    return f"${amount:.2f}" if amount >= 0.1 or not amount else f"${amount:.3f}"


def event_lines(notices: Iterable[InstanceNotice], start: datetime) -> Iterator[DemoLine]:
    """Notices as lines; instances of one kind launched or terminated at the same second share one."""
    for key, group in groupby(notices, lambda notice: _group_key(notice, start)):
        yield _line(key, list(group))


def condensed_event_lines(notices: Iterable[InstanceNotice], start: datetime) -> Iterator[DemoLine]:
    """Notices as lines, one for all of the same second and kind."""
    for (sort, second, reason), group in groupby(notices, lambda notice: _moment(notice, start)):
        yield _moment_line(sort, second, reason, list(group))


def _moment(notice: InstanceNotice, start: datetime) -> tuple[str, int, str]:
    sort, second, *_, reason = _group_key(notice, start)
    return sort, second, reason


def _moment_line(sort: str, second: int, reason: str, group: list[InstanceNotice]) -> DemoLine:
    counts = Counter(notice.record.instance_type for notice in group)
    instances = ", ".join(f"{count} x {name}" if count > 1 else name for name, count in counts.most_common())
    price = dollars(sum(notice.record.price_per_hour for notice in group))
    nodes = count_text(len(group), "node")
    if sort == "launched":
        pod_count = sum(notice.pod_count for notice in group if isinstance(notice, InstanceLaunched))
        text = f"launched {nodes} for {count_text(pod_count, 'pod')}, +{price}/h: {instances}"
    else:
        text = f"removed {nodes} ({_reason_text(reason)}), -{price}/h: {instances}"
    return DemoLine(timedelta(seconds=second), sort, text)


def _reason_text(reason: str) -> str:
    return reason.lower() or "claim deleted"


_GroupKey = tuple[str, int, str, str, float, str]


def _group_key(notice: InstanceNotice, start: datetime) -> _GroupKey:
    record = notice.record
    second = int((notice.at - start).total_seconds())
    sort, reason = ("launched", "") if isinstance(notice, InstanceLaunched) else ("ended", notice.reason)
    return sort, second, record.instance_type, record.capacity_type, record.price_per_hour, reason


def _line(key: _GroupKey, group: list[InstanceNotice]) -> DemoLine:
    sort, second, instance_type, capacity_type, price, reason = key
    instances = f"{len(group)} x {instance_type} {capacity_type}"
    each = " each" if len(group) > 1 else ""
    if sort == "launched":
        pod_count = sum(notice.pod_count for notice in group if isinstance(notice, InstanceLaunched))
        text = f"launched {instances} at {dollars(price)}/h{each} for {count_text(pod_count, 'pod')}"
    else:
        saved = sum(notice.record.price_per_hour for notice in group if isinstance(notice, InstanceEnded))
        text = f"removed {instances} ({_reason_text(reason)}), saves {dollars(saved)}/h"
    return DemoLine(timedelta(seconds=second), sort, text)


def progress(census: ClusterCounts, usd_per_hour: float) -> str:
    """The state of the cluster in one line."""
    pods = f"{count_text(census.pods, 'pod')}: {census.ready} ready, {census.pending} pending"
    return f"{count_text(census.nodes, 'node')}, {dollars(usd_per_hour)}/h, {pods}"


def summary(stage: SimulatedCluster, start: datetime, end: datetime) -> tuple[tuple[str, str], ...]:
    """The figures of a run, as label and value."""
    ledger = stage.history
    bill, ready = ledger.meter.bill(start, end), ledger.pod_times.time_to_ready()
    launched = [notice for notice in ledger.notices if isinstance(notice, InstanceLaunched)]
    spot = sum(instance_launched.record.capacity_type == "spot" for instance_launched in launched)
    kinds = len({instance_launched.record.instance_type for instance_launched in launched})
    never = len(ledger.pod_times.never_ready())
    others = f"; {never} deleted first" if never else ""
    wait = f"median {ready.p50_seconds:.0f} s, 95 % within {ready.p95_seconds:.0f} s, longest {ready.max_seconds:.0f} s"
    return (
        ("pods", f"{ready.count} became ready, restarted ones again{others}"),
        ("time to ready", wait),
        (
            "nodes launched",
            f"{len(launched)} of {count_text(kinds, 'type')}, {spot} spot and {len(launched) - spot} on-demand",
        ),
        ("nodes at the peak", str(bill.peak_instances)),
        ("price at the peak", f"{dollars(bill.peak_usd_per_hour)}/h"),
        ("cost of the run", f"{dollars(bill.cost_usd)} for {elapsed_text(end - start)} minutes of cluster time"),
        ("left at the end", _leftovers(stage.counts(), ledger.meter.rate_usd_per_hour(end))),
    )


def comparison(comparisons: Sequence[tuple[float, ReferencePrices]]) -> tuple[tuple[str, str], ...]:
    """What was paid at the dearest moment that was compared, beside classic packing and the lower bound, as label and value."""
    if not comparisons:
        return ()
    paid, prices = max(comparisons, key=lambda entry: entry[0])
    figures = (
        f"{dollars(paid)}/h, classic packing {dollars(prices.classic)}/h, lower bound {dollars(prices.lower_bound)}/h"
    )
    return (("paid at most", figures),)


def _leftovers(census: ClusterCounts, usd_per_hour: float) -> str:
    if census.is_empty:
        return "nothing: no pods, nodes, NodeClaims or instances"
    counted = ((census.pods, "pod"), (census.nodes, "node"), (census.claims, "claim"), (census.instances, "instance"))
    return ", ".join(count_text(count, noun) for count, noun in counted) + f", {dollars(usd_per_hour)}/h"


class PlainPresenter:
    """Prints one line for each event, and progress every half minute while something changes."""

    def __init__(self, console: Console, stage: SimulatedCluster, start: datetime) -> None:
        self._console = console
        self._stage = stage
        self._start = start
        self._pending_notices: list[InstanceNotice] = []
        self._last_progress = ""
        stage.history.subscribe(self._pending_notices.append)

    def phase(self, headline: str) -> None:
        """See ``DemoPresenter.phase``."""
        self._flush()
        self._print_line(DemoLine(self._now(), "chapter", headline))

    def note(self, text: str) -> None:
        """See ``DemoPresenter.note``."""
        self._flush()
        self._print_line(DemoLine(self._now(), "note", f"  {text}"))

    def switch_to_real_time(self) -> None:
        """See ``DemoPresenter.switch_to_real_time``."""

    async def run(self) -> None:
        """See ``DemoPresenter.run``."""
        reported = self._now()
        try:
            while True:
                await asyncio.sleep(_TICK_SECONDS)
                self._flush()
                if (self._now() - reported).total_seconds() >= PROGRESS_SECONDS:
                    reported = self._now()
                    self._progress()
        finally:
            self._flush()

    def _now(self) -> timedelta:
        return self._stage.clock.now() - self._start

    def _flush(self) -> None:
        fresh = self._pending_notices[:]
        self._pending_notices.clear()
        for line in event_lines(fresh, self._start):
            self._print_line(line)

    def _progress(self) -> None:
        text = progress(self._stage.counts(), self._stage.history.meter.rate_usd_per_hour(self._stage.clock.now()))
        if text != self._last_progress:
            self._last_progress = text
            self._print_line(DemoLine(self._now(), "progress", f"  {text}"))

    def _print_line(self, line: DemoLine) -> None:
        self._console.print(line.styled(), soft_wrap=True, highlight=False)
