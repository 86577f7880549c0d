"""The Prometheus text format, also for families too large for the usual client (OPS-400).

Series about every node, pod and condition are many: in a cluster of 5 000 nodes hundreds of thousands of lines. They are not
kept, so none can outlive its object (OPS-403). At each scrape a ``SeriesSource`` takes an immutable snapshot on the event loop
and writes the series from it. Writing happens in a thread, so that the loop goes on meanwhile. Only one response is written at a
time, since it may be large.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Protocol

from prometheus_client import CollectorRegistry, generate_latest

from karpenter.metrics.legacy_names import LegacySeries

_LINES_AT_ONCE = 1000

#: Writes text, piece by piece; runs in a thread and reads only what does not change.
SeriesWriter = Callable[[], Iterable[str]]


class SeriesSource(Protocol):
    """Families that are worked out when they are asked for."""

    def prepare(self) -> SeriesWriter:
        """Take a snapshot, on the event loop and therefore quickly, and return the function that writes it."""


class MetricsRegistry(CollectorRegistry):
    """Counted series, and sources of those that are worked out."""

    def __init__(self) -> None:
        super().__init__(auto_describe=False)
        self.sources: list[SeriesSource] = []
        #: Whether answers also have the series' older names (``legacy_names``).
        self.has_legacy_names = False
        #: Held while an answer is written.
        self.write_lock = asyncio.Lock()

    def prepare_all(self) -> list[SeriesWriter]:
        """What all sources have to say now."""
        return [source.prepare() for source in self.sources]


async def render(registry: MetricsRegistry) -> bytes:
    """All series of a registry as ``text/plain; version=0.0.4``."""
    async with registry.write_lock:
        return await asyncio.to_thread(_write, registry, registry.prepare_all())


def render_sync(registry: MetricsRegistry) -> bytes:
    """The same without a thread, for callers outside an event loop."""
    return _write(registry, registry.prepare_all())


def _write(registry: MetricsRegistry, writers: Iterable[SeriesWriter]) -> bytes:
    out = io.BytesIO()
    legacy = LegacySeries()
    for text in _pieces(registry, writers):
        out.write(text.encode())
        if registry.has_legacy_names:
            legacy.collect(text)
    out.write(legacy.text().encode())
    return out.getvalue()


def _pieces(registry: MetricsRegistry, writers: Iterable[SeriesWriter]) -> Iterator[str]:
    yield generate_latest(registry).decode()
    for writing in writers:
        yield from writing()


@dataclass(frozen=True)
class GaugeFamily:
    """A family of gauges: its name, and what they mean."""

    name: str
    help_text: str

    @property
    def head(self) -> str:
        """The two lines before its samples."""
        return f"# HELP {self.name} {self.help_text}\n# TYPE {self.name} gauge\n"

    def lines(self, samples: Iterable[tuple[str, object]]) -> Iterator[str]:
        """The family with its samples, each its labels (as text between the braces, empty for none) and its value.

        In pieces: joining many megabytes is one step to the interpreter, during which nothing else runs.
        """
        yield self.head
        name = self.name
        lines = (f"{name}{{{labels}}} {value}\n" if labels else f"{name} {value}\n" for labels, value in samples)
        while piece := "".join(islice(lines, _LINES_AT_ONCE)):
            yield piece


@lru_cache(maxsize=4096)
def escape_label_value(value: str) -> str:
    """A label value as it stands between quotes.

    What the API server has checked to be a name or a label's value needs none of this, and there is much of it.
    """
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def label_pairs(**labels: str) -> str:
    """Labels as they stand between braces."""
    return ",".join([f'{name}="{escape_label_value(value)}"' for name, value in labels.items()])
