"""Where the fields of a manifest stand in its file, and the comments beside them.

Decoding a manifest loses both, and a finding without its line is hard to act on. The file is parsed a second time for its
positions only. Paths are written as in findings: ``spec.disruption.budgets[0].schedule``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import yaml

from karpenter.model.structural_schema import child_path

#: The last step of a path: ``.name``, ``[0]``, ``[a.name/with-dots]``; or a name alone.
_LAST_STEP = re.compile(r"(?:\.\w+|\[[^\[\]]*\]|^\w+)$", re.ASCII)


@dataclass(frozen=True, slots=True)
class LineSpan:
    """Lines of a file, from 1, both ends included."""

    first: int
    last: int

    def contains(self, line: int) -> bool:
        """Whether a line is one of them."""
        return self.first <= line <= self.last


@dataclass(frozen=True, slots=True)
class FileComments:
    """The comments of a file by their lines. ``alone``: lines with nothing but a comment."""

    texts: Mapping[int, str] = field(default_factory=dict)
    alone: frozenset[int] = frozenset()

    def about(self, span: LineSpan) -> str:
        """What is said within some lines, at their ends, and in the comment lines right above them."""
        first = span.first
        while first - 1 in self.alone:
            first -= 1
        return " ".join(text for line in range(first, span.last + 1) if (text := self.texts.get(line)))


@dataclass(frozen=True, slots=True)
class SourceMap:
    """One document of a file: the lines of each of its fields, by path. The empty path is the document."""

    spans: Mapping[str, LineSpan] = field(default_factory=dict)
    comments: FileComments = FileComments()

    def span(self, path: str) -> LineSpan:
        """The lines of a field, or of the nearest field around it that is written."""
        while path and path not in self.spans:
            path = parent_path(path)
        return self.spans.get(path, LineSpan(1, 1))

    def comment(self, path: str) -> str:
        """What comments say about a field that is written; empty where it is not."""
        return self.comments.about(self.spans[path]) if path in self.spans else ""


def parent_path(path: str) -> str:
    """The path without its last step; empty at the end."""
    shorter = _LAST_STEP.sub("", path)
    return shorter if shorter != path else ""


def source_maps(content: bytes) -> list[SourceMap]:
    """One for each document of a YAML or JSON text, in order. A text that is malformed has those up to the fault."""
    text = content.decode(errors="replace")
    roots = list(_roots(text))
    comments = _comments(text, [span for root in roots if root is not None for span in _scalar_ranges(root)])
    return [SourceMap(dict(_spans(root)) if root is not None else {}, comments) for root in roots]


def _roots(text: str) -> Iterator[yaml.Node | None]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
    try:
        while loader.check_node():
            yield loader.get_node()
    except (yaml.YAMLError, RecursionError):
        return
    finally:
        loader.dispose()


def _spans(root: yaml.Node) -> Iterator[tuple[str, LineSpan]]:
    open_nodes: list[tuple[str, int, yaml.Node]] = [("", root.start_mark.line + 1, root)]
    seen: set[int] = set()
    while open_nodes:
        path, first, node = open_nodes.pop()
        yield path, LineSpan(first, _last_line(node))
        if id(node) in seen:
            continue  # what an alias stands for is in one place only
        seen.add(id(node))
        open_nodes.extend(_children(path, node))


def _children(path: str, node: yaml.Node) -> Iterator[tuple[str, int, yaml.Node]]:
    if isinstance(node, yaml.SequenceNode):
        for index, element in enumerate(node.value):
            yield f"{path}[{index}]", element.start_mark.line + 1, element
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                yield child_path(path, key.value), key.start_mark.line + 1, value


def _last_line(node: yaml.Node) -> int:
    """The last line with something of the node; the parser ends a block where the next thing begins."""
    while isinstance(node, yaml.CollectionNode) and node.value and not node.flow_style:
        last = node.value[-1]
        node = last[1] if isinstance(last, tuple) else last
    end = node.end_mark
    is_before_line = end.column == 0 and end.line > node.start_mark.line
    return int(end.line) + (0 if is_before_line else 1)


_Position = tuple[int, int]


def _scalar_ranges(root: yaml.Node) -> Iterator[tuple[_Position, _Position]]:
    """Where texts stand, from 0: a hash in them begins no comment."""
    nodes, seen = [root], {id(root)}
    for node in nodes:
        if isinstance(node, yaml.ScalarNode):
            start, end = node.start_mark, node.end_mark
            yield (start.line, start.column), (end.line, end.column)
            continue
        inner = [part for pair in node.value for part in (pair if isinstance(pair, tuple) else (pair,))]
        for child in inner:
            if id(child) not in seen:
                seen.add(id(child))
                nodes.append(child)


def _comments(text: str, scalars: list[tuple[_Position, _Position]]) -> FileComments:
    if "#" not in text:
        return FileComments()
    by_line: dict[int, list[tuple[_Position, _Position]]] = {}
    for start, end in scalars:
        for line in range(start[0], end[0] + 1):
            by_line.setdefault(line, []).append((start, end))
    texts: dict[int, str] = {}
    alone: set[int] = set()
    for number, line_text in enumerate(text.splitlines()):
        column = _comment_column(number, line_text, by_line.get(number, []))
        if column is not None:
            texts[number + 1] = line_text[column + 1 :].strip()
            if not line_text[:column].strip():
                alone.add(number + 1)
    return FileComments(texts, frozenset(alone))


def _comment_column(number: int, line: str, scalars: list[tuple[_Position, _Position]]) -> int | None:
    for match in re.finditer(r"(?:^|(?<=\s))#", line):
        place = (number, match.start())
        if not any(start <= place < end for start, end in scalars):
            return match.start()
    return None
