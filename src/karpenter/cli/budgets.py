"""``karpenter budgets POOL``: when how many of its nodes may be disrupted, and which budget or freeze says so.

The very rules the controller goes by, looked at ahead of time. Nothing is changed anywhere.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from karpenter.cli import deciding

if TYPE_CHECKING:
    from karpenter.api.karpenter import NodePool
    from karpenter.cli.inputs import Objects
    from karpenter.cli.render_budgets import Preview
    from karpenter.decide.disrupt import PoolNodes
    from karpenter.model.windows import Span

Output = Literal["table", "json", "yaml"]
_MOST_DAYS = 366
_SHOWN = 5
#: Calendars end before year 1 and after 9999, and windows reach centuries back.
_EARLIEST, _LATEST = datetime(2000, 1, 1, tzinfo=UTC), datetime(3000, 1, 1, tzinfo=UTC)


def budgets(
    pool: Annotated[str, typer.Argument(metavar="POOL", help="Name of the NodePool.")],
    days: Annotated[int, typer.Option(min=1, max=_MOST_DAYS, help="How many days to look ahead.")] = 7,
    begin: Annotated[
        str, typer.Option("--from", metavar="TIME", help="Where to begin, such as 2026-12-24T00:00:00+01:00; else now.")
    ] = "",
    nodes: Annotated[
        int | None, typer.Option(min=0, help="Nodes the pool is taken to have; else as many as there are now.")
    ] = None,
    time_zone: Annotated[str, typer.Option(metavar="ZONE", help="Whose clocks the table shows.")] = "UTC",
    filename: deciding.Files = None,
    output: Annotated[Output, typer.Option("-o", "--output", help="What to print.")] = "table",
    skip_invalid: deciding.SkipInvalid = False,
) -> None:
    """Show when how many nodes of a NodePool may be disrupted, for each reason, and why. Changes nothing."""
    from karpenter.cli.render_budgets import DISRUPTION_REASONS, Preview
    from karpenter.model.pool_rules import rules_of
    from karpenter.model.timeline import timeline

    period = _period(begin, days)
    zone = _zone(time_zone)
    with deciding.uncollected():
        objects = _objects(filename)
        deciding.refuse(objects, skip_invalid=skip_invalid)
        found = _found(objects, pool)
        own = _nodes(objects, pool)
        count = own.counted if nodes is None else nodes
        rules = rules_of(found, deciding.freeze_over(objects))
        stretches = timeline(rules, count, period, DISRUPTION_REASONS)
    _write(Preview(found, count, own.unavailable, rules, stretches, zone), output)


def _period(begin: str, days: int) -> Span:
    from karpenter.model import moments
    from karpenter.model.windows import Span

    try:
        first = moments.parse(begin) if begin else datetime.now(UTC)
    except moments.MomentError as error:
        deciding.stop(f"--from: {error}", deciding.WRONG_INPUT)
    if not _EARLIEST <= first < _LATEST:
        deciding.stop(f"--from: {begin!r} is not of this millennium", deciding.WRONG_INPUT)
    first = first.replace(microsecond=0)
    return Span(first, first + timedelta(days=days))


def _zone(name: str) -> tzinfo:
    from karpenter.model import zones

    try:
        return zones.find(name)
    except zones.ZoneError as error:
        deciding.stop(f"--time-zone: {error}", deciding.WRONG_INPUT)


def _objects(paths: list[str] | None) -> Objects:
    from karpenter.api import kinds
    from karpenter.cli import inputs
    from karpenter.cli.live import Unanswered, read_machines
    from karpenter.model import labels

    if paths:
        return inputs.read(paths, labels.WELL_KNOWN, (kinds.CONFIG_MAP,))  # type: ignore[arg-type]
    try:
        return read_machines()
    except Unanswered as error:
        deciding.stop(str(error), deciding.NO_ANSWER)


def _found(objects: Objects, name: str) -> NodePool:
    for pool in objects.pools:
        if pool.metadata.name == name:
            return pool
    where = "cluster" if objects.live else "input"
    names = sorted(pool.metadata.name for pool in objects.pools)
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    hint = f"; there are {', '.join(names[:_SHOWN])}{rest}" if names else "; there is none at all"
    return deciding.stop(f"no NodePool {name} in the {where}{hint}", deciding.WRONG_INPUT)


def _nodes(objects: Objects, pool: str) -> PoolNodes:
    from karpenter.cluster import ClusterState
    from karpenter.decide.disrupt import pool_nodes

    state = ClusterState()
    for claim in objects.claims:
        state.set_claim(claim)
    for node in objects.nodes:
        state.set_node(node)
    return pool_nodes(state.views())[pool]


def _write(preview: Preview, output: Output) -> None:
    from karpenter.cli import render_budgets
    from karpenter.cli.output import emit, to_whoever_reads

    if output == "table":
        with to_whoever_reads():
            render_budgets.write(preview, sys.stdout)
    else:
        emit(render_budgets.as_json(preview) if output == "json" else render_budgets.as_yaml(preview))
