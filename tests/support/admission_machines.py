"""Which MachineNodeClasses an API server accepts or rejects."""

from __future__ import annotations

from support.admission_rows import A, Json, R, Row, Verdict, rows_of


def _classes(id_: str, verdict: Verdict, path: str, *values: object) -> list[Row]:
    return rows_of(id_, "MachineNodeClass", verdict, [{path: value} for value in values], ())


def _host(**fields: object) -> Json:
    return {"name": "rack1-01", "capacity": {"cpu": "16", "memory": "64Gi"}, **fields}


MACHINES = [
    *_classes("machine-power", A, "spec.power", "ipmi", "wake-on-lan"),
    *_classes("machine-power-R", R, "spec.power", "", "../sh", "/bin/sh", "IPMI"),
    *_classes("machine-hosts", A, "spec.hosts", [_host()], [_host(), _host(name="rack1-02", costPerHour="0.12")], []),
    *_classes("machine-hosts-R", R, "spec.hosts", [_host(), _host()], [{"name": "a"}], [_host(name="Rack 1")]),
    *_classes("machine-cost-R", R, "spec.hosts", [_host(costPerHour="-1")], [_host(costPerHour="cheap")]),
    *_classes("machine-capacity-R", R, "spec.hosts", [_host(capacity={"cpu": "many"})]),
]
