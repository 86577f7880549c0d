"""``karpenter freeze`` and ``karpenter thaw``: stop all voluntary disruption at once, of single NodePools or of the cluster.

They write what anybody can write with kubectl (``model.freezes`` says where), in a form that can be read.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from karpenter.cli import deciding

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from karpenter.api.karpenter import NodePool
    from karpenter.kube.protocol import Json, Kube

R = TypeVar("R")

Pools = Annotated[
    list[str] | None,
    typer.Option("--pool", metavar="POOL", help="A NodePool; may be repeated. Without it: the whole cluster."),
]


class _Unknown(Exception):
    """There is no such NodePool; the text says so."""


def freeze(
    pool: Pools = None,
    reason: Annotated[str, typer.Option(help="What for; shown wherever somebody asks why nodes stay.")] = "",
    lasting: Annotated[
        str, typer.Option("--for", metavar="DURATION", help="How long, such as 2h; else for good.")
    ] = "",
    until: Annotated[
        str, typer.Option(metavar="TIME", help="Until when instead, such as 2026-12-24T00:00:00+01:00.")
    ] = "",
) -> None:
    """Stop emptiness, drift and consolidation at once. Expiration, interruption and deletion by hand go on."""
    end = _end(lasting, until)
    for line in _asked(lambda kube: freezing(kube, pool or [], reason, end)):
        typer.echo(line)


def thaw(pool: Pools = None) -> None:
    """Take a freeze away, and say what is still frozen."""
    for line in _asked(lambda kube: thawing(kube, pool or [])):
        typer.echo(line)


def _end(lasting: str, until: str) -> datetime | None:
    from karpenter.model import durations, moments

    if lasting and until:
        deciding.stop("--for and --until say the same thing: give one of them", deciding.WRONG_INPUT)
    try:
        now = datetime.now(UTC)
        end = moments.parse(until) if until else now + durations.parse(lasting) if lasting else None
    except (durations.DurationError, moments.MomentError, OverflowError) as error:
        deciding.stop(f"{'--until' if until else '--for'}: {error}", deciding.WRONG_INPUT)
    if end is not None and end <= now:
        deciding.stop(f"{'--until' if until else '--for'}: the freeze would be over already", deciding.WRONG_INPUT)
    return end


def _asked(question: Callable[[Kube], Awaitable[R]]) -> R:
    from karpenter.cli.live import Unanswered, ask

    try:
        return ask(question)
    except Unanswered as error:
        deciding.stop(str(error), deciding.NO_ANSWER)
    except _Unknown as error:
        deciding.stop(str(error), deciding.WRONG_INPUT)


# -- what is done -------------------------------------------------------------------------------------------------------------


async def freezing(kube: Kube, pools: list[str], reason: str, end: datetime | None) -> list[str]:
    """Freeze the pools, or without any the cluster; a line for each. Raises ``KubeError``, and ``_Unknown`` before anything."""
    from karpenter.api.kinds import NODE_POOL
    from karpenter.model import labels, moments

    until = None if end is None else moments.text(end)
    ending = f"until {until}" if until else "until it is thawed"
    if not pools:
        await _freeze_cluster(kube, reason, until)
        return [f"the whole cluster is frozen {ending}"]
    await _known(kube, pools)
    notes: dict[str, Json] = {labels.FREEZE: _word(reason), labels.FREEZE_UNTIL: until}
    for name in pools:
        await kube.patch(NODE_POOL, name, {"metadata": {"annotations": notes}})
    return [f"NodePool {name} is frozen {ending}" for name in pools]


def _word(reason: str) -> str:
    """A reason as the annotation carries it: ``false`` would mean that there is no freeze."""
    return "false." if reason == "false" else reason or "true"


async def _freeze_cluster(kube: Kube, reason: str, until: str | None) -> None:
    """Members that are there already go: they might be what makes a freeze unreadable."""
    from karpenter.api.core import ConfigMap
    from karpenter.api.kinds import CONFIG_MAP
    from karpenter.api.meta import ObjectMeta
    from karpenter.kube.errors import AlreadyExists
    from karpenter.model import freezes

    given = {name: text for name, text in ((freezes.REASON, reason), (freezes.UNTIL, until)) if text}
    meta = ObjectMeta(name=freezes.NAME, namespace=freezes.NAMESPACE)
    try:
        await kube.create(CONFIG_MAP, ConfigMap(metadata=meta, data=given))
    except AlreadyExists:
        there = await kube.get(CONFIG_MAP, freezes.NAME, freezes.NAMESPACE)
        data: dict[str, Json] = {**dict.fromkeys(there.data), **given}
        await kube.patch(CONFIG_MAP, freezes.NAME, {"data": data}, freezes.NAMESPACE)


async def thawing(kube: Kube, pools: list[str]) -> list[str]:
    """Thaw the pools, or without any the cluster; a line for each, and for what stays frozen. Raises as ``freezing``."""
    from karpenter.api.kinds import CONFIG_MAP, NODE_POOL
    from karpenter.kube.errors import NotFound
    from karpenter.model import freezes, labels

    if not pools:
        try:
            await kube.delete(CONFIG_MAP, freezes.NAME, freezes.NAMESPACE)
            lines = ["the cluster is thawed"]
        except NotFound:
            lines = ["the cluster was not frozen"]
        return lines + [_still(pool) for pool in (await kube.list(NODE_POOL)).items if freezes.of_pool(pool)]
    await _known(kube, pools)
    notes: dict[str, Json] = {labels.FREEZE: None, labels.FREEZE_UNTIL: None}
    for name in pools:
        await kube.patch(NODE_POOL, name, {"metadata": {"annotations": notes}})
    return [f"NodePool {name} is thawed" for name in pools] + await _cluster_still(kube)


def _still(pool: NodePool) -> str:
    from karpenter.model import freezes

    return f"NodePool {pool.metadata.name} stays as it is: {freezes.of_pool(pool)}"


async def _cluster_still(kube: Kube) -> list[str]:
    from karpenter.api.kinds import CONFIG_MAP
    from karpenter.kube.errors import NotFound
    from karpenter.model import freezes

    try:
        found = freezes.of_config_map(await kube.get(CONFIG_MAP, freezes.NAME, freezes.NAMESPACE))
    except NotFound:
        return []
    return [f"the whole cluster stays as it is: {found}"]


async def _known(kube: Kube, pools: list[str]) -> None:
    from karpenter.api.kinds import NODE_POOL

    there = {pool.metadata.name for pool in (await kube.list(NODE_POOL)).items}
    for name in pools:
        if name not in there:
            hint = f"there are {', '.join(sorted(there))}" if there else "there is none at all"
            raise _Unknown(f"no NodePool {name} in the cluster; {hint}")
