"""Which objects an API server with our CRDs accepts or rejects: one table for the real, the in-memory one, and offline checks.

A row changes a minimal valid object at some paths. Its verdict is the specification's: ``A`` accepted, ``R`` refused, ``N``
accepted and then found unusable by runtime validation. ``words`` must all occur in the refusal, or in the finding. Rows with
``before`` replace a stored object, rows of ``STATUS`` write the status of a stored one.
"""

from __future__ import annotations

from support.admission_machines import MACHINES
from support.admission_node_classes import CLASSES, EC2_CLASSES
from support.admission_overlays_and_buffers import BUFFERS, OVERLAYS
from support.admission_rows import (
    A_TAINT,
    ABSENT,
    CAPACITY,
    EVERY_DAY,
    IMMUTABLE,
    LARGEST,
    META,
    NUMERIC,
    REQUIREMENTS,
    SWITCH,
    TENANCY,
    TOGETHER,
    TOO_LONG,
    A,
    D,
    Json,
    N,
    R,
    T,
    budget_rows,
    claim_rows,
    claim_update_row,
    condition,
    label_rows,
    old_status_row,
    pool_rows,
    req,
    requirement_rows,
    taint_rows,
    update_row,
    value_rows,
)
from support.admission_schedules import SCHEDULES

FIELDS = [
    *pool_rows("API-S001", A, {}),
    *value_rows("API-S002", R, "spec.template", ABSENT, None, words=("template",)),
    *value_rows("API-S002-class", R, f"{T}.nodeClassRef", ABSENT, None, words=("nodeClassRef",)),
    *value_rows("API-S002-requirements", R, REQUIREMENTS, ABSENT, None, words=("requirements",)),
    *value_rows("API-S002-spec", R, "spec", ABSENT, None, {}, words=("spec",)),
    *value_rows("API-S002", A, REQUIREMENTS, []),
    *pool_rows("API-S003", A, {D: None}, {f"{META}.annotations": None}, {f"{META}.labels": None}, {META: None}),
    *pool_rows("API-020", A, {"spec.limits": {"cpu": None}}, {f"{META}.labels": {"a": None}}, {f"{D}.budgets": None}),
    *pool_rows("API-020-again", A, {f"{D}.consolidateAfter": None}, {f"{T}.expireAfter": None}, {"spec.weight": None}),
    *pool_rows("API-020", R, {REQUIREMENTS: [None]}, {f"{D}.budgets": [None]}, {f"{T}.taints": [None]}),
    *pool_rows(
        "API-021", A, {"spec.nothing": 1}, {f"{T}.kubelet": {"maxPods": 5}}, {f"{META}.name": "x"}, {"other": {}}
    ),
    *pool_rows("API-022-type", R, {"spec": "text"}, {"spec": []}, {T: "text"}, {f"{T}.nodeClassRef": []}, {D: "never"}),
    *value_rows("API-S004", A, D, {"consolidationPolicy": "WhenEmpty"}, {}),
    *value_rows("K15-001", A, D, {"budgets": [{"nodes": "1"}]}, {"consolidationPolicy": "WhenEmpty"}),
    *value_rows("API-S005", A, f"{D}.consolidateAfter", "30s", "1h30m", "0s", "Never", "1h1h"),
    *value_rows("API-S006", R, f"{D}.consolidateAfter", "-1s", "1d", "1.5h", "30", "never", "hello", "", "30s\n", 30),
    *value_rows("API-028", N, f"{D}.consolidateAfter", TOO_LONG, "9" * 400 + "s", words=("consolidateAfter", "292")),
    *value_rows("API-S007", A, f"{T}.expireAfter", "Never", "720h", "30s", "0s"),
    *value_rows("API-S007", R, f"{T}.expireAfter", "-30s", "30d", "", 720),
    *value_rows("API-028-lifetime", N, f"{T}.expireAfter", TOO_LONG, words=("expireAfter",)),
    *value_rows("API-S008", A, f"{T}.terminationGracePeriod", "48h", "0s"),
    *value_rows("API-S008", R, f"{T}.terminationGracePeriod", "Never", "-1m", ""),
    *value_rows("API-028-grace", N, f"{T}.terminationGracePeriod", TOO_LONG, words=("terminationGracePeriod",)),
    *value_rows("API-S009", R, f"{D}.consolidationPolicy", "WhenUnderutilized", "whenEmpty", "", words=("WhenEmpty",)),
    *value_rows("API-S010", A, f"{D}.consolidationPolicy", "Balanced", "WhenEmpty", "WhenEmptyOrUnderutilized"),
    *value_rows("API-S020", A, "spec.weight", 1, 100),
    *value_rows("API-S020", R, "spec.weight", 0, 101, -1, "5", 1.5, True, 2**70),
    *value_rows("API-S021", A, "spec.replicas", 0, 5, 2**31 - 1),
    *value_rows("API-S021", R, "spec.replicas", 2**31, LARGEST, LARGEST + 1, "5", 1.5, False),
    update_row("API-S021-A4", A, {"spec.replicas": 0}, {"spec.replicas": 5}),
    # API-035: a NodePool cannot switch between static and dynamic.
    update_row("API-S022-R1", R, {"spec.replicas": 0}, {}, SWITCH),
    update_row("API-S022-R2", R, {}, {"spec.replicas": 0}, SWITCH),
    update_row("API-S022-R3", R, {"spec.replicas": 1}, {"spec.replicas": None}, SWITCH),
    *pool_rows(
        "API-S023-weight", R, {"spec.replicas": 3, "spec.weight": 10}, words=("weight", "not supported", "static")
    ),
    *pool_rows(
        "API-S023",
        R,
        {"spec.replicas": 3, "spec.limits": {"cpu": 10}},
        {"spec.replicas": 3, "spec.limits": {"nodes": 5, "cpu": 10}},
        words=("only limits.nodes", "static"),
    ),
    update_row("API-S023-R3", R, {"spec.replicas": 3}, {"spec.replicas": 3, "spec.weight": 1}, ("weight", "static")),
    *pool_rows(
        "API-S024",
        A,
        {"spec.replicas": 3, "spec.limits": {"nodes": 10}},
        {"spec.replicas": 3, "spec.limits": {}},
        {"spec.replicas": 3, "spec.limits": {"nodes": 10, "cpu": None}},
    ),
    *value_rows("API-S024", R, "spec.replicas", -1),
    update_row("API-S025-A1", A, {}, {f"{T}.nodeClassRef.name": "other"}),
    update_row("API-S025-R1", R, {}, {f"{T}.nodeClassRef.kind": "Other"}, IMMUTABLE),
    update_row("API-S025-R2", R, {}, {f"{T}.nodeClassRef.group": "other"}, IMMUTABLE),
    *value_rows("API-S026", R, f"{T}.nodeClassRef.group", "karpenter.k8s.aws/v1", ABSENT, "/"),
    *pool_rows(
        "API-S026-empty",
        R,
        *({f"{T}.nodeClassRef.{name}": ""} for name in ("group", "kind", "name")),
        words=("may not be empty",),
    ),
    *value_rows(
        "API-S027", A, "spec.limits", {"cpu": 20, "memory": "40Gi"}, {"cpu": "1."}, {"cpu": ".5"}, {"cpu": "1e3"}
    ),
    *value_rows("API-S027-again", A, "spec.limits", {"cpu": "-1"}, {"cpu": -3}, {"any.thing/else": "+5"}, {"cpu": 2.0}),
    *value_rows("API-S027", R, "spec.limits", {"cpu": "four"}, {"cpu": "1 Gi"}, {"cpu": 0.5}, {"cpu": True}),
    *value_rows("API-S027-again", R, "spec.limits", {"cpu": ""}, {"cpu": []}, {"cpu": 2**63}, {"cpu": "1Gi\n"}, "40Gi"),
    *value_rows("API-027", N, "spec.limits", {"cpu": "1e1.5"}, {"cpu": "9" * 400}, words=("limits.cpu", "quantity")),
    *value_rows("API-031", N, "metadata.name", "a" * 64, words=("metadata.name", "63")),
    *value_rows("API-031-class", N, f"{T}.nodeClassRef.name", "a" * 64, words=("nodeClassRef.name", "63")),
    *value_rows("API-031", R, "metadata.name", "a" * 254, "A", "a..b", "a_b", "-a"),
]

