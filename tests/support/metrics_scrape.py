"""What a process exposes, read back as Prometheus reads it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

_SERIES_NAME = re.compile(r"[{ ]")
#: Name, labels and value of one series.
Sample = tuple[str, Mapping[str, str], float]


def counted(registry: CollectorRegistry, name: str, labels: Mapping[str, str]) -> float | None:
    """The value of one counted series with exactly these labels; None where there is none.

    ``CollectorRegistry.get_sample_value`` says the same, but collects all families first, buckets of all histograms included.
    """
    families = registry.restricted_registry((name,)).collect()
    return next((sample.value for family in families for sample in family.samples if sample.labels == labels), None)


class Scrape:
    """One answer of a metrics endpoint. A series is parsed when it is asked for: of some there are tens of thousands."""

    def __init__(self, body: bytes) -> None:
        self.text = body.decode()
        self._lines: dict[str, list[str]] = {}
        self._samples: dict[str, list[tuple[Mapping[str, str], float]]] = {}
        for line in self.text.splitlines():
            if line and not line.startswith("#"):
                self._lines.setdefault(_SERIES_NAME.split(line, maxsplit=1)[0], []).append(line)

    @classmethod
    def of(cls, samples: Mapping[tuple[str, frozenset[tuple[str, str]]], float]) -> Scrape:
        """An answer that was read already (``Controller.metrics``)."""
        scraped = cls(b"")
        for (name, labels), value in samples.items():
            scraped._samples.setdefault(name, []).append((dict(labels), value))
        return scraped

    def __iter__(self) -> Iterator[Sample]:
        for name in [*self._samples, *self._lines]:
            for labels, value in self._of(name):
                yield name, labels, value

    def __contains__(self, name: str) -> bool:
        return name in self._lines or name in self._samples

    def _of(self, name: str) -> list[tuple[Mapping[str, str], float]]:
        """All samples of a name."""
        lines = self._lines.pop(name, [])
        if lines:
            text = "".join(f"{line}\n" for line in lines)
            self._samples[name] = [
                (sample.labels, sample.value)
                for family in text_string_to_metric_families(text)
                for sample in family.samples
            ]
        return self._samples.get(name, [])

    def types(self) -> dict[str, str]:
        """The type of every family, by its name, with samples or without."""
        heads = (line.split() for line in self.text.splitlines() if line.startswith("# TYPE "))
        return {head[2]: head[3] for head in heads}

    def series(self, name: str, /, **labels: str) -> list[Mapping[str, str]]:
        """The labels of all series of a name that have at least these."""
        return [result for result, _ in self._matching(name, labels)]

    def value(self, name: str, /, **labels: str) -> float:
        """The value of the one series with at least these labels."""
        matching = self._matching(name, labels)
        assert len(matching) == 1, f"{name}{labels}: {[series_labels for series_labels, _ in matching] or 'no series'}"
        return matching[0][1]

    def total(self, name: str, /, **labels: str) -> float:
        """The sum over all series with at least these labels."""
        return sum(value for _, value in self._matching(name, labels))

    def values(self, name: str, label: str, /, **labels: str) -> dict[str, float]:
        """Values by one label, of series that have at least the others."""
        return {result.get(label, ""): value for result, value in self._matching(name, labels)}

    def _matching(self, name: str, labels: Mapping[str, str]) -> list[tuple[Mapping[str, str], float]]:
        """Prometheus takes a label that is missing for an empty one."""
        return [
            (result, value)
            for result, value in self._of(name)
            if all(result.get(key, "") == wanted for key, wanted in labels.items())
        ]
