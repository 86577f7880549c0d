"""The pieces of text that ``karpenter top`` is made of: bars, prices, ages, and tables as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from rich.cells import cell_len
from rich.text import Text

from karpenter.cli.top_options import ViewerStyle

#: What a row is sorted by in one column. Texts and numbers are not mixed in a column.
SortValue = str | float
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_SPARKS = "▁▂▃▄▅▆▇█"
#: Cells of a bar in a row.
ROW_BAR_CELLS = 8


class Cell(NamedTuple):
    """What a cell shows, and what its row is sorted by.

    ``share``: of a bar, which then stands before the text; None without one.
    """

    text: str
    sort_value: SortValue
    style: str = ""
    share: float | None = None
    is_number: bool = False

    @property
    def width(self) -> int:
        """Columns of the terminal it takes."""
        return cell_len(self.text) if self.share is None else len(self.text) + ROW_BAR_CELLS

    def drawn(self, width: int, style: ViewerStyle) -> Text:
        """The cell on a line of so many columns."""
        if self.share is not None:
            return Text.assemble(bar(self.share, ROW_BAR_CELLS, style), " " * (width - self.width))
        text = Text(self.text, self.style, no_wrap=True, end="")
        text.align("right" if self.is_number else "left", width)
        return text


class TableRow(NamedTuple):
    """``key`` names the row's object for as long as it lives. ``explains``: the subject of its explanation, empty without one."""

    key: str
    cells: tuple[Cell, ...]
    explains: str = ""

    @property
    def search_text(self) -> str:
        """What a search looks through, in lower case."""
        return " ".join(cell.text for cell in self.cells).lower()


@dataclass(frozen=True)
class TableData:
    """A table: the titles of its columns, and its rows in their default order."""

    columns: tuple[str, ...] = ()
    rows: tuple[TableRow, ...] = ()


def text_cell(text: str, style: str = "") -> Cell:
    """A cell of plain text. Control characters are left out: names and messages come from other people's objects."""
    shown = text if text.isprintable() else "".join(char if char.isprintable() else " " for char in text)
    return Cell(shown, shown, style)


def number_cell(text: str, number: float, style: str = "") -> Cell:
    """A cell that sorts by a number."""
    return Cell(text, number, style, is_number=True)


def price_cell(price_per_hour: float | None) -> Cell:
    """USD per hour with four decimals (OPS-802); unknown prices sort first."""
    return number_cell("-" if price_per_hour is None else f"${price_per_hour:.4f}", price_per_hour or 0.0)


def bar_cell(share: float) -> Cell:
    """A bar with its percentage."""
    return Cell(f" {share:4.0%}", share, share=share)


def bar(share: float, cells: int, style: ViewerStyle) -> Text:
    """A bar of so many cells, and the percentage; colored by OPS-800."""
    eighths = round(min(1.0, max(0.0, share)) * cells * 8)
    drawn = "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")
    return Text.assemble((drawn.ljust(cells), f"{style.color(share)} on grey23"), f" {share:4.0%}", no_wrap=True)


def sparkline(values: Sequence[float], cells: int) -> str:
    """The last values as bars of eight heights, the highest filling its cell; fewer values than cells draw fewer."""
    shown = list(values)[-cells:]
    highest = max(shown, default=0.0)
    if not highest:
        return _SPARKS[0] * len(shown)
    return "".join(_SPARKS[round(value / highest * (len(_SPARKS) - 1))] for value in shown)


def age_text(since: datetime | None, now: datetime) -> str:
    """How long ago, in the two largest units at most, as kubectl writes it: ``45s``, ``12m``, ``3h10m``, ``5d``."""
    if since is None:
        return "-"
    seconds = max(0, int((now - since) / timedelta(seconds=1)))
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if days >= 2:
        return f"{days}d"
    if hours >= 8:
        return f"{hours}h"
    if hours:
        return f"{hours}h{minutes % 60}m"
    return f"{minutes}m" if minutes >= 2 else f"{seconds}s"


def age_cell(since: datetime | None, now: datetime) -> Cell:
    """An age; the oldest sorts last."""
    return number_cell(age_text(since, now), (now - since).total_seconds() if since is not None else 0.0)
