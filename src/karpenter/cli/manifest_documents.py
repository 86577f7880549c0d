"""From files, directories and standard input to documents: each one object as JSON bytes, with where it stood.

JSON is passed on undecoded. YAML is read by libyaml with the plain types Kubernetes knows: what looks like a date or a time of
day stays text. Both end as JSON, so that there is one way to decode an object, whatever it was written in.

Keys that stand twice are refused, because the first value would be lost; so are aliases that blow a document up.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from karpenter.cli.terminal import WrongInput, print_error
from karpenter.model.texts import NESTED_TOO_DEEPLY

_SUFFIXES = frozenset({".yaml", ".yml", ".json"})
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_EXPECTED_FILES = "; expected files ending in .yaml, .yml or .json"
EXPECTED = "expected Kubernetes objects as YAML or JSON"
_KEEP_ONE = "the first value would be lost; keep one"
_TEMPLATE_MARK = b"{{"
_GZIP_MARK = b"\x1f\x8b"
_PACKED = "is compressed; unpack it first, for example with gunzip"
_BINARY = f"is not a text file; {EXPECTED}"
_BAD_START = "a tab, @ or ` where a value begins: indent with blanks, put the others in quotes"
_IN_BRACKETS = "while parsing a flow"
_KUSTOMIZATION_NAMES = frozenset({"kustomization.yaml", "kustomization.yml"})
_UNRENDERED = "it has template marks ({{): render it first, for example with helm template"
#: Bytes.
_LARGEST_JSON_BY_HAND = 2**20
STDIN = "-"
#: What a path makes of a URL.
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_URL_PATHS = ("http:/", "https:/", "s3:/")


@dataclass(frozen=True, slots=True)
class ManifestDocument:
    """One document of a source: ``number`` counts from 1, ``data`` is JSON."""

    source: str
    number: int
    data: bytes


@dataclass(frozen=True, slots=True)
class MalformedDocument:
    """A source, or a part of one, that cannot be read; the message says which and why."""

    message: str


@dataclass(frozen=True, slots=True)
class EmptySource:
    """A file or standard input without any document."""

    source: str


@dataclass(frozen=True, slots=True)
class SourceContent:
    """A file or standard input as it was read, not yet parsed."""

    source: str
    content: bytes


SourcePart = ManifestDocument | MalformedDocument | EmptySource


def read_documents(paths: Iterable[str], *, recursive: bool = False) -> Iterator[SourcePart]:
    """Every document of every path, in order, as ``read_contents`` finds them."""
    for part in read_contents(paths, recursive=recursive):
        if isinstance(part, MalformedDocument):
            yield part
        else:
            yield from read_source(part.source, part.content)


def read_contents(paths: Iterable[str], *, recursive: bool = False) -> Iterator[SourceContent | MalformedDocument]:
    """The content of every path, in order: files, the files of directories (hidden ones left out), ``-``.

    ``recursive``: also of directories in directories.
    """
    for path in paths:
        if path == STDIN:
            yield SourceContent("stdin", sys.stdin.buffer.read())
        elif Path(path).is_dir():
            yield from _read_directory(Path(path), recursive=recursive)
        else:
            yield from _read_file(Path(path))


def read_readable_contents(command: str, paths: Sequence[str], recursive: bool) -> Iterator[SourceContent]:
    """The same for ``command``; files in directories that cannot be read have a line on standard error.

    Raises ``WrongInput`` for a path that somebody named and that cannot be read.
    """
    for content in read_contents(paths, recursive=recursive):
        if isinstance(content, SourceContent):
            yield content
            continue
        message = content.message.replace("karpenter plan -f -", f"karpenter {command} -f -")
        if message.startswith(tuple(f"{path}:" for path in paths)):
            raise WrongInput(message)
        print_error(f"passed over: {message}")


def _read_directory(folder: Path, *, recursive: bool) -> Iterator[SourceContent | MalformedDocument]:
    files = [file for file in _manifests_below(folder) if recursive or file.parent == folder]
    if not files:
        deeper = len(_manifests_below(folder))
        hint = f", {deeper} in directories below; add -R to read them" if deeper else _EXPECTED_FILES
        yield MalformedDocument(f"{folder}: no manifests in it{hint}")
    for file in files:
        yield from _read_file(file)


def _manifests_below(folder: Path) -> list[Path]:
    return sorted(
        file
        for file in folder.rglob("*")
        if file.suffix in _SUFFIXES
        and not any(part.startswith(".") for part in file.relative_to(folder).parts)
        and not file.is_dir()
    )


def _read_file(file: Path) -> Iterator[SourceContent | MalformedDocument]:
    try:
        content = file.read_bytes()
    except OSError as error:
        yield MalformedDocument(f"{file}: {_why_unreadable(file, error)}")
        return
    problem = _why_no_manifest(file, content)
    yield MalformedDocument(f"{file}: {problem}") if problem else SourceContent(str(file), content)


def _why_no_manifest(file: Path, content: bytes) -> str:
    """What keeps a file from being a manifest whatever its text says; empty for none."""
    if file.name in _KUSTOMIZATION_NAMES and b"kind:" not in content:
        return f"is a kustomization; render it: kubectl kustomize {file.parent} | karpenter plan -f -"
    if content.startswith(_GZIP_MARK):
        return _PACKED
    return _BINARY if b"\0" in content and not content.startswith(_UTF16_MARKS) else ""


def _why_unreadable(file: Path, error: OSError) -> str:
    if str(file).startswith(_URL_PATHS):
        return "URLs are not fetched; pipe the content: curl URL | karpenter plan -f -"
    return f"cannot be read ({error.strerror}); {EXPECTED}"


def read_source(source: str, content: bytes) -> Iterator[SourcePart]:
    """The documents of one source; ``source`` is its name in messages."""
    documents = parse_documents(source, content)
    first = next(documents, None)
    if first is None:
        yield EmptySource(source)
        return
    yield first
    yield from documents


def parse_documents(source: str, content: bytes) -> Iterator[ManifestDocument | MalformedDocument]:
    """The documents in a content. JSON is tried where it looks like it, since YAML takes a hundred times as long."""
    text = content.removeprefix(_BYTE_ORDER_MARK).strip()
    if text[:1] not in (b"{", b"["):
        yield from _parse_yaml(source, content)
        return
    try:
        text.decode()  # the decoder takes undecoded strings on trust
        msgspec.json.decode(text, type=msgspec.Raw)
        yield from _json_document(source, text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if source.endswith(".json") or isinstance(error, RecursionError):
            problem = NESTED_TOO_DEEPLY if isinstance(error, RecursionError) else error
            yield MalformedDocument(f"{source}: document 1: malformed JSON ({problem}); {EXPECTED}")
        else:
            yield from _parse_yaml(source, content)


def _json_document(source: str, text: bytes) -> Iterator[ManifestDocument | MalformedDocument]:
    """The document, unless one of its objects has a key twice. What is too large to be written by hand is not searched."""
    import json

    duplicates: list[str] = []

    def note_duplicates(members: list[tuple[str, object]]) -> None:
        counts = Counter(key for key, _ in members)
        duplicates.extend(key for key, count in counts.items() if count > 1)

    if len(text) <= _LARGEST_JSON_BY_HAND:
        json.loads(text, object_pairs_hook=note_duplicates)
    for key in duplicates:
        yield MalformedDocument(f"{source}: document 1: key {key!r} stands twice in one object; {_KEEP_ONE}")
    if not duplicates:
        yield ManifestDocument(source, 1, text)


def _parse_yaml(source: str, content: bytes) -> Iterator[ManifestDocument | MalformedDocument]:
    import yaml

    from karpenter.cli.yaml_nodes import check_nodes, kubernetes_yaml_loader
    from karpenter.model.bounded_yaml import VALUE_ERRORS, YamlNodeError

    number = 1
    try:
        loader = kubernetes_yaml_loader()(content)
        while loader.check_node():
            node = loader.get_node()
            try:
                check_nodes(node)
            except YamlNodeError as error:
                yield MalformedDocument(f"{source}: document {number}: {error}")
            else:
                value = loader.construct_document(node)
                if value is not None:
                    yield _as_json(source, number, value)
            number += 1
    except (yaml.YAMLError, *VALUE_ERRORS) as error:
        yield MalformedDocument(f"{source}: document {number}: {yaml_error_text(error)}; {what_was_expected(content)}")


def what_was_expected(content: bytes) -> str:
    """What to do about a text that is no YAML."""
    return _UNRENDERED if _TEMPLATE_MARK in content else EXPECTED


def _as_json(source: str, number: int, value: object) -> ManifestDocument | MalformedDocument:
    try:
        return ManifestDocument(source, number, msgspec.json.encode(value))
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        return MalformedDocument(f"{source}: document {number}: a value JSON does not have ({error}); {EXPECTED}")


def yaml_error_text(error: Exception) -> str:
    """Where a YAML text is malformed, and how."""
    import yaml

    from karpenter.model.bounded_yaml import yaml_problem

    if isinstance(error, RecursionError):
        return f"malformed YAML ({NESTED_TOO_DEEPLY})"
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        words = yaml_problem(error) if isinstance(error, yaml.YAMLError) else " ".join(str(error).split())
        return f"malformed YAML ({words})"
    mark = error.problem_mark
    problem = _BAD_START if error.problem and "cannot start any token" in error.problem else error.problem
    if error.context_mark is not None and (error.context or "").startswith(_IN_BRACKETS):
        opened = error.context_mark
        problem = f"{problem} for the bracket in line {opened.line + 1}, column {opened.column + 1}"
    return f"line {mark.line + 1}, column {mark.column + 1}: malformed YAML ({problem})"
