"""``karpenter demo``: half a minute of a simulated cluster that exists only in this process.

The controllers are the real ones; API server, scheduler and cloud are simulated. A terminal shows a live screen, other outputs
get plain lines; both end with the same summary.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from karpenter.cli.demo_options import DemoOptions
from karpenter.cli.terminal import FAILED, INTERRUPTED, WRONG_INPUT, exit_on_closed_pipe, exit_with_error
from karpenter.model.texts import count_text


def demo(
    pods: Annotated[int, typer.Option(min=1, max=5000, help="Number of pods.")] = 400,
    seed: Annotated[int, typer.Option(help="Random seed of the workload.")] = 1,
    speed: Annotated[float, typer.Option(help="Simulated seconds per real second.")] = 30.0,
    serve: Annotated[
        bool,
        typer.Option(
            "--serve", help="Serve the API for kubectl and continue in real time after the demo until Ctrl-C."
        ),
    ] = False,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port for --serve and --console on loopback; 0 picks a free one.")
    ] = 0,
    log: Annotated[Path | None, typer.Option(help="File for the controllers' log.", metavar="FILE")] = None,
    svg: Annotated[
        Path | None, typer.Option(help="File for a chart of $ per hour against the lower bound.", metavar="FILE")
    ] = None,
    top: Annotated[
        bool, typer.Option("--top", help="Show the cluster on the screen of karpenter top, until you quit.")
    ] = False,
    console: Annotated[
        bool,
        typer.Option("--console", help="Show the cluster in the browser, as karpenter console does, until Ctrl-C."),
    ] = False,
) -> None:
    """Run a simulated cluster in this process and watch it scale up and down. Needs no cluster."""
    if speed <= 0:
        _exit_with_error(f"--speed={speed:g} must be greater than 0", WRONG_INPUT)
    if top or console:
        if serve or log is not None or svg is not None or (top and (console or port)):
            _exit_with_error("--top and --console go with --pods, --seed and --speed only", WRONG_INPUT)
        shown = DemoOptions(pods, seed, speed, None, None, None)
        if top:
            _show_on_top(shown)
        else:
            _show_in_browser(shown, port)
        return
    if port and not serve:
        _exit_with_error("--port needs --serve", WRONG_INPUT)
    options = DemoOptions(pods, seed, speed, port if serve else None, log, svg)
    with exit_on_closed_pipe():
        # Printed before the imports that take half a second.
        if not sys.stdout.isatty():
            print(f"karpenter demo: {count_text(pods, 'pod')}, seed {seed}, at {speed:g}x speed", flush=True)  # noqa: T201
        _run(options)


def _show_on_top(options: DemoOptions) -> None:
    from karpenter.cli.demo_top import DemoSource
    from karpenter.cli.planning_options import disruption_options
    from karpenter.cli.top_app import ViewerSetup
    from karpenter.cli.top_command import show
    from karpenter.cli.top_options import ViewerOptions
    from karpenter.settings import Settings

    show(ViewerSetup(DemoSource(options), ViewerOptions(), disruption_options(Settings())), None)


def _show_in_browser(options: DemoOptions, port: int) -> None:
    import asyncio
    from tempfile import TemporaryDirectory

    from karpenter.cli import console_command, top_run
    from karpenter.cli.demo_top import DemoSource
    from karpenter.history.history_store import HistoryBounds, HistoryStore
    from karpenter.settings import Settings
    from karpenter.webconsole.console_app import NoActions

    settings = Settings()
    inaction = NoActions("this console shows the simulated cluster of the demo")
    with TemporaryDirectory() as folder, top_run.silent_logs():
        history = Path(folder) / "history.db"
        source = DemoSource(options, str(history))
        # The demo's controller writes the file only once it has something to tell.
        store = HistoryStore(history, HistoryBounds(settings.history_max_age, settings.history_max_bytes))
        console = console_command.LoopbackConsole(port, store, inaction)
        asyncio.run(console_command.serve(source, settings, console))


def _run(options: DemoOptions) -> None:
    from karpenter.cli.demo_runner import DemoInterrupted, DemoStartError, run_demo

    try:
        complaint = run_demo(options)
    except DemoStartError as error:
        _exit_with_error(str(error), WRONG_INPUT)
    except DemoInterrupted:
        _exit_with_error("stopped before the end", INTERRUPTED)
    else:
        if complaint:
            _exit_with_error(complaint, FAILED)


def _exit_with_error(message: str, status: int) -> NoReturn:
    exit_with_error(f"karpenter demo: {message}", status)
