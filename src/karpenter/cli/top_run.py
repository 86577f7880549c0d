"""Running the screen of ``karpenter top``: on the terminal until the user quits, or once into an SVG file."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from karpenter.cli.terminal import CommandError, WrongInput
from karpenter.cli.top_app import TopApp, ViewerSetup
from karpenter.runtime import logging

#: Columns and lines of a picture.
_PICTURE_SIZE = (132, 36)
_FIRST_OBJECTS_SECONDS = 60.0
_POLL_SECONDS = 0.05


@contextmanager
def silent_logs() -> Iterator[None]:
    """A log line would tear the screen; faults have their own line on it."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        logging.configure("error", nowhere)
        try:
            yield
        finally:
            logging.configure("error", sys.stderr)


def run_viewer(setup: ViewerSetup) -> None:
    """Show the cluster until the user quits. Raises ``WrongInput`` without a terminal."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise WrongInput("karpenter top needs a terminal; use --svg FILE for a picture, or karpenter plan for text")
    app = TopApp(replace(setup, snapshot_directory=Path.cwd()))
    app.run()
    if app.return_code:
        raise CommandError("karpenter top ended because of the error above")


def write_svg(setup: ViewerSetup, path: Path) -> None:
    """Write one picture. Raises ``WrongInput`` where the file cannot be written, ``CommandError`` without objects in time."""
    picture = asyncio.run(_picture(setup))
    try:
        path.write_text(picture, encoding="utf-8")
    except OSError as error:
        raise WrongInput(f"--svg={path}: cannot be written ({error.strerror})") from None


async def _picture(setup: ViewerSetup) -> str:
    app = TopApp(setup)
    async with app.run_test(size=_PICTURE_SIZE) as pilot:
        deadline = asyncio.get_running_loop().time() + _FIRST_OBJECTS_SECONDS
        while not app.is_complete:
            if asyncio.get_running_loop().time() > deadline:
                raise CommandError(setup.source.fault() or f"no answer within {_FIRST_OBJECTS_SECONDS:g} s")
            await asyncio.sleep(_POLL_SECONDS)
        await pilot.pause()
        return app.export_screenshot()
