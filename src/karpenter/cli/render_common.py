"""What all renderers share: the console, widths, counts and names in words, JSON and YAML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from io import StringIO
from typing import TYPE_CHECKING, TextIO

import msgspec

from karpenter.api.core import Pod

if TYPE_CHECKING:  # pages for programs need none of it, and loading it takes 0.02 s
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

Json = dict[str, object]
#: Columns of a page that goes to no terminal, and of one that is made for searching: one line per fact.
PAGE_WIDTH = 80
SEARCHABLE_WIDTH = 4096
#: Columns of ``-o wide``.
WIDE_WIDTH = 160
#: Entries shown of each part of the page.
SHOWN_ENTRIES = 20
_SHOWN_NAMES = 3


def pod_name(pod: Pod) -> str:
    """``namespace/name``."""
    return f"{pod.metadata.namespace}/{pod.metadata.name}"


def to_json(data: object) -> str:
    """Indented JSON of plain data, ending in a newline."""
    return msgspec.json.format(msgspec.json.encode(data), indent=2).decode() + "\n"


class WidePage(StringIO):
    """A page of ``-o wide``: the text goes to no terminal yet and has longer lines."""


def console_for(out: TextIO, plain_width: int) -> Console:
    """A console for pages: plain and of a fixed width unless the output is a terminal."""
    from rich.console import Console

    terminal = out.isatty()
    if isinstance(out, WidePage):
        plain_width = max(plain_width, WIDE_WIDTH)
    return Console(
        file=out,
        force_terminal=terminal,
        no_color=None if terminal else True,
        width=None if terminal else plain_width,
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=False,
    )


def print_table(table: Table, out: TextIO, plain_width: int) -> None:
    """Print a table; without a terminal its lines do not end in blanks."""
    if out.isatty():
        console_for(out, plain_width).print(table)
        return
    page = StringIO()
    console_for(page, plain_width).print(table)
    out.writelines(f"{line.rstrip()}\n" for line in page.getvalue().splitlines())


def print_line(console: Console, line: Text | str) -> None:
    """Print sentences, one per line. A terminal breaks them between words and keeps their indent; long names stay whole."""
    from rich.text import Text

    text = Text(line) if isinstance(line, str) else line
    if not console.is_terminal:
        console.print(text, soft_wrap=True)
        return
    for part in text.split("\n", allow_blank=True):
        indent = len(part.plain) - len(part.plain.lstrip(" "))
        words = part[indent:]
        for row in words.divide(_line_breaks(words.plain, console.width - indent)):
            row.rstrip()
            console.print(Text.assemble(" " * indent, row), soft_wrap=True)


def _line_breaks(text: str, width: int) -> Iterator[int]:
    """Where new lines begin. rich would cut a name that is longer than a line, or break nothing at all."""
    begin = 0
    for word in re.finditer(r"\S+", text):
        if word.end() - begin > width and word.start() > begin:
            begin = word.start()
            yield begin


def markdown_cell(text: str) -> str:
    """A text inside a table or a list item of Markdown."""
    return text.replace("|", "\\|").replace("\n", " ")


def markdown_row(cells: Iterable[str]) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(map(markdown_cell, cells))} |"


def truncate(text: str, width: int) -> str:
    """The text, cut to a width."""
    return text if len(text) <= width else text[: width - 2] + ".."


def short_resource_name(resource: str) -> str:
    """A resource's name without its domain."""
    return resource.rpartition("/")[2]


def ratio_text(ratio: float | None) -> str:
    """A ratio in a table; a dash where there is none."""
    return "\N{EN DASH}" if ratio is None else f"{ratio:.3f}"


def names_text(names: Sequence[str], shown: int = _SHOWN_NAMES) -> str:
    """The first few names, and how many more there are."""
    rest = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {rest} more" if rest > 0 else "")
