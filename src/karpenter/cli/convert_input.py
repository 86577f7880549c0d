"""The input of ``karpenter convert``: documents as people wrote them, mended on the way (API-816, API-829, API-839)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace

import yaml

from karpenter.cli.manifest_documents import (
    EXPECTED,
    MalformedDocument,
    SourceContent,
    what_was_expected,
    yaml_error_text,
)
from karpenter.cli.yaml_nodes import (
    JOINED_KEYS,
    DuplicateKey,
    kubernetes_yaml_loader,
    merge_duplicate_keys,
)
from karpenter.conversion.drafts import InputObject
from karpenter.conversion.json_fields import Json
from karpenter.conversion.notes import Note, NoteLevel
from karpenter.model.bounded_yaml import VALUE_ERRORS, YamlNodeError, check_aliases

#: A key whose value stands below it.
_KEY_ALONE = re.compile(r"[\w-]+:\s*(?:#.*)?")
_LOST_INDENTATION = "its indentation is lost: no line is indented; restore it from the schema of the kind"


def parse_input(part: SourceContent) -> Iterator[InputObject | MalformedDocument]:
    """Every object of a content, the items of lists among them."""
    documents = _json_document(part) if part.content.lstrip()[:1] == b"{" else None
    for parsed in _yaml_documents(part) if documents is None else documents:
        if isinstance(parsed, MalformedDocument):
            yield parsed
        else:
            yield from _objects(parsed)


def _objects(document: InputObject) -> Iterator[InputObject]:
    items = document.content.get("items")
    kind = str(document.content.get("kind", ""))
    if not isinstance(items, list) or not kind.endswith("List"):
        yield document
        return
    typed = {"apiVersion": document.content.get("apiVersion"), "kind": kind.removesuffix("List")}
    given: Json = {} if kind == "List" else typed
    for part in items:
        if isinstance(part, dict):
            yield from _objects(replace(document, content={**given, **part}))


def _json_document(part: SourceContent) -> list[InputObject | MalformedDocument] | None:
    """The one document of a JSON text; None where it is not JSON."""
    notes: list[Note] = []

    def merge(members: list[tuple[str, object]]) -> Json:
        merged: Json = {}
        for key, value in members:
            before = merged.get(key)
            if key in merged:
                notes.append(Note(NoteLevel.WARN, key, f"key {key!r} stands twice in one object"))
            joined = key in JOINED_KEYS and isinstance(before, list) and isinstance(value, list)
            merged[key] = [*before, *value] if joined else value  # type: ignore[misc]  # both are lists here
        return merged

    try:
        content = json.loads(part.content, object_pairs_hook=merge)
    except (ValueError, RecursionError):
        return None
    return [InputObject(f"{part.source}:1", content, tuple(notes))]


def _yaml_documents(part: SourceContent) -> Iterator[InputObject | MalformedDocument]:
    number = 1
    try:
        loader = kubernetes_yaml_loader()(part.content)
        while loader.check_node():
            document = _yaml_document(loader, f"{part.source}: document {number}", f"{part.source}:{number}")
            if document is not None:
                yield document
            number += 1
    except (yaml.YAMLError, *VALUE_ERRORS) as error:
        hint = _LOST_INDENTATION if _is_flat(part.content) else what_was_expected(part.content)
        yield MalformedDocument(f"{part.source}: document {number}: {yaml_error_text(error)}; {hint}")


def _yaml_document(loader: yaml.SafeLoader, place: str, origin: str) -> InputObject | MalformedDocument | None:
    node = loader.get_node()
    if node is None:
        return None
    line = node.start_mark.line + 1
    try:
        check_aliases(node)
    except YamlNodeError as error:
        return MalformedDocument(f"{place}: {error}")
    duplicates = list(merge_duplicate_keys(node))
    value = loader.construct_document(node)
    if value is None:
        return None
    if not isinstance(value, dict):
        return MalformedDocument(f"{place}: line {line}: {EXPECTED}")
    if _lost_its_indentation(value):
        return MalformedDocument(f"{place}: line {line}: {_LOST_INDENTATION}")
    return InputObject(origin, value, tuple(map(_note, duplicates)))


def _note(duplicate: DuplicateKey) -> Note:
    return Note(NoteLevel.WARN, duplicate.path, duplicate.text)


def _lost_its_indentation(content: Json) -> bool:
    """Whether a field of the metadata stands beside ``kind``, and the metadata is empty."""
    return "kind" in content and content.get("metadata", "") is None and "name" in content


def _is_flat(content: bytes) -> bool:
    """Whether no line is indented although a value stands below its key: flow style needs no indentation."""
    lines = [line for line in content.decode(errors="replace").splitlines() if line.strip()]
    return any(map(_KEY_ALONE.fullmatch, lines[:-1])) and not any(line[0].isspace() for line in lines)
