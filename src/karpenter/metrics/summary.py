"""Summaries with quantiles over the last minutes (OPS-402), which the usual client does not have.

Observations are sorted into buckets whose limits grow by one per cent, so a quantile is off by half a per cent at most, memory
does not grow with the number of observations, and adding one costs a logarithm. Time is cut into five slices of two minutes;
the oldest is thrown away when a new one begins, so quantiles speak of the last eight to ten minutes. Count and sum speak of the
whole life of the process, as counters do.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import Lock

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

#: The quantiles dashboards ask for, with the text of their label.
QUANTILES = ((0.0, "0"), (0.5, "0.5"), (0.9, "0.9"), (0.99, "0.99"), (1.0, "1"))
_SLICES = 5
_SLICE_SECONDS = 120.0
_GROWTH = math.log(1.01)
#: What is smaller counts as this small.
_LEAST = 1e-9


class _Slice:
    """Two minutes of observations."""

    def __init__(self, ends: float) -> None:
        self.ends = ends
        self.counts: Counter[int] = Counter()
        self.least = math.inf
        self.most = -math.inf

    def add(self, value: float) -> None:
        self.counts[math.ceil(math.log(max(value, _LEAST)) / _GROWTH)] += 1
        self.least = min(self.least, value)
        self.most = max(self.most, value)


class QuantileWindow:
    """Observations of one set of labels. ``now`` gives seconds that never go back."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._slices: deque[_Slice] = deque(maxlen=_SLICES)
        self._lock = Lock()
        self.count = 0
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Add one observation, in the unit of the series."""
        with self._lock:
            now = self._now()
            if not self._slices or self._slices[-1].ends <= now:
                self._slices.append(_Slice(now + _SLICE_SECONDS))
            self._slices[-1].add(value)
            self.count += 1
            self.sum += value

    def quantiles(self) -> tuple[float, ...]:
        """The values of ``QUANTILES`` over the window; not a number where it is empty."""
        with self._lock:
            oldest = self._now() - (_SLICES - 1) * _SLICE_SECONDS
            recent = [part for part in self._slices if part.ends > oldest]
            counts = sum((part.counts for part in recent), Counter[int]())
            least = min((part.least for part in recent), default=math.nan)
            most = max((part.most for part in recent), default=math.nan)
        return tuple(_quantile(counts, share, least, most) for share, _ in QUANTILES)


def _quantile(counts: Mapping[int, int], share: float, least: float, most: float) -> float:
    """The value below which ``share`` of the counted lies: the middle of its bucket, the ends themselves for 0 and 1."""
    if share in (0.0, 1.0) or not counts:
        return most if share == 1.0 else least
    rank = math.ceil(share * sum(counts.values()))
    for bucket in sorted(counts):
        rank -= counts[bucket]
        if rank <= 0:
            break
    return min(max(math.exp((bucket - 0.5) * _GROWTH), least), most)


class SummaryMetric(Collector):
    """A summary series with quantiles, for every set of label values it was asked for."""

    def __init__(
        self, name: str, help_text: str, labels: Sequence[str], registry: CollectorRegistry, now: Callable[[], float]
    ) -> None:
        self._name = name
        self._help_text = help_text
        self._labels = tuple(labels)
        self._now = now
        self._windows: dict[tuple[str, ...], QuantileWindow] = {}
        if not labels:
            self.labels()
        registry.register(self)

    def labels(self, **values: str) -> QuantileWindow:
        """The window of one set of label values, all of which must be given. Raises ``KeyError`` for a missing one."""
        key = tuple(values[label] for label in self._labels)
        window = self._windows.get(key)
        if window is None:
            window = self._windows.setdefault(key, QuantileWindow(self._now))
        return window

    def observe(self, value: float) -> None:
        """Add one observation to a summary without labels."""
        self.labels().observe(value)

    def describe(self) -> Iterable[Metric]:
        """The family without its samples."""
        yield Metric(self._name, self._help_text, "summary")

    def collect(self) -> Iterable[Metric]:
        """The family as it is now."""
        metric = Metric(self._name, self._help_text, "summary")
        for key, window in tuple(self._windows.items()):
            labels = dict(zip(self._labels, key, strict=True))
            for (_, text), value in zip(QUANTILES, window.quantiles(), strict=True):
                metric.add_sample(self._name, {**labels, "quantile": text}, value)
            metric.add_sample(f"{self._name}_sum", labels, window.sum)
            metric.add_sample(f"{self._name}_count", labels, window.count)
        yield metric
