"""The result of ``karpenter simulate`` as one HTML page that needs nothing else: tables, charts and the data behind them.

uPlot draws the charts in the browser (MIT licence, beside it in ``simulation_page``), from the same JSON as ``-o json`` prints.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from importlib import resources
from string import Template

from karpenter.cli import render_simulation
from karpenter.cli.render_common import to_json
from karpenter.cli.render_sections import Section
from karpenter.cli.simulate_runner import SimulationResult
from karpenter.model.texts import days_text

_FILES = resources.files("karpenter.cli") / "simulation_page"


def html_page(result: SimulationResult) -> str:
    """The page."""
    head = result.reports[0][0]
    return Template(_file("page.html")).substitute(
        title=escape(f"{head.workload}: {days_text(head.days)}"),
        style=_file("page.css"),
        library_style=_file("uPlot.min.css"),
        library=_file("uPlot.iife.min.js"),
        script=_file("page.js"),
        tables="\n".join(map(_table, render_simulation.sections(result))),
        closing="\n".join(f"<p>{escape(line)}</p>" for line in render_simulation.closing_lines(result)),
        # In a script element only this sequence would end the data.
        data=to_json(render_simulation.document(result)).replace("</", "<\\/"),
    )


def _file(name: str) -> str:
    return (_FILES / name).read_text(encoding="utf-8")


def _table(section: Section) -> str:
    rows = "\n".join(_row("td", cells) for cells in section.rows)
    heading = f"<thead>{_row('th', section.heading)}</thead>"
    return f"<section><h2>{escape(section.title)}</h2>\n<table>{heading}\n<tbody>{rows}</tbody></table></section>"


def _row(element: str, cells: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<{element}>{escape(cell)}</{element}>' for cell in cells)}</tr>"
