"""What all renderers share: the console, widths, counts and names in words, and the choice of table, JSON or YAML."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from io import StringIO
from typing import Literal, TextIO

import msgspec
from rich.console import Console
from rich.table import Table

from karpenter.api.core import Pod
from karpenter.cli.terminal import exit_on_closed_pipe, write_text

Json = dict[str, object]
#: Values of ``--output``; text and table are the same.
Output = Literal["table", "json", "yaml"]
TextOutput = Literal["text", "table", "json", "yaml"]
#: Columns of a page that goes to no terminal, and of one that is made for searching: one line per fact.
PAGE_WIDTH = 80
SEARCHABLE_WIDTH = 4096
#: Entries shown of each part of the page.
SHOWN_ENTRIES = 20
_SHOWN_NAMES = 3


def pod_name(pod: Pod) -> str:
    """``namespace/name``."""
    return f"{pod.metadata.namespace}/{pod.metadata.name}"


def to_json(data: object) -> str:
    """Indented JSON of plain data, ending in a newline."""
    return msgspec.json.format(msgspec.json.encode(data), indent=2).decode() + "\n"


def to_yaml(data: Json) -> str:
    """YAML of plain data, members in their order."""
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    dumper = type("_Plain", (dumper,), {"ignore_aliases": lambda *_: True})
    return str(yaml.dump(data, Dumper=dumper, sort_keys=False, default_flow_style=False, width=120))


def write_output(output: TextOutput, document: Callable[[], Json], page: Callable[[TextIO], None]) -> None:
    """Write the page for people, or the document as JSON or YAML; only the one asked for is made."""
    if output in ("text", "table"):
        with exit_on_closed_pipe():
            page(sys.stdout)
    else:
        write_text(to_json(document()) if output == "json" else to_yaml(document()))


def console_for(out: TextIO, plain_width: int) -> Console:
    """A console for pages: plain and of a fixed width unless the output is a terminal."""
    terminal = out.isatty()
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


def truncate(text: str, width: int) -> str:
    """The text, cut to a width."""
    return text if len(text) <= width else text[: width - 2] + ".."


def short_resource_name(resource: str) -> str:
    """A resource's name without its domain."""
    return resource.rpartition("/")[2]


def names_text(names: Sequence[str], shown: int = _SHOWN_NAMES) -> str:
    """The first few names, and how many more there are."""
    rest = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {rest} more" if rest > 0 else "")


def count_text(count: int, noun: str) -> str:
    """The noun with its number."""
    return f"{count} {noun}" + ("" if count == 1 else "s")
