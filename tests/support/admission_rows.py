"""Rows of the admission tables: changes to a minimal valid object, and the verdict on the result."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE_CLAIM
from karpenter.model import runtime_validation

Json = dict[str, Any]
Verdict = Literal["A", "R", "N"]


class Absent:
    """Marks a field to be taken away."""


ABSENT = Absent()
A: Final = "A"
R: Final = "R"
N: Final = "N"
T = "spec.template.spec"
META = "spec.template.metadata"
D = "spec.disruption"
REQUIREMENTS = f"{T}.requirements"
CAPACITY = "karpenter.sh/capacity-type"
TENANCY = "karpenter.k8s.aws/instance-tenancy"
_CLASS: Json = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}
_POOL: Json = {
    "apiVersion": "karpenter.sh/v1",
    "kind": "NodePool",
    "metadata": {"name": "pool"},
    "spec": {"template": {"spec": {"requirements": [], "nodeClassRef": _CLASS}}},
}
_CLAIM: Json = {
    "apiVersion": "karpenter.sh/v1",
    "kind": "NodeClaim",
    "metadata": {"name": "claim"},
    "spec": {"requirements": [], "nodeClassRef": _CLASS},
}
_KWOK: Json = {
    "apiVersion": "karpenter.kwok.sh/v1alpha1",
    "kind": "KWOKNodeClass",
    "metadata": {"name": "class"},
    "spec": {},
}
_EC2: Json = {
    "apiVersion": "karpenter.k8s.aws/v1",
    "kind": "EC2NodeClass",
    "metadata": {"name": "class"},
    "spec": {
        "subnetSelectorTerms": [{"tags": {"a": "b"}}],
        "securityGroupSelectorTerms": [{"tags": {"a": "b"}}],
        "amiSelectorTerms": [{"alias": "al2023@latest"}],
        "role": "node",
    },
}
_OVERLAY: Json = {
    "apiVersion": "karpenter.sh/v1alpha1",
    "kind": "NodeOverlay",
    "metadata": {"name": "overlay"},
    "spec": {"requirements": []},
}
_BUFFER: Json = {
    "apiVersion": "autoscaling.x-k8s.io/v1beta1",
    "kind": "CapacityBuffer",
    "metadata": {"name": "buffer", "namespace": "default"},
    "spec": {},
}
_SCHEDULE: Json = {
    "apiVersion": "karpenter.sh/v1alpha1",
    "kind": "CapacitySchedule",
    "metadata": {"name": "schedule"},
    "spec": {"nodePools": {"names": ["dev"]}},
}
_MINIMAL = {
    "NodePool": _POOL,
    "NodeClaim": _CLAIM,
    "KWOKNodeClass": _KWOK,
    "EC2NodeClass": _EC2,
    "NodeOverlay": _OVERLAY,
    "CapacityBuffer": _BUFFER,
    "CapacitySchedule": _SCHEDULE,
    "MachineNodeClass": {
        "apiVersion": "karpenter.machines/v1alpha1",
        "kind": "MachineNodeClass",
        "metadata": {"name": "lab"},
        "spec": {"power": "ipmi"},
    },
}


@dataclass(frozen=True)
class Row:
    """One case."""

    id: str
    kind: str
    verdict: Verdict
    change: Mapping[str, object]
    words: tuple[str, ...] = ()
    before: Mapping[str, object] | None = None
    is_status: bool = False

    @property
    def object(self) -> Json:
        return built(self.kind, self.change)

    @property
    def stored(self) -> Json | None:
        return None if self.before is None else built(self.kind, self.before)

    @property
    def accepted(self) -> bool:
        return self.verdict != R


def refusals(claim: NodeClaim) -> runtime_validation.Findings:
    """Why an API server would not take a NodeClaim of ours."""
    return runtime_validation.admit(NODE_CLAIM, msgspec.json.decode(NODE_CLAIM.encode(claim)))


def built(kind: str, change: Mapping[str, object]) -> Json:
    """The minimal object of a kind with values set (or taken away) at dotted paths."""
    made = copy.deepcopy(_MINIMAL[kind])
    for path, value in change.items():
        *parents, last = path.split(".")
        place = made
        for name in parents:
            place = place.setdefault(name, {})
        if value is ABSENT:
            place.pop(last)
        else:
            place[last] = copy.deepcopy(value)
    return made


def req(operator: str, *values: str, key: str = "example.com/a", **more: object) -> Json:
    """A requirement as JSON."""
    return {"key": key, "operator": operator, "values": list(values), **more}


def rows_of(
    id_: str, kind: str, verdict: Verdict, changes: Sequence[Mapping[str, object]], words: tuple[str, ...]
) -> list[Row]:
    return [Row(f"{id_}-{verdict}{i}", kind, verdict, change, words) for i, change in enumerate(changes, 1)]


def pool_rows(id_: str, verdict: Verdict, *changes: Mapping[str, object], words: tuple[str, ...] = ()) -> list[Row]:
    return rows_of(id_, "NodePool", verdict, changes, words)


def value_rows(id_: str, verdict: Verdict, path: str, *values: object, words: tuple[str, ...] = ()) -> list[Row]:
    return pool_rows(id_, verdict, *({path: value} for value in values), words=words)


def budget_rows(id_: str, verdict: Verdict, *budgets: object, words: tuple[str, ...] = ()) -> list[Row]:
    return value_rows(id_, verdict, f"{D}.budgets", *budgets, words=words)


def label_rows(id_: str, verdict: Verdict, *labels: Json, words: tuple[str, ...] = ()) -> list[Row]:
    return value_rows(id_, verdict, f"{META}.labels", *labels, words=words)


def taint_rows(id_: str, verdict: Verdict, *taints: list[Json], words: tuple[str, ...] = ()) -> list[Row]:
    return value_rows(id_, verdict, f"{T}.taints", *taints, words=words)


def requirement_rows(id_: str, verdict: Verdict, *entries: Json, words: tuple[str, ...] = ()) -> list[Row]:
    return value_rows(id_, verdict, REQUIREMENTS, *([entry] for entry in entries), words=words)


def claim_rows(id_: str, verdict: Verdict, *changes: Json, words: tuple[str, ...] = ()) -> list[Row]:
    return rows_of(id_, "NodeClaim", verdict, changes, words)


def update_row(id_: str, verdict: Verdict, before: Json, after: Json, words: tuple[str, ...] = ()) -> Row:
    return Row(id_, "NodePool", verdict, after, words, before)


def claim_update_row(id_: str, verdict: Verdict, after: Json, words: tuple[str, ...] = (), before: Json = {}) -> Row:  # noqa: B006
    return Row(id_, "NodeClaim", verdict, after, words, before)


def status_rows(kind: str, verdict: Verdict, *statuses: Json) -> list[Row]:
    """Rows about a kind, whose name an id may follow."""
    rows = rows_of(f"API-607-{kind}", kind.partition("-")[0], verdict, [{"status": status} for status in statuses], ())
    return [Row(row.id, row.kind, verdict, row.change, (), {}, is_status=True) for row in rows]


def condition(**fields: object) -> Json:
    """A complete condition with some fields changed or taken away."""
    defaults: Json = {
        "type": "Custom",
        "status": "True",
        "reason": "Custom",
        "message": "",
        "lastTransitionTime": "2025-01-31T12:00:00Z",
    }
    return {name: value for name, value in {**defaults, **fields}.items() if value is not ABSENT}


def old_status_row(id_: str, verdict: Verdict, before: Json, status: Json) -> Row:
    return Row(id_, "NodePool", verdict, {**before, "status": status}, (), before, is_status=True)


TOGETHER = ("schedule", "duration", "together")
NUMERIC = ("single", "positive integer")
IMMUTABLE = ("immutable",)
SWITCH = ("cannot switch between static and dynamic",)
EVERY_DAY: Json = {"nodes": "1", "schedule": "@daily", "duration": "1h"}
A_TAINT: Json = {"key": "a", "effect": "NoSchedule"}
TOO_LONG = "2562048h"
LARGEST = 2**63 - 1
