"""What an API server with our CRDs says to which object: one table for a real one, the in-memory one, and the offline check.

A row changes a minimal valid object at some paths. Its verdict is the specification's: ``A`` accepted, ``R`` refused, ``N``
accepted and then found unusable by runtime validation. ``words`` must all occur in the refusal, or in the finding. Rows with
``before`` replace a stored object, rows of ``STATUS`` write the status of a stored one.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE_CLAIM
from karpenter.model import runtime_validation

Json = dict[str, object]
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
_MINIMAL = {
    "NodePool": _POOL,
    "NodeClaim": _CLAIM,
    "KWOKNodeClass": _KWOK,
    "EC2NodeClass": _EC2,
    "NodeOverlay": _OVERLAY,
    "CapacityBuffer": _BUFFER,
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
            place = place.setdefault(name, {})  # type: ignore[assignment]
        if value is ABSENT:
            place.pop(last)
        else:
            place[last] = copy.deepcopy(value)
    return made


def req(operator: str, *values: str, key: str = "example.com/a", **more: object) -> Json:
    """A requirement as JSON."""
    return {"key": key, "operator": operator, "values": list(values), **more}


def _rows(
    id_: str, kind: str, verdict: Verdict, changes: Sequence[Mapping[str, object]], words: tuple[str, ...]
) -> list[Row]:
    return [Row(f"{id_}-{verdict}{i}", kind, verdict, change, words) for i, change in enumerate(changes, 1)]


def _pools(id_: str, verdict: Verdict, *changes: Mapping[str, object], words: tuple[str, ...] = ()) -> list[Row]:
    return _rows(id_, "NodePool", verdict, changes, words)


def _values(id_: str, verdict: Verdict, path: str, *values: object, words: tuple[str, ...] = ()) -> list[Row]:
    return _pools(id_, verdict, *({path: value} for value in values), words=words)


def _budgets(id_: str, verdict: Verdict, *budgets: object, words: tuple[str, ...] = ()) -> list[Row]:
    return _values(id_, verdict, f"{D}.budgets", *budgets, words=words)


def _labels(id_: str, verdict: Verdict, *labels: Json, words: tuple[str, ...] = ()) -> list[Row]:
    return _values(id_, verdict, f"{META}.labels", *labels, words=words)


def _taints(id_: str, verdict: Verdict, *taints: list[Json], words: tuple[str, ...] = ()) -> list[Row]:
    return _values(id_, verdict, f"{T}.taints", *taints, words=words)


def _requires(id_: str, verdict: Verdict, *entries: Json, words: tuple[str, ...] = ()) -> list[Row]:
    return _values(id_, verdict, REQUIREMENTS, *([entry] for entry in entries), words=words)


def _claims(id_: str, verdict: Verdict, *changes: Json, words: tuple[str, ...] = ()) -> list[Row]:
    return _rows(id_, "NodeClaim", verdict, changes, words)


def _update(id_: str, verdict: Verdict, before: Json, after: Json, words: tuple[str, ...] = ()) -> Row:
    return Row(id_, "NodePool", verdict, after, words, before)


def _claim_update(id_: str, verdict: Verdict, after: Json, words: tuple[str, ...] = (), before: Json = {}) -> Row:  # noqa: B006
    return Row(id_, "NodeClaim", verdict, after, words, before)


def _statuses(kind: str, verdict: Verdict, *statuses: Json) -> list[Row]:
    """Rows about a kind, whose name an id may follow."""
    rows = _rows(f"API-607-{kind}", kind.partition("-")[0], verdict, [{"status": status} for status in statuses], ())
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


def _old_status(id_: str, verdict: Verdict, before: Json, status: Json) -> Row:
    return Row(id_, "NodePool", verdict, {**before, "status": status}, (), before, is_status=True)


_TOGETHER = ("schedule", "duration", "together")
_NUMERIC = ("single", "positive integer")
_IMMUTABLE = ("immutable",)
_SWITCH = ("cannot switch between static and dynamic",)
_EVERY_DAY: Json = {"nodes": "1", "schedule": "@daily", "duration": "1h"}
_A_TAINT: Json = {"key": "a", "effect": "NoSchedule"}
_TOO_LONG = "2562048h"
_LARGEST = 2**63 - 1

FIELDS = [
    *_pools("API-S001", A, {}),
    *_values("API-S002", R, "spec.template", ABSENT, None, words=("template",)),
    *_values("API-S002-class", R, f"{T}.nodeClassRef", ABSENT, None, words=("nodeClassRef",)),
    *_values("API-S002-requirements", R, REQUIREMENTS, ABSENT, None, words=("requirements",)),
    *_values("API-S002-spec", R, "spec", ABSENT, None, {}, words=("spec",)),
    *_values("API-S002", A, REQUIREMENTS, []),
    *_pools("API-S003", A, {D: None}, {f"{META}.annotations": None}, {f"{META}.labels": None}, {META: None}),
    *_pools("API-020", A, {"spec.limits": {"cpu": None}}, {f"{META}.labels": {"a": None}}, {f"{D}.budgets": None}),
    *_pools("API-020-again", A, {f"{D}.consolidateAfter": None}, {f"{T}.expireAfter": None}, {"spec.weight": None}),
    *_pools("API-020", R, {REQUIREMENTS: [None]}, {f"{D}.budgets": [None]}, {f"{T}.taints": [None]}),
    *_pools("API-021", A, {"spec.nothing": 1}, {f"{T}.kubelet": {"maxPods": 5}}, {f"{META}.name": "x"}, {"other": {}}),
    *_pools("API-022-type", R, {"spec": "text"}, {"spec": []}, {T: "text"}, {f"{T}.nodeClassRef": []}, {D: "never"}),
    *_values("API-S004", A, D, {"consolidationPolicy": "WhenEmpty"}, {}),
    *_values("API-S005", A, f"{D}.consolidateAfter", "30s", "1h30m", "0s", "Never", "1h1h"),
    *_values("API-S006", R, f"{D}.consolidateAfter", "-1s", "1d", "1.5h", "30", "never", "hello", "", "30s\n", 30),
    *_values("API-028", N, f"{D}.consolidateAfter", _TOO_LONG, "9" * 400 + "s", words=("consolidateAfter", "292")),
    *_values("API-S007", A, f"{T}.expireAfter", "Never", "720h", "30s", "0s"),
    *_values("API-S007", R, f"{T}.expireAfter", "-30s", "30d", "", 720),
    *_values("API-028-lifetime", N, f"{T}.expireAfter", _TOO_LONG, words=("expireAfter",)),
    *_values("API-S008", A, f"{T}.terminationGracePeriod", "48h", "0s"),
    *_values("API-S008", R, f"{T}.terminationGracePeriod", "Never", "-1m", ""),
    *_values("API-028-grace", N, f"{T}.terminationGracePeriod", _TOO_LONG, words=("terminationGracePeriod",)),
    *_values("API-S009", R, f"{D}.consolidationPolicy", "WhenUnderutilized", "whenEmpty", "", words=("WhenEmpty",)),
    *_values("API-S010", A, f"{D}.consolidationPolicy", "Balanced", "WhenEmpty", "WhenEmptyOrUnderutilized"),
    *_values("API-S020", A, "spec.weight", 1, 100),
    *_values("API-S020", R, "spec.weight", 0, 101, -1, "5", 1.5, True, 2**70),
    *_values("API-S021", A, "spec.replicas", 0, 5, 2**31 - 1),
    *_values("API-S021", R, "spec.replicas", 2**31, _LARGEST, _LARGEST + 1, "5", 1.5, False),
    _update("API-S021-A4", A, {"spec.replicas": 0}, {"spec.replicas": 5}),
    # API-035: a NodePool cannot switch between static and dynamic.
    _update("API-S022-R1", R, {"spec.replicas": 0}, {}, _SWITCH),
    _update("API-S022-R2", R, {}, {"spec.replicas": 0}, _SWITCH),
    _update("API-S022-R3", R, {"spec.replicas": 1}, {"spec.replicas": None}, _SWITCH),
    *_pools("API-S023-weight", R, {"spec.replicas": 3, "spec.weight": 10}, words=("weight", "not supported", "static")),
    *_pools(
        "API-S023",
        R,
        {"spec.replicas": 3, "spec.limits": {"cpu": 10}},
        {"spec.replicas": 3, "spec.limits": {"nodes": 5, "cpu": 10}},
        words=("only limits.nodes", "static"),
    ),
    _update("API-S023-R3", R, {"spec.replicas": 3}, {"spec.replicas": 3, "spec.weight": 1}, ("weight", "static")),
    *_pools(
        "API-S024",
        A,
        {"spec.replicas": 3, "spec.limits": {"nodes": 10}},
        {"spec.replicas": 3, "spec.limits": {}},
        {"spec.replicas": 3, "spec.limits": {"nodes": 10, "cpu": None}},
    ),
    *_values("API-S024", R, "spec.replicas", -1),
    _update("API-S025-A1", A, {}, {f"{T}.nodeClassRef.name": "other"}),
    _update("API-S025-R1", R, {}, {f"{T}.nodeClassRef.kind": "Other"}, _IMMUTABLE),
    _update("API-S025-R2", R, {}, {f"{T}.nodeClassRef.group": "other"}, _IMMUTABLE),
    *_values("API-S026", R, f"{T}.nodeClassRef.group", "karpenter.k8s.aws/v1", ABSENT, "/"),
    *_pools(
        "API-S026-empty",
        R,
        *({f"{T}.nodeClassRef.{name}": ""} for name in ("group", "kind", "name")),
        words=("may not be empty",),
    ),
    *_values("API-S027", A, "spec.limits", {"cpu": 20, "memory": "40Gi"}, {"cpu": "1."}, {"cpu": ".5"}, {"cpu": "1e3"}),
    *_values("API-S027-again", A, "spec.limits", {"cpu": "-1"}, {"cpu": -3}, {"any.thing/else": "+5"}, {"cpu": 2.0}),
    *_values("API-S027", R, "spec.limits", {"cpu": "four"}, {"cpu": "1 Gi"}, {"cpu": 0.5}, {"cpu": True}),
    *_values("API-S027-again", R, "spec.limits", {"cpu": ""}, {"cpu": []}, {"cpu": 2**63}, {"cpu": "1Gi\n"}, "40Gi"),
    *_values("API-027", N, "spec.limits", {"cpu": "1e1.5"}, {"cpu": "9" * 400}, words=("limits.cpu", "quantity")),
    *_values("API-031", N, "metadata.name", "a" * 64, words=("metadata.name", "63")),
    *_values("API-031-class", N, f"{T}.nodeClassRef.name", "a" * 64, words=("nodeClassRef.name", "63")),
    *_values("API-031", R, "metadata.name", "a" * 254, "A", "a..b", "a_b", "-a"),
]

BUDGETS = [
    *_budgets("API-S011", A, *([{"nodes": n}] for n in ("0", "10", "0%", "99%", "100%", "1000"))),
    *_budgets("API-S012", R, *([{"nodes": n}] for n in ("-10", "-10%", "1000%", "101%", "1.5%", 10, "", "10%\n"))),
    *_budgets("API-S013", A, [{"nodes": "1"}] * 50, []),
    *_budgets("API-S013", R, [{"nodes": "1"}] * 51, words=("50",)),
    *_budgets(
        "API-S014",
        R,
        [{"nodes": "1", "schedule": "@daily"}],
        [{"nodes": "1", "duration": "1h"}],
        [{"nodes": "1"}, _EVERY_DAY, {"nodes": "1", "duration": "1h"}],
        words=_TOGETHER,
    ),
    _update("API-S014-R4", R, {}, {f"{D}.budgets": [{"nodes": "1", "duration": "1h"}]}, _TOGETHER),
    *_budgets(
        "API-S015", A, *([{"schedule": s, "duration": "8h"}] for s in ("*/5 * * * *", "@daily", "0 9 * * mon-fri"))
    ),
    *_budgets(
        "API-083",
        A,
        *([{"schedule": s, "duration": "8h"}] for s in ("@dailyXYZ", "99 99 99 99 99", "TZ=Asia/Seoul 0 9 * * 1")),
    ),
    *_budgets(
        "API-S016", R, *([{"schedule": s, "duration": "8h"}] for s in ("*", "@every 1h", "* * * *", "@Daily", ""))
    ),
    *_budgets("API-S017", A, *([{"schedule": "@daily", "duration": d}] for d in ("30m", "8h", "2h20m", "8h0m0s"))),
    *_budgets(
        "API-S017", R, *([{"schedule": "@daily", "duration": d}] for d in ("30s", "-20m", "1d", "Never", "1m1h"))
    ),
    *_budgets("API-028-budget", N, [{**_EVERY_DAY, "duration": _TOO_LONG}], words=("budgets[0].duration",)),
    *_budgets("API-S018", A, [{"reasons": ["Underutilized", "Empty", "Drifted"]}], [{"reasons": []}]),
    *_budgets("API-S018", R, *([{"reasons": r}] for r in (["Expired"], ["drifted"], ["Empty", "Empty"], "Empty"))),
    *_budgets("API-S019", A, [{}]),
]

TEMPLATE = [
    *_labels(
        "API-S030",
        A,
        {"foo": "bar"},
        {"example.com/x": "y"},
        {"kops.k8s.io/instancegroup": "a"},
        {"node-restriction.kubernetes.io/team": "a"},
        {"topology.kubernetes.io/zone": "z"},
        {"kubernetes.io/arch": "amd64"},
        {"empty": ""},
    ),
    *_labels(
        "API-S031",
        R,
        {"karpenter.sh/nodepool": "a"},
        {"kubernetes.io/hostname": "a"},
        {"karpenter.sh/unknown": "a"},
        {"sub.karpenter.sh/x": "a"},
        {"karpenter.k8s.aws/unknown": "a"},
        {"karpenter.kwok.sh/unknown": "a"},
        {"karpenter.sh": "a"},
        words=("restricted",),
    ),
    *_labels("API-S031-named", R, {"fine": "a", "karpenter.sh/unknown": "a"}, words=("restricted", "karpenter.sh")),
    *_labels("API-S032", A, {CAPACITY: "spot"}, {"karpenter.k8s.aws/instance-family": "m5"}),
    *_labels("API-S032-again", A, {"karpenter.kwok.sh/instance-size": "2"}),
    *_labels("API-437", A, {"mykarpenter.sh/x": "a"}, {"karpenter.sh.example.com/x": "a"}),
    *_labels("API-435", N, {"karpenter.k8s.aws/ec2nodeclass": "a"}, words=("restricted", "ec2nodeclass")),
    *_labels("API-S033", R, {"a": "/"}, {"a": "b" * 64}, {"a": "b-"}, {"a": "b\n"}, {"a": 1}),
    *_labels("API-S034", N, {"spaces are not allowed": "a"}, words=("spaces are not allowed",)),
    *_labels("API-438", N, {"": "a"}, {"A.com/a": "a"}, {"a" * 64: "a"}, {"/a": "a"}, words=("not a label key",)),
    *_labels("API-S035", A, {f"l{i}": "a" for i in range(100)}),
    *_labels("API-S035", R, {f"l{i}": "a" for i in range(101)}, words=("100",)),
    *_values("API-053", A, f"{META}.annotations", {"any thing": "goes\n"}),
    *_values("API-053", R, f"{META}.annotations", {"a": 1}, "a"),
    *_taints(
        "API-S036",
        A,
        [
            {"key": "a", "value": "b", "effect": "NoSchedule"},
            {"key": "d", "value": "e", "effect": "NoExecute"},
            {"key": "f", "effect": "PreferNoSchedule"},
            {"key": "key-only", "effect": "NoExecute", "timeAdded": "2025-01-31T12:00:00Z"},
        ],
    ),
    *_taints(
        "API-S037",
        R,
        [{"effect": "NoSchedule"}],
        [{"key": "", "effect": "NoSchedule"}],
        [{"key": "???", "effect": "NoSchedule"}],
        [{"key": "a", "value": "???", "effect": "NoSchedule"}],
        [{"key": "a", "value": "", "effect": "NoSchedule"}],
        [{"key": "a", "effect": "NoSch"}],
        [{"key": "a", "effect": ""}],
        [{"key": "a"}],
        [{"key": "a", "effect": "NoSchedule", "timeAdded": "yesterday"}],
    ),
    *_values("API-055", A, f"{T}.startupTaints", [_A_TAINT]),
    *_values("API-055", R, f"{T}.startupTaints", [{"key": "a"}], [{"key": "a", "value": "", "effect": "NoSchedule"}]),
    *_taints("API-S038", A, [_A_TAINT, {"key": "a", "effect": "NoExecute"}]),
    *_taints("API-S039", N, [_A_TAINT, _A_TAINT], words=("a:NoSchedule",)),
    *_pools("API-076", N, {f"{T}.taints": [_A_TAINT], f"{T}.startupTaints": [_A_TAINT]}, words=("startupTaints[0]",)),
    *_taints("API-076-key", N, [{**_A_TAINT, "key": "a" * 64}], words=("taints[0].key",)),
    *_taints("API-076-value", N, [{**_A_TAINT, "value": "a" * 64}], words=("taints[0].value",)),
]

ENTRIES = [
    *_requires("API-S040", A, req("In", "a"), req("NotIn", "a"), req("Exists"), req("DoesNotExist"), req("NotIn")),
    *_requires("API-S040-bounds", A, *(req(operator, "1") for operator in ("Gt", "Lt", "Gte", "Lte"))),
    *_requires("API-S041", R, req("unknown", "a"), req("in", "a"), req("", "a"), words=("NotIn",)),
    *_requires("API-S042", R, req("In"), {"key": "a", "operator": "In"}, words=("In", "must have a value")),
    *_requires("API-S043", R, req("Gt", "1", "2"), req("Gt"), req("Lte", "-1"), words=_NUMERIC),
    *_requires("API-S043-text", R, req("Gt", "a"), req("Gte", "1.5"), req("Lt", ""), {"key": "a", "operator": "Lt"}),
    *_requires("API-024", R, req("Gt", " 1"), req("Gt", "1e3"), req("Gt", "0x1"), req("Gt", "1_0"), req("Gt", "--1")),
    *_requires("API-S044", A, req("Gt", "0"), req("Lte", "100"), req("Lt", "007"), req("Gt", str(_LARGEST))),
    *_requires("API-S044", R, req("Gt", str(_LARGEST + 1))),
    *_requires("API-077-value", N, req("Gt", "+5"), words=("not a label value",)),
    *_requires("API-S045", A, req("Exists", "a"), req("DoesNotExist", "a", "b")),
    *_requires("API-S046", A, req("In", "a", "b", minValues=2), req("In", "a", "a", minValues=2)),
    *_requires("API-S046", R, req("In", "a", "b", minValues=3), words=("minValues", "at least")),
    *_requires("API-S046-range", R, req("In", "a", minValues=0), req("In", "a", minValues=51), req("In", minValues=1)),
    *_requires(
        "API-S047", A, req("Exists", minValues=10), req("NotIn", "a", minValues=50), req("Gt", "1", minValues=2)
    ),
    *_requires("API-403", A, req("In", *(f"v{i}" for i in range(200)))),
    *_values("API-S048", A, REQUIREMENTS, [req("Exists", key=f"k{i}") for i in range(100)]),
    *_values("API-S048", R, REQUIREMENTS, [req("Exists", key=f"k{i}") for i in range(101)], words=("100",)),
    *_requires(
        "API-S049",
        R,
        *(req("In", "a", key=key) for key in ("karpenter.sh/nodepool", "kubernetes.io/hostname", "karpenter.sh/foo")),
        words=("restricted",),
    ),
    *_requires(
        "API-431",
        R,
        *(
            req("Exists", key=key)
            for key in ("karpenter.sh", "a.karpenter.k8s.aws/b", "karpenter.k8s.aws/instance-pods")
        ),
        req("Exists", key="karpenter.kwok.sh/foo"),
        words=("restricted",),
    ),
    *_requires(
        "API-S050",
        A,
        req("In", "10.0.20348", key="node.kubernetes.io/windows-build"),
        req("In", "use1-az1", key="topology.k8s.aws/zone-id"),
        req("Exists", key="karpenter.k8s.aws/capacity-reservation-id"),
    ),
    *_requires(
        "API-437-key", A, req("Exists", key="mykarpenter.sh/a"), req("Exists", key="karpenter.sh.example.com/a")
    ),
    *_requires("API-435-key", N, req("Exists", key="karpenter.k8s.aws/ec2nodeclass"), words=("restricted",)),
    *_requires("API-435-kwok", N, req("Exists", key="karpenter.kwok.sh/kwoknodeclass"), words=("restricted",)),
    *_requires("API-S051", A, req("In", "us-east-2a", key="topology.ebs.csi.aws.com/zone")),
    *_requires("API-436", A, req("In", "a", key="team.kubernetes.io/a"), req("Exists", key="x.k8s.io/b")),
    *_requires("API-432", A, req("Exists", key="karpenter.k8s.aws/instance-family"), req("Exists", key=TENANCY)),
    *_requires("API-402", N, req("In", "no value!"), words=("values[0]",)),
    *_requires("API-401", A, req("NotIn"), req("Exists", "ignored")),
    *_requires(
        "API-S052", N, req("In", "bad value!"), req("NotIn", "a" * 64), words=("values[0]", "not a label value")
    ),
    *_requires("API-S053", A, req("In", "spot", "on-demand", key=CAPACITY), req("In", "spot", "sopt", key=CAPACITY)),
    *_requires("API-S053", N, req("In", "sopt", key=CAPACITY), words=("on-demand, reserved, spot",)),
    *_requires("API-078", N, req("In", "spot", "sopt", key=CAPACITY, minValues=2), words=("minValues", "only 1")),
    *_requires("API-S054", A, req("NotIn", "sopt", key=CAPACITY)),
    *_requires("API-S055", A, req("In", "default", key=TENANCY)),
    *_requires("API-S055", N, req("In", "host", key=TENANCY), words=("dedicated, default",)),
    *_requires("API-S056", N, req("Exists", key="a" * 316), words=("not a label key",)),
    *_requires(
        "API-S056",
        R,
        req("Exists", key="a" * 317),
        req("Exists", key="a b"),
        req("Exists", key=""),
        req("Exists", key=5),
    ),  # type: ignore[arg-type]
    *_requires("API-400", R, {"operator": "Exists"}, {"key": "a"}, req("In", 1), {**req("In"), "values": "a"}),  # type: ignore[arg-type]
]

METADATA = [
    *_values("METADATA-labels", A, "metadata.labels", None, {}, {"a": "b"}, {"a": ""}),
    *_values(
        "METADATA-labels",
        R,
        "metadata.labels",
        {"a": "b b"},
        {"A.x/a": "b"},
        {"a": "b" * 64},
        words=("metadata.labels",),
    ),
    *_values("METADATA-annotations", A, "metadata.annotations", None, {"a": "any thing"}, {"Example.com/A": "b"}),
    *_values("METADATA-annotations", R, "metadata.annotations", {"a b": "b"}, words=("metadata.annotations",)),
    *_values("METADATA-finalizers", A, "metadata.finalizers", [], ["karpenter.sh/termination"]),
    *_values("METADATA-finalizers", R, "metadata.finalizers", ["a b/c"], words=("metadata.finalizers",)),
    *_values("METADATA-unknown", A, "metadata.label", {"a": "b"}),
]

CLAIMS = [
    *_claims("API-S080", A, {}, {"spec.resources": None}, {"spec.expireAfter": None}),
    *_claims(
        "API-S080",
        R,
        {"spec.requirements": ABSENT},
        {"spec.nodeClassRef": ABSENT},
        {"spec.nodeClassRef.name": ""},
        {"spec.nodeClassRef.group": "a/b"},
    ),
    *_claims("API-022", R, {"spec": ABSENT}, {"spec": None}, words=("spec",)),
    _claim_update("API-S081-R1", R, {"spec.expireAfter": "1h"}, _IMMUTABLE),
    _claim_update("API-S081-R2", R, {"spec.taints": [_A_TAINT]}, _IMMUTABLE),
    _claim_update("API-S081-R3", R, {"spec.requirements": [req("Exists")]}, _IMMUTABLE),
    _claim_update("API-S081-R4", R, {"spec.taints": []}, _IMMUTABLE),
    _claim_update("API-S081-R5", R, {"spec.nodeClassRef.name": "other"}, _IMMUTABLE),
    _claim_update("API-S081-R6", R, {"spec.expireAfter": "43200m"}, _IMMUTABLE),
    _claim_update(
        "API-S081-R7",
        R,
        {"spec.resources": {"requests": {"cpu": "1000m"}}},
        _IMMUTABLE,
        {"spec.resources": {"requests": {"cpu": "1"}}},
    ),
    _claim_update(
        "API-S081-R8",
        R,
        {"spec.resources": {"requests": {"cpu": 1}}},
        _IMMUTABLE,
        {"spec.resources": {"requests": {"cpu": "1"}}},
    ),
    _claim_update("API-S081-A1", A, {"spec.expireAfter": "720h"}),
    _claim_update("API-S081-A2", A, {"spec.taints": None, "spec.unknown": 5}),
    _claim_update("API-S082-A1", A, {"metadata.labels": {"a": "b"}}),
    _claim_update("API-S082-A2", A, {"metadata.annotations": {"a": "b"}}),
    *_claims("API-S083", A, {"spec.requirements": [req("In", "default", key="karpenter.sh/nodepool")]}),
    *_claims(
        "API-S084",
        R,
        {"spec.requirements": [req("In", "a", key="karpenter.sh/foo")]},
        {"spec.requirements": [req("In", "a", key="kubernetes.io/hostname")]},
        words=("restricted",),
    ),
    *_claims("API-S084-minValues", R, {"spec.requirements": [req("In", "a", "b", minValues=3)]}, words=("at least",)),
    *_claims(
        "API-S084-values", R, {"spec.requirements": [req("In")]}, {"spec.requirements": [req("In"), req("Gt", "a")]}
    ),
    *_claims(
        "API-S084-count", R, {"spec.requirements": [req("Exists", key=f"k{i}") for i in range(101)]}, words=("100",)
    ),
    *_claims("API-104", R, {"spec.terminationGracePeriod": "Never"}),
    *_claims("API-104", A, {"spec.terminationGracePeriod": "90s"}),
    *_claims("API-102", R, {"spec.resources": {"requests": {"cpu": "many"}}}, {"spec.resources": []}),
    *_claims("API-102", A, {"spec.resources": {"requests": {"cpu": "1", "memory": 5}}, "spec.expireAfter": "Never"}),
    *_claims("API-101", A, {"spec.requirements": [req("NotIn")]}, {"spec.requirements": [req("Exists", "a")]}),
    *_claims(
        "API-100", R, {"spec.taints": [{"key": "a"}]}, {"spec.startupTaints": [{"key": "???", "effect": "NoExecute"}]}
    ),
    *_claims("API-100", A, {"spec.taints": [_A_TAINT], "spec.startupTaints": [_A_TAINT]}),
]

CLASSES = [
    Row("API-380-A1", "KWOKNodeClass", A, {}),
    Row("API-380-A2", "KWOKNodeClass", A, {"spec": ABSENT}),
    Row("API-380-A3", "KWOKNodeClass", A, {"spec": None, "status": {"conditions": []}}),
    Row("API-380-A4", "KWOKNodeClass", A, {"spec.nodeRegistrationDelay": "30s"}),
    Row("API-380-A5", "KWOKNodeClass", A, {"spec.nodeRegistrationDelay": None, "spec.other": 1}),
    Row("API-380-R1", "KWOKNodeClass", R, {"spec.nodeRegistrationDelay": "Never"}),
    Row("API-380-R2", "KWOKNodeClass", R, {"spec.nodeRegistrationDelay": ""}),
    Row("API-380-R3", "KWOKNodeClass", R, {"spec": "fast"}),
    Row(
        "API-380-A6", "KWOKNodeClass", A, {"spec.nodeRegistrationDelay": "1m"}, (), {"spec.nodeRegistrationDelay": "1h"}
    ),
]


def _ec2(id_: str, verdict: Verdict, *changes: Mapping[str, object], words: tuple[str, ...] = ()) -> list[Row]:
    return _rows(id_, "EC2NodeClass", verdict, changes, words)


def _at(id_: str, verdict: Verdict, name: str, *values: object, words: tuple[str, ...] = ()) -> list[Row]:
    """Rows about one field of an EC2NodeClass."""
    return _ec2(id_, verdict, *({f"spec.{name}": value} for value in values), words=words)


def _images(id_: str, verdict: Verdict, *lists: list[Json], words: tuple[str, ...] = ()) -> list[Row]:
    """Rows about image terms, of a class that names its family."""
    return _ec2(id_, verdict, *({"spec.amiSelectorTerms": t, "spec.amiFamily": "Custom"} for t in lists), words=words)


def _volumes(id_: str, verdict: Verdict, *volumes: Json, words: tuple[str, ...] = ()) -> list[Row]:
    return _at(id_, verdict, "blockDeviceMappings", *([{"ebs": volume}] for volume in volumes), words=words)


def _card(card: int, device: int, type_: str = "interface") -> Json:
    return {"networkCardIndex": card, "deviceIndex": device, "interfaceType": type_}


_SUBNET_TERMS = "subnetSelectorTerms"
_GROUP_TERMS = "securityGroupSelectorTerms"
_RESERVATION_TERMS = "capacityReservationSelectorTerms"
_A_B: Json = {"tags": {"a": "b"}}
_EXCLUSIVE = ("mutually exclusive",)
_ANY = ("at least one",)
_FIRST = _card(0, 0)
_SIZES = ("100Gi", "59000Gi", "64000G", "58Ti", "64T", "1Gi", "18Ti", "Ti", "T", "9Ti")
_NO_SIZES = ("0Gi", "59001Gi", "64001G", "59Ti", "65T", "100Mi", "1.5Ti", "", "100", "0Ti", "100Gi\n", 100)

#: API §7 and its scenarios (§19.6), AWS §2: every field of AWS-031 to AWS-051.
EC2_CLASSES = [
    *_ec2("API-S140", A, {}),
    *_ec2("API-022-ec2", A, {"spec": ABSENT}, {"spec": None}),
    *_ec2("API-022-ec2", R, {"spec": {}}, {"spec": "text"}),
    *_at("API-S141", R, _SUBNET_TERMS, ABSENT, None, words=("subnetSelectorTerms",)),
    *_at("AWS-T030", R, _SUBNET_TERMS, [], words=("subnetSelectorTerms cannot be empty",)),
    *_at("AWS-T031", R, _SUBNET_TERMS, [{}], [_A_B, {}], [{"id": None}], words=(*_ANY, "tags, id")),
    *_at("API-S141-count", R, _SUBNET_TERMS, [_A_B] * 31, words=("30",)),
    *_at("API-S141-count", A, _SUBNET_TERMS, [_A_B] * 30),
    *_at(
        "API-S142", A, _SUBNET_TERMS, [_A_B], [{"id": "subnet-123"}], [{"id": "x subnet-1 y"}], [{"tags": {"a": "*"}}]
    ),
    *_at("API-S142-id", R, _SUBNET_TERMS, [{"id": "subnet-"}], [{"id": "net-1"}], [{"id": 5}], [None], words=()),
    *_at("AWS-T033", R, _SUBNET_TERMS, [{"tags": {"": "x"}}], [_A_B, {"tags": {"a": ""}}], words=("empty tag",)),
    *_at("API-S142-tags", R, _SUBNET_TERMS, [{"tags": {f"k{i}": "v" for i in range(21)}}], words=("20",)),
    *_at("API-S143", R, _SUBNET_TERMS, [{**_A_B, "id": "subnet-1"}], words=_EXCLUSIVE),
    *_at("AWS-T032", R, _SUBNET_TERMS, [{**_A_B, "id": "subnet-1"}] * 2, words=_EXCLUSIVE),
    *_at("AWS-T032", A, _SUBNET_TERMS, [{**_A_B, "id": "subnet-1"}, _A_B], [{"tags": {}, "id": "subnet-1"}, _A_B]),
    *_at("API-S144", A, _GROUP_TERMS, [{"name": "n"}], [{"id": "sg-1"}], [_A_B]),
    *_at("API-S144", R, _GROUP_TERMS, [{}], words=_ANY),
    *_at("API-S144-more", R, _GROUP_TERMS, [], ABSENT, [{"id": "s-1"}], [{"name": "n"}] * 31, words=(_GROUP_TERMS,)),
    *_at("AWS-T033-group", R, _GROUP_TERMS, [{"tags": {"a": ""}}], words=("empty tag",)),
    *_at(
        "API-S145",
        R,
        _GROUP_TERMS,
        [{"id": "sg-1", "name": "n"}],
        [{"name": "n", **_A_B}],
        [{"id": "sg-1", **_A_B}],
        words=_EXCLUSIVE,
    ),
    *_at("AWS-T034", A, _GROUP_TERMS, [{"id": "sg-1", "name": "n"}, {"name": "n"}], [{"name": "n", **_A_B}, _A_B]),
    # AWS-T036
    *_images("API-S146", R, [{"owner": "self"}], [{}], [{"id": "ami-1"}, {"owner": "1"}], words=_ANY),
    *_images(
        "API-S147",
        R,
        [{"id": "ami-1", **_A_B}],
        [{"id": "ami-1", "name": "n"}],
        [{"id": "ami-1", "owner": "o"}],
        [_A_B, {"id": "ami-1", "name": "n"}],
        [{"alias": "al2@latest", "name": "n"}],
        [{"alias": "al2@latest", "owner": "o"}],
        [{"alias": "al2@latest", "id": "ami-1"}],
        words=_EXCLUSIVE,
    ),
    *_images(
        "API-S147",
        A,
        [{"name": "n", "owner": "o"}],
        [{**_A_B, "owner": "o"}],
        [{**_A_B, "name": "n"}],
        [{"id": "ami-1", "ssmParameter": "/p"}],
        [{"ssmParameter": "/p", "name": "n"}],
    ),
    *_images("API-S147-more", R, [], [{"id": "image-1"}], [{"name": "n"}] * 31, [{"tags": {"a": ""}}]),
    *_at(
        "API-S148",
        A,
        "amiSelectorTerms",
        *(
            [{"alias": alias}]
            for alias in ("al2023@v20240807", "al2@latest", "bottlerocket@1.20.4", "windows2022@latest", "al2@a@b")
        ),
    ),
    *_images("AWS-T037", R, [{"alias": "al2"}], [{"alias": "al2@"}], [{"alias": "@latest"}], words=("family@version",)),
    *_images("AWS-T037-line", R, [{"alias": "al2@a\nb"}], words=("family@version",)),
    *_images("API-S149", R, [{"alias": "AL2023@latest"}], [{"alias": "ubuntu@latest"}], words=("not supported",)),
    *_images("AWS-T038", R, [{"alias": "windows2022@v1"}], [{"alias": "windows2025@latest1"}], words=("latest",)),
    *_images("API-225-length", R, [{"alias": "al2023@" + "v" * 24}], words=("30",)),
    *_images("API-S150", R, [{"alias": "al2@latest"}, {"name": "n"}], words=_EXCLUSIVE),
    *_images("AWS-T035", R, [{"alias": "al2023@latest"}, {"id": "ami-1"}], words=("mutually exclusive", "alias")),
    *_at("API-S151", A, "amiFamily", "AL2023", "Custom", None),
    *_at("API-S151", R, "amiFamily", "Bottlerocket", "AL2", words=("amiFamily", "alias family")),
    *_at("API-232", R, "amiFamily", "Ubuntu", "", "al2023", 5),
    *_ec2(
        "AWS-T039",
        A,
        *({"spec.amiSelectorTerms": [{"alias": "al2@latest"}], "spec.amiFamily": f} for f in ("AL2", "Custom")),
    ),
    *_ec2(
        "AWS-T039",
        R,
        {"spec.amiSelectorTerms": [{"alias": "al2@latest"}], "spec.amiFamily": "AL2023"},
        {"spec.amiSelectorTerms": [{"alias": "al2023@latest"}], "spec.amiFamily": "AL2"},
        words=("amiFamily", "alias family"),
    ),
    # AWS-T040
    *_at("API-S152", R, "amiSelectorTerms", [{"id": "ami-1"}], [{"name": "n"}], words=("must specify amiFamily",)),
    *_ec2("AWS-T041", R, {"spec.instanceProfile": "p"}, {"spec.role": ABSENT}, words=("exactly one of role",)),
    *_at("AWS-T042", R, "role", "", words=("role cannot be empty",)),
    *_ec2("API-S153-profile", R, {"spec.role": ABSENT, "spec.instanceProfile": ""}, words=("cannot be empty",)),
    *_ec2("API-206", A, {"spec.role": ABSENT, "spec.instanceProfile": "p"}),
    Row("API-S154-A1", "EC2NodeClass", A, {"spec.role": "b"}, (), {}),
    Row("AWS-T043", "EC2NodeClass", A, {"spec.role": ABSENT, "spec.instanceProfile": "p"}, (), {}),
    Row("API-S154-R1", "EC2NodeClass", R, {"spec.instanceProfile": "p"}, ("exactly one",), {}),
    *(
        row
        for key in (
            "eks:eks-cluster-name",
            "kubernetes.io/cluster/other",
            "kubernetes.io/cluster-x",
            "karpenter.sh/nodepool",
            "karpenter.sh/nodeclaim",
            "karpenter.k8s.aws/ec2nodeclass",
        )
        for row in _at(
            f"AWS-T044-{key}", R, "tags", {key: "a"}, {"a": "b", key: ""}, words=("restricted tag", key[:21])
        )
    ),
    *_at("API-S155-empty", R, "tags", {"": "a"}, words=("empty tag",)),
    *_at(
        "API-S156", A, "tags", {"karpenter.sh/custom-key": "a"}, {"karpenter.sh/managed-by": "a"}, {"a": ""}, {}, None
    ),
    *_at("API-S156", R, "tags", {"a": 1}, []),
    *_at(
        "AWS-T045",
        R,
        "blockDeviceMappings",
        [{"rootVolume": True}, {"rootVolume": True}],
        words=("only one", "rootVolume"),
    ),
    *_at("API-S157", A, "blockDeviceMappings", [{"rootVolume": True}, {"rootVolume": False}, {}], [], [{}] * 50),
    *_at("API-S157-count", R, "blockDeviceMappings", [{}] * 51, words=("50",)),
    *_volumes("AWS-T046", R, {}, {"encrypted": True}, words=("snapshotID or volumeSize",)),  # API-S158
    # AWS-T053
    *_volumes("API-S159", A, *({"volumeSize": size} for size in _SIZES)),
    *_volumes("API-S159", R, *({"volumeSize": size} for size in _NO_SIZES), words=("volumeSize",)),
    *_volumes(
        "AWS-T047",
        R,
        {"volumeSize": "1Gi", "volumeInitializationRate": 150},
        {"snapshotID": "", "volumeInitializationRate": 150},
        words=("snapshotID", "volumeInitializationRate"),
    ),
    *_volumes("API-S160", R, *({"snapshotID": "s", "volumeInitializationRate": rate} for rate in (99, 301, "150"))),
    *_volumes("API-S160", A, {"snapshotID": "s", "volumeInitializationRate": 100}, {"snapshotID": ""}),
    *_volumes(
        "API-249", A, *({"volumeSize": "1Gi", "volumeType": t} for t in ("standard", "io1", "io2", "gp2", "st1"))
    ),
    *_volumes("API-249", R, {"volumeSize": "1Gi", "volumeType": "gp4"}, {"volumeSize": "1Gi", "iops": "3000"}),
    *_volumes("API-250", A, {"volumeSize": "1Gi", "iops": -1, "throughput": 2**40, "kmsKeyID": "", "unknown": 5}),
    *_at("API-S161", A, "metadataOptions", {"httpTokens": "optional"}, {}, None, {"httpEndpoint": None}),
    *_at("API-S162", R, "metadataOptions", *({"httpPutResponseHopLimit": n} for n in (0, 65, "1", 1.5))),
    *_at("API-S162", A, "metadataOptions", {"httpPutResponseHopLimit": 64}),
    *_at("API-255", R, "metadataOptions", {"httpTokens": "yes"}, {"httpEndpoint": ""}, {"httpProtocolIPv6": True}),
    # AWS-T049
    *_at("API-S163", R, "networkInterfaces", [_card(0, 0, "efa-only")], [_card(0, 1)], words=("primary",)),
    *_at(
        "API-S163-same",
        R,
        "networkInterfaces",
        [_FIRST, _FIRST],
        [_FIRST, _card(0, 0, "efa-only")],
        words=("duplicate",),
    ),
    *_at(
        "API-S163-efa",
        R,
        "networkInterfaces",
        [_FIRST, _card(0, 1, "efa-only"), _card(0, 2, "efa-only")],
        words=("efa-only", "card"),
    ),
    *_at("API-S164", A, "networkInterfaces", [_FIRST, _card(0, 1, "efa-only"), _card(1, 1, "efa-only")], [], [_FIRST]),
    *_at(
        "API-260", R, "networkInterfaces", [{**_FIRST, "deviceIndex": None}], [_FIRST, _card(-1, 0)], [_card(0, 0, "x")]
    ),
    *_at("API-260-count", A, "networkInterfaces", [_card(0, device) for device in range(150)]),
    *_at("API-260-count", R, "networkInterfaces", [_card(0, device) for device in range(151)], words=("150",)),
    *_at("AWS-T050", R, "connectionTracking", {}, {"unknown": 1}, words=_ANY),
    *_at(
        "API-S165",
        R,
        "connectionTracking",
        {"udpTimeout": 61},
        {"udpTimeout": 29},
        {"udpStreamTimeout": 181},
        {"tcpEstablishedTimeout": 59},
        {"tcpEstablishedTimeout": 432001},
    ),
    *_at(
        "API-S165",
        A,
        "connectionTracking",
        {"tcpEstablishedTimeout": 60},
        {"udpTimeout": 30},
        {"udpStreamTimeout": 180},
    ),
    *_at("AWS-T051", R, "placementGroupSelector", {"name": "n", "id": "pg-1"}, words=_EXCLUSIVE),
    *_at("API-S166", R, "placementGroupSelector", {}, words=_ANY),
    *_at("API-S166-form", R, "placementGroupSelector", {"id": "xpg-1"}, {"name": ""}),
    *_at("API-S166", A, "placementGroupSelector", {"id": "pg-1"}, {"name": "n"}),
    *_at("API-S167", R, _RESERVATION_TERMS, [{"ownerID": "1" * 12}], words=_ANY),
    *_at("API-S167", A, _RESERVATION_TERMS, [{"ownerID": "1" * 12, **_A_B}], [], None, [{"id": "cr-1"}]),
    *_at("API-226", A, _RESERVATION_TERMS, [{"instanceMatchCriteria": "open", "ownerID": "1" * 12}]),
    *_at(
        "API-S167-id",
        R,
        _RESERVATION_TERMS,
        [{"id": "cr-1", **_A_B}],
        [{"id": "cr-1", "ownerID": "1" * 12}],
        [{"id": "cr-1", "instanceMatchCriteria": "open"}],
        words=_EXCLUSIVE,
    ),
    *_at("API-226-all", A, _RESERVATION_TERMS, [{"id": "cr-1", **_A_B}, _A_B]),
    *_at(
        "API-226",
        R,
        _RESERVATION_TERMS,
        [{"id": "xcr-1"}],
        [{**_A_B, "ownerID": "1"}],
        [{"instanceMatchCriteria": "any"}],
        [_A_B] * 31,
        [{"tags": {"a": ""}}],
    ),
    *_at("AWS-T052", A, "kubelet", {"unknown": {"x": [1, 2.5, True]}}, {"maxPods": "110"}, {}, None),
    *_at("API-217", R, "kubelet", [], "text"),
    *_at("API-210", A, "ipPrefixCount", 0, 2**31 - 1),
    *_at("API-210", R, "ipPrefixCount", -1, "1", 2**63),
    *_at("API-211", R, "instanceStorePolicy", "raid0", "RAID1", ""),
    *_at("API-216", R, "cpuOptions", {"nestedVirtualization": "yes"}),
    *_ec2(
        "API-207",
        A,
        {
            "spec.userData": "text",
            "spec.context": "c",
            "spec.instanceStorePolicy": "RAID0",
            "spec.cpuOptions": {"nestedVirtualization": "enabled"},
            "spec.detailedMonitoring": True,
            "spec.associatePublicIPAddress": False,
        },
    ),
    *_at("API-209", R, "detailedMonitoring", "true", 1),
]

_BAD_CONDITIONS = (
    condition(lastTransitionTime=ABSENT),
    condition(lastTransitionTime="yesterday"),
    condition(status="true"),
    condition(status=ABSENT),
    condition(type=ABSENT),
    condition(type="a b"),
    condition(type="a" * 317),
    condition(reason="9lives"),
    condition(reason="with blank"),
    condition(reason="a" * 1025),
    condition(message="a" * 32769),
    condition(observedGeneration=-1),
)
_BARE_CONDITIONS = (
    condition(reason=ABSENT),
    condition(reason=""),
    condition(message=ABSENT),
    condition(message=None),
)
_STRANGE: Json = {"nodes": 3, "conditions": [condition(type="unknown.example/Type", more=1)], "other": 5}
_FULL: Json = {"nodes": 3, "resources": {"cpu": 4, "memory": "8Gi"}, "conditions": [condition()]}
_MACHINE: Json = {
    "nodeName": "n",
    "providerID": "p",
    "imageID": "i",
    "capacity": {"cpu": 4},
    "allocatable": {"cpu": "3"},
}
_RESERVED: Json = {
    "id": "cr-1",
    "availabilityZone": "z",
    "instanceType": "m5.large",
    "instanceMatchCriteria": "open",
    "ownerID": "1" * 12,
    "endTime": "2025-01-31T12:00:00Z",
}
_ODD_RESERVATIONS: tuple[Json, ...] = (
    {"id": "xcr-1"},
    {"ownerID": "1"},
    {"instanceMatchCriteria": "any"},
    {"reservationType": "other"},
    {"state": "gone"},
    {"instanceType": None},
    {"endTime": "soon"},
)
_FOUND: Json = {
    "subnets": [{"id": "subnet-1", "zone": "z", "zoneID": "z1"}, {"id": "subnet-2", "zone": "z"}],
    "securityGroups": [{"id": "sg-1"}, {"id": "sg-1", "name": "n"}],
    "amis": [{"id": "ami-1", "requirements": [{"key": "a", "operator": "In", "values": ["b"]}], "deprecated": True}],
    "capacityReservations": [_RESERVED, {**_RESERVED, "reservationType": "capacity-block", "state": "expiring"}],
    "instanceProfile": "p",
}
_EVENT_TIME = "2025-01-31T12:00:00.123456+01:00"

STATUS = [
    *_statuses("NodePool", A, {}, {"nodes": None}, {"conditions": None}, {"conditions": []}, _STRANGE, _FULL),
    *_statuses("NodePool", R, *({"conditions": [bad]} for bad in (*_BAD_CONDITIONS, *_BARE_CONDITIONS))),
    *_statuses("NodePool-list", R, {"conditions": [condition()] * 2}, {"conditions": [None]}, {"conditions": {}}),
    *_statuses("NodePool-nodes", R, *({"nodes": count} for count in (-1, 2**31, "3", 1.5, _LARGEST + 1))),
    *_statuses("NodePool-resources", R, {"resources": {"cpu": "x"}}, {"resources": {"cpu": 1.5}}),
    *_statuses("NodeClaim", A, {}, {"conditions": []}, _MACHINE, {"lastPodEventTime": _EVENT_TIME}),
    *_statuses("NodeClaim-bare", A, *({"conditions": [bare]} for bare in _BARE_CONDITIONS)),
    *_statuses("NodeClaim", R, *({"conditions": [bad]} for bad in _BAD_CONDITIONS), {"lastPodEventTime": "noon"}),
    *_statuses("NodeClaim-resources", R, {"capacity": {"cpu": "x"}}, {"allocatable": {"cpu": True}}, {"nodeName": 5}),
    *_statuses("KWOKNodeClass", A, {}, {"conditions": []}, {"conditions": None}, {"conditions": [condition()]}),
    *_statuses("KWOKNodeClass", R, *({"conditions": [bare]} for bare in _BARE_CONDITIONS)),
    *_statuses("EC2NodeClass", A, {}, {"conditions": []}, {"conditions": [condition()] * 2}, _FOUND),
    *_statuses("EC2NodeClass", R, *({"conditions": [bare]} for bare in _BARE_CONDITIONS)),
    *_statuses(
        "EC2NodeClass-reservations",
        R,
        *({"capacityReservations": [{**_RESERVED, **odd}]} for odd in _ODD_RESERVATIONS),
    ),
]


def _overlays(id_: str, verdict: Verdict, path: str, *values: object, words: tuple[str, ...] = ()) -> list[Row]:
    return _rows(id_, "NodeOverlay", verdict, [{path: value} for value in values], words)


def _overlaid(id_: str, verdict: Verdict, *entries: Json, words: tuple[str, ...] = ()) -> list[Row]:
    return _overlays(id_, verdict, "spec.requirements", *([entry] for entry in entries), words=words)


#: API §5.
OVERLAYS = [
    Row("API-150-A1", "NodeOverlay", A, {}),
    Row("API-150-R1", "NodeOverlay", R, {"spec.requirements": ABSENT}),
    Row("API-022-R4", "NodeOverlay", R, {"spec": ABSENT}),
    *_overlays("API-S100", A, "spec.priceAdjustment", "+5%", "-5%", "+0.1", "-0.1", "-100%", "+.5%", "-99.99%"),
    *_overlays("API-S101", R, "spec.priceAdjustment", "5%", "0.1", "-101%", "+", "abc", "-.5%", "+5%\n", "", 5),
    *_overlays("API-S102", A, "spec.price", "0", "1", "0.05", None),
    *_overlays("API-S102", R, "spec.price", "-1", ".5", "1.", "", 1),
    *_rows("API-S103", "NodeOverlay", R, [{"spec.price": "1", "spec.priceAdjustment": "+1"}], ("cannot set both",)),
    *_overlays(
        "API-S104",
        R,
        "spec.capacity",
        {"cpu": 1},
        {"memory": "1Gi"},
        {"pods": 5},
        {"ephemeral-storage": "1Gi", "a": 1},
        words=("restricted resource",),
    ),
    *_overlays("API-S104", A, "spec.capacity", {"smarter-devices/fuse": 1}, {}, {"nvidia.com/gpu": "8"}),
    *_overlays("API-153", R, "spec.capacity", {"a": "many"}, [], words=()),
    *_overlays("API-S105", R, "spec.weight", 0, 10_001, -1, "1"),
    *_overlays("API-S105", A, "spec.weight", 1, 10_000, None),
    *_overlaid("API-S106", R, req("NotIn"), req("In"), {"key": "a", "operator": "NotIn"}, words=("must have a value",)),
    # API-433: the NodePool may be asked for.
    *_overlaid("API-S107", A, req("In", "a", key="karpenter.sh/nodepool"), req("NotIn", "a"), req("Exists")),
    *_overlaid("API-150-bound", R, req("Gt"), req("Gte", "1", "2"), req("Lt", "-1")),
    *_overlaid("API-150-pruned", A, req("In", "a", minValues=7)),
    *_overlaid(
        "API-434",
        R,
        req("In", "dedicated", key=TENANCY),
        req("Exists", key="karpenter.k8s.aws/capacity-reservation-id"),
        req("Exists", key="karpenter.k8s.aws/placement-group-id"),
        req("Exists", key="karpenter.sh/foo"),
        req("Exists", key="kubernetes.io/hostname"),
        words=("restricted",),
    ),
    *_overlaid("API-434", A, req("Exists", key="karpenter.k8s.aws/instance-family"), req("In", "spot", key=CAPACITY)),
    *_rows(
        "API-150-count",
        "NodeOverlay",
        R,
        [{"spec.requirements": [req("Exists", key=f"k{i}") for i in range(101)]}],
        ("100",),
    ),
]


def _buffers(id_: str, verdict: Verdict, *specs: Json, words: tuple[str, ...] = ()) -> list[Row]:
    return _rows(id_, "CapacityBuffer", verdict, [{"spec": spec} for spec in specs], words)


_TEMPLATE_REF: Json = {"podTemplateRef": {"name": "t"}}
_SCALABLE_REF: Json = {"scalableRef": {"kind": "Deployment", "name": "d", "apiGroup": "apps"}}
#: API §6.
BUFFERS = [
    *_buffers("API-S120", A, {**_TEMPLATE_REF, "replicas": 3}, {**_TEMPLATE_REF, "limits": {"cpu": 1}}),
    *_buffers("API-182", A, _SCALABLE_REF, {"scalableRef": {"kind": "X", "name": "d"}, "percentage": 20}),
    *_buffers("API-S121", R, _TEMPLATE_REF, {**_TEMPLATE_REF, "percentage": 5}, words=("replicas or limits",)),
    *_buffers("API-S121-both", R, {**_TEMPLATE_REF, **_SCALABLE_REF, "replicas": 1}, words=("not both",)),
    *_buffers("API-S122", A, {"replicas": 3}, {}),
    *_buffers("API-S127", R, {"replicas": -1}, {"percentage": -1}, {"replicas": 2**31}, {"replicas": "1"}),
    *_buffers("API-181", R, {"podTemplateRef": {"name": ""}, "replicas": 1}, {"podTemplateRef": {}, "replicas": 1}),
    *_buffers("API-182-R", R, {"scalableRef": {"name": "d"}}, {"scalableRef": {"kind": "Deployment"}}),
    *_buffers("API-180", A, {"provisioningStrategy": "buffer.example/other"}, {"provisioningStrategy": None}),
    *_buffers("API-185", R, {"limits": {"cpu": "many"}}, {"limits": []}),
    Row("API-022-R5", "CapacityBuffer", R, {"spec": ABSENT}),
]

ROWS = [*FIELDS, *BUDGETS, *TEMPLATE, *ENTRIES, *METADATA, *CLAIMS, *CLASSES, *EC2_CLASSES, *OVERLAYS, *BUFFERS]

_BAD_LABEL: Json = {"karpenter.sh/foo": "a"}
_BAD_BUDGET: Json = {"nodes": "1", "duration": "1h"}
_ODD: Json = {"type": "Odd", "status": "maybe"}

#: Objects stored under looser rules, and what may still be done to them: what is as it was is not judged again.
OLD_SINS = [
    _update("weight-A1", A, {"spec.weight": 0}, {"spec.weight": 0, "metadata.labels": {"a": "b"}}),
    _update("weight-A2", A, {"spec.weight": 0}, {"spec.weight": 0, "spec.limits": {"cpu": 5}}),
    _update("weight-R1", R, {"spec.weight": 0}, {"spec.weight": 101}),
    _update("limits-A1", A, {"spec.limits": {"cpu": "x"}}, {"spec.limits": {"cpu": "x", "memory": "1Gi"}}),
    _update("limits-R1", R, {"spec.limits": {"cpu": "x"}}, {"spec.limits": {"cpu": "y"}}),
    _update(
        "static-A1",
        A,
        {"spec.replicas": 1, "spec.weight": 5},
        {"spec.replicas": 1, "spec.weight": 5, "metadata.annotations": {"a": "b"}},
    ),
    _update("static-R1", R, {"spec.replicas": 1, "spec.weight": 5}, {"spec.replicas": 2, "spec.weight": 5}),
    _update("budgets-A1", A, {f"{D}.budgets": [_BAD_BUDGET]}, {f"{D}.budgets": [_BAD_BUDGET], "spec.weight": 5}),
    _update("budgets-R1", R, {f"{D}.budgets": [_BAD_BUDGET]}, {f"{D}.budgets": [_BAD_BUDGET, {"nodes": "1"}]}),
    _update("labels-A1", A, {f"{META}.labels": _BAD_LABEL}, {f"{META}.labels": _BAD_LABEL, "spec.weight": 5}),
    _update("labels-R1", R, {f"{META}.labels": _BAD_LABEL}, {f"{META}.labels": {**_BAD_LABEL, "b": "c"}}),
    _update("label-values-A1", A, {f"{META}.labels": {"a": "-"}}, {f"{META}.labels": {"a": "-", "b": "c"}}),
    _update("requirements-A1", A, {REQUIREMENTS: [req("in")]}, {REQUIREMENTS: [req("in")], f"{T}.taints": [_A_TAINT]}),
    _update("requirements-R1", R, {REQUIREMENTS: [req("in")]}, {REQUIREMENTS: [req("in"), req("Exists")]}),
    _update("keys-A1", A, {REQUIREMENTS: [req("In", "")], "spec.weight": 5}, {REQUIREMENTS: [req("In", "")]}),
    _update("class-A1", A, {f"{T}.nodeClassRef.name": ""}, {f"{T}.nodeClassRef.name": "", "spec.weight": 5}),
    _update("class-R1", R, {f"{T}.nodeClassRef.group": "a/b"}, {f"{T}.nodeClassRef.group": "b/c"}),
    _update("missing-R1", R, {f"{T}.requirements": ABSENT}, {f"{T}.requirements": ABSENT, f"{T}.expireAfter": "1h"}),
    _update("missing-A1", A, {f"{T}.requirements": ABSENT}, {f"{T}.requirements": ABSENT, "spec.weight": 5}),
    _update("healed-A1", A, {"spec.weight": 0, f"{T}.expireAfter": "soon"}, {"spec.weight": 1}),
    _old_status("status-A1", A, {"spec.weight": 0}, {"nodes": 3}),
    _old_status("status-A2", A, {"status": {"conditions": [_ODD]}}, {"conditions": [_ODD, condition()]}),
    _old_status("status-R1", R, {"status": {"conditions": [_ODD]}}, {"conditions": [{**_ODD, "status": "perhaps"}]}),
    _old_status("status-R2", R, {"status": {"conditions": [condition()]}}, {"conditions": [condition(), _ODD]}),
]
