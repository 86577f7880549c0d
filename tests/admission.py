"""What admission says to which object: one table for the API server with our CRDs and for the offline check.

A row changes a minimal valid object at some paths; ``words`` must all occur in the refusal. Rows with ``before`` are updates.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field

Json = dict[str, object]


class Absent:
    """Marks a field to be taken away."""


ABSENT = Absent()
T = "spec.template.spec"
META = "spec.template.metadata"
D = "spec.disruption"
REQUIREMENTS = f"{T}.requirements"

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
_MINIMAL = {"NodePool": _POOL, "NodeClaim": _CLAIM, "KWOKNodeClass": _KWOK}


@dataclass(frozen=True)
class Row:
    """One case: accepted or refused."""

    id: str
    kind: str
    change: Mapping[str, object]
    accepted: bool
    words: tuple[str, ...] = ()
    before: Mapping[str, object] | None = field(default=None)

    @property
    def object(self) -> Json:
        return built(self.kind, self.change)

    @property
    def stored(self) -> Json | None:
        return None if self.before is None else built(self.kind, self.before)


def built(kind: str, change: Mapping[str, object]) -> Json:
    """The minimal object of a kind with values set (or taken away) at dotted paths."""
    made = copy.deepcopy(_MINIMAL[kind])
    for path, value in change.items():
        *parents, last = path.split(".")
        place = made
        for name in parents:
            place = place.setdefault(name, {})  # type: ignore[assignment]
        if value is ABSENT:
            place.pop(last)
        else:
            place[last] = value
    return made


def _pools(id_: str, accepted: bool, *changes: Mapping[str, object], words: tuple[str, ...] = ()) -> list[Row]:
    rows = [Row(f"{id_}", "NodePool", change, accepted, words) for change in changes]
    return _numbered(id_, rows)


def _numbered(id_: str, rows: list[Row]) -> list[Row]:
    mark = "A" if rows[0].accepted else "R"
    return [Row(f"{id_}-{mark}{i}", r.kind, r.change, r.accepted, r.words, r.before) for i, r in enumerate(rows, 1)]


def _values(id_: str, accepted: bool, path: str, *values: object, words: tuple[str, ...] = ()) -> list[Row]:
    return _pools(id_, accepted, *({path: value} for value in values), words=words)


def _budgets(id_: str, accepted: bool, *budgets: list[Json], words: tuple[str, ...] = ()) -> list[Row]:
    return _values(id_, accepted, f"{D}.budgets", *budgets, words=words)


def _labels(id_: str, accepted: bool, *labels: Json, words: tuple[str, ...] = ()) -> list[Row]:
    return _values(id_, accepted, f"{META}.labels", *labels, words=words)


def _taints(id_: str, accepted: bool, *taints: list[Json], words: tuple[str, ...] = ()) -> list[Row]:
    return _values(id_, accepted, f"{T}.taints", *taints, words=words)


def _requires(id_: str, accepted: bool, *items: Json, words: tuple[str, ...] = ()) -> list[Row]:
    return _values(id_, accepted, REQUIREMENTS, *([item] for item in items), words=words)


def req(operator: str, *values: str, key: str = "example.com/a", **more: object) -> Json:
    """A requirement as JSON."""
    return {"key": key, "operator": operator, "values": list(values), **more}


def _update(id_: str, accepted: bool, before: Json, after: Json, words: tuple[str, ...] = ()) -> Row:
    return Row(id_, "NodePool", after, accepted, words, before)


def _claims(id_: str, accepted: bool, *changes: Json, words: tuple[str, ...] = ()) -> list[Row]:
    return _numbered(id_, [Row(id_, "NodeClaim", change, accepted, words) for change in changes])


def _claim_update(id_: str, accepted: bool, after: Json, words: tuple[str, ...] = ()) -> Row:
    return Row(id_, "NodeClaim", after, accepted, words, {})


_TOGETHER = ("schedule", "duration", "together")
_NUMERIC = ("single", "positive integer")

FIELDS = [
    *_pools("S001", True, {}),
    *_values("S002", False, "spec.template", ABSENT, words=("template",)),
    *_values("S002b", False, f"{T}.nodeClassRef", ABSENT, words=("nodeClassRef",)),
    *_values("S002c", False, REQUIREMENTS, ABSENT, words=("requirements",)),
    *_values("S002d", False, "spec", ABSENT, words=("spec",)),
    *_pools("S003", True, {D: None}, {f"{META}.annotations": None}, {f"{META}.labels": None}),
    *_pools("S004", True, {f"{D}.consolidationPolicy": "WhenEmpty"}),
    *_values("S005", True, f"{D}.consolidateAfter", "30s", "1h30m", "0s", "Never", "1h1h"),
    *_values("S006", False, f"{D}.consolidateAfter", "-1s", "1d", "1.5h", "30", "never", "hello", "", "30s\n"),
    *_values("S007", True, f"{T}.expireAfter", "Never", "720h", "30s"),
    *_values("S007", False, f"{T}.expireAfter", "-30s", "30d"),
    *_values("S008", True, f"{T}.terminationGracePeriod", "48h", "0s"),
    *_values("S008", False, f"{T}.terminationGracePeriod", "Never", "-1m"),
    *_values("S009", False, f"{D}.consolidationPolicy", "WhenUnderutilized", "whenEmpty", words=("WhenEmpty",)),
    *_values("S010", True, f"{D}.consolidationPolicy", "Balanced"),
    *_budgets("S011", True, *([{"nodes": n}] for n in ("0", "10", "0%", "99%", "100%", "1000"))),
    *_budgets("S012", False, *([{"nodes": n}] for n in ("-10", "-10%", "1000%", "101%", "1.5%", 10))),
    *_budgets("S013", True, [{"nodes": "1"}] * 50, []),
    *_budgets("S013", False, [{"nodes": "1"}] * 51, words=("50",)),
    *_budgets(
        "S014",
        False,
        [{"nodes": "1", "schedule": "@daily"}],
        [{"nodes": "1", "duration": "1h"}],
        [{"nodes": "1"}, {"nodes": "1", "schedule": "@daily", "duration": "1h"}, {"nodes": "1", "duration": "1h"}],
        words=_TOGETHER,
    ),
    *_budgets(
        "S015", True, *([{"schedule": s, "duration": "8h"}] for s in ("*/5 * * * *", "@daily", "0 9 * * mon-fri"))
    ),
    *_budgets("S016", False, *([{"schedule": s, "duration": "8h"}] for s in ("*", "@every 1h", "* * * *"))),
    *_budgets("S017", True, *([{"schedule": "@daily", "duration": d}] for d in ("30m", "8h", "2h20m", "8h0m0s"))),
    *_budgets("S017", False, *([{"schedule": "@daily", "duration": d}] for d in ("30s", "-20m", "1d"))),
    *_budgets("S018", True, [{"reasons": ["Underutilized", "Empty", "Drifted"]}], [{"reasons": []}]),
    *_budgets("S018", False, *([{"reasons": r}] for r in (["Expired"], ["drifted"], ["Empty", "Empty"]))),
    *_budgets("S019", True, [{}]),
    *_values("S020", True, "spec.weight", 1, 100),
    *_values("S020", False, "spec.weight", 0, 101, -1),
    *_values("S021", True, "spec.replicas", 0, 5),
    _update("S021-A3", True, {"spec.replicas": 0}, {"spec.replicas": 5}),
    _update("S022-R1", False, {"spec.replicas": 0}, {}, ("cannot switch between static and dynamic",)),
    _update("S022-R2", False, {}, {"spec.replicas": 0}, ("cannot switch between static and dynamic",)),
    *_pools("S023", False, {"spec.replicas": 3, "spec.weight": 10}, words=("weight", "not supported", "static")),
    *_pools(
        "S023b",
        False,
        {"spec.replicas": 3, "spec.limits": {"cpu": 10}},
        {"spec.replicas": 3, "spec.limits": {"nodes": 5, "cpu": 10}},
        words=("only limits.nodes", "static"),
    ),
    *_pools("S024", True, {"spec.replicas": 3, "spec.limits": {"nodes": 10}}, {"spec.replicas": 3, "spec.limits": {}}),
    *_values("S024", False, "spec.replicas", -1),
    _update("S025-A1", True, {}, {f"{T}.nodeClassRef.name": "other"}),
    _update("S025-R1", False, {}, {f"{T}.nodeClassRef.kind": "Other"}, ("immutable",)),
    _update("S025-R2", False, {}, {f"{T}.nodeClassRef.group": "other"}, ("immutable",)),
    *_values("S026", False, f"{T}.nodeClassRef.group", "karpenter.k8s.aws/v1", ABSENT),
    *_pools(
        "S026b",
        False,
        *({f"{T}.nodeClassRef.{name}": ""} for name in ("group", "kind", "name")),
        words=("may not be empty",),
    ),
    *_values("S027", True, "spec.limits", {"cpu": 20, "memory": "40Gi"}, {"cpu": "1."}, {"cpu": ".5"}, {"cpu": "1e3"}),
    *_values("S027", False, "spec.limits", {"cpu": "four"}, {"cpu": "1 Gi"}, {"cpu": 0.5}, {"cpu": True}),
]

TEMPLATE = [
    *_labels(
        "S030",
        True,
        {"foo": "bar"},
        {"example.com/x": "y"},
        {"kops.k8s.io/instancegroup": "a"},
        {"node-restriction.kubernetes.io/team": "a"},
        {"topology.kubernetes.io/zone": "z"},
        {"kubernetes.io/arch": "amd64"},
        {"empty": ""},
    ),
    *_labels(
        "S031",
        False,
        {"karpenter.sh/nodepool": "a"},
        {"kubernetes.io/hostname": "a"},
        {"karpenter.sh/unknown": "a"},
        {"sub.karpenter.sh/x": "a"},
        {"karpenter.k8s.aws/unknown": "a"},
        {"karpenter.kwok.sh/unknown": "a"},
        {"karpenter.sh": "a"},
        words=("restricted",),
    ),
    *_labels("S032", True, {"karpenter.sh/capacity-type": "spot"}, {"karpenter.k8s.aws/instance-family": "m5"}),
    *_labels("API-437", True, {"mykarpenter.sh/x": "a"}, {"karpenter.sh.example.com/x": "a"}),
    *_labels("S033", False, {"a": "/"}, {"a": "b" * 64}, {"a": "b-"}),
    *_labels("S034", True, {"spaces are not allowed": "a"}),
    *_labels("S035", True, {f"l{i}": "a" for i in range(100)}),
    *_labels("S035", False, {f"l{i}": "a" for i in range(101)}, words=("100",)),
    *_taints(
        "S036",
        True,
        [
            {"key": "a", "value": "b", "effect": "NoSchedule"},
            {"key": "d", "value": "e", "effect": "NoExecute"},
            {"key": "f", "effect": "PreferNoSchedule"},
            {"key": "key-only", "effect": "NoExecute", "timeAdded": "2025-01-31T12:00:00Z"},
        ],
    ),
    *_taints(
        "S037",
        False,
        [{"effect": "NoSchedule"}],
        [{"key": "???", "effect": "NoSchedule"}],
        [{"key": "a", "value": "???", "effect": "NoSchedule"}],
        [{"key": "a", "value": "", "effect": "NoSchedule"}],
        [{"key": "a", "effect": "NoSch"}],
        [{"key": "a"}],
    ),
    *_taints("S038", True, [{"key": "a", "effect": "NoSchedule"}, {"key": "a", "effect": "NoExecute"}]),
    *_taints("S039", True, [{"key": "a", "effect": "NoSchedule"}, {"key": "a", "effect": "NoSchedule"}]),
]

ENTRIES = [
    *_requires("S040", True, req("In", "a"), req("NotIn", "a"), req("Exists"), req("DoesNotExist"), req("NotIn")),
    *_requires("S040b", True, *(req(operator, "1") for operator in ("Gt", "Lt", "Gte", "Lte"))),
    *_requires("S041", False, req("unknown", "a"), req("in", "a")),
    *_requires("S042", False, req("In"), {"key": "a", "operator": "In"}, words=("In", "must have a value")),
    *_requires("S043", False, req("Gt", "1", "2"), req("Gt"), req("Lte", "-1"), words=_NUMERIC),
    *_requires("S043b", False, req("Gt", "a"), req("Gte", "1.5"), req("Lt", ""), {"key": "a", "operator": "Lt"}),
    *_requires("S044", True, req("Gt", "0"), req("Lte", "100"), req("Gt", "+5"), req("Lt", "007")),
    *_requires("S044", False, req("Gt", "9223372036854775808")),
    *_requires("S045", True, req("Exists", "a")),
    *_requires("S046", True, req("In", "a", "b", minValues=2), req("In", "a", "a", minValues=2)),
    *_requires("S046", False, req("In", "a", "b", minValues=3), words=("minValues", "at least")),
    *_requires("S046b", False, req("In", "a", minValues=0), req("In", "a", minValues=51)),
    *_requires("S047", True, req("Exists", minValues=10)),
    *_requires("API-403", True, req("In", *(f"v{i}" for i in range(200)))),
    *_values("S048", True, REQUIREMENTS, [req("Exists", key=f"k{i}") for i in range(100)]),
    *_values("S048", False, REQUIREMENTS, [req("Exists", key=f"k{i}") for i in range(101)], words=("100",)),
    *_requires(
        "S049",
        False,
        *(req("In", "a", key=key) for key in ("karpenter.sh/nodepool", "kubernetes.io/hostname", "karpenter.sh/foo")),
        words=("restricted",),
    ),
    *_requires(
        "S050",
        True,
        req("In", "10.0.20348", key="node.kubernetes.io/windows-build"),
        req("In", "use1-az1", key="topology.k8s.aws/zone-id"),
        req("Exists", key="karpenter.k8s.aws/capacity-reservation-id"),
        req("Exists", key="karpenter.k8s.aws/ec2nodeclass"),
    ),
    *_requires("S051", True, req("In", "us-east-2a", key="topology.ebs.csi.aws.com/zone")),
    *_requires("S052", True, req("In", "bad value!")),
    *_requires("S053", True, *(req("In", *v, key="karpenter.sh/capacity-type") for v in (["spot", "sopt"], ["sopt"]))),
    *_requires("S056", True, req("Exists", key="a" * 316)),
    *_requires("S056", False, req("Exists", key="a" * 317), req("Exists", key="a b"), req("Exists", key="")),
]

CLAIMS = [
    *_claims("S080", True, {}),
    *_claims("S080", False, {"spec.requirements": ABSENT}, {"spec.nodeClassRef": ABSENT}),
    _claim_update("S081-R1", False, {"spec.expireAfter": "1h"}, ("immutable",)),
    _claim_update("S081-R2", False, {"spec.taints": [{"key": "a", "effect": "NoSchedule"}]}, ("immutable",)),
    _claim_update("S081-R3", False, {"spec.requirements": [req("Exists")]}, ("immutable",)),
    _claim_update("S082-A1", True, {"metadata.labels": {"a": "b"}}),
    _claim_update("S082-A2", True, {"metadata.annotations": {"a": "b"}}),
    *_claims("S083", True, {"spec.requirements": [req("In", "default", key="karpenter.sh/nodepool")]}),
    *_claims(
        "S084",
        False,
        {"spec.requirements": [req("In", "a", key="karpenter.sh/foo")]},
        {"spec.requirements": [req("In", "a", "b", minValues=3)]},
        {"spec.requirements": [req("In")]},
        {"spec.terminationGracePeriod": "Never"},
        {"spec.resources": {"requests": {"cpu": "many"}}},
    ),
    *_claims("S084", True, {"spec.resources": {"requests": {"cpu": "1", "memory": 5}}, "spec.expireAfter": "Never"}),
]

CLASSES = [
    Row("API-380-A1", "KWOKNodeClass", {}, True),
    Row("API-380-A2", "KWOKNodeClass", {"spec.nodeRegistrationDelay": "30s"}, True),
    Row("API-380-R1", "KWOKNodeClass", {"spec.nodeRegistrationDelay": "Never"}, False),
]

ROWS = [*FIELDS, *TEMPLATE, *ENTRIES, *CLAIMS, *CLASSES]
