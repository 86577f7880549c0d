"""Which statuses of our kinds an API server accepts or rejects."""

from __future__ import annotations

from support.admission_rows import (
    ABSENT,
    LARGEST,
    A,
    Json,
    R,
    condition,
    status_rows,
)

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
_NODECLAIM_STATUS: Json = {
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
    *status_rows("NodePool", A, {}, {"nodes": None}, {"conditions": None}, {"conditions": []}, _STRANGE, _FULL),
    *status_rows("NodePool", R, *({"conditions": [bad]} for bad in (*_BAD_CONDITIONS, *_BARE_CONDITIONS))),
    *status_rows("NodePool-list", R, {"conditions": [condition()] * 2}, {"conditions": [None]}, {"conditions": {}}),
    *status_rows("NodePool-nodes", R, *({"nodes": count} for count in (-1, 2**31, "3", 1.5, LARGEST + 1))),
    *status_rows("NodePool-resources", R, {"resources": {"cpu": "x"}}, {"resources": {"cpu": 1.5}}),
    *status_rows("NodeClaim", A, {}, {"conditions": []}, _NODECLAIM_STATUS, {"lastPodEventTime": _EVENT_TIME}),
    *status_rows("NodeClaim-bare", A, *({"conditions": [bare]} for bare in _BARE_CONDITIONS)),
    *status_rows("NodeClaim", R, *({"conditions": [bad]} for bad in _BAD_CONDITIONS), {"lastPodEventTime": "noon"}),
    *status_rows("NodeClaim-resources", R, {"capacity": {"cpu": "x"}}, {"allocatable": {"cpu": True}}, {"nodeName": 5}),
    *status_rows("KWOKNodeClass", A, {}, {"conditions": []}, {"conditions": None}, {"conditions": [condition()]}),
    *status_rows("KWOKNodeClass", R, *({"conditions": [bare]} for bare in _BARE_CONDITIONS)),
    *status_rows("EC2NodeClass", A, {}, {"conditions": []}, {"conditions": [condition()] * 2}, _FOUND),
    *status_rows("EC2NodeClass", R, *({"conditions": [bare]} for bare in _BARE_CONDITIONS)),
    *status_rows(
        "EC2NodeClass-reservations",
        R,
        *({"capacityReservations": [{**_RESERVED, **odd}]} for odd in _ODD_RESERVATIONS),
    ),
]
