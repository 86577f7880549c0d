"""The moving picture of ``karpenter demo``: nodes filling and emptying, what they cost, and what was decided last.

A frame is built from the controllers' own view of the cluster and from the books of the stage, a few times a second of real
time. Everything is sized for the terminal at hand: what does not fit is counted instead of shown.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from karpenter.api.karpenter import NodeClaim
from karpenter.cli.demo_text import DemoLine, condensed_event_lines, dollars, elapsed_text
from karpenter.model import labels, pods
from karpenter.model import resources as res
from karpenter.model.texts import count_text
from karpenter.simulation import ClusterCounts, InstanceNotice, SimulatedCluster
from karpenter.state.state_node import StateNode

FRAMES_PER_SECOND = 8.0
_FEED_LINES = 7
#: Rows that are neither nodes nor news: header, totals, charts, the table's head, the rule, and one to spare.
_OTHER_ROWS = 9
_BAR_CELLS = 10
#: From here on zones and percentages have room, and whole names do.
_WIDE_COLUMNS, _NAME_COLUMNS = 118, 90
_NARROW_BAR_CELLS, _NARROW_NAME = 6, 12
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_SPARKS = "▁▂▃▄▅▆▇█"
_FULL, _HALF = 0.7, 0.35


class DemoScreen:
    """Draws frames on the whole terminal. ``speed``: seconds of the story in one of the viewer."""

    def __init__(self, console: Console, stage: SimulatedCluster, start: datetime, speed: float) -> None:
        self._console = console
        self._stage = stage
        self._start = start
        self._full_screen = True
        self._speed = speed
        self._headline = ""
        self._pending_notices: list[InstanceNotice] = []
        self._recent_lines: deque[DemoLine] = deque(maxlen=_FEED_LINES)
        self._ready_chart = _Sparkline()
        self._price_chart = _Sparkline()
        stage.history.subscribe(self._pending_notices.append)

    def phase(self, headline: str) -> None:
        """See ``DemoPresenter.phase``."""
        self._drain_notices()
        self._headline = headline
        self._recent_lines.append(DemoLine(self._now(), "chapter", headline))

    def note(self, text: str) -> None:
        """See ``DemoPresenter.note``."""
        self._drain_notices()
        self._recent_lines.append(DemoLine(self._now(), "note", text))

    def switch_to_real_time(self) -> None:
        """See ``DemoPresenter.switch_to_real_time``."""
        self._full_screen = False
        self._speed = 1.0

    async def run(self) -> None:
        """See ``DemoPresenter.run``."""
        live = Live(
            self._frame(),
            console=self._console,
            screen=self._full_screen,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        with live:
            while True:
                await asyncio.sleep(self._speed / FRAMES_PER_SECOND)
                live.update(self._frame(), refresh=True)

    def _now(self) -> timedelta:
        return self._stage.clock.now() - self._start

    def _drain_notices(self) -> None:
        fresh = self._pending_notices[:]
        self._pending_notices.clear()
        self._recent_lines.extend(condensed_event_lines(fresh, self._start))

    def _frame(self) -> RenderableType:
        self._drain_notices()
        census = self._stage.counts()
        price = self._stage.history.meter.rate_usd_per_hour(self._stage.clock.now())
        self._ready_chart.add(self._now(), census.ready)
        self._price_chart.add(self._now(), price)
        width = max(10, self._console.width - 34)
        return Group(
            self._header(),
            self._totals(census, price),
            Text.assemble(("  pods ready  ", "dim"), (self._ready_chart.render(width), "cyan"), f"  {census.ready}"),
            Text.assemble(("  $ per hour  ", "dim"), (self._price_chart.render(width), "green"), f"  {dollars(price)}"),
            self._nodes(),
            Rule("decisions", style="dim", align="left"),
            *(_single_line(line.styled()) for line in self._recent_lines),
        )

    def _header(self) -> RenderableType:
        head = Table.grid(expand=True, padding=(0, 1))
        head.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
        head.add_column(justify="right", no_wrap=True)
        title = Text.assemble(("karpenter ", "bold cyan"), ("demo  ", "bold"), (self._headline, "italic"))
        pace = f"  {self._speed:g}x" if self._speed != 1 else "  in real time"
        head.add_row(title, Text.assemble((elapsed_text(self._now()), "bold"), (pace, "dim")))
        return Panel(head, border_style="cyan", padding=(0, 1))

    def _totals(self, census: ClusterCounts, price: float) -> RenderableType:
        spent = self._stage.history.meter.cost_usd(self._start, self._stage.clock.now())
        waiting = "bold yellow" if census.pending else "dim"
        return Text.assemble(
            "  ",
            (f"{count_text(census.nodes, 'node')}", "bold"),
            f" of {count_text(census.claims, 'claim')}   ",
            (f"{dollars(price)}/h", "bold green"),
            f"   spent {dollars(spent)}   ",
            (count_text(census.pods, "pod"), "bold"),
            ": ",
            (f"{census.ready} ready", "cyan"),
            "  ",
            (f"{census.pending} pending", waiting),
            no_wrap=True,
            overflow="ellipsis",
        )

    def _nodes(self) -> RenderableType:
        wide = self._console.width >= _WIDE_COLUMNS
        table = Table(expand=True, box=None, header_style="dim", pad_edge=True, padding=(0, 1, 0, 0))
        table.add_column("node", no_wrap=True, overflow="ellipsis", width=_name_width(self._console.width))
        for name in ("type", *(("zone",) if wide else ()), "capacity"):
            table.add_column(name, no_wrap=True, overflow="ellipsis")
        for name in ("$/h", "pods"):
            table.add_column(name, justify="right", no_wrap=True)
        for name in ("cpu", "memory"):
            table.add_column(name, no_wrap=True)
        table.add_column("state", no_wrap=True, min_width=12)
        views = sorted(self._stage.state.state_nodes(), key=_by_age)
        room = max(3, self._console.height - _OTHER_ROWS - _FEED_LINES)
        shown = views if len(views) <= room else views[: room - 1]
        prices = {record.claim_name: record.price_per_hour for record in self._stage.history.billed_instances.values()}
        for view in shown:
            table.add_row(*self._row(view, prices, wide=wide), style="dim" if view.marked_for_deletion else "")
        rest = len(views) - len(shown)
        below = [Text(f"... and {rest} more", style="dim")] if rest else []
        below += [Text("")] * (room - len(shown) - len(below) if self._full_screen else 0)
        return Group(table, *below)

    def _row(self, view: StateNode, prices: Mapping[str, float], *, wide: bool) -> Sequence[RenderableType]:
        claim_labels = view.claim.metadata.labels if view.claim is not None else {}
        price = prices.get(view.key)
        zone = (claim_labels.get(labels.ZONE, ""),) if wide else ()
        capacity = claim_labels.get(labels.CAPACITY_TYPE, "")
        return (
            view.key,
            Text(claim_labels.get(labels.INSTANCE_TYPE, "..."), style="bold"),
            *zone,
            Text(capacity, style="magenta" if capacity == labels.SPOT else ""),
            "-" if price is None else f"{price:.3f}",
            self._pods(view),
            _bar(view, "cpu", wide=wide),
            _bar(view, "memory", wide=wide),
            _state(view, self._stage.clock.now()),
        )

    def _pods(self, view: StateNode) -> Text:
        """How many run there; before it runs, how many are meant for it."""
        if view.registered:
            return Text(str(sum(not pods.is_daemonset_pod(pod) for pod in view.pods)))
        meant = sum(key == view.key for key in self._stage.state.planned_nodes.values())
        return Text(f"({meant})", style="dim")


def _name_width(columns: int) -> int | None:
    return None if columns >= _NAME_COLUMNS else _NARROW_NAME


def _single_line(text: Text) -> Text:
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _by_age(view: StateNode) -> tuple[float, str]:
    created = view.claim.metadata.creation_timestamp if view.claim is not None else None
    return (created.timestamp() if created is not None else 0.0, view.key)


def _bar(view: StateNode, resource: str, *, wide: bool) -> Text:
    """How much of the node is requested; while it starts, how much its NodeClaim requests."""
    offered = view.allocatable.get(resource, 0)
    wanted = view.pod_requests.get(resource, 0)
    if not view.registered and view.claim is not None:
        wanted = res.parse_resources(view.claim.spec.resources.requests).get(resource, 0)
    share = min(1.0, wanted / offered) if offered else 0.0
    cells = _BAR_CELLS if wide else _NARROW_BAR_CELLS
    eighths = round(share * cells * 8)
    drawn = "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")
    color = "green" if share >= _FULL else "yellow" if share >= _HALF else "red"
    style = f"{color if view.registered else 'grey42'} on grey23"
    bar = (drawn.ljust(cells), style)
    return Text.assemble(bar, (f" {share:4.0%}", "dim")) if wide else Text.assemble(bar)


def _state(view: StateNode, now: datetime) -> Text:
    if view.marked_for_deletion:
        return Text("leaving", style="red")
    if not view.launched:
        return Text("launching", style="yellow")
    age = _age(view.claim, now)
    if not view.registered:
        return Text(f"booting {age}", style="yellow")
    if not view.initialized:
        return Text("joining", style="yellow")
    if all(pods.is_daemonset_pod(pod) for pod in view.pods):
        return Text("empty", style="bright_blue")
    return Text(f"ready {age}", style="green")


def _age(claim: NodeClaim | None, now: datetime) -> str:
    created = claim.metadata.creation_timestamp if claim is not None else None
    return elapsed_text(now - created) if created is not None else ""


class _Sparkline:
    """A line of little bars: a value over time, squeezed into as many cells as there are."""

    def __init__(self) -> None:
        self._points: list[tuple[float, float]] = []
        self._until = 0.0

    def add(self, at: timedelta, value: float) -> None:
        """From this moment on the value is this."""
        if not self._points or self._points[-1][1] != value:
            self._points.append((at.total_seconds(), value))
        self._until = at.total_seconds()

    def render(self, cells: int) -> str:
        """The picture, from the beginning until now."""
        highest = max((value for _, value in self._points), default=0.0)
        if not highest:
            return _SPARKS[0] * cells
        step = max(self._until, 1.0) / cells
        levels, index = [], 0
        for cell in range(1, cells + 1):
            while index + 1 < len(self._points) and self._points[index + 1][0] <= cell * step:
                index += 1
            levels.append(self._points[index][1])
        return "".join(_SPARKS[round(level / highest * (len(_SPARKS) - 1))] for level in levels)
