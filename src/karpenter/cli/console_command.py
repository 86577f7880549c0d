"""``karpenter console``: what ``karpenter top`` shows, in the browser, on loopback. Read-only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from karpenter.cli import planning_options
from karpenter.cli.settings_options import PLANNING_SETTINGS, Flags, resolve_or_exit, with_setting_options

if TYPE_CHECKING:
    from karpenter.cli.top_source import ViewerSource
    from karpenter.disruption.decide.disruption_problem import DisruptionOptions


@with_setting_options(PLANNING_SETTINGS)
def console(
    *,
    flags: Flags,
    filename: planning_options.FilesOption = None,
    recursive: planning_options.RecursiveOption = False,
    region: planning_options.RegionOption = "",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on loopback; 0 picks a free one.")] = 0,
) -> None:
    """Serve a page on loopback with nodes, pods that wait, decisions, NodePools and spending of a cluster.

    Read-only, with the rights of the kubeconfig. The printed address has a secret; Ctrl-C ends it.
    """
    import asyncio

    from karpenter.cli import top_command, top_run

    settings = resolve_or_exit("console", flags)
    source = top_command.viewer_source(
        planning_options.InputOptions(filename, region=region, recursive=recursive), settings
    )
    with top_run.silent_logs():
        asyncio.run(_serve(source, planning_options.disruption_options(settings), port))


async def _serve(source: ViewerSource, options: DisruptionOptions, port: int) -> None:
    import secrets
    from contextlib import AsyncExitStack

    from karpenter.cli.console_server import ConsoleFeed, console_app
    from karpenter.cli.terminal import WrongInput
    from karpenter.runtime.loopback_server import serving_on_loopback

    feed, secret = ConsoleFeed(source, options), secrets.token_urlsafe()
    async with AsyncExitStack() as stack:
        try:
            url = await stack.enter_async_context(serving_on_loopback(console_app(feed, secret), port))
        except OSError as error:
            raise WrongInput(f"--port={port}: {error.strerror}; choose another, or 0 for a free one") from None
        print(f"{url}/?token={secret}", flush=True)  # noqa: T201
        await feed.run()
