"""Plain data as YAML."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import yaml

#: Texts that some reader of YAML takes for something else although PyYAML does not: 1e3, 0o17, 12_000, and y, which is true in
#: YAML 1.1, as kubectl reads it.
_NO_TEXT_ELSEWHERE = re.compile(r"[-+]?(0[xob][0-9a-f_]+|[\d_.]*\d[\d_.]*(e[-+]?\d+)?)|[yn]", re.ASCII | re.IGNORECASE)


_TEXT = "tag:yaml.org,2002:str"


def is_text_everywhere(text: str) -> bool:
    """Whether every reader takes the text for one that PyYAML would not quote."""
    return not _NO_TEXT_ELSEWHERE.fullmatch(text)


def to_yaml(data: object) -> str:
    """One document, members in their order, every value in full: anchors would be legal, but are unusual in a manifest."""
    import yaml  # few commands write it, and loading it takes 0.01 s

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    dumper = type("_Plain", (dumper,), {"ignore_aliases": lambda *_: True})
    dumper.add_representer(str, _represent_text)  # type: ignore[attr-defined]  # it is a Dumper
    return str(yaml.dump(data, Dumper=dumper, sort_keys=False, default_flow_style=False, width=120))


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    node = dumper.represent_scalar(_TEXT, text)
    # What PyYAML takes for no text it quotes itself.
    is_plain = dumper.resolve(type(node), text, (True, False)) == _TEXT  # type: ignore[no-untyped-call]
    return dumper.represent_scalar(_TEXT, text, style='"') if is_plain and not is_text_everywhere(text) else node
