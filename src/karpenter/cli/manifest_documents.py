"""From files, directories and standard input to documents: each one object as JSON bytes, with where it stood.

JSON is passed on undecoded. YAML is read by libyaml with the plain types Kubernetes knows: what looks like a date or a time of
day stays text. Both end as JSON, so that there is one way to decode an object, whatever it was written in.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec

_SUFFIXES = frozenset({".yaml", ".yml", ".json"})
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_EXPECTED = "expected Kubernetes objects as YAML or JSON"
STDIN = "-"


@dataclass(frozen=True, slots=True)
class ManifestDocument:
    """One document of a source: ``number`` counts from 1, ``data`` is JSON."""

    source: str
    number: int
    data: bytes


@dataclass(frozen=True, slots=True)
class MalformedDocument:
    """A source, or the rest of one, that cannot be read; ``line`` says which and why."""

    message: str


def read_documents(paths: Iterable[str]) -> Iterator[ManifestDocument | MalformedDocument]:
    """Every document of every path, in order: files, directories (recursively, hidden ones left out), ``-``."""
    for path in paths:
        if path == STDIN:
            yield from parse_documents("stdin", sys.stdin.buffer.read())
        elif Path(path).is_dir():
            yield from _read_directory(Path(path))
        else:
            yield from _read_file(Path(path))


def _read_directory(folder: Path) -> Iterator[ManifestDocument | MalformedDocument]:
    files = sorted(
        file
        for file in folder.rglob("*")
        if file.suffix in _SUFFIXES
        and not any(part.startswith(".") for part in file.relative_to(folder).parts)
        and not file.is_dir()
    )
    if not files:
        yield MalformedDocument(f"{folder}: no manifests in it; expected files ending in .yaml, .yml or .json")
    for file in files:
        yield from _read_file(file)


def _read_file(file: Path) -> Iterator[ManifestDocument | MalformedDocument]:
    try:
        content = file.read_bytes()
    except OSError as error:
        yield MalformedDocument(f"{file}: cannot be read ({error.strerror}); {_EXPECTED}")
        return
    yield from parse_documents(str(file), content)


def parse_documents(source: str, content: bytes) -> Iterator[ManifestDocument | MalformedDocument]:
    """The documents in a content. JSON is tried where it looks like it, since YAML takes a hundred times as long."""
    text = content.removeprefix(_BYTE_ORDER_MARK).strip()
    if text[:1] not in (b"{", b"["):
        yield from _parse_yaml(source, content)
        return
    try:
        text.decode()  # the decoder takes undecoded strings on trust
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if source.endswith(".json") or isinstance(error, RecursionError):
            yield MalformedDocument(f"{source}: document 1: malformed JSON ({error}); {_EXPECTED}")
        else:
            yield from _parse_yaml(source, content)
        return
    yield ManifestDocument(source, 1, text)


def _parse_yaml(source: str, content: bytes) -> Iterator[ManifestDocument | MalformedDocument]:
    import yaml

    number = 1
    try:
        loader = _kubernetes_yaml_loader()(content)
        while loader.check_data():
            value = loader.get_data()
            if value is not None:
                yield _as_json(source, number, value)
            number += 1
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        yield MalformedDocument(f"{source}: document {number}: {_yaml_error_text(error)}; {_EXPECTED}")


def _as_json(source: str, number: int, value: object) -> ManifestDocument | MalformedDocument:
    try:
        return ManifestDocument(source, number, msgspec.json.encode(value))
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        return MalformedDocument(f"{source}: document {number}: a value JSON does not have ({error}); {_EXPECTED}")


def _yaml_error_text(error: Exception) -> str:
    import yaml

    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return f"malformed YAML ({' '.join(str(error).split())})"
    mark = error.problem_mark
    return f"line {mark.line + 1}, column {mark.column + 1}: malformed YAML ({error.problem})"


@cache
def _kubernetes_yaml_loader() -> type:
    """libyaml's safe loader without what Kubernetes' YAML does not have: dates, base-60 numbers, infinities."""
    import re

    import yaml

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
