"""Objects as YAML documents that every reader of Kubernetes manifests reads alike."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import yaml

#: Texts that some YAML reader takes for a number although PyYAML does not: 1e3, 0o17, 12_000.
_NUMBER_LIKE = re.compile(r"[-+]?(0[xob][0-9a-f_]+|[\d_.]*\d[\d_.]*(e[-+]?\d+)?)", re.ASCII | re.IGNORECASE)
_WIDTH = 10_000


class _ManifestDumper(yaml.SafeDumper):
    """Writes lists indented, several lines as a block, number-like texts in quotes, and no aliases."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else '"' if _NUMBER_LIKE.fullmatch(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_ManifestDumper.add_representer(str, _represent_text)


def manifests_yaml(objects: Iterable[Mapping[str, object]]) -> str:
    """The objects, keys in their order, separated by ``---``."""
    texts = [
        yaml.dump(dict(content), Dumper=_ManifestDumper, sort_keys=False, width=_WIDTH, allow_unicode=True)
        for content in objects
    ]
    return "---\n".join(texts)
