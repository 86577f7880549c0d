"""What a list or watch asks for: label and field selectors, compiled once and applied to stored entries."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from karpenter.api.kinds import Kind
from karpenter.api.meta import Wire
from karpenter.model import selectors
from karpenter.simulation.apiserver import status_errors
from karpenter.simulation.apiserver.object_store import StoredEntry

Predicate = Callable[[StoredEntry], bool]

# In field selectors a backslash takes the comma or equals sign after it literally.
_TERM = re.compile(r"(?:\\.|[^,\\])+")
_COMPARISON = re.compile(r"(?P<path>[^=!]*)(?P<sign>!=|==|=)(?P<value>.*)", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)")
K = TypeVar("K", bound=Wire)

_INVOLVED_OBJECT_FIELDS = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
_SELECTABLE_FIELDS = {
    "pods": frozenset(
        {
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        }
    ),
    "nodes": frozenset({"spec.unschedulable"}),
    "namespaces": frozenset({"status.phase"}),
    "events": frozenset(
        {
            *(f"involvedObject.{part}" for part in _INVOLVED_OBJECT_FIELDS),
            "reason",
            "type",
            "source",
            "reportingComponent",
        }
    ),
}
_INDEXED_FIELDS: dict[str, Callable[[StoredEntry], str]] = {
    "metadata.name": lambda entry: entry.name,
    "metadata.namespace": lambda entry: entry.namespace,
    "spec.nodeName": lambda entry: entry.node_name,
    "status.phase": lambda entry: entry.phase,
}
#: Values of unset fields, where they differ from the empty text.
_DEFAULT_FIELD_VALUES = {"spec.hostNetwork": "false", "spec.unschedulable": "false"}


@dataclass(frozen=True, slots=True)
class ObjectQuery:
    """Which entries of a resource are meant. Equal texts mean the same."""

    namespace: str = ""
    predicate: Predicate | None = field(default=None, compare=False)
    #: The one name the field selector admits, so that watching a single object reads no other.
    name: str = ""
    #: The selectors as they were given; empty when everything in the namespace is meant.
    selector_text: str = ""

    def matches(self, entry: StoredEntry) -> bool:
        """Whether ``entry`` is meant."""
        if self.namespace and entry.namespace != self.namespace:
            return False
        if self.name and entry.name != self.name:
            return False
        return self.predicate is None or self.predicate(entry)


def compile_query(kind: Kind[K], namespace: str, label_selector: str, field_selector: str) -> ObjectQuery:
    """The query for selector texts. Raises ``Invalid`` for a text that cannot be read or a field that is not supported."""
    tests: list[Predicate] = []
    if label_selector:
        tests.append(_label_predicate(label_selector))
    name = ""
    for path, value, negated in _field_terms(field_selector):
        if path == "metadata.name" and not negated:
            name = value
        tests.append(_field_predicate(kind, path, value, negated=negated))
    text = f"{label_selector};{field_selector}" if tests else ""
    return ObjectQuery(namespace, _all_of(tests), name, text)


def _all_of(tests: list[Predicate]) -> Predicate | None:
    if len(tests) < 2:
        return tests[0] if tests else None
    return lambda entry: all(test(entry) for test in tests)


def _label_predicate(text: str) -> Predicate:
    try:
        wanted = selectors.parse_selector(text)
    except selectors.SelectorError as error:
        raise status_errors.bad_request(str(error)) from error
    return lambda entry: wanted(entry.labels)


def _field_terms(text: str) -> list[tuple[str, str, bool]]:
    return [_field_term(match[0]) for match in _TERM.finditer(text)]


def _field_term(text: str) -> tuple[str, str, bool]:
    fullmatch = _COMPARISON.fullmatch(text)
    if fullmatch is None:
        raise status_errors.bad_request(f"invalid selector: '{text}'; can't understand '{text}'")
    return fullmatch["path"], _ESCAPED.sub(r"\1", fullmatch["value"]), fullmatch["sign"] == "!="


def _field_predicate(kind: Kind[K], path: str, value: str, *, negated: bool) -> Predicate:
    selectable = _SELECTABLE_FIELDS.get(kind.plural, frozenset()) | {"metadata.name"} | _namespace_field(kind)
    if path not in selectable:
        raise status_errors.bad_request(f"field label not supported: {path}")
    read = _INDEXED_FIELDS.get(path) or _field_reader(path)
    return lambda entry: (read(entry) == value) != negated


def _namespace_field(kind: Kind[K]) -> frozenset[str]:
    return frozenset({"metadata.namespace"}) if kind.namespaced else frozenset()


def _field_reader(path: str) -> Callable[[StoredEntry], str]:
    keys = ("source", "component") if path == "source" else tuple(path.split("."))
    unset = _DEFAULT_FIELD_VALUES.get(path, "")

    def read(entry: StoredEntry) -> str:
        value: object = entry.decoded()
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, bool):
            return "true" if value else "false"
        return unset if value is None else str(value)

    return read
