"""Which NodeOverlays and CapacityBuffers an API server accepts or rejects."""

from __future__ import annotations

from support.admission_rows import (
    ABSENT,
    CAPACITY,
    TENANCY,
    A,
    Json,
    R,
    Row,
    Verdict,
    req,
    rows_of,
)


def _overlays(id_: str, verdict: Verdict, path: str, *values: object, words: tuple[str, ...] = ()) -> list[Row]:
    return rows_of(id_, "NodeOverlay", verdict, [{path: value} for value in values], words)


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
    *rows_of("API-S103", "NodeOverlay", R, [{"spec.price": "1", "spec.priceAdjustment": "+1"}], ("cannot set both",)),
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
    *rows_of(
        "API-150-count",
        "NodeOverlay",
        R,
        [{"spec.requirements": [req("Exists", key=f"k{i}") for i in range(101)]}],
        ("100",),
    ),
]


def _buffers(id_: str, verdict: Verdict, *specs: Json, words: tuple[str, ...] = ()) -> list[Row]:
    return rows_of(id_, "CapacityBuffer", verdict, [{"spec": spec} for spec in specs], words)


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
