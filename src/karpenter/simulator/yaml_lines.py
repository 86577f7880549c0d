"""YAML files decoded into structures, with the line of whatever is wrong with them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import yaml

from karpenter.model.bounded_yaml import load_yaml_with_node, yaml_problem
from karpenter.model.texts import why_unreadable
from karpenter.simulator.workload import WorkloadError

T = TypeVar("T", bound=msgspec.Struct)
_PATH_OF_ERROR = re.compile(r"(?P<text>.*) - at `(?P<path>[^`]+)`", re.DOTALL)
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(?P<field>[^`]+)`(?: - at `(?P<path>[^`]+)`)?")
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\[\.\.\.\]")


def decode_yaml(content: bytes, source: str, wanted: type[T], kinds: Sequence[str] = ()) -> T:
    """The structure in a YAML file. Raises ``WorkloadError`` with ``source``, the line and what is expected there."""
    try:
        data, root = load_yaml_with_node(content)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}: " if mark is not None else ""
        raise WorkloadError(f"{source}: {line}cannot be read as YAML ({yaml_problem(error)})") from None
    if data is None:
        raise WorkloadError(f"{source}: nothing in it; expected a YAML object with the fields {_fields_of(wanted)}")
    try:
        return msgspec.convert(data, wanted)
    except msgspec.ValidationError as error:
        raise WorkloadError(f"{source}: {_explained(str(error), root, wanted, kinds)}") from None


def read_file(path: Path) -> bytes:
    """The content of a file. Raises ``WorkloadError``."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise WorkloadError(f"{path}: {why_unreadable(error)}; expected a YAML file") from None


def line_of(root: yaml.Node | None, path: str) -> int:
    """The line of a place such as ``$.workloads[2].cpu``; that of the innermost part that exists.

    ``[...]`` stands for any entry of a mapping: the first with the rest of the path counts.
    """
    nodes, line = [] if root is None else [root], 1
    for name, index in _STEP.findall(path):
        reached = [pair for node in nodes for pair in _children(node, name, index)]
        if not reached:
            return line
        nodes = [child for _, child in reached]
        if name or index:
            line = reached[0][0].start_mark.line + 1
    return line


def _children(node: yaml.Node, name: str, index: str) -> list[tuple[yaml.Node, yaml.Node]]:
    """What a step leads to from a node, each with the node whose line it has."""
    if isinstance(node, yaml.MappingNode):
        return [(key, value) for key, value in node.value if not name or key.value == name]
    if isinstance(node, yaml.SequenceNode) and index and int(index) < len(node.value):
        return [(node.value[int(index)],) * 2]
    return []


def _fields_of(wanted: type[msgspec.Struct]) -> str:
    return ", ".join(field.encode_name for field in msgspec.structs.fields(wanted))


def _explained(text: str, root: yaml.Node | None, wanted: type[msgspec.Struct], kinds: Sequence[str]) -> str:
    """The text with its line. ``wanted`` is what the whole file should be, ``kinds`` what its fields ``kind`` may say."""
    unknown = _UNKNOWN_FIELD.match(text)
    if unknown:
        path = f"{unknown['path'] or '$'}.{unknown['field']}"
        known = "" if unknown["path"] else f"; the fields are {_fields_of(wanted)}"
        return f"line {line_of(root, path)}: there is no field {unknown['field']!r}{known}"
    placed = _PATH_OF_ERROR.match(text)
    if placed:
        choice = f"; choose {', '.join(kinds)}" if kinds and placed["path"].endswith(".kind") else ""
        return f"line {line_of(root, placed['path'])}: {placed['path'].removeprefix('$.')}: {placed['text']}{choice}"
    return f"line 1: {text}"