BUDGETS = [
    *budget_rows("API-S011", A, *([{"nodes": n}] for n in ("0", "10", "0%", "99%", "100%", "1000"))),
    *budget_rows("API-S012", R, *([{"nodes": n}] for n in ("-10", "-10%", "1000%", "101%", "1.5%", 10, "", "10%\n"))),
    *budget_rows("API-S013", A, [{"nodes": "1"}] * 50, []),
    *budget_rows("API-S013", R, [{"nodes": "1"}] * 51, words=("50",)),
    *budget_rows(
        "API-S014",
        R,
        [{"nodes": "1", "schedule": "@daily"}],
        [{"nodes": "1", "duration": "1h"}],
        [{"nodes": "1"}, EVERY_DAY, {"nodes": "1", "duration": "1h"}],
        words=TOGETHER,
    ),
    update_row("API-S014-R4", R, {}, {f"{D}.budgets": [{"nodes": "1", "duration": "1h"}]}, TOGETHER),
    *budget_rows(
        "API-S015", A, *([{"schedule": s, "duration": "8h"}] for s in ("*/5 * * * *", "@daily", "0 9 * * mon-fri"))
    ),
    *budget_rows(
        "API-083",
        A,
        *([{"schedule": s, "duration": "8h"}] for s in ("@dailyXYZ", "99 99 99 99 99", "TZ=Asia/Seoul 0 9 * * 1")),
    ),
    *budget_rows(
        "API-S016", R, *([{"schedule": s, "duration": "8h"}] for s in ("*", "@every 1h", "* * * *", "@Daily", ""))
    ),
    *budget_rows("API-S017", A, *([{"schedule": "@daily", "duration": d}] for d in ("30m", "8h", "2h20m", "8h0m0s"))),
    *budget_rows(
        "API-S017", R, *([{"schedule": "@daily", "duration": d}] for d in ("30s", "-20m", "1d", "Never", "1m1h"))
    ),
    *budget_rows("API-028-budget", N, [{**EVERY_DAY, "duration": TOO_LONG}], words=("budgets[0].duration",)),
    *budget_rows("API-S018", A, [{"reasons": ["Underutilized", "Empty", "Drifted"]}], [{"reasons": []}]),
    *budget_rows("K15-A30", A, [{"reasons": ["Unhealthy"]}]),
    *budget_rows("API-S018", R, *([{"reasons": r}] for r in (["Expired"], ["drifted"], ["Empty", "Empty"], "Empty"))),
    *budget_rows("API-S019", A, [{}]),
]

