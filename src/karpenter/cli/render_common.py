"""TODO: say what belongs here."""

from __future__ import annotations

from typing import TextIO

import msgspec
from rich.console import Console

from karpenter.api.core import Pod


def pod_name(pod: Pod) -> str:
    """``namespace/name``."""
    return f"{pod.metadata.namespace}/{pod.metadata.name}"


def to_json(data: Json) -> str:
    """Indented JSON of plain data, ending in a newline."""
    return msgspec.json.format(msgspec.json.encode(data), indent=2).decode() + "\n"


def to_yaml(data: Json) -> str:
    """YAML of plain data, members in their order."""
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    dumper = type("_Plain", (dumper,), {"ignore_aliases": lambda *_: True})
    return str(yaml.dump(data, Dumper=dumper, sort_keys=False, default_flow_style=False, width=120))


#: Columns of a page that goes to no terminal.
PAGE_WIDTH = 80
#: Entries shown of each part of the page.
SHOWN_ENTRIES = 20


def console_for(out: TextIO, plain_width: int) -> Console:
    """Where pages are written: plain and of a fixed width unless it is a terminal."""
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


def truncate(text: str, width: int) -> str:
    """The text, its end left out where it is wider than that."""
    return text if len(text) <= width else text[: width - 2] + ".."


def short_resource_name(resource: str) -> str:
    """A resource's name without its domain."""
    return resource.rpartition("/")[2]


def count_text(count: int, noun: str) -> str:
    """The noun with its number."""
    return f"{count} {noun}" + ("" if count == 1 else "s")


Json = dict[str, object]
