"""Suppressed findings: by an annotation of the object, or by a comment beside the field.

The annotation ``karpenter.sh/lint-ignore: KL001,KL002`` applies to the whole object. The same text in a comment applies to the
field that begins on its line, including everything in it. A comment on a line of its own applies to the field that begins on the
next line; above the first line of an object it applies to the object. ``*`` stands for all rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from karpenter.lint.rule import Match
from karpenter.lint.source_map import LineSpan, SourceMap
from karpenter.model import labels

_ID = r"(?:\*|KL\d+)"
_IN_COMMENT = re.compile(rf"{re.escape(labels.LINT_IGNORE)}\s*:\s*({_ID}(?:\s*,\s*{_ID})*)", re.IGNORECASE)
_ALL = "*"


def is_suppressed(match: Match, rule_id: str) -> bool:
    """Whether the object or a comment says that the rule does not count here."""
    written = match.where.annotations.get(labels.LINT_IGNORE, "")
    if _names(written, rule_id):
        return True
    line = match.line or match.where.span(match.path).first
    return any(span.contains(line) for span in _ignored_spans(match.where.map, rule_id))


def ignored_ids(text: str) -> frozenset[str]:
    """The IDs in a list such as ``KL001, KL002``."""
    return frozenset(part.strip().upper() for part in text.split(",") if part.strip())


def _names(text: str, rule_id: str) -> bool:
    ids = ignored_ids(text)
    return rule_id in ids or _ALL in ids


def _ignored_spans(source_map: SourceMap, rule_id: str) -> Iterator[LineSpan]:
    for line, text in source_map.comments.texts.items():
        match = _IN_COMMENT.search(text)
        if match is not None and _names(match[1], rule_id):
            target = line
            while target in source_map.comments.alone:
                target += 1
            yield LineSpan(line, max(line, _last_line_of(source_map, target)))


def _last_line_of(source_map: SourceMap, first: int) -> int:
    """The last line of the fields that begin on a line."""
    return max((span.last for span in source_map.spans.values() if span.first == first), default=first)