TEMPLATE = [
    *label_rows(
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
    *label_rows(
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
    *label_rows("API-S031-named", R, {"fine": "a", "karpenter.sh/unknown": "a"}, words=("restricted", "karpenter.sh")),
    *label_rows("API-S032", A, {CAPACITY: "spot"}, {"karpenter.k8s.aws/instance-family": "m5"}),
    *label_rows("API-S032-again", A, {"karpenter.kwok.sh/instance-size": "2"}),
    *label_rows("API-437", A, {"mykarpenter.sh/x": "a"}, {"karpenter.sh.example.com/x": "a"}),
    *label_rows("API-435", N, {"karpenter.k8s.aws/ec2nodeclass": "a"}, words=("restricted", "ec2nodeclass")),
    *label_rows("API-S033", R, {"a": "/"}, {"a": "b" * 64}, {"a": "b-"}, {"a": "b\n"}, {"a": 1}),
    *label_rows("API-S034", N, {"spaces are not allowed": "a"}, words=("spaces are not allowed",)),
    *label_rows("API-438", N, {"": "a"}, {"A.com/a": "a"}, {"a" * 64: "a"}, {"/a": "a"}, words=("not a label key",)),
    *label_rows("API-S035", A, {f"l{i}": "a" for i in range(100)}),
    *label_rows("API-S035", R, {f"l{i}": "a" for i in range(101)}, words=("100",)),
    *value_rows("API-053", A, f"{META}.annotations", {"any thing": "goes\n"}),
    *value_rows("API-053", R, f"{META}.annotations", {"a": 1}, "a"),
    *taint_rows(
        "API-S036",
        A,
        [
            {"key": "a", "value": "b", "effect": "NoSchedule"},
            {"key": "d", "value": "e", "effect": "NoExecute"},
            {"key": "f", "effect": "PreferNoSchedule"},
            {"key": "key-only", "effect": "NoExecute", "timeAdded": "2025-01-31T12:00:00Z"},
        ],
    ),
    *taint_rows(
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
    *value_rows("API-055", A, f"{T}.startupTaints", [A_TAINT]),
    *value_rows(
        "API-055", R, f"{T}.startupTaints", [{"key": "a"}], [{"key": "a", "value": "", "effect": "NoSchedule"}]
    ),
    *taint_rows("API-S038", A, [A_TAINT, {"key": "a", "effect": "NoExecute"}]),
    *taint_rows("API-S039", N, [A_TAINT, A_TAINT], words=("a:NoSchedule",)),
    *pool_rows("API-076", N, {f"{T}.taints": [A_TAINT], f"{T}.startupTaints": [A_TAINT]}, words=("startupTaints[0]",)),
    *taint_rows("API-076-key", N, [{**A_TAINT, "key": "a" * 64}], words=("taints[0].key",)),
    *taint_rows("API-076-value", N, [{**A_TAINT, "value": "a" * 64}], words=("taints[0].value",)),
]

ENTRIES = [
    *requirement_rows(
        "API-S040", A, req("In", "a"), req("NotIn", "a"), req("Exists"), req("DoesNotExist"), req("NotIn")
    ),
    *requirement_rows("API-S040-bounds", A, *(req(operator, "1") for operator in ("Gt", "Lt", "Gte", "Lte"))),
    *requirement_rows("API-S041", R, req("unknown", "a"), req("in", "a"), req("", "a"), words=("NotIn",)),
    *requirement_rows("API-S042", R, req("In"), {"key": "a", "operator": "In"}, words=("In", "must have a value")),
    *requirement_rows("API-S043", R, req("Gt", "1", "2"), req("Gt"), req("Lte", "-1"), words=NUMERIC),
    *requirement_rows(
        "API-S043-text", R, req("Gt", "a"), req("Gte", "1.5"), req("Lt", ""), {"key": "a", "operator": "Lt"}
    ),
    *requirement_rows(
        "API-024", R, req("Gt", " 1"), req("Gt", "1e3"), req("Gt", "0x1"), req("Gt", "1_0"), req("Gt", "--1")
    ),
    *requirement_rows("API-S044", A, req("Gt", "0"), req("Lte", "100"), req("Lt", "007"), req("Gt", str(LARGEST))),
    *requirement_rows("API-S044", R, req("Gt", str(LARGEST + 1))),
    *requirement_rows("API-077-value", N, req("Gt", "+5"), words=("not a label value",)),
    *requirement_rows("API-S045", A, req("Exists", "a"), req("DoesNotExist", "a", "b")),
    *requirement_rows("API-S046", A, req("In", "a", "b", minValues=2), req("In", "a", "a", minValues=2)),
    *requirement_rows("API-S046", R, req("In", "a", "b", minValues=3), words=("minValues", "at least")),
    *requirement_rows(
        "API-S046-range", R, req("In", "a", minValues=0), req("In", "a", minValues=51), req("In", minValues=1)
    ),
    *requirement_rows(
        "API-S047", A, req("Exists", minValues=10), req("NotIn", "a", minValues=50), req("Gt", "1", minValues=2)
    ),
    *requirement_rows("API-403", A, req("In", *(f"v{i}" for i in range(200)))),
    *value_rows("API-S048", A, REQUIREMENTS, [req("Exists", key=f"k{i}") for i in range(100)]),
    *value_rows("API-S048", R, REQUIREMENTS, [req("Exists", key=f"k{i}") for i in range(101)], words=("100",)),
    *requirement_rows(
        "API-S049",
        R,
        *(req("In", "a", key=key) for key in ("karpenter.sh/nodepool", "kubernetes.io/hostname", "karpenter.sh/foo")),
        words=("restricted",),
    ),
    *requirement_rows(
        "API-431",
        R,
        *(
            req("Exists", key=key)
            for key in ("karpenter.sh", "a.karpenter.k8s.aws/b", "karpenter.k8s.aws/instance-pods")
        ),
        req("Exists", key="karpenter.kwok.sh/foo"),
        words=("restricted",),
    ),
    *requirement_rows("K15-A135", R, req("Exists", key="karpenter.k8s.aws/nitro-sandbox"), words=("restricted",)),
    *requirement_rows(
        "API-S050",
        A,
        req("In", "10.0.20348", key="node.kubernetes.io/windows-build"),
        req("In", "use1-az1", key="topology.k8s.aws/zone-id"),
        req("Exists", key="karpenter.k8s.aws/capacity-reservation-id"),
    ),
    *requirement_rows(
        "API-437-key", A, req("Exists", key="mykarpenter.sh/a"), req("Exists", key="karpenter.sh.example.com/a")
    ),
    *requirement_rows("API-435-key", N, req("Exists", key="karpenter.k8s.aws/ec2nodeclass"), words=("restricted",)),
    *requirement_rows("API-435-kwok", N, req("Exists", key="karpenter.kwok.sh/kwoknodeclass"), words=("restricted",)),
    *requirement_rows("API-S051", A, req("In", "us-east-2a", key="topology.ebs.csi.aws.com/zone")),
    *requirement_rows("API-436", A, req("In", "a", key="team.kubernetes.io/a"), req("Exists", key="x.k8s.io/b")),
    *requirement_rows("API-432", A, req("Exists", key="karpenter.k8s.aws/instance-family"), req("Exists", key=TENANCY)),
    *requirement_rows("API-402", N, req("In", "no value!"), words=("values[0]",)),
    *requirement_rows("API-401", A, req("NotIn"), req("Exists", "ignored")),
    *requirement_rows(
        "API-S052", N, req("In", "bad value!"), req("NotIn", "a" * 64), words=("values[0]", "not a label value")
    ),
    *requirement_rows(
        "API-S053", A, req("In", "spot", "on-demand", key=CAPACITY), req("In", "spot", "sopt", key=CAPACITY)
    ),
    *requirement_rows("API-S053", N, req("In", "sopt", key=CAPACITY), words=("on-demand, reserved, spot",)),
    *requirement_rows(
        "API-078", N, req("In", "spot", "sopt", key=CAPACITY, minValues=2), words=("minValues", "only 1")
    ),
    *requirement_rows("API-S054", A, req("NotIn", "sopt", key=CAPACITY)),
    *requirement_rows("API-S055", A, req("In", "default", key=TENANCY)),
    *requirement_rows("API-S055", N, req("In", "host", key=TENANCY), words=("dedicated, default",)),
    *requirement_rows("API-S056", N, req("Exists", key="a" * 316), words=("not a label key",)),
    *requirement_rows(
        "API-S056",
        R,
        req("Exists", key="a" * 317),
        req("Exists", key="a b"),
        req("Exists", key=""),
        req("Exists", key=5),
    ),
    *requirement_rows("API-400", R, {"operator": "Exists"}, {"key": "a"}, req("In", 1), {**req("In"), "values": "a"}),
]

METADATA = [
    *value_rows("METADATA-labels", A, "metadata.labels", None, {}, {"a": "b"}, {"a": ""}),
    *value_rows(
        "METADATA-labels",
        R,
        "metadata.labels",
        {"a": "b b"},
        {"A.x/a": "b"},
        {"a": "b" * 64},
        words=("metadata.labels",),
    ),
    *value_rows("METADATA-annotations", A, "metadata.annotations", None, {"a": "any thing"}, {"Example.com/A": "b"}),
    *value_rows("METADATA-annotations", R, "metadata.annotations", {"a b": "b"}, words=("metadata.annotations",)),
    *value_rows("METADATA-finalizers", A, "metadata.finalizers", [], ["karpenter.sh/termination"]),
    *value_rows("METADATA-finalizers", R, "metadata.finalizers", ["a b/c"], words=("metadata.finalizers",)),
    *value_rows("METADATA-unknown", A, "metadata.label", {"a": "b"}),
]

CLAIMS = [
    *claim_rows("API-S080", A, {}, {"spec.resources": None}, {"spec.expireAfter": None}),
    *claim_rows(
        "API-S080",
        R,
        {"spec.requirements": ABSENT},
        {"spec.nodeClassRef": ABSENT},
        {"spec.nodeClassRef.name": ""},
        {"spec.nodeClassRef.group": "a/b"},
    ),
    *claim_rows("API-022", R, {"spec": ABSENT}, {"spec": None}, words=("spec",)),
    claim_update_row("API-S081-R1", R, {"spec.expireAfter": "1h"}, IMMUTABLE),
    claim_update_row("API-S081-R2", R, {"spec.taints": [A_TAINT]}, IMMUTABLE),
    claim_update_row("API-S081-R3", R, {"spec.requirements": [req("Exists")]}, IMMUTABLE),
    claim_update_row("API-S081-R4", R, {"spec.taints": []}, IMMUTABLE),
    claim_update_row("API-S081-R5", R, {"spec.nodeClassRef.name": "other"}, IMMUTABLE),
    claim_update_row("API-S081-R6", R, {"spec.expireAfter": "43200m"}, IMMUTABLE),
    claim_update_row(
        "API-S081-R7",
        R,
        {"spec.resources": {"requests": {"cpu": "1000m"}}},
        IMMUTABLE,
        {"spec.resources": {"requests": {"cpu": "1"}}},
    ),
    claim_update_row(
        "API-S081-R8",
        R,
        {"spec.resources": {"requests": {"cpu": 1}}},
        IMMUTABLE,
        {"spec.resources": {"requests": {"cpu": "1"}}},
    ),
    claim_update_row("API-S081-A1", A, {"spec.expireAfter": "720h"}),
    claim_update_row("API-S081-A2", A, {"spec.taints": None, "spec.unknown": 5}),
    claim_update_row("API-S082-A1", A, {"metadata.labels": {"a": "b"}}),
    claim_update_row("API-S082-A2", A, {"metadata.annotations": {"a": "b"}}),
    *claim_rows("API-S083", A, {"spec.requirements": [req("In", "default", key="karpenter.sh/nodepool")]}),
    *claim_rows(
        "API-S084",
        R,
        {"spec.requirements": [req("In", "a", key="karpenter.sh/foo")]},
        {"spec.requirements": [req("In", "a", key="kubernetes.io/hostname")]},
        words=("restricted",),
    ),
    *claim_rows(
        "API-S084-minValues", R, {"spec.requirements": [req("In", "a", "b", minValues=3)]}, words=("at least",)
    ),
    *claim_rows(
        "API-S084-values", R, {"spec.requirements": [req("In")]}, {"spec.requirements": [req("In"), req("Gt", "a")]}
    ),
    *claim_rows(
        "API-S084-count", R, {"spec.requirements": [req("Exists", key=f"k{i}") for i in range(101)]}, words=("100",)
    ),
    *claim_rows("API-104", R, {"spec.terminationGracePeriod": "Never"}),
    *claim_rows("API-104", A, {"spec.terminationGracePeriod": "90s"}),
    *claim_rows("API-102", R, {"spec.resources": {"requests": {"cpu": "many"}}}, {"spec.resources": []}),
    *claim_rows("API-102", A, {"spec.resources": {"requests": {"cpu": "1", "memory": 5}}, "spec.expireAfter": "Never"}),
    *claim_rows("API-101", A, {"spec.requirements": [req("NotIn")]}, {"spec.requirements": [req("Exists", "a")]}),
    *claim_rows(
        "API-100", R, {"spec.taints": [{"key": "a"}]}, {"spec.startupTaints": [{"key": "???", "effect": "NoExecute"}]}
    ),
    *claim_rows("API-100", A, {"spec.taints": [A_TAINT], "spec.startupTaints": [A_TAINT]}),
]


ROWS = [
    *FIELDS,
    *BUDGETS,
    *TEMPLATE,
    *ENTRIES,
    *METADATA,
    *CLAIMS,
    *CLASSES,
    *EC2_CLASSES,
    *OVERLAYS,
    *BUFFERS,
    *SCHEDULES,
    *MACHINES,
]

_BAD_LABEL: Json = {"karpenter.sh/foo": "a"}
_BAD_BUDGET: Json = {"nodes": "1", "duration": "1h"}
_ODD: Json = {"type": "Odd", "status": "maybe"}

#: Objects stored under looser rules, and what may still be done to them: what is as it was is not judged again.
INVALID_STORED = [
    update_row("weight-A1", A, {"spec.weight": 0}, {"spec.weight": 0, "metadata.labels": {"a": "b"}}),
    update_row("weight-A2", A, {"spec.weight": 0}, {"spec.weight": 0, "spec.limits": {"cpu": 5}}),
    update_row("weight-R1", R, {"spec.weight": 0}, {"spec.weight": 101}),
    update_row("limits-A1", A, {"spec.limits": {"cpu": "x"}}, {"spec.limits": {"cpu": "x", "memory": "1Gi"}}),
    update_row("limits-R1", R, {"spec.limits": {"cpu": "x"}}, {"spec.limits": {"cpu": "y"}}),
    update_row(
        "static-A1",
        A,
        {"spec.replicas": 1, "spec.weight": 5},
        {"spec.replicas": 1, "spec.weight": 5, "metadata.annotations": {"a": "b"}},
    ),
    update_row("static-R1", R, {"spec.replicas": 1, "spec.weight": 5}, {"spec.replicas": 2, "spec.weight": 5}),
    update_row("budgets-A1", A, {f"{D}.budgets": [_BAD_BUDGET]}, {f"{D}.budgets": [_BAD_BUDGET], "spec.weight": 5}),
    update_row("budgets-R1", R, {f"{D}.budgets": [_BAD_BUDGET]}, {f"{D}.budgets": [_BAD_BUDGET, {"nodes": "1"}]}),
    update_row("labels-A1", A, {f"{META}.labels": _BAD_LABEL}, {f"{META}.labels": _BAD_LABEL, "spec.weight": 5}),
    update_row("labels-R1", R, {f"{META}.labels": _BAD_LABEL}, {f"{META}.labels": {**_BAD_LABEL, "b": "c"}}),
    update_row("label-values-A1", A, {f"{META}.labels": {"a": "-"}}, {f"{META}.labels": {"a": "-", "b": "c"}}),
    update_row(
        "requirements-A1", A, {REQUIREMENTS: [req("in")]}, {REQUIREMENTS: [req("in")], f"{T}.taints": [A_TAINT]}
    ),
    update_row("requirements-R1", R, {REQUIREMENTS: [req("in")]}, {REQUIREMENTS: [req("in"), req("Exists")]}),
    update_row("keys-A1", A, {REQUIREMENTS: [req("In", "")], "spec.weight": 5}, {REQUIREMENTS: [req("In", "")]}),
    update_row("class-A1", A, {f"{T}.nodeClassRef.name": ""}, {f"{T}.nodeClassRef.name": "", "spec.weight": 5}),
    update_row("class-R1", R, {f"{T}.nodeClassRef.group": "a/b"}, {f"{T}.nodeClassRef.group": "b/c"}),
    update_row("missing-R1", R, {f"{T}.requirements": ABSENT}, {f"{T}.requirements": ABSENT, f"{T}.expireAfter": "1h"}),
    update_row("missing-A1", A, {f"{T}.requirements": ABSENT}, {f"{T}.requirements": ABSENT, "spec.weight": 5}),
    update_row("healed-A1", A, {"spec.weight": 0, f"{T}.expireAfter": "soon"}, {"spec.weight": 1}),
    old_status_row("status-A1", A, {"spec.weight": 0}, {"nodes": 3}),
    old_status_row("status-A2", A, {"status": {"conditions": [_ODD]}}, {"conditions": [_ODD, condition()]}),
    old_status_row("status-R1", R, {"status": {"conditions": [_ODD]}}, {"conditions": [{**_ODD, "status": "perhaps"}]}),
    old_status_row("status-R2", R, {"status": {"conditions": [condition()]}}, {"conditions": [condition(), _ODD]}),
]
