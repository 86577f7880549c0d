"""Titled tables, one under the other, as a page and as Markdown: the reports of simulations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TextIO

from rich.table import Table
from rich.text import Text

from karpenter.cli.render_common import SEARCHABLE_WIDTH, Json, console_for, markdown_row, print_line, print_table
from karpenter.simulator.policy_comparison import Estimate


@dataclass(frozen=True, slots=True)
class Section:
    """A titled table of text; the first column is aligned left."""

    title: str
    heading: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def write_sections(sections: Iterable[Section], closing_lines: Iterable[str], out: TextIO) -> None:
    """The page for people: the tables, then sentences."""
    console = console_for(out, SEARCHABLE_WIDTH)
    for number, section in enumerate(sections):
        print_line(console, f"\n{section.title}" if number else section.title)
        print_table(_table_of(section), out, SEARCHABLE_WIDTH)
    for line in closing_lines:
        print_line(console, f"\n{line}")


def sections_markdown(sections: Iterable[Section], closing_lines: Iterable[str]) -> str:
    """The same as Markdown."""
    tables = "\n".join(_markdown_section(section) for section in sections)
    return tables + "".join(f"\n{line}\n" for line in closing_lines)


def with_confidence(text: str, estimate: Estimate) -> str:
    """A mean, and how far it may be off; several seeds tell that."""
    return text if estimate.half_width is None else f"{text} ± {estimate.half_width:,.1f}"


def estimate_document(estimate: Estimate) -> Json:
    """A mean with the half width of its 95 % confidence interval, None for a single seed; for JSON."""
    half_width = None if estimate.half_width is None else round(estimate.half_width, 2)
    return {"mean": round(estimate.mean, 2), "confidence95": half_width}


def _table_of(section: Section) -> Table:
    table = Table(box=None, padding=(0, 0, 0, 2), header_style="dim")
    for number, heading in enumerate(section.heading):
        table.add_column(heading, justify="right" if number else "left", overflow="fold")
    for cells in section.rows:
        table.add_row(*map(Text, cells))
    return table


def _markdown_section(section: Section) -> str:
    rule = [":---", *["---:"] * (len(section.heading) - 1)]
    lines = [f"### {section.title}", "", *(markdown_row(cells) for cells in (section.heading, rule, *section.rows))]
    return "\n".join([*lines, ""])
