"""The tables of ``karpenter top``, made of a console view: pure functions, so that tests need no terminal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import datetime

from rich.text import Text

from karpenter.cli.render_common import short_resource_name
from karpenter.cli.top_cells import (
    Cell,
    TableData,
    TableRow,
    age_cell,
    age_text,
    bar,
    bar_cell,
    number_cell,
    price_cell,
    text_cell,
)
from karpenter.cli.top_options import ViewerOptions
from karpenter.console.console_view import ConsoleView
from karpenter.console.decision_rows import DecisionKind
from karpenter.console.node_rows import NodeRow, NodeState
from karpenter.console.pool_rows import PoolRow
from karpenter.console.spending import HOURS_PER_MONTH, SpendDimension
from karpenter.model import labels, selectors
from karpenter.model import resources as res
from karpenter.model.nodepool_budgets import UNLIMITED_DISRUPTIONS
from karpenter.model.texts import count_text
from karpenter.scheduling.explain.nearest_fit_messages import format_amount

#: Columns of the lines above the tables; they fit on a terminal of 80.
_COUNT_CELLS, _SUMMARY_BAR_CELLS = 11, 8
#: Amounts from here on are shown without decimals.
_WHOLE_AMOUNTS = 1000.0
_CAPACITY_TEXTS = {labels.SPOT: "Spot", labels.ON_DEMAND: "On-Demand", labels.RESERVED: "Reserved"}
_STATE_STYLES = {
    NodeState.LAUNCHING: "yellow",
    NodeState.LAUNCHED: "yellow",
    NodeState.REGISTERED: "yellow",
    NodeState.INITIALIZED: "green",
    NodeState.CONSOLIDATABLE: "bright_blue",
    NodeState.DISRUPTING: "red",
    NodeState.TERMINATING: "red",
    NodeState.UNMANAGED: "dim",
}
_DECISION_STYLES = {
    DecisionKind.LAUNCH: "green",
    DecisionKind.DISRUPTION: "yellow",
    DecisionKind.INTERRUPTION: "red",
    DecisionKind.FAILURE: "red",
}
#: The resource behind each computed label of eks-node-viewer (OPS-804).
_USAGE_LABELS = {
    "eks-node-viewer/node-cpu-usage": "cpu",
    "eks-node-viewer/node-memory-usage": "memory",
    "eks-node-viewer/node-pods-usage": "pods",
    "eks-node-viewer/node-ephemeral-storage-usage": "ephemeral-storage",
}
_AGE_LABEL = "eks-node-viewer/node-age"


# -- the lines above ----------------------------------------------------------------------------------------------------


def summary_lines(view: ConsoleView, options: ViewerOptions, bound_per_hour: float | None) -> list[Text]:
    """The lines above the tables (OPS-800, OPS-801). ``bound_per_hour``: the lower bound of the price, where it is known."""
    nodes = selected_nodes(view, options)
    count = count_text(len(nodes), "node")
    lines = _resource_lines(nodes, options)
    lines = [Text.assemble((count if not at else "").ljust(_COUNT_CELLS), line) for at, line in enumerate(lines)]
    lines[0].stylize("bold", 0, len(count))
    if options.shows_prices:
        lines[0].append_text(_price_text(nodes))
    lines.append(_pods_line(view))
    if options.shows_prices and bound_per_hour:
        lines[-1].append(f"  {view.managed_price_per_hour / bound_per_hour:.2f} x bound", style="dim")
    return lines


def _pods_line(view: ConsoleView) -> Text:
    counts = view.pods
    return Text.assemble(
        (f"{count_text(counts.total, 'pod')} ", "bold"),
        (f"({counts.pending} pending ", "yellow" if counts.pending else "dim"),
        f"{counts.running} running {counts.bound} bound)",
    )


def selected_nodes(view: ConsoleView, options: ViewerOptions) -> list[NodeRow]:
    """The nodes that the selector takes."""
    matches = selectors.parse_selector(options.node_selector)
    return [row for row in view.nodes if matches(row.labels)]


def _resource_lines(nodes: list[NodeRow], options: ViewerOptions) -> list[Text]:
    """Of each resource what is requested of what is allocatable, and a bar; the bars stand below each other."""
    existing = [row for row in nodes if not row.planned]
    amounts = [_amounts(existing, resource) for resource in options.resources]
    width = max(len(text) for text, _ in amounts)
    return [
        Text.assemble(f"{text:{width}}  ", bar(share, _SUMMARY_BAR_CELLS, options.style), "  ")
        for text, share in amounts
    ]


def _amounts(nodes: list[NodeRow], resource: str) -> tuple[str, float]:
    requested = sum(row.requested.get(resource, 0) for row in nodes)
    allocatable = sum(row.allocatable.get(resource, 0) for row in nodes)
    size, unit = _summary_unit(resource)
    texts = "/".join(_amount_text(amount / size) for amount in (requested, allocatable))
    return f"{short_resource_name(resource)} {texts}{unit}", requested / allocatable if allocatable else 0.0


def _amount_text(amount: float) -> str:
    return f"{amount:,.0f}" if amount >= _WHOLE_AMOUNTS else f"{amount:.1f}"


def _summary_unit(resource: str) -> tuple[int, str]:
    """What amounts in thousandths are divided by, and the unit that is left."""
    if resource in (res.MEMORY, res.EPHEMERAL_STORAGE):
        return 2**30 * res.ONE_UNIT, " GiB"
    return res.ONE_UNIT, ""


def _price_text(nodes: list[NodeRow]) -> Text:
    total = sum(row.price_per_hour or 0.0 for row in nodes)
    return Text(f"${total:.3f}/hour | ${total * HOURS_PER_MONTH:.0f}/month", style="bold green")


def unpriced_text(view: ConsoleView, options: ViewerOptions) -> str:
    """How many of the nodes shown have no price; empty where all have one."""
    unpriced = sum(row.price_per_hour is None for row in selected_nodes(view, options))
    return f"{count_text(unpriced, 'node')} without price" if unpriced and options.shows_prices else ""


# -- nodes --------------------------------------------------------------------------------------------------------------


def node_table(view: ConsoleView, options: ViewerOptions) -> TableData:
    """One row per node (OPS-802), with the state of its NodeClaim and what holds it (OPS-805)."""
    columns = ("node", *options.resources, "pods", "type", *(("$/h",) if options.shows_prices else ()))
    columns += ("capacity", "state", "cordon", "ready", *options.extra_labels, "pool", "held by")
    rows = [
        TableRow(row.key, tuple(_node_cells(row, view.now, options)), f"node/{row.name}")
        for row in _sorted(view, options)
    ]
    return TableData(columns, tuple(rows))


def _sorted(view: ConsoleView, options: ViewerOptions) -> list[NodeRow]:
    def order(row: NodeRow) -> tuple[bool, float | str]:
        if options.sort_label == "creation":
            return row.since is None, row.since.timestamp() if row.since is not None else 0.0
        value = _label_value(row, options.sort_label, view.now)
        return False, value.sort_value

    return sorted(selected_nodes(view, options), key=order, reverse=options.descending)


def _node_cells(row: NodeRow, now: datetime, options: ViewerOptions) -> Iterator[Cell]:
    yield text_cell(row.name, "dim" if row.state is NodeState.TERMINATING else "")
    for resource in options.resources:
        yield bar_cell(row.fill(resource))
    yield number_cell(str(row.pod_count), row.pod_count)
    yield text_cell(row.instance_type or "-", "bold")
    if options.shows_prices:
        yield price_cell(row.price_per_hour)
    yield text_cell(_CAPACITY_TEXTS.get(row.capacity_type, "-"), "magenta" if row.capacity_type == labels.SPOT else "")
    yield _state_cell(row)
    yield text_cell(_scheduling_text(row))
    yield text_cell(
        "Ready" if row.ready else f"NotReady/{age_text(row.not_ready_since, now)}", "" if row.ready else "red"
    )
    yield from (_label_value(row, label, now) for label in options.extra_labels)
    yield text_cell(row.pool or "-")
    yield text_cell("; ".join(row.held_by), "dim")


def _state_cell(row: NodeRow) -> Cell:
    why = row.state_reason or (row.drift if row.drift else "")
    return text_cell(f"{row.state}: {why}" if why else str(row.state), _STATE_STYLES[row.state])


def _scheduling_text(row: NodeRow) -> str:
    parts = [name for name, holds in (("Cordoned", row.cordoned), ("Deleting", row.deleting)) if holds]
    return "/".join(parts) or "-"


def _label_value(row: NodeRow, label: str, now: datetime) -> Cell:
    """A label's value; those of eks-node-viewer are computed (OPS-804)."""
    if label == _AGE_LABEL:
        return age_cell(row.since, now)
    resource = _USAGE_LABELS.get(label)
    if resource == "pods":
        offered = row.allocatable.get("pods", 0) / 1000
        return number_cell(
            f"{row.pod_count / offered:.0%}" if offered else "-", row.pod_count / offered if offered else 0.0
        )
    if resource is not None:
        return number_cell(f"{row.fill(resource):.0%}", row.fill(resource))
    return text_cell(row.labels.get(label, "-"))


