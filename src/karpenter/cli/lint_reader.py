"""Files as the rules of ``karpenter lint`` look at them: every object with its lines, its faults, and what its pool can launch.

Objects go through the reader of ``karpenter plan``, so that both agree on what is wrong with them. Dashboards and files of
Prometheus rules are no objects of a cluster and are passed on as they are.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from karpenter.api.kinds import KINDS
from karpenter.api.meta import Wire
from karpenter.cli import manifest_reader
from karpenter.cli.cluster_objects import ClusterObjects
from karpenter.cli.instance_type_sources import EC2_WELL_KNOWN_LABELS
from karpenter.cli.manifest_documents import (
    STDIN,
    EmptySource,
    MalformedDocument,
    ManifestDocument,
    SourceContent,
    SourcePart,
    read_readable_contents,
    read_source,
)
from karpenter.cli.manifest_reader import RawObject, split_objects
from karpenter.cli.object_location import LocatedFinding, ObjectLocation
from karpenter.cli.terminal import WrongInput, print_error
from karpenter.lint.lint_input import LintInput, ReaderFinding
from karpenter.lint.monitoring_files import is_monitoring_file
from karpenter.lint.source_map import LineSpan, SourceMap, source_maps
from karpenter.lint.source_object import SourceObject
from karpenter.model.texts import count_text

#: Bytes of a file beyond which the lines of its fields are not looked up: such files are written by programs.
_LARGEST_WITH_LINES = 2**22
_MALFORMED = "malformed"
_NO_OBJECT = "is neither an object of Kubernetes nor a dashboard nor alert rules"
_EXPECTED = "expected objects of Kubernetes, dashboards or alert rules as YAML or JSON"
_NO_OBJECTS = "are neither objects of Kubernetes nor dashboards nor alert rules"
#: What the reader says about a place in a text that does not parse.
_LINE = re.compile(r"\bline (\d+)")
_Place = tuple[str, int, str]


@dataclass
class LintFiles:
    """What was read: the input of the rules without what pools can launch, and the objects as a plan sees them."""

    lint_input: LintInput
    cluster_objects: ClusterObjects


@dataclass
class _ReadFiles:
    """What is collected while files are read."""

    objects: dict[_Place, SourceObject] = field(default_factory=dict)
    malformed: list[ReaderFinding] = field(default_factory=list)
    #: What the reader of manifests gets.
    parts: list[SourcePart] = field(default_factory=list)
    #: Documents that are neither objects nor dashboards nor rules, by file.
    others: Counter[str] = field(default_factory=Counter)


def read_lint_files(paths: Iterable[str], *, recursive: bool) -> LintFiles:
    """The objects of files, directories and standard input. Raises ``WrongInput`` for what cannot be read at all."""
    read = _ReadFiles()
    given = tuple(paths)
    for content in read_readable_contents("lint", given, recursive):
        _read_content(content, read)
    _report_others(read)
    if not (read.objects or read.malformed):
        names = ", ".join("stdin" if path == STDIN else path for path in given)
        raise WrongInput(f"nothing to check in {names}: {_EXPECTED}")
    cluster_objects = manifest_reader.read_parts(read.parts, EC2_WELL_KNOWN_LABELS)
    problems = list(_reader_findings(cluster_objects.located_problems, read.objects))
    broken = {id(problem.where) for problem in problems}
    lint_input = LintInput(
        tuple(replace(obj, wire=None) if id(obj) in broken else obj for obj in read.objects.values()),
        (*read.malformed, *problems),
        tuple(_reader_findings(cluster_objects.located_notices, read.objects)),
    )
    return LintFiles(lint_input, cluster_objects)


def _report_others(read: _ReadFiles) -> None:
    for source, count in read.others.items():
        what = _NO_OBJECT if count == 1 else _NO_OBJECTS
        print_error(f"passed over: {source}: {count_text(count, 'document')} that {what}")


def _read_content(content: SourceContent, read: _ReadFiles) -> None:
    maps = source_maps(content.content) if len(content.content) <= _LARGEST_WITH_LINES else []
    for part in read_source(content.source, content.content):
        match part:
            case EmptySource(source):
                print_error(f"passed over: {source}: no objects in it")
            case MalformedDocument(message):
                read.malformed.append(_malformed(content.source, message))
            case ManifestDocument(_, number, data):
                source_map = maps[number - 1] if number <= len(maps) else SourceMap()
                decoded = msgspec.json.decode(data)
                if is_monitoring_file(decoded):
                    read.objects[content.source, number, ""] = SourceObject(content.source, decoded, None, source_map)
                    continue
                if not _is_like_object(decoded):
                    read.others[content.source] += 1
                    continue
                read.parts.append(part)
                for raw in split_objects(ObjectLocation(part), data):
                    place = (content.source, number, raw.location.item_path)
                    read.objects[place] = _source_object(raw, source_map)


def _is_like_object(content: object) -> bool:
    """Whether a document is meant as an object: values of charts and files of pipelines have neither member."""
    return isinstance(content, dict) and ("kind" in content or "apiVersion" in content)


def _malformed(source: str, message: str) -> ReaderFinding:
    line = int(match[1]) if (match := _LINE.search(message)) else 1
    where = SourceObject(source, {}, None, SourceMap({"": LineSpan(line, line)}))
    return ReaderFinding(where, "", _MALFORMED, message.removeprefix(f"{source}: "))


def _source_object(raw: RawObject, source_map: SourceMap) -> SourceObject:
    content = msgspec.json.decode(raw.data)
    members = content if isinstance(content, dict) else {}
    location = raw.location
    return SourceObject(location.document.source, members, _decoded(raw), source_map, location.item_path)


def _decoded(raw: RawObject) -> Wire | None:
    kind = KINDS.get((raw.api_version, raw.kind))
    try:
        return kind.decode(raw.data) if kind is not None else None
    except msgspec.ValidationError:
        return None  # the reader of manifests says why


def _reader_findings(
    located: Iterable[LocatedFinding], objects: Mapping[_Place, SourceObject]
) -> Iterator[ReaderFinding]:
    for each in located:
        document = each.location.document
        where = objects[document.source, document.number, each.location.item_path]
        yield ReaderFinding(where, each.finding.path, each.finding.code, each.finding.message)
