"""Objects as YAML documents that every reader of Kubernetes manifests reads alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import yaml

from karpenter.api.plain_yaml import is_text_everywhere

_WIDTH = 10_000


class _ManifestDumper(yaml.SafeDumper):
    """Writes lists indented, several lines as a block, number-like texts in quotes, and no aliases."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None if is_text_everywhere(text) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_ManifestDumper.add_representer(str, _represent_text)


def manifests_yaml(objects: Iterable[Mapping[str, object]]) -> str:
    """The objects, keys in their order, separated by ``---``."""
    texts = [
        yaml.dump(dict(content), Dumper=_ManifestDumper, sort_keys=False, width=_WIDTH, allow_unicode=True)
        for content in objects
    ]
    return "---\n".join(texts)
