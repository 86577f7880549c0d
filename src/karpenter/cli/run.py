"""``karpenter run``: the controller as a process of its own."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from karpenter.cli.options import Flags, with_settings
from karpenter.control.settings import SETTINGS, SettingError, Settings, resolve, sources, without_effect

if TYPE_CHECKING:
    from karpenter.cli.clouds import Market
    from karpenter.control.output import Output

_USAGE = 2


@with_settings
def run(
    *,
    flags: Flags,
    check: Annotated[
        bool, typer.Option("--check", help="Read and check all settings, print them with their sources, and end.")
    ] = False,
) -> None:
    """Run the controller against the cluster of the kubeconfig (or of the pod it runs in)."""
    try:
        settings = resolve(flags, os.environ)
    except SettingError as error:
        refuse(str(error), _USAGE)
    market = _market(settings)
    if check:
        _show(settings, flags)
    else:
        _run(settings, market)


def refuse(message: str, status: int) -> NoReturn:
    """End the process with one line."""
    print(f"karpenter run: {message}", file=sys.stderr)  # noqa: T201
    raise typer.Exit(status)


def _market(settings: Settings) -> Market:
    """What the simulated cloud sells, and what goes wrong with it."""
    from karpenter.catalog import ec2, file
    from karpenter.cli.clouds import Market
    from karpenter.providers.simulated import Faults, FaultsError, faults

    types, script = settings.instance_types_file_path, settings.simulated_faults_file
    try:
        return Market(file.load(types) if types else ec2.types(), faults.load(script) if script else Faults())
    except (file.FileError, FaultsError) as error:
        refuse(str(error), _USAGE)


def _show(settings: Settings, flags: Flags) -> None:
    """Print every setting as it would be, where it comes from, and what changes nothing (OPS-305)."""
    from karpenter.cli.output import emit
    from karpenter.control import output

    try:
        for path in (*settings.log_output_paths, *settings.log_error_output_paths):
            output.check(path)
    except output.OutputError as error:
        refuse(str(error), _USAGE)
    origin = sources(flags, os.environ)
    shown = {SETTINGS[name].spelling.flag: (text, origin[name]) for name, text in settings.described().items()}
    width = max(map(len, shown))
    lines = [
        f"{flag:{width}}  {text or '(empty)'}{f'  [{source}]' if source else ''}"
        for flag, (text, source) in shown.items()
    ]
    lines += [f"note: {remark}" for remark in without_effect(settings, os.environ)]
    emit("\n".join(lines) + "\n")


def _output(settings: Settings) -> Output:
    from karpenter.control.output import Output, OutputError, opened

    try:
        errors = [opened(path) for path in settings.log_error_output_paths]
        return Output([opened(path) for path in settings.log_output_paths], errors)
    except OutputError as error:
        refuse(str(error), _USAGE)


def _run(settings: Settings, market: Market) -> None:
    from karpenter.cli import process
    from karpenter.cli.clouds import CannotStart
    from karpenter.control import build, logging
    from karpenter.kube import config

    commit = build.revision()
    logging.configure(settings.log_level, _output(settings), commit)
    logging.adopt()
    try:
        ended_well = asyncio.run(process.serve(settings, market, commit))
    except (config.ConfigError, CannotStart) as error:
        refuse(str(error), 1)
    if not ended_well:
        raise typer.Exit(1)
