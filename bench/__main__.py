"""Run the measurements named on the command line, or all of ``MEASUREMENTS``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(_ROOT / "tests"))

from bench import (  # noqa: E402
    aws,
    beside,
    coldstart,
    commands,
    console,
    devices,
    disruption,
    drains,
    drips,
    gangs,
    growth,
    image,
    mainjob,
    mixtures,
    objects,
    plans,
    scale,
    simulations,
    untuned,
)
from bench.figures import Figure  # noqa: E402


def _main_job() -> Iterator[Figure]:
    for pods, seconds in ((500, 10.0), (2000, 20.0)):
        yield from mainjob.figures(pods, seconds, nominate=True)
    yield from mainjob.figures(500, 10.0, nominate=False)


def _largest() -> Iterator[Figure]:
    yield from growth.largest_figures()
    yield from disruption.largest_figures()
    yield from scale.largest_figures()


MEASUREMENTS: dict[str, Callable[[], Iterator[Figure]]] = {
    "objects": objects.figures,
    "plans": lambda: plans.figures(_ROOT.parent / "shared"),
    "beside": lambda: beside.figures(_ROOT.parent / "shared"),
    "simulations": lambda: simulations.figures(_ROOT.parent / "shared"),
    "growth": growth.figures,
    "coldstart": coldstart.figures,
    "commands": commands.figures,
    "console": console.figures,
    "image": image.figures,
    "mainjob": _main_job,
    "scale": scale.figures,
    "largest": _largest,
    "drains": drains.figures,
    "drips": drips.figures,
    "untuned": untuned.figures,
    "mixtures": mixtures.figures,
    "disruption": disruption.figures,
    "devices": devices.figures,
    "gangs": gangs.figures,
    "aws": aws.figures,
}


def main() -> None:
    """Print figure after figure as they are measured."""
    wanted = sys.argv[1:] or list(MEASUREMENTS)
    unknown = set(wanted) - set(MEASUREMENTS)
    if unknown:
        sys.exit(f"bench: no measurement called {', '.join(sorted(unknown))}; there are {', '.join(MEASUREMENTS)}")
    for figure in chain.from_iterable(MEASUREMENTS[name]() for name in wanted):
        print(figure, flush=True)


main()
