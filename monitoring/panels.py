"""Panels as data, and their rendering by the Grafana Foundation SDK.

A dashboard is a sequence of rows, a row a sequence of panels, a panel a title with its queries. Positions follow from widths,
so nothing is placed by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from grafana_foundation_sdk.builders import bargauge, common, piechart, prometheus, stat, timeseries
from grafana_foundation_sdk.builders import dashboard as sdk
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as models
from grafana_foundation_sdk.models.dashboard import DataSourceRef, GridPos, VariableRefresh, VariableSort

_COLUMNS = 24
#: Every panel reads the data source that the variable of the dashboard names.
_SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
_REDUCE = "lastNotNull"
#: A point per minute at least: scrapes are 15 to 60 seconds apart, and ``events`` compares two of them.
_INTERVAL = "1m"


@dataclass(frozen=True)
class Query:
    """An expression and the name of its series in the legend (``{{label}}`` stands for a label's value)."""

    expression: str
    legend: str = ""


@dataclass(frozen=True)
class Panel:
    """One panel. ``draw`` is one of the functions below; ``unit`` a unit of Grafana's; ``width`` in columns of 24."""

    title: str
    meaning: str
    draw: Callable[[Panel], Any]
    queries: tuple[Query, ...]
    unit: str = "short"
    width: int = 6
    height: int = 8


@dataclass(frozen=True)
class Row:
    """Panels under one heading, left to right, wrapped at the width of the page."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Dashboard:
    """A dashboard. ``name`` is its file and uid."""

    name: str
    title: str
    meaning: str
    rows: tuple[Row, ...]


def figure(panel: Panel) -> Any:
    """One large number."""
    return (
        stat.Panel()
        .reduce_options(common.ReduceDataOptions().calcs([_REDUCE]))
        .color_mode(models.BigValueColorMode.NONE)
    )


def bar(panel: Panel) -> Any:
    """A number between 0 and 100 with its bar."""
    return (
        bargauge.Panel()
        .reduce_options(common.ReduceDataOptions().calcs([_REDUCE]))
        .orientation(models.VizOrientation.HORIZONTAL)
        .min(0)
        .max(100)
    )


def shares(panel: Panel) -> Any:
    """Parts of a whole."""
    legend = piechart.PieChartLegendOptions().show_legend(True).placement(models.LegendPlacement.RIGHT)
    return piechart.Panel().reduce_options(common.ReduceDataOptions().calcs([_REDUCE])).legend(legend)


def lines(panel: Panel) -> Any:
    """Values over time."""
    return timeseries.Panel().fill_opacity(5).min(0)


def stacked(panel: Panel) -> Any:
    """Values over time that add up."""
    return timeseries.Panel().fill_opacity(30).stacking(common.StackingConfig().mode(models.StackingMode.NORMAL))


def bars(panel: Panel) -> Any:
    """Events over time: one bar per interval, negative ones below the line."""
    return (
        timeseries.Panel()
        .draw_style(models.GraphDrawStyle.BARS)
        .fill_opacity(80)
        .stacking(common.StackingConfig().mode(models.StackingMode.NORMAL))
    )


def to_json(dashboard: Dashboard) -> str:
    """The dashboard as Grafana imports it, with a final line break."""
    builder = (
        sdk.Dashboard(dashboard.title)
        .uid(dashboard.name)
        .description(dashboard.meaning)
        .tags(["karpenter"])
        .refresh("30s")
        .time("now-6h", "now")
        .timezone("browser")
        .with_variable(sdk.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(_node_pools())
    )
    top = 0
    for row in dashboard.rows:
        builder.with_row(sdk.Row(row.title).grid_pos(GridPos(h=1, w=_COLUMNS, x=0, y=top)))
        top = _add(builder, row.panels, top + 1)
    return JSONEncoder(sort_keys=True, indent=2).encode(builder.build()) + "\n"


def _node_pools() -> Any:
    return (
        sdk.QueryVariable("nodepool")
        .label("NodePool")
        .datasource(_SOURCE)
        .query("label_values(karpenter_nodepools_usage, nodepool)")
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
    )


def _add(builder: Any, panels: Sequence[Panel], top: int) -> int:
    """Place panels from left to right; the line below the last one."""
    left, height = 0, 0
    for panel in panels:
        if left + panel.width > _COLUMNS:
            left, top, height = 0, top + height, 0
        builder.with_panel(_rendered(panel).grid_pos(GridPos(h=panel.height, w=panel.width, x=left, y=top)))
        left, height = left + panel.width, max(height, panel.height)
    return top + height


def _rendered(panel: Panel) -> Any:
    drawn = panel.draw(panel).title(panel.title).description(panel.meaning).unit(panel.unit).datasource(_SOURCE)
    drawn.interval(_INTERVAL)
    for index, query in enumerate(panel.queries):
        target = prometheus.Dataquery().expr(query.expression).ref_id(chr(ord("A") + index)).datasource(_SOURCE)
        drawn.with_target(target.legend_format(query.legend) if query.legend else target)
    return drawn