# -- the other tables ---------------------------------------------------------------------------------------------------


def pending_table(view: ConsoleView, options: ViewerOptions) -> TableData:
    """Pods without a node."""
    rows = (
        TableRow(
            row.full_name,
            (
                text_cell(row.full_name),
                age_cell(row.since, view.now),
                *(
                    number_cell(format_amount(name, row.requests.get(name, 0)), row.requests.get(name, 0))
                    for name in options.resources
                ),
                text_cell(row.reason, "yellow" if row.reason.startswith("unschedulable") else ""),
            ),
            f"pod/{row.full_name}",
        )
        for row in view.pending
    )
    return TableData(("pod", "waits", *options.resources, "reason"), tuple(rows))


def decision_table(view: ConsoleView, options: ViewerOptions) -> TableData:
    """What was decided, the latest first."""
    rows = (
        TableRow(
            f"{row.at.timestamp()} {row.kind} {row.reason} {row.nodes}",
            (
                age_cell(row.at, view.now),
                text_cell(str(row.kind), _DECISION_STYLES[row.kind]),
                text_cell(row.text),
                *((_saving_cell(row.saving_per_hour),) if options.shows_prices else ()),
                number_cell("-" if row.restarts is None else str(row.restarts), row.restarts or 0),
                text_cell(row.reason),
                text_cell(", ".join(row.nodes)),
                text_cell(", ".join(row.replaces)),
                text_cell(", ".join(row.replaced_by)),
            ),
        )
        for row in view.decisions
    )
    saved = ("saves $/h",) if options.shows_prices else ()
    return TableData(
        ("ago", "kind", "decision", *saved, "restarts", "for", "nodes", "in place of", "replaced by"), tuple(rows)
    )


