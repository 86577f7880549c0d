"""A table on the screen that follows its data: it keeps cursor, order and search while rows come, change and go.

Only the rows on the screen are drawn, so a cluster of thousands of nodes costs no more to draw than one of fifty.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.style import Style
from rich.text import Text
from textual.binding import Binding
from textual.events import Click
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from karpenter.cli.top_cells import Cell, TableData, TableRow
from karpenter.cli.top_options import ViewerStyle

_GAP = 2
#: A message may be long: what a column shows of it. The explanation shows all.
_MOST_COLUMN_CELLS = 120
_HORIZONTAL_STEP = 10
_CURSOR_STYLE = "bold on #1f4e79"


class LiveTable(ScrollView, can_focus=True):
    """Shows a ``TableData`` below a line of titles."""

    class Chosen(Message):
        """Enter, or a click on the row under the cursor."""

    BINDINGS = [
        Binding("up", "move(-1)", "Up", show=False),
        Binding("down", "move(1)", "Down", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("pagedown", "page(1)", "Page down", show=False),
        Binding("home", "first", "First", show=False),
        Binding("end", "last", "Last", show=False),
        Binding("left", "sideways(-1)", "Left", show=False),
        Binding("right", "sideways(1)", "Right", show=False),
        Binding("enter", "choose", "Explain"),
    ]
    DEFAULT_CSS = "LiveTable { height: 1fr; }"

    def __init__(self, name: str, style: ViewerStyle) -> None:
        super().__init__(id=f"table-{name.lower()}")
        self._bar_style = style
        self._table_data = TableData()
        self._rows: list[TableRow] = []
        self._widths: list[int] = []
        self._cursor = 0
        self._words: list[str] = []
        #: The column that rows are sorted by; None for the order of the data.
        self._sort_column: int | None = None
        self._is_reversed = False

    # -- what is asked for ---------------------------------------------------------------------------------------------------

    def show(self, data: TableData) -> None:
        """Show this data from now on."""
        self._table_data = data
        self._arrange()

    def search(self, text: str) -> None:
        """Show only rows with all of these words."""
        self._words = text.lower().split()
        self._arrange()

    def sort_by(self, column: int) -> None:
        """Sort by a column; again by the same one reverses the order."""
        self._is_reversed = not self._is_reversed if column == self._sort_column else False
        self._sort_column = column
        self._arrange()

    def sort_by_next(self) -> None:
        """Sort by the column after the present one; after the last the rows are in their own order again."""
        following = 0 if self._sort_column is None else self._sort_column + 1
        self._sort_column = following if following < len(self._table_data.columns) else None
        self._is_reversed = False
        self._arrange()

    def reverse(self) -> None:
        """Turn the order around."""
        self._is_reversed = not self._is_reversed
        self._arrange()

    @property
    def order_text(self) -> str:
        """What rows are sorted by, for the status line; empty for the order of the data."""
        if self._sort_column is None or self._sort_column >= len(self._table_data.columns):
            return "in reverse" if self._is_reversed else ""
        return f"by {self._table_data.columns[self._sort_column]}" + (" in reverse" if self._is_reversed else "")

    @property
    def rows(self) -> Sequence[TableRow]:
        """The rows in the order they have on the screen."""
        return self._rows

    @property
    def selected_row(self) -> TableRow | None:
        """The row under the cursor."""
        return self._rows[self._cursor] if self._cursor < len(self._rows) else None

    # -- rows and columns ---------------------------------------------------------------------------------------------------

    def _arrange(self) -> None:
        """Search, sort, and put the cursor on the object it was on."""
        selected = self.selected_row
        self._rows = self._wanted_rows()
        self._widths = _column_widths(self._table_data.columns, self._rows)
        self.virtual_size = Size(sum(self._widths) + _GAP * len(self._widths), len(self._rows) + 1)
        if selected is not None and self._cursor:  # on the first row it stays there
            keys = (at for at, row in enumerate(self._rows) if row.key == selected.key)
            self._cursor = next(keys, min(self._cursor, max(0, len(self._rows) - 1)))
        self.refresh()

    def _wanted_rows(self) -> list[TableRow]:
        rows = [row for row in self._table_data.rows if not self._words or _has_words(row, self._words)]
        column = self._sort_column
        if column is not None and column < len(self._table_data.columns):
            rows.sort(key=lambda row: row.cells[column].sort_value)
        return rows[::-1] if self._is_reversed else rows

    # -- drawing ---------------------------------------------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        """The titles on the first line, then the rows from the scroll position on."""
        left, top = self.scroll_offset
        number = top + y - 1
        if y == 0:
            text = self._titles()
        elif number < len(self._rows):
            text = self._row_text(number)
        else:
            return Strip.blank(self.size.width, self.rich_style)
        strip = Strip(text.render(self.app.console)).apply_style(self.rich_style + Style())
        return strip.crop_extend(left, left + self.size.width, self.rich_style)

    def _titles(self) -> Text:
        parts = []
        for at, (title, width) in enumerate(zip(self._table_data.columns, self._widths, strict=True)):
            mark = ("▲" if self._is_reversed else "▼") if at == self._sort_column else ""
            parts.append(f"{title}{mark}".ljust(width + _GAP))
        return Text("".join(parts), "bold", end="", no_wrap=True)

    def _row_text(self, number: int) -> Text:
        text = Text(end="", no_wrap=True)
        for cell, width in zip(self._rows[number].cells, self._widths, strict=True):
            text.append_text(_cut(cell).drawn(width, self._bar_style))
            text.append(" " * _GAP)
        if number == self._cursor:
            text.pad_right(max(0, self.size.width - text.cell_len))
            text.stylize_before(_CURSOR_STYLE if self.has_focus else "underline")
        return text

    # -- keys and mouse ---------------------------------------------------------------------------------------------------

    def action_move(self, rows: int) -> None:
        """Move the cursor by so many rows."""
        self._cursor = max(0, min(len(self._rows) - 1, self._cursor + rows))
        self._show_cursor()

    def action_page(self, pages: int) -> None:
        """Move the cursor by so many screens."""
        self.action_move(pages * max(1, self.size.height - 2))

    def action_first(self) -> None:
        """Go to the first row."""
        self.action_move(-len(self._rows))

    def action_last(self) -> None:
        """Go to the last row."""
        self.action_move(len(self._rows))

    def action_sideways(self, steps: int) -> None:
        """Show columns further right or left."""
        self.scroll_to(x=self.scroll_offset.x + steps * _HORIZONTAL_STEP, animate=False)

    def action_choose(self) -> None:
        """Choose the row under the cursor."""
        self.post_message(self.Chosen())

    def on_click(self, event: Click) -> None:
        """A click on a title sorts; on a row it moves the cursor, and on the row under the cursor it chooses."""
        if event.y == 0:
            column = _column_at(event.x + self.scroll_offset.x, self._widths)
            if column is not None:
                self.sort_by(column)
            return
        number = self.scroll_offset.y + event.y - 1
        if number == self._cursor:
            self.action_choose()
        elif number < len(self._rows):
            self._cursor = number
            self.refresh()

    def _show_cursor(self) -> None:
        top, room = self.scroll_offset.y, max(1, self.size.height - 1)
        if self._cursor < top:
            self.scroll_to(y=self._cursor, animate=False)
        elif self._cursor >= top + room:
            self.scroll_to(y=self._cursor - room + 1, animate=False)
        self.refresh()


def _has_words(row: TableRow, words: list[str]) -> bool:
    text = row.search_text
    return all(word in text for word in words)


def _column_widths(titles: Sequence[str], rows: Sequence[TableRow]) -> list[int]:
    """The width of the widest cell of each column; a title has room for the mark of the order."""
    widest = [max((row.cells[at].width for row in rows), default=0) for at in range(len(titles))]
    return [max(len(title) + 1, min(_MOST_COLUMN_CELLS, width)) for title, width in zip(titles, widest, strict=True)]


def _column_at(x: int, widths: Sequence[int]) -> int | None:
    for at, width in enumerate(widths):
        if x < width + _GAP:
            return at
        x -= width + _GAP
    return None


def _cut(cell: Cell) -> Cell:
    if len(cell.text) <= _MOST_COLUMN_CELLS:
        return cell
    return cell._replace(text=cell.text[: _MOST_COLUMN_CELLS - 2] + "..")
