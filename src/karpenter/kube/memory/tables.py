"""Lists as tables, the way command lines ask for them: a few columns per kind, name first and age last.

Our own kinds show the columns of their CRDs (API-008 ff.); the core kinds show the usual ones, as far as they can be told from
what decisions read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from karpenter.api.crds import crds
from karpenter.kube.memory.deletion import parse_stamp
from karpenter.kube.memory.resources import Resource
from karpenter.kube.memory.store import Entry, JsonDict

#: What a cell shows, given the object and the current time.
Cell = Callable[[JsonDict, datetime], Any]

_STEP = re.compile(r"\.((?:[^.\[\\]|\\.)+)|\[\?\(@\.(\w+)==\"([^\"]*)\"\)\]")
_MINUTE, _HOUR, _DAY, _YEAR = 60, 3600, 86400, 365 * 86400


@dataclass(frozen=True, slots=True)
class Column:
    """One column; ``wide`` ones show only on request."""

    name: str
    cell: Cell
    type: str = "string"
    wide: bool = False


def table(resource: Resource, entries: Iterable[Entry], now: datetime, head: Mapping[str, Any]) -> JsonDict:
    """The ``Table`` of these entries; ``head`` is the list metadata."""
    columns = _columns(resource.kind.group, resource.kind.name)
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": dict(head),
        "columnDefinitions": [_definition(column) for column in columns],
        "rows": [_row(columns, entry.decoded(), now) for entry in entries],
    }


def _definition(column: Column) -> JsonDict:
    return {
        "name": column.name,
        "type": column.type,
        "format": "name" if column.name == "Name" else "",
        "description": column.name,
        "priority": int(column.wide),
    }


def _row(columns: Sequence[Column], body: JsonDict, now: datetime) -> JsonDict:
    part = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": body["metadata"]}
    return {"cells": [column.cell(body, now) for column in columns], "object": part}


def at(body: Any, path: str) -> Any:
    """The value at a printer column's path, such as ``.status.conditions[?(@.type=="Ready")].status``; None if absent."""
    value = body
    for field, key, wanted in _STEP.findall(path):
        if field:
            value = value.get(field.replace("\\", "")) if isinstance(value, dict) else None
        else:
            items = value if isinstance(value, list) else ()
            value = next((item for item in items if item.get(key) == wanted), None)
    return value


def age(stamp: str | None, now: datetime) -> str:
    """How long ago, in the short form of command lines: two units while the first is small, one when it is large."""
    if not stamp:
        return "<unknown>"
    seconds = max(0, int((now - parse_stamp(stamp)).total_seconds()))
    for limit, unit, letter, part, small in (
        (2 * _MINUTE, 1, "s", 0, ""),
        (10 * _MINUTE, _MINUTE, "m", 1, "s"),
        (3 * _HOUR, _MINUTE, "m", 0, ""),
        (8 * _HOUR, _HOUR, "h", _MINUTE, "m"),
        (2 * _DAY, _HOUR, "h", 0, ""),
        (8 * _DAY, _DAY, "d", _HOUR, "h"),
        (2 * _YEAR, _DAY, "d", 0, ""),
        (8 * _YEAR, _YEAR, "y", _DAY, "d"),
    ):
        if seconds < limit:
            rest = seconds % unit // part if part else 0
            return f"{seconds // unit}{letter}" + (f"{rest}{small}" if rest else "")
    return f"{seconds // _YEAR}y"


def _path(path: str, absent: Any = "") -> Cell:
    def cell(body: JsonDict, now: datetime) -> Any:
        value = at(body, path)
        return absent if value is None else value

    return cell


def _date(path: str) -> Cell:
    return lambda body, now: age(at(body, path), now)


_NAME = Column("Name", _path(".metadata.name"))
_AGE = Column("Age", _date(".metadata.creationTimestamp"))


@cache
def _columns(group: str, name: str) -> tuple[Column, ...]:
    for crd in crds():
        spec: Any = crd["spec"]
        if (spec["group"], spec["names"]["kind"]) == (group, name):
            return (_NAME, *(_printed(column) for column in spec["versions"][0]["additionalPrinterColumns"]))
    return (_NAME, *_CORE.get(name, ()), _AGE) if name != "Event" else _EVENT


def _printed(column: Mapping[str, Any]) -> Column:
    path, type_ = column["jsonPath"], column["type"]
    if type_ == "date":
        return Column(column["name"], _date(path), "string")
    return Column(column["name"], _path(path, None if type_ == "integer" else ""), type_, bool(column.get("priority")))