def _saving_cell(saving_per_hour: float | None) -> Cell:
    return number_cell("-" if saving_per_hour is None else f"{saving_per_hour:.2f}", saving_per_hour or 0.0)


def pool_table(view: ConsoleView, options: ViewerOptions) -> TableData:
    """NodePools with limits and budgets."""
    columns = ("pool", "nodes", "may go", "opens in", "state", *options.resources)
    columns += (*(("$/h",) if options.shows_prices else ()), "limits", "leaving", "drifted")
    rows = (TableRow(row.name, tuple(_pool_cells(row, view.now, options))) for row in view.pools)
    return TableData(columns, tuple(rows))


def _pool_cells(row: PoolRow, now: datetime, options: ViewerOptions) -> Iterator[Cell]:
    yield text_cell(row.name, "bold")
    yield number_cell(str(row.nodes), row.nodes)
    least = min((budget.remaining for budget in row.budgets), default=0)
    yield Cell(_budgets_text(row), least, "" if least else "red")
    yield text_cell(age_text(now, row.next_opening) if row.next_opening is not None else "-")
    yield text_cell(_pool_state(row), "" if row.ready and not row.freeze else "red")
    yield from (bar_cell(row.fill(resource)) for resource in options.resources)
    if options.shows_prices:
        yield price_cell(row.price_per_hour)
    yield text_cell(", ".join(_limit_texts(row)) or "none")
    yield number_cell(str(row.leaving), row.leaving)
    yield number_cell(str(row.drifted), row.drifted, "yellow" if row.drifted else "")


