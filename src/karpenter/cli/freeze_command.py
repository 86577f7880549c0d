"""``karpenter freeze`` and ``karpenter thaw``: suspend voluntary disruption, of NodePools or of the cluster, and resume it.

They write the annotations and the ConfigMap of ``model.freezes``, which can be written with kubectl as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from karpenter.cli import terminal
from karpenter.cli.settings_options import CONNECTION_SETTINGS, Flags, resolve_or_exit, with_setting_options

if TYPE_CHECKING:
    from karpenter.api.karpenter import NodePool
    from karpenter.kube.protocol import Json, Kube

DryRunOption = Annotated[
    Literal["none", "server"],
    typer.Option("--dry-run", help="server: let the API server check everything and store nothing."),
]
PoolsOption = Annotated[
    list[str] | None,
    typer.Option("--pool", metavar="POOL", help="A NodePool; may be repeated. Default: the whole cluster."),
]


@with_setting_options(CONNECTION_SETTINGS)
def freeze(
    *,
    flags: Flags,
    pool: PoolsOption = None,
    reason: Annotated[str, typer.Option(help="Reason, shown wherever blocked disruption is reported.")] = "",
    duration: Annotated[
        str, typer.Option("--for", metavar="DURATION", help="Duration, such as 2h. Default: until thawed.")
    ] = "",
    until: Annotated[
        str, typer.Option(metavar="TIME", help="End time with UTC offset, such as 2026-12-24T00:00:00+01:00.")
    ] = "",
    dry_run: DryRunOption = "none",
) -> None:
    """Suspend voluntary disruption (emptiness, drift, consolidation) of NodePools or of the cluster.

    Expiration, interruption and manual deletion continue.
    """
    from karpenter.cli.cluster_reader import change_cluster

    settings = resolve_or_exit("freeze", flags)
    end = end_of(duration, until)
    lines = change_cluster(settings, dry_run, lambda kube: freeze_pools_or_cluster(kube, pool or [], reason, end))
    print_lines(lines, dry_run)


@with_setting_options(CONNECTION_SETTINGS)
def thaw(*, flags: Flags, pool: PoolsOption = None, dry_run: DryRunOption = "none") -> None:
    """Lift a freeze and list what remains frozen."""
    from karpenter.cli.cluster_reader import change_cluster

    settings = resolve_or_exit("thaw", flags)
    print_lines(change_cluster(settings, dry_run, lambda kube: thaw_pools_or_cluster(kube, pool or [])), dry_run)


def print_lines(lines: Iterable[str], dry_run: str) -> None:
    """Print what was changed, or would be."""
    for line in lines:
        typer.echo(f"{line} (server dry run)" if dry_run == "server" else line)


def end_of(duration: str, until: str) -> datetime | None:
    """The end that --for or --until name, None without either; ends the command where it cannot be read or is past."""
    from karpenter.model import clock, durations

    if duration and until:
        terminal.exit_with_error("--for and --until exclude each other", terminal.WRONG_INPUT)
    option = "--until" if until else "--for"
    try:
        now = datetime.now(UTC)
        end = clock.parse_timestamp(until) if until else now + durations.parse_duration(duration) if duration else None
    except (durations.DurationError, clock.TimestampError, OverflowError) as error:
        terminal.exit_with_error(f"{option}: {error}", terminal.WRONG_INPUT)
    if end is not None and end <= now:
        terminal.exit_with_error(f"{option}: the end is in the past", terminal.WRONG_INPUT)
    return end


# -- what is done -------------------------------------------------------------------------------------------------------------


async def freeze_pools_or_cluster(kube: Kube, pools: list[str], reason: str, end: datetime | None) -> list[str]:
    """Freeze the pools, or without any the cluster; a line for each.

    Raises ``KubeError``, and ``WrongInput`` before any write.
    """
    from karpenter.api.kinds import NODE_POOL
    from karpenter.model import clock, labels

    until = None if end is None else clock.rfc3339(end)
    ending = f"until {until}" if until else "until it is thawed"
    if not pools:
        await _freeze_cluster(kube, reason, until)
        return [f"the whole cluster is frozen {ending}"]
    await require_pools(kube, pools)
    notes: dict[str, Json] = {labels.FREEZE: _annotation_value(reason), labels.FREEZE_UNTIL: until}
    for name in pools:
        await kube.patch(NODE_POOL, name, {"metadata": {"annotations": notes}})
    return [f"NodePool {name} is frozen {ending}" for name in pools]


def _annotation_value(reason: str) -> str:
    """A reason as the annotation carries it: ``false`` would mean that there is no freeze."""
    return "false." if reason == "false" else reason or "true"


async def _freeze_cluster(kube: Kube, reason: str, until: str | None) -> None:
    """Members that are there already go: they might be what makes a freeze unreadable."""
    from karpenter.api.core import ConfigMap
    from karpenter.api.kinds import CONFIG_MAP
    from karpenter.api.meta import ObjectMeta
    from karpenter.kube.errors import AlreadyExists
    from karpenter.model import freezes

    given = {name: text for name, text in ((freezes.REASON_KEY, reason), (freezes.UNTIL_KEY, until)) if text}
    meta = ObjectMeta(name=freezes.FREEZE_CONFIG_MAP, namespace=freezes.FREEZE_NAMESPACE)
    try:
        await kube.create(CONFIG_MAP, ConfigMap(metadata=meta, data=given))
    except AlreadyExists:
        there = await kube.get(CONFIG_MAP, freezes.FREEZE_CONFIG_MAP, freezes.FREEZE_NAMESPACE)
        data: dict[str, Json] = {**dict.fromkeys(there.data), **given}
        await kube.patch(CONFIG_MAP, freezes.FREEZE_CONFIG_MAP, {"data": data}, freezes.FREEZE_NAMESPACE)


async def thaw_pools_or_cluster(kube: Kube, pools: list[str]) -> list[str]:
    """Thaw the pools, or without any the cluster; a line for each, and for what stays frozen.

    Raises as ``freeze_pools_or_cluster``.
    """
    from karpenter.api.kinds import CONFIG_MAP, NODE_POOL
    from karpenter.kube.errors import NotFound
    from karpenter.model import freezes, labels

    if not pools:
        try:
            await kube.delete(CONFIG_MAP, freezes.FREEZE_CONFIG_MAP, freezes.FREEZE_NAMESPACE)
            lines = ["the cluster is thawed"]
        except NotFound:
            lines = ["the cluster was not frozen"]
        return lines + [
            _still_frozen_pool(pool) for pool in (await kube.list(NODE_POOL)).items if freezes.nodepool_freeze(pool)
        ]
    await require_pools(kube, pools)
    notes: dict[str, Json] = {labels.FREEZE: None, labels.FREEZE_UNTIL: None}
    for name in pools:
        await kube.patch(NODE_POOL, name, {"metadata": {"annotations": notes}})
    return [f"NodePool {name} is thawed" for name in pools] + await _still_frozen_cluster(kube)


def _still_frozen_pool(pool: NodePool) -> str:
    from karpenter.model import freezes

    return f"NodePool {pool.metadata.name} stays as it is: {freezes.nodepool_freeze(pool)}"


async def _still_frozen_cluster(kube: Kube) -> list[str]:
    from karpenter.api.kinds import CONFIG_MAP
    from karpenter.kube.errors import NotFound
    from karpenter.model import freezes

    try:
        cluster_freeze = freezes.cluster_freeze(
            await kube.get(CONFIG_MAP, freezes.FREEZE_CONFIG_MAP, freezes.FREEZE_NAMESPACE)
        )
    except NotFound:
        return []
    return [f"the whole cluster stays as it is: {cluster_freeze}"]


async def require_pools(kube: Kube, pools: list[str]) -> None:
    """Raise ``WrongInput`` unless all these NodePools exist."""
    from karpenter.api.kinds import NODE_POOL

    there = {pool.metadata.name for pool in (await kube.list(NODE_POOL)).items}
    for name in pools:
        if name not in there:
            hint = f"; choose {', '.join(sorted(there))}" if there else "; it has none"
            raise terminal.WrongInput(f"no NodePool {name} in the cluster{hint}")
