"""The screen of ``karpenter top``: the cluster line, a tab per table, search, order, and explanations."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.widgets import Footer, Input, Static, TabbedContent, TabPane

from karpenter.cli.top_answers import explain
from karpenter.cli.top_cells import sparkline
from karpenter.cli.top_history import HistorySource, HistoryUnavailable, NoHistory, RecentHistory
from karpenter.cli.top_options import ViewerOptions
from karpenter.cli.top_screens import HELP, TextWindow
from karpenter.cli.top_table_widget import LiveTable
from karpenter.cli.top_tables import TABS, summary_lines, unpriced_text
from karpenter.console.assessment import Assessment, assess
from karpenter.console.console_input import ConsoleInput
from karpenter.console.console_view import ConsoleView
from karpenter.console.viewer_source import ViewerSource
from karpenter.disruption.decide.disruption_problem import DisruptionOptions

_REFRESH_SECONDS = 0.5
#: Pause between two computations of reasons and of the price bound.
_ASSESSMENT_PAUSE_SECONDS = 2.0
_HISTORY_SECONDS = 10.0
_HISTORY_POINTS, _SPARK_CELLS = 240, 20


@dataclass(frozen=True)
class ViewerSetup:
    """What to show, how, and the options of the decisions behind reasons and explanations."""

    source: ViewerSource
    options: ViewerOptions
    decision_options: DisruptionOptions
    history: HistorySource = field(default_factory=NoHistory)
    snapshot_directory: Path = Path()


class TopApp(App[None]):
    """The viewer."""

    TITLE = "karpenter top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { overflow: hidden; }
    TabbedContent, ContentSwitcher, TabPane { height: 1fr; }
    #summary { height: auto; padding: 0 1; }
    #status { height: 1; padding: 0 1; color: $text-muted; }
    #search { display: none; height: 3; }
    #search.open { display: block; }
    TabPane { padding: 0; }
    """
    BINDINGS = [
        *(Binding(str(number), f"tab('{title}')", title, show=False) for number, title in enumerate(TABS, 1)),
        Binding("tab", "next_tab", "Next tab", priority=True),
        Binding("slash", "search", "Search"),
        Binding("s", "sort", "Sort"),
        Binding("r", "reverse", "Reverse"),
        Binding("p", "picture", "SVG"),
        Binding("question_mark", "help", "Help"),
        Binding("escape", "end_search", "End search", show=False),
        Binding("q", "quit", "Quit"),
    ]

    def __init__(self, setup: ViewerSetup) -> None:
        super().__init__()
        self._setup = setup
        self._given: ConsoleInput | None = None
        self._view: ConsoleView | None = None
        self._summary = Static("waiting for the first objects", id="summary")
        self._tabs = TabbedContent()
        self._tables = {title: LiveTable(title, setup.options.style) for title in TABS}
        self._search = Input(placeholder="search: rows with all of these words", id="search")
        self._status = Static("", id="status")
        self._assessment = Assessment()
        self._is_assessed = False
        self._recent = RecentHistory()
        self._history_fault = ""
        self._is_history_read = False
        self._prices: deque[float] = deque(maxlen=_HISTORY_POINTS)
        self._pending: deque[float] = deque(maxlen=_HISTORY_POINTS)

    # -- parts ---------------------------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        """The parts from top to bottom."""
        yield self._summary
        with self._tabs:
            for title, table in self._tables.items():
                with TabPane(title, id=title):
                    yield table
        yield self._search
        yield self._status
        yield Footer()

    def on_mount(self) -> None:
        """Start to follow the cluster."""
        self.run_worker(self._setup.source.run(), name="source")
        self.run_worker(self._keep_assessing(), name="assessment")
        self.run_worker(self._keep_history(), name="history")
        self.run_worker(self._keep_current(), name="view")
        self._table().focus()

    # -- following ---------------------------------------------------------------------------------------------------

    async def _keep_current(self) -> None:
        """The larger the cluster, the longer the pauses: a third of the time at most goes into views."""
        loop = asyncio.get_running_loop()
        while True:
            begun = loop.time()
            await self.refresh_view()
            await asyncio.sleep(max(_REFRESH_SECONDS, 2 * (loop.time() - begun)))

    async def refresh_view(self) -> None:
        """Take the cluster as it is now. View and table are made in a thread, so that keys are answered meanwhile."""
        given = self._setup.source.current()
        if given is not None:
            placements, recorded = self._assessment.placements, self._recent.decisions
            self._given = replace(given, placements=placements, recorded=recorded)
            view, tab = ConsoleView(self._given), self._tab
            table = await asyncio.to_thread(TABS[tab], view, self._setup.options)
            self._view = view
            self._prices.append(view.price_per_hour)
            self._pending.append(view.pods.pending)
            self._draw_summary(view)
            if tab == self._tab:
                self._table().show(table)
        self._draw_status()

    def _draw_summary(self, view: ConsoleView) -> None:
        lines = summary_lines(view, self._setup.options, self._assessment.bound_per_hour)
        lines.append(self._timeline(unpriced_text(view, self._setup.options)))
        self._summary.update(Text("\n", no_wrap=True, overflow="ellipsis").join(lines))

    def _timeline(self, unpriced: str) -> Text:
        """Price and pending pods over the last minutes, with a history over the last day; and what the price leaves out."""
        pending, prices = self._recent.pending or self._pending, self._recent.prices or self._prices
        parts = [("pending ", "dim"), (sparkline(pending, _SPARK_CELLS), "yellow")]
        if self._setup.options.shows_prices:
            parts += [("  $/h ", "dim"), (sparkline(prices, _SPARK_CELLS), "green")]
        return Text.assemble(*parts, (f"  {unpriced}" if unpriced else "", "dim"))

    def _draw_table(self) -> None:
        """The open tab; the others are drawn when they open."""
        if self._view is not None:
            self._table().show(TABS[self._tab](self._view, self._setup.options))

    def _draw_status(self) -> None:
        fault = "; ".join(filter(None, (self._setup.source.fault(), self._history_fault)))
        order = self._table().order_text
        parts = [self._setup.source.title, f"sorted {order}" if order else "", fault]
        text = Text("   ".join(part for part in parts if part), style="red" if fault else "", no_wrap=True)
        self._status.update(text)

    async def _keep_assessing(self) -> None:
        while True:
            if self._given is not None:
                self._assessment = await asyncio.to_thread(assess, self._given, self._setup.decision_options)
                await self.refresh_view()
                self._is_assessed = True
            await asyncio.sleep(_ASSESSMENT_PAUSE_SECONDS if self._given is not None else _REFRESH_SECONDS)

    async def _keep_history(self) -> None:
        """What the history says; where it cannot be had, the last of it, and why."""
        while True:
            try:
                self._recent = await asyncio.to_thread(self._setup.history.recent)
                self._history_fault = ""
            except HistoryUnavailable as error:
                self._history_fault = f"no history: {error}"
            self._is_history_read = True
            await asyncio.sleep(_HISTORY_SECONDS)

    @property
    def is_complete(self) -> bool:
        """Whether the cluster is on the screen, with reasons and bound."""
        return self._view is not None and self._is_assessed and self._is_history_read

    # -- actions ---------------------------------------------------------------------------------------------------

    @property
    def _tab(self) -> str:
        return self._tabs.active or next(iter(TABS))

    def _table(self) -> LiveTable:
        return self._tables[self._tab]

    def on_tabbed_content_tab_activated(self) -> None:
        """A tab was chosen, with a key or a click; keys are those of its table then, unless somebody types a search."""
        if not self._search.has_focus:
            self._table().focus()
        self._draw_table()
        self._table().search(self._search.value)
        self._draw_status()

    def action_tab(self, title: str) -> None:
        """Choose a tab."""
        self._tabs.active = title
        self._table().focus()

    def action_next_tab(self) -> None:
        """Choose the tab after this one."""
        titles = list(TABS)
        self.action_tab(titles[(titles.index(self._tab) + 1) % len(titles)])

    def action_search(self) -> None:
        """Open the search."""
        self._search.add_class("open")
        self._search.focus()

    def action_end_search(self) -> None:
        """Close the search and show all rows."""
        self._search.value = ""
        self._search.remove_class("open")
        self._table().focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Search while typing."""
        self._table().search(event.value)

    def on_input_submitted(self) -> None:
        """Keep the search, and go back to the rows."""
        self._table().focus()

    def action_sort(self) -> None:
        """Sort by the next column."""
        self._table().sort_by_next()
        self._draw_status()

    def action_reverse(self) -> None:
        """Turn the order around."""
        self._table().reverse()
        self._draw_status()

    def on_live_table_chosen(self) -> None:
        """A row was chosen."""
        self.action_explain()

    def action_help(self) -> None:
        """Show the help."""
        self.push_screen(TextWindow("karpenter top", HELP))

    def action_explain(self) -> None:
        """Explain the node or pod under the cursor."""
        row = self._table().selected_row
        if row is None or not row.explains or self._given is None:
            return
        window = TextWindow(f"karpenter explain {row.explains.replace('/', ' ', 1)}", "computing ...")
        self.push_screen(window)
        self.run_worker(
            self._explain(window, row.explains, self._given), name="explanation", exclusive=True, group="explain"
        )

    async def _explain(self, window: TextWindow, subject: str, given: ConsoleInput) -> None:
        text = await asyncio.to_thread(explain, given, subject, self._setup.decision_options)
        if window.is_attached:
            window.show(text)

    def action_picture(self) -> None:
        """Write the screen as an SVG file."""
        directory = self._setup.snapshot_directory
        try:
            path = self.save_screenshot(path=str(directory))
        except OSError as error:
            self.notify(f"no picture: {directory} cannot be written ({error.strerror})", severity="error")
        else:
            self.notify(f"picture: {path}")