def _pod_ready(pod: JsonDict, now: datetime) -> str:
    total = len((pod.get("spec") or {}).get("containers") or ())
    statuses = at(pod, ".status.containerStatuses")
    if statuses:
        return f"{sum(1 for item in statuses if item.get('ready'))}/{total}"
    ready = at(pod, '.status.conditions[?(@.type=="Ready")].status') == "True"
    return f"{total if ready else 0}/{total}"


def _pod_status(pod: JsonDict, now: datetime) -> str:
    if at(pod, ".metadata.deletionTimestamp"):
        return "Terminating"
    if at(pod, ".spec.schedulingGates"):
        return "SchedulingGated"
    return str(at(pod, ".status.reason") or at(pod, ".status.phase") or "Unknown")


def _restarts(pod: JsonDict, now: datetime) -> int:
    return sum(int(item.get("restartCount", 0)) for item in at(pod, ".status.containerStatuses") or ())


def _node_status(node: JsonDict, now: datetime) -> str:
    ready = at(node, '.status.conditions[?(@.type=="Ready")].status')
    words = ["Unknown" if ready is None else "Ready" if ready == "True" else "NotReady"]
    return ",".join(words + (["SchedulingDisabled"] if at(node, ".spec.unschedulable") else []))


def _roles(node: JsonDict, now: datetime) -> str:
    prefix = "node-role.kubernetes.io/"
    roles = sorted(key.removeprefix(prefix) for key in at(node, ".metadata.labels") or () if key.startswith(prefix))
    return ",".join(roles) or "<none>"


def _of_wanted(ready: str, wanted: str) -> Cell:
    return lambda body, now: f"{at(body, ready) or 0}/{at(body, wanted) or 0}"


def _event_object(event: JsonDict, now: datetime) -> str:
    about = event.get("involvedObject") or {}
    return f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}"


_CORE: Mapping[str, tuple[Column, ...]] = {
    "Pod": (
        Column("Ready", _pod_ready),
        Column("Status", _pod_status),
        Column("Restarts", _restarts, "integer"),
        Column("IP", _path(".status.podIP", "<none>"), wide=True),
        Column("Node", _path(".spec.nodeName", "<none>"), wide=True),
        Column("Nominated Node", _path(".status.nominatedNodeName", "<none>"), wide=True),
    ),
    "Node": (
        Column("Status", _node_status),
        Column("Roles", _roles),
        Column("Version", _path(".status.nodeInfo.kubeletVersion", "<unknown>")),
        Column("Type", _path(r".metadata.labels.node\.kubernetes\.io/instance-type"), wide=True),
        Column("Zone", _path(r".metadata.labels.topology\.kubernetes\.io/zone"), wide=True),
    ),
    "Namespace": (Column("Status", _path(".status.phase")),),
    "ConfigMap": (Column("Data", lambda body, now: len(body.get("data") or ()), "integer"),),
    "Lease": (Column("Holder", _path(".spec.holderIdentity")),),
    "Deployment": (
        Column("Ready", _of_wanted(".status.readyReplicas", ".spec.replicas")),
        Column("Up-to-date", _path(".status.updatedReplicas", 0), "integer"),
        Column("Available", _path(".status.availableReplicas", 0), "integer"),
    ),
    "ReplicaSet": (
        Column("Desired", _path(".spec.replicas", 0), "integer"),
        Column("Current", _path(".status.replicas", 0), "integer"),
        Column("Ready", _path(".status.readyReplicas", 0), "integer"),
    ),
    "DaemonSet": (
        Column("Desired", _path(".status.desiredNumberScheduled", 0), "integer"),
        Column("Ready", _path(".status.numberReady", 0), "integer"),
    ),
    "PodDisruptionBudget": (
        Column("Min Available", _path(".spec.minAvailable", "N/A")),
        Column("Max Unavailable", _path(".spec.maxUnavailable", "N/A")),
        Column("Allowed Disruptions", _path(".status.disruptionsAllowed", 0), "integer"),
    ),
}
_EVENT = (
    Column(
        "Last Seen", lambda body, now: age(at(body, ".lastTimestamp") or at(body, ".metadata.creationTimestamp"), now)
    ),
    Column("Type", _path(".type")),
    Column("Reason", _path(".reason")),
    Column("Object", _event_object),
    Column("Message", _path(".message")),
    Column("Name", _path(".metadata.name"), wide=True),
)
