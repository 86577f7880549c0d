"""YAML as Kubernetes reads it, and what it refuses: keys that stand twice, and aliases that blow a document up."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import yaml

from karpenter.model.bounded_yaml import YamlNodeError, check_aliases, distinct_nodes, place_of

_MERGE_TAG = "tag:yaml.org,2002:merge"
#: Lists of which people write two, when they put manifests together.
JOINED_KEYS = frozenset({"requirements", "taints", "startupTaints"})


@dataclass(frozen=True, slots=True)
class DuplicateKey:
    """A key that stood twice in a mapping, and what became of its values."""

    path: str
    text: str


def check_nodes(root: yaml.Node | None) -> None:
    """Raises ``YamlNodeError`` where a mapping has a key twice, or where aliases add too much or contain themselves."""
    if root is None:
        return
    check_aliases(root)
    for node in distinct_nodes(root):
        if isinstance(node, yaml.MappingNode):
            _check_keys(node)


def merge_duplicate_keys(node: yaml.Node, path: str = "") -> Iterator[DuplicateKey]:
    """Make every key stand once: lists that pools are made of are joined, of other values the last one stays (API-829)."""
    if isinstance(node, yaml.SequenceNode):
        for index, element in enumerate(node.value):
            yield from merge_duplicate_keys(element, f"{path}[{index}]")
    if isinstance(node, yaml.MappingNode):
        merged: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for key, value in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE_TAG else f"{place_of(key)}"
            if name in merged:
                yield _merged_value(merged, name, (key, value), f"{path}.{name}".lstrip("."))
            else:
                merged[name] = (key, value)
        node.value = list(merged.values())
        for name, (_, value) in merged.items():
            yield from merge_duplicate_keys(value, f"{path}.{name}".lstrip("."))


def _merged_value(
    merged: dict[str, tuple[yaml.Node, yaml.Node]], name: str, second: tuple[yaml.Node, yaml.Node], path: str
) -> DuplicateKey:
    first_key, first = merged[name]
    lines = f"lines {first_key.start_mark.line + 1} and {second[0].start_mark.line + 1}"
    if name in JOINED_KEYS and isinstance(first, yaml.SequenceNode) and isinstance(second[1], yaml.SequenceNode):
        first.value = [*first.value, *second[1].value]
        return DuplicateKey(path, f"key {name!r} stands twice ({lines}); both lists are joined")
    merged[name] = second
    return DuplicateKey(path, f"key {name!r} stands twice ({lines}); the last value is taken")


def _check_keys(mapping: yaml.MappingNode) -> None:
    first: dict[str, yaml.Node] = {}
    for key, _ in mapping.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE_TAG:
            continue
        if key.value in first:
            before = first[key.value].start_mark.line + 1
            raise YamlNodeError(
                f"{place_of(key)}: key {key.value!r} stands there a second time (before in line {before}); "
                "the first value would be lost; keep one"
            )
        first[key.value] = key


@cache
def kubernetes_yaml_loader() -> type[yaml.SafeLoader]:
    """libyaml's safe loader without what Kubernetes' YAML does not have: dates, base-60 numbers, infinities."""

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        pass

    dropped = {f"tag:yaml.org,2002:{name}" for name in ("timestamp", "value", "int", "float")}
    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in dropped]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    whole = re.compile(r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0[0-7_]*|[1-9][0-9_]*)$")
    broken = re.compile(r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+][0-9]+)?$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:int", whole, list("-+0123456789"))
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", broken, list("-+.0123456789"))
    return Loader
