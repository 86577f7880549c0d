"""The values of ``-o`` / ``--output``, the same for every command that prints a page about objects.

``table`` is made for 80 columns, ``wide`` for a wide window, with the long forms of reasons; ``json`` and ``yaml`` carry
everything; ``markdown`` is for comments and tickets; ``name`` prints ``KIND.GROUP/NAME`` lines for other programs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from io import StringIO
from typing import Annotated, Literal, TextIO

import typer

from karpenter.api.plain_yaml import to_yaml
from karpenter.cli.render_common import Json, WidePage, to_json
from karpenter.cli.terminal import exit_on_closed_pipe, write_text

Output = Literal["table", "wide", "json", "yaml", "markdown", "name"]
OutputOption = Annotated[
    Output,
    typer.Option(
        "-o",
        "--output",
        help="table; wide: longer lines and reasons; json; yaml; markdown: for a pull request; name: one object per line.",
    ),
]

#: Code scanning has a format of its own for findings about lines of files.
LintOutput = Literal["table", "wide", "json", "yaml", "markdown", "name", "sarif"]
LintOutputOption = Annotated[
    LintOutput,
    typer.Option(
        "-o",
        "--output",
        help="table: one line per finding; wide: with its fix; json; yaml; markdown: for a pull request; name: the objects "
        "with findings; sarif: for code scanning.",
    ),
]


@dataclass(frozen=True, slots=True)
class Printable:
    """What a command can print. Only what is asked for is made.

    ``markdown``: by default the page as a block of text.
    """

    document: Callable[[], Json | list[object]]
    page: Callable[[TextIO], None]
    names: Callable[[], Iterable[str]]
    markdown: Callable[[], str] | None = None


def write_output(output: Output, printable: Printable) -> None:
    """Write to standard output what ``-o`` asks for."""
    match output:
        case "table":
            with exit_on_closed_pipe():
                printable.page(sys.stdout)
        case "wide":
            write_text(_page_text(printable, WidePage()))
        case "json":
            write_text(to_json(printable.document()))
        case "yaml":
            write_text(to_yaml(printable.document()))
        case "markdown" if printable.markdown is not None:
            write_text(printable.markdown())
        case "markdown":
            write_text(f"```text\n{_page_text(printable, StringIO())}```\n")
        case "name":
            write_text("".join(f"{name}\n" for name in printable.names()))


def _page_text(printable: Printable, out: StringIO) -> str:
    printable.page(out)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def nodeclaim_name(name: str) -> str:
    """A NodeClaim as ``-o name`` prints it, as kubectl does."""
    return f"nodeclaim.karpenter.sh/{name}"


def nodepool_name(name: str) -> str:
    """A NodePool as ``-o name`` prints it."""
    return f"nodepool.karpenter.sh/{name}"


def node_name(name: str) -> str:
    """A Node as ``-o name`` prints it."""
    return f"node/{name}"
