"""Options of ``karpenter demo``, apart from the command so that reading them does not import the simulation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class DemoOptions:
    """Options of the demo. ``port`` None: no API is served; 0: a free port. ``log`` None: the controllers' log is dropped.

    ``svg`` None: no chart is written.
    """

    pods: int
    seed: int
    speed: float
    port: int | None
    log: Path | None
    svg: Path | None
