"""``karpenter run``: the controller as a process of its own."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from karpenter.cli.settings_options import Flags, resolve_or_exit, with_setting_options
from karpenter.cli.terminal import FAILED, WRONG_INPUT, exit_with_error
from karpenter.settings import Settings, ineffective_settings, setting_sources

if TYPE_CHECKING:
    from karpenter.manager_cloud import SimulatedCloudConfig
    from karpenter.manager_process import SideLoop, StartFiles
    from karpenter.notifications.notification_config import NotificationConfig
    from karpenter.runtime.logging import LogOutput


@with_setting_options()
def run(
    *,
    flags: Flags,
    check: Annotated[
        bool, typer.Option("--check", help="Validate all settings, print them with their sources, and exit.")
    ] = False,
) -> None:
    """Run the controller. Uses the kubeconfig or, in a pod, the service account."""
    from karpenter.runtime.process_memory import set_up_memory

    set_up_memory()
    settings = resolve_or_exit("run", flags)
    _import_structlog()
    from karpenter.manager_process import StartFiles

    files = StartFiles(_simulated_cloud(settings), _notifications(settings))
    if check:
        _print_settings(settings, flags)
    else:
        _run_controller(settings, files)


def _import_structlog() -> None:
    """Import it without rich, with which it draws tracebacks that no log line of ours has: rich is a tenth of the start."""
    if "rich" in sys.modules or "structlog" in sys.modules:
        return
    sys.modules["rich"] = None  # type: ignore[assignment]  # so Python marks a module that cannot be imported
    try:
        import structlog as structlog
    finally:
        del sys.modules["rich"]


def _exit_with_error(message: str, exit_code: int = WRONG_INPUT) -> NoReturn:
    exit_with_error(f"karpenter run: {message}", exit_code)


def _simulated_cloud(settings: Settings) -> SimulatedCloudConfig | None:
    """The simulated provider's instance types and faults; None with another provider, which needs neither."""
    if settings.provider != "simulated":
        _check_external_provider(settings.provider)
        return None
    from karpenter.instancetypes import ec2_packaged_types, instance_type_file
    from karpenter.manager_cloud import SimulatedCloudConfig
    from karpenter.providers.simulated import Faults, FaultsError, fault_rules

    types, script = settings.instance_types_file_path, settings.simulated_faults_file
    try:
        return SimulatedCloudConfig(
            instance_type_file.load_instance_types(types) if types else ec2_packaged_types.packaged_instance_types(),
            fault_rules.load_faults(script) if script else Faults(),
        )
    except (instance_type_file.InstanceTypeFileError, FaultsError) as error:
        _exit_with_error(str(error))


def _notifications(settings: Settings) -> NotificationConfig | None:
    """Where events are posted to; None where no file is named."""
    from karpenter.notifications.notification_config import NotificationConfigError, load_notification_config

    try:
        return load_notification_config(settings.notifications_file) if settings.notifications_file else None
    except NotificationConfigError as error:
        _exit_with_error(str(error))


def _check_external_provider(provider: str) -> None:
    """End the command where the provider of another package cannot be imported."""
    from karpenter.manager_cloud import ProviderStartError, load_provider_factory

    try:
        if provider not in ("aws", "machines"):
            load_provider_factory(provider)
    except ProviderStartError as error:
        _exit_with_error(str(error))


def _print_settings(settings: Settings, flags: Flags) -> None:
    """Print every setting, where it comes from, and which have no effect (OPS-305)."""
    from karpenter.cli import render_settings
    from karpenter.runtime import logging

    try:
        for path in (*settings.log_output_paths, *settings.log_error_output_paths):
            logging.check_log_path(path)
    except logging.LogOutputError as error:
        _exit_with_error(str(error))
    sources = setting_sources(flags, os.environ)
    render_settings.write_settings(settings.as_text(), sources, ineffective_settings(settings, os.environ), sys.stdout)


def _log_output(settings: Settings) -> LogOutput:
    from karpenter.runtime.logging import LogOutput, LogOutputError, open_log_stream

    try:
        errors = [open_log_stream(path) for path in settings.log_error_output_paths]
        return LogOutput([open_log_stream(path) for path in settings.log_output_paths], errors)
    except LogOutputError as error:
        _exit_with_error(str(error))


def _side_loops(settings: Settings) -> Mapping[str, SideLoop]:
    """What runs beside the controllers; the console's libraries are imported only where it is served."""
    if not settings.console:
        return {}
    from karpenter.cli.top_answers import explain
    from karpenter.webconsole.controller_console import ControllerConsole

    return {"console": ControllerConsole(settings, explain).run}


def _run_controller(settings: Settings, files: StartFiles) -> None:
    from karpenter import manager_process
    from karpenter.kube import config
    from karpenter.manager_cloud import ProviderStartError
    from karpenter.metrics import build_info
    from karpenter.runtime import logging

    commit = build_info.vcs_revision()
    log_format = logging.format_for(settings.log_format, settings.log_output_paths)
    logging.configure(settings.log_level, _log_output(settings), commit, log_format)
    logging.capture_library_logs()
    try:
        side_loops = _side_loops(settings)
        ended_well = asyncio.run(manager_process.run_process(settings, files, commit, side_loops))
    except (config.ConfigError, ProviderStartError) as error:
        _exit_with_error(str(error), FAILED)
    if not ended_well:
        raise typer.Exit(FAILED)
