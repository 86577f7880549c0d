"""Fields that a conversion fills in where they are missing: a misspelt one would be lost, and the object mean something else.

A NodePool whose ``requirments`` are dropped launches any instance type. Where an API server refuses such an object, a warning
beside a converted one is too little (API-836).
"""

from __future__ import annotations

from collections.abc import Mapping

from karpenter.conversion.json_fields import Json
from karpenter.conversion.notes import NoteList
from karpenter.model.structural_schema import child_path, nearest_name

_Fields = Mapping[tuple[str, ...], tuple[str, ...]]
_SPEC: _Fields = {(): ("spec",)}
_POOL: _Fields = {
    (): ("spec",),
    ("spec",): ("template",),
    ("spec", "template"): ("spec",),
    ("spec", "template", "spec"): ("requirements", "nodeClassRef"),
}
#: Names that are filled in, by the members that lead to them.
_FILLED_IN: Mapping[str, _Fields] = {
    "Provisioner": {(): ("spec",), ("spec",): ("requirements", "providerRef", "provider")},
    "Machine": {(): ("spec",), ("spec",): ("requirements", "machineTemplateRef")},
    "AWSNodeTemplate": _SPEC,
    "NodePool": _POOL,
    "NodeClaim": {(): ("spec",), ("spec",): ("requirements", "nodeClassRef")},
    "EC2NodeClass": _SPEC,
}
#: Of 1: fields that these kinds have are less alike than this.
_MIN_SIMILARITY = 0.7


def fail_on_misspelt_fields(kind: str, content: Json, notes: NoteList) -> None:
    """An error for each field that was probably meant as one which is missing and would be filled in."""
    for steps, names in _FILLED_IN.get(kind, {}).items():
        parent = _object_at(content, steps)
        for written, value in parent.items():
            near = "" if written in names or value is None else nearest_name(written, names, _MIN_SIMILARITY)
            if near and parent.get(near) is None:
                text = f"unknown field {written!r}, and {near!r} is missing; did you mean {near!r}?"
                notes.fail(child_path(".".join(steps), written), text)


def _object_at(content: Json, steps: tuple[str, ...]) -> Json:
    value: object = content
    for step in steps:
        value = value.get(step) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}
