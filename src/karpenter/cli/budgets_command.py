"""``karpenter budgets POOL``: how many of its nodes may be disrupted over time, and which budget or freeze limits them.

The rules are the controller's own, evaluated ahead of time. Read-only.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Annotated

import typer

from karpenter.cli import planning, planning_options, terminal
from karpenter.cli.output_formats import OutputOption, Printable, nodepool_name, write_output
from karpenter.cli.render_common import names_text
from karpenter.cli.settings_options import CONNECTION_SETTINGS, Flags, resolve_or_exit, with_setting_options

if TYPE_CHECKING:
    from karpenter.api.karpenter import NodePool
    from karpenter.cli.cluster_objects import ClusterObjects
    from karpenter.disruption.decide.remaining_budgets import PoolNodeCounts
    from karpenter.model.budget_windows import TimeSpan
    from karpenter.settings import Settings

_MOST_DAYS = 366
_SHOWN_POOLS = 5
#: Calendars end before year 1 and after 9999, and windows reach centuries back.
_EARLIEST_BEGIN, _LATEST_BEGIN = datetime(2000, 1, 1, tzinfo=UTC), datetime(3000, 1, 1, tzinfo=UTC)


@with_setting_options(CONNECTION_SETTINGS)
def budgets(
    *,
    flags: Flags,
    pool: Annotated[str, typer.Argument(metavar="POOL", help="Name of the NodePool.")],
    days: Annotated[int, typer.Option(min=1, max=_MOST_DAYS, help="Number of days to show.")] = 7,
    begin: Annotated[
        str, typer.Option("--from", metavar="TIME", help="Start time, such as 2026-12-24T00:00:00+01:00. Default: now.")
    ] = "",
    nodes: Annotated[int | None, typer.Option(min=0, help="Assumed node count. Default: current count.")] = None,
    time_zone: Annotated[str, typer.Option(metavar="ZONE", help="Time zone of the table.")] = "UTC",
    filename: planning_options.FilesOption = None,
    output: OutputOption = "table",
    skip_invalid: planning_options.SkipInvalidOption = False,
) -> None:
    """Show how many nodes of a NodePool may be disrupted over time, for each reason, and which budget or freeze limits them.

    Read-only.
    """
    from karpenter.cli import render_budgets
    from karpenter.cli.render_budgets import DISRUPTION_REASONS, BudgetPreview
    from karpenter.model.disruption_rules import disruption_rules, disruption_timeline

    settings = resolve_or_exit("budgets", flags, filename)
    period = _period(begin, days)
    zone = _zone(time_zone)
    with planning.gc_disabled():
        objects = _load_objects(filename, settings)
        planning.report_invalid_objects(objects, skip_invalid=skip_invalid)
        node_pool = _pool_named(objects, pool)
        own = _pool_nodes(objects, pool)
        count = own.initialized if nodes is None else nodes
        rules = disruption_rules(node_pool, planning.cluster_freeze(objects))
        segments = disruption_timeline(rules, count, period, DISRUPTION_REASONS)
    preview = BudgetPreview(node_pool, count, own.unavailable, own.leaving, rules, segments, zone)
    printable = Printable(
        document=lambda: render_budgets.document(preview),
        page=lambda out: render_budgets.write(preview, out),
        names=lambda: [nodepool_name(pool)],
    )
    write_output(output, printable)


def _period(begin: str, days: int) -> TimeSpan:
    from karpenter.model import clock
    from karpenter.model.budget_windows import TimeSpan

    try:
        first = clock.parse_timestamp(begin) if begin else datetime.now(UTC)
    except clock.TimestampError as error:
        terminal.exit_with_error(f"--from: {error}", terminal.WRONG_INPUT)
    if not _EARLIEST_BEGIN <= first < _LATEST_BEGIN:
        terminal.exit_with_error(f"--from: {begin!r} is not of this millennium", terminal.WRONG_INPUT)
    first = first.replace(microsecond=0)
    return TimeSpan(first, first + timedelta(days=days))


def _zone(name: str) -> tzinfo:
    from karpenter.model import cron

    try:
        return cron.find_time_zone(name)
    except cron.TimeZoneError as error:
        terminal.exit_with_error(f"--time-zone: {error}", terminal.WRONG_INPUT)


def _load_objects(paths: list[str] | None, settings: Settings) -> ClusterObjects:
    from karpenter.api import kinds
    from karpenter.cli import manifest_reader
    from karpenter.cli.cluster_reader import read_pools_and_nodes
    from karpenter.model import labels

    if paths:
        options = planning_options.InputOptions(paths)
        return manifest_reader.read_manifests(options, labels.WELL_KNOWN, (kinds.CONFIG_MAP,))  # type: ignore[arg-type]
    return read_pools_and_nodes(settings)


def _pool_named(objects: ClusterObjects, name: str) -> NodePool:
    for pool in objects.pools:
        if pool.metadata.name == name:
            return pool
    where = "cluster" if objects.from_cluster else "input"
    names = sorted(pool.metadata.name for pool in objects.pools)
    hint = f"; choose {names_text(names, _SHOWN_POOLS)}" if names else "; it has none"
    return terminal.exit_with_error(f"no NodePool {name} in the {where}{hint}", terminal.WRONG_INPUT)


def _pool_nodes(objects: ClusterObjects, pool: str) -> PoolNodeCounts:
    from karpenter.disruption.decide.remaining_budgets import pool_node_counts
    from karpenter.state import ClusterState

    state = ClusterState()
    for claim in objects.claims:
        state.set_claim(claim)
    for node in objects.nodes:
        state.set_node(node)
    return pool_node_counts(state.state_nodes())[pool]
