"""What a list or watch asks for: label and field selectors, compiled once and applied to stored entries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from karpenter.kube.errors import Invalid
from karpenter.kube.memory.store import Entry
from karpenter.model import selectors

Predicate = Callable[[Entry], bool]

_EVERYWHERE = frozenset({"metadata.name", "metadata.namespace"})
_OF_INVOLVED_OBJECT = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
_FIELDS = {
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
        {*(f"involvedObject.{part}" for part in _OF_INVOLVED_OBJECT), "reason", "type", "source", "reportingComponent"}
    ),
}
_INDEXED: dict[str, Callable[[Entry], str]] = {
    "metadata.name": lambda entry: entry.name,
    "metadata.namespace": lambda entry: entry.namespace,
    "spec.nodeName": lambda entry: entry.node_name,
    "status.phase": lambda entry: entry.phase,
}


@dataclass(frozen=True, slots=True)
class Query:
    """Which entries of a resource are meant."""

    namespace: str = ""
    test: Predicate | None = None
    #: The one name the field selector admits, so that watching a single object reads no other.
    name: str = ""

    def matches(self, entry: Entry) -> bool:
        """Whether ``entry`` is meant."""
        if self.namespace and entry.namespace != self.namespace:
            return False
        if self.name and entry.name != self.name:
            return False
        return self.test is None or self.test(entry)


def compile_query(plural: str, namespace: str, label_selector: str, field_selector: str) -> Query:
    """The query for selector texts. Raises ``Invalid`` for a text that cannot be read or a field that is not supported."""
    tests: list[Predicate] = []
    if label_selector:
        tests.append(_labels(label_selector))
    name = ""
    for field, value, negated in _terms(field_selector):
        if field == "metadata.name" and not negated:
            name = value
        tests.append(_field(plural, field, value, negated=negated))
    return Query(namespace, _all(tests), name)


def _all(tests: list[Predicate]) -> Predicate | None:
    if len(tests) < 2:
        return tests[0] if tests else None
    return lambda entry: all(test(entry) for test in tests)


def _labels(text: str) -> Predicate:
    try:
        wanted = selectors.parse(text)
    except selectors.SelectorError as error:
        raise Invalid(str(error), status=400, reason="BadRequest") from error
    return lambda entry: wanted(entry.labels)


def _terms(text: str) -> list[tuple[str, str, bool]]:
    terms = []
    for term in filter(None, text.split(",")):
        field, sign, value = term.partition("!=") if "!=" in term else term.partition("=")
        if not sign:
            raise Invalid(f"{term!r} is not a field selector (write field=value)", status=400, reason="BadRequest")
        terms.append((field.strip(), value.lstrip("=").strip(), sign == "!="))
    return terms


def _field(plural: str, field: str, value: str, *, negated: bool) -> Predicate:
    if field not in _EVERYWHERE and field not in _FIELDS.get(plural, frozenset()):
        raise Invalid(f"field label not supported: {field}", status=400, reason="BadRequest")
    read = _INDEXED.get(field) or _reader(field)
    return lambda entry: (read(entry) == value) != negated


def _reader(field: str) -> Callable[[Entry], str]:
    path = ("source", "component") if field == "source" else tuple(field.split("."))

    def read(entry: Entry) -> str:
        value: object = entry.decoded()
        for part in path:
            value = value.get(part) if isinstance(value, dict) else None
        if isinstance(value, bool):
            return "true" if value else "false"
        return "" if value is None else str(value)

    return read
