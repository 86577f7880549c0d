"""PromQL evaluated over scrapes by Prometheus' own engine (``main.go`` beside this file, built from its Go module)."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from controlplane.gobuild import GoModule

MODULE = GoModule("Prometheus' query engine", Path(__file__).parent, (1, 25))
_NAME = "promql"
_TARGET = {"job": "karpenter", "instance": "karpenter-0"}
_ANSWER_SECONDS = 120


@dataclass(frozen=True)
class Scraped:
    """The body of a metrics endpoint, and when it was read, in seconds since 1970."""

    seconds: int
    text: str

    def unchanged_after(self, seconds: int) -> Scraped:
        """The next scrape of an idle process: a rate needs two samples."""
        return Scraped(self.seconds + seconds, self.text)


@dataclass(frozen=True)
class Answer:
    """What an instant query gave: values by labels (``None`` for NaN and infinity), or the error."""

    error: str
    samples: Mapping[tuple[tuple[str, str], ...], float | None]


def evaluated(scrapes: Sequence[Scraped], expressions: Sequence[str], seconds: int) -> tuple[Answer, ...]:
    """The answers to instant queries at a time, in order."""
    return evaluated_at(scrapes, [(expression, seconds) for expression in expressions])


def evaluated_at(scrapes: Sequence[Scraped], dated: Sequence[tuple[str, int]]) -> tuple[Answer, ...]:
    """The answers to instant queries, each at its own time, in order. The scrapes are read once."""
    queries = [{"expression": expression, "seconds": seconds} for expression, seconds in dated]
    asked = [{"seconds": one.seconds, "text": one.text, "labels": _TARGET} for one in scrapes]
    return tuple(_answer(raw) for raw in _run({"scrapes": asked, "queries": queries})["answers"])


def rule_faults(text: str) -> list[str]:
    """What Prometheus finds wrong with a rule file."""
    return list(_run({"rules": text})["ruleFaults"])


def _answer(raw: Mapping[str, object]) -> Answer:
    samples = raw["samples"] or ()
    assert isinstance(samples, list | tuple)
    return Answer(str(raw["error"]), {tuple(sorted(one["labels"].items())): one["value"] for one in samples})


def _run(job: Mapping[str, object]) -> dict[str, list]:
    program = MODULE.binaries({_NAME: ("build", "-trimpath", "-ldflags=-s -w", ".")}) / _NAME
    done = subprocess.run([program], input=json.dumps(job), capture_output=True, text=True, timeout=_ANSWER_SECONDS)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
