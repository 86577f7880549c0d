"""Options of ``karpenter simulate``, apart from the command so that reading them imports no simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class SimulateOptions:
    """At most one of ``trace`` and ``scenario`` is given; without either the pods of ``filename`` or of the cluster count.

    ``days`` None: all of it; ``policies`` has at least one name. ``pattern``: how pods of files or of the cluster come and go.
    """

    trace: Path | None
    scenario: str
    filename: tuple[str, ...]
    days: float | None
    from_day: float
    seeds: Sequence[int]
    policies: tuple[str, ...]
    region: str
    world: Path | None
    from_cluster: bool = False
    pattern: str = "daily"
