"""``karpenter demo``: half a minute in the life of a cluster that exists only in this process.

The controllers are the real ones; API server, scheduler and cloud are played (``sim.stage``). On a terminal one sees a moving
picture, elsewhere plain lines; both end with the same summary.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from karpenter.cli.terminal import exit_on_closed_pipe

_USAGE = 2
_INTERRUPTED = 130


@dataclass(frozen=True)
class DemoOptions:
    """What to show. ``port`` None: nobody is let in; 0: a free port. ``log`` None: the controllers' log is dropped."""

    pods: int
    seed: int
    speed: float
    port: int | None
    log: Path | None


def demo(
    pods: Annotated[int, typer.Option(min=1, max=5000, help="How many pods arrive.")] = 400,
    seed: Annotated[int, typer.Option(help="Another number, another workload.")] = 1,
    speed: Annotated[float, typer.Option(help="How many seconds pass in the cluster in one of yours.")] = 14.0,
    serve: Annotated[
        bool, typer.Option("--serve", help="Let kubectl in, and go on in real time after the show until Ctrl-C.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port for --serve on loopback; 0 takes a free one.")] = 0,
    log: Annotated[Path | None, typer.Option(help="File for the controllers' log.", metavar="FILE")] = None,
) -> None:
    """Watch a cluster in this process buy and give back machines. Needs and changes nothing outside."""
    if speed <= 0:
        _exit_with_error(f"--speed={speed:g} must be greater than 0", _USAGE)
    if port and not serve:
        _exit_with_error("--port is for --serve; add --serve or leave --port out", _USAGE)
    options = DemoOptions(pods, seed, speed, port if serve else None, log)
    with exit_on_closed_pipe():
        # Said before anything heavy is loaded, which takes half a second.
        if not sys.stdout.isatty():
            print(f"karpenter demo: {pods} pods, seed {seed}, at {speed:g} times life", flush=True)  # noqa: T201
        _run(options)


def _run(options: DemoOptions) -> None:
    from karpenter.cli.demo_runner import DemoInterrupted, DemoStartError, run_demo

    try:
        complaint = run_demo(options)
    except DemoStartError as error:
        _exit_with_error(str(error), _USAGE)
    except DemoInterrupted:
        _exit_with_error("stopped before the end", _INTERRUPTED)
    else:
        if complaint:
            _exit_with_error(complaint, 1)


def _exit_with_error(message: str, status: int) -> None:
    print(f"karpenter demo: {message}", file=sys.stderr)  # noqa: T201
    raise typer.Exit(status)
