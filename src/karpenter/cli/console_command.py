"""``karpenter console``: what ``karpenter top`` shows, in the browser, on loopback, with the rights of the kubeconfig."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from karpenter.cli import planning_options
from karpenter.cli.settings_options import PLANNING_SETTINGS, Flags, resolve_or_exit, with_setting_options
from karpenter.cli.terminal import WrongInput

if TYPE_CHECKING:
    from karpenter.console.viewer_source import ViewerSource
    from karpenter.history.history_store import HistoryStore
    from karpenter.settings import Settings
    from karpenter.webconsole.console_app import ActAs, NoActions


@with_setting_options(PLANNING_SETTINGS)
def console(
    *,
    flags: Flags,
    filename: planning_options.FilesOption = None,
    recursive: planning_options.RecursiveOption = False,
    region: planning_options.RegionOption = "",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on loopback; 0 picks a free one.")] = 0,
    history: planning_options.HistoryOption = None,
    controller: planning_options.ControllerOption = "",
    controller_token_file: planning_options.ControllerTokenOption = None,
) -> None:
    """Serve a page on loopback with nodes, pods that wait, decisions, NodePools and spending of a cluster.

    It sees and does what the user of the kubeconfig may. The printed address has a secret; Ctrl-C ends it.
    """
    import asyncio

    from karpenter.cli import top_command, top_run
    from karpenter.cli.history_beside_source import HistoryBesideSource
    from karpenter.cli.top_history import history_source
    from karpenter.webconsole.console_app import NoActions

    if controller_token_file is not None and not controller:
        raise WrongInput("--controller-token-file: the token is for --controller, which is missing")
    recorded = history_source(history, controller, controller_token_file) if controller else None
    store = _recorded_history(history) if history is not None else None
    settings = resolve_or_exit("console", flags, filename)
    source = top_command.viewer_source(
        planning_options.InputOptions(filename, region=region, recursive=recursive), settings
    )
    if recorded is not None:
        source = HistoryBesideSource(source, recorded)
    act_as = NoActions() if filename else _act_as_kubeconfig_user(settings)
    with top_run.silent_logs():
        asyncio.run(serve(source, settings, LoopbackConsole(port, store, act_as)))


@dataclass(frozen=True)
class LoopbackConsole:
    """Where the console listens, and what it has beside the cluster."""

    port: int
    history: HistoryStore | None
    act_as: ActAs | NoActions


def _recorded_history(file: Path) -> HistoryStore:
    """Raises ``WrongInput``."""
    from karpenter.history.history_store import HistoryUnreadable, readable_history

    try:
        return readable_history(file)
    except HistoryUnreadable as error:
        raise WrongInput(f"--history={error}") from None


def _act_as_kubeconfig_user(settings: Settings) -> ActAs:
    """Actions use the kubeconfig, as kubectl does."""
    from karpenter.kube import config

    connection = config.load(settings.kubeconfig, settings.context)
    return lambda _viewer: config.connect(connection)


async def serve(source: ViewerSource, settings: Settings, console: LoopbackConsole) -> None:
    """Print the address, and serve until cancelled. Raises ``WrongInput`` for a taken port."""
    import secrets
    from contextlib import AsyncExitStack

    from karpenter.cli.controller_gates import why_gate_is_off
    from karpenter.cli.top_answers import explain
    from karpenter.model.feature_gates import FeatureGate
    from karpenter.runtime.loopback_server import serving_on_loopback
    from karpenter.webconsole.console_app import ConsoleParts, NoActions, console_app
    from karpenter.webconsole.console_feed import ConsoleFeeds
    from karpenter.webconsole.viewer_access import SecretLinkAccess

    secret = secrets.token_urlsafe()
    options = planning_options.disruption_options(settings)
    feeds = ConsoleFeeds(source, options)
    parts = ConsoleParts(
        feeds,
        SecretLinkAccess(secret, "read-only" if isinstance(console.act_as, NoActions) else "user of the kubeconfig"),
        explain,
        console.history,
        console.act_as,
        why_no_wake=lambda kube: why_gate_is_off(kube, FeatureGate.CAPACITY_SCHEDULE),
    )
    async with AsyncExitStack() as stack:
        try:
            url = await stack.enter_async_context(serving_on_loopback(console_app(parts), console.port))
        except OSError as error:
            raise WrongInput(f"--port={console.port}: {error.strerror}; choose another, or 0 for a free one") from None
        stack.push_async_callback(feeds.close)
        print(f"{url}/?token={secret}", flush=True)  # noqa: T201
        await source.run()