def _budgets_text(row: PoolRow) -> str:
    """How many nodes may go now, of how many at a time; by reason where that differs."""
    reasons: defaultdict[str, list[str]] = defaultdict(list)
    for budget in row.budgets:
        unlimited = budget.allowed == UNLIMITED_DISRUPTIONS
        reasons["all" if unlimited else f"{budget.remaining} of {budget.allowed}"].append(budget.reason.lower())
    if len(reasons) == 1:
        return next(iter(reasons))
    return "; ".join(f"{', '.join(names)}: {text}" for text, names in reasons.items())


def _limit_texts(row: PoolRow) -> Iterator[str]:
    for name, limit in sorted(row.limits.items()):
        yield f"{format_amount(name, row.used[name])} of {format_amount(name, limit)}"


def _pool_state(row: PoolRow) -> str:
    if row.freeze:
        return row.freeze
    return "ready" if row.ready else f"not ready: {row.not_ready_reason or 'not reconciled yet'}"


def spend_table(view: ConsoleView, options: ViewerOptions) -> TableData:
    """USD per hour and month by NodePool, namespace, instance type and purchase option."""
    if not options.shows_prices:
        return TableData(("spending",), ())
    total = view.spending.price_per_hour
    rows = (
        TableRow(
            f"{dimension} {row.name}",
            (
                text_cell(dimension.value, "dim"),
                text_cell(row.name),
                price_cell(row.price_per_hour),
                number_cell(f"${row.price_per_month:,.0f}", row.price_per_month),
                bar_cell(row.price_per_hour / total if total else 0.0),
                number_cell(str(row.count), row.count),
            ),
        )
        for dimension in SpendDimension
        for row in view.spending.rows.get(dimension, ())
    )
    return TableData(("by", "name", "$/h", "$/month", "share", "count"), tuple(rows))


def event_table(view: ConsoleView, _options: ViewerOptions) -> TableData:
    """Events, the latest first."""
    rows = (
        TableRow(
            f"{row.kind} {row.name} {row.reason} {row.message}",
            (
                age_cell(row.at, view.now),
                text_cell(row.type, "yellow" if row.type == "Warning" else ""),
                text_cell(row.reason),
                text_cell(f"{row.kind}/{row.name}"),
                text_cell(row.message),
                number_cell(str(row.count), row.count),
            ),
        )
        for row in view.events
    )
    return TableData(("ago", "type", "reason", "object", "message", "count"), tuple(_first_by_key(rows)))


def _first_by_key(rows: Iterator[TableRow]) -> Iterator[TableRow]:
    """Events with equal texts are one row."""
    seen: set[str] = set()
    for row in rows:
        if row.key not in seen:
            seen.add(row.key)
            yield row


#: The tabs in their order: title, and what makes the table.
TABS: dict[str, Callable[[ConsoleView, ViewerOptions], TableData]] = {
    "Nodes": node_table,
    "Pending": pending_table,
    "Decisions": decision_table,
    "Pools": pool_table,
    "Spend": spend_table,
    "Events": event_table,
}
