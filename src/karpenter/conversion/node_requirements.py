"""Requirements of NodePools and NodeClaims: what the older webhooks and forgiving readers made of them (API §17.2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from karpenter.api.label_domains import PROVISIONER_NAME
from karpenter.conversion.json_fields import Json, as_object, list_field, text_of
from karpenter.conversion.metadata import UNMAPPABLE_LABELS, renamed_label
from karpenter.conversion.notes import NoteList
from karpenter.model import labels

_OPERATORS = {name.lower(): name for name in ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Gte", "Lte")}
_CATEGORY = f"{labels.AWS_GROUP}/instance-category"
_GENERATION = f"{labels.AWS_GROUP}/instance-generation"
_INSTANCE_KEYS = frozenset({labels.INSTANCE_TYPE, f"{labels.AWS_GROUP}/instance-family", _CATEGORY, _GENERATION})


def converted_requirements(parent: Mapping[str, object], path: str, notes: NoteList) -> list[Json]:
    """The requirements of ``parent``, which stands at ``path``, repaired and under the keys of ``v1``."""
    requirements = []
    for index, written in enumerate(list_field(parent, "requirements", path)):
        here = f"{path}.requirements[{index}]"
        requirement = _converted(as_object(written, here), here, notes)
        if requirement is not None:
            requirements.append(requirement)
    return requirements


def _converted(written: Json, path: str, notes: NoteList) -> Json | None:
    key = _trimmed(written.get("key"), f"{path}.key", notes)
    if key in UNMAPPABLE_LABELS or key == PROVISIONER_NAME:
        notes.warn(f"{path}.key", f"the requirement on {key} is dropped: nodes have no such label of their own in v1")
        return None
    values = [
        _trimmed(value, f"{path}.values[{index}]", notes)
        for index, value in enumerate(list_field(written, "values", path))
    ]
    requirement: Json = {"key": renamed_label(key), "operator": _operator(written, bool(values), path, notes)}
    if values:
        requirement["values"] = values
    rest = {name: value for name, value in written.items() if name not in {"key", "operator", "values"}}
    return {**requirement, **rest}


def _trimmed(value: object, path: str, notes: NoteList) -> str:
    text = text_of(value)
    if text != text.strip():
        notes.warn(path, f"white space around {text.strip()!r} is removed")
    return text.strip()


def _operator(written: Json, has_values: bool, path: str, notes: NoteList) -> str:
    operator = _trimmed(written.get("operator"), f"{path}.operator", notes)
    if not operator:
        operator = "In" if has_values else "Exists"
        notes.warn(f"{path}.operator", f"is missing; {operator} is written")
        return operator
    meant = _OPERATORS.get(operator.lower(), operator)
    if meant != operator:
        notes.warn(f"{path}.operator", f"{operator} is written as {meant}")
    return meant


def provisioner_defaults(requirements: Sequence[Json], template_labels: Mapping[str, str]) -> Iterator[Json]:
    """The requirements that the webhook wrote into every Provisioner, where their keys are not given (API-765)."""
    given = {text_of(requirement["key"]) for requirement in requirements} | template_labels.keys()
    for key, value in ((labels.OS, "linux"), (labels.ARCH, "amd64"), (labels.CAPACITY_TYPE, labels.ON_DEMAND)):
        if key not in given:
            yield {"key": key, "operator": "In", "values": [value]}
    if not given & _INSTANCE_KEYS:
        yield {"key": _CATEGORY, "operator": "In", "values": ["c", "m", "r"]}
        yield {"key": _GENERATION, "operator": "Gt", "values": ["2"]}
