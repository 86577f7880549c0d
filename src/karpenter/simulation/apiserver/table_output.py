"""Lists as tables, as ``kubectl get`` requests them: a few columns per kind, name first and age last.

Our own kinds show the columns of their CRDs (API-008 ff.); the core kinds show the usual ones, as far as the fields that
decisions read provide them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from karpenter.api.crds import custom_resource_definitions
from karpenter.simulation.apiserver.object_deletion import parse_time
from karpenter.simulation.apiserver.object_store import JsonDict, StoredEntry
from karpenter.simulation.apiserver.served_resources import ServedResource

#: What a cell shows, given the object and the current time.
ColumnValue = Callable[[JsonDict, datetime], Any]

_PATH_ELEMENT = re.compile(r"\.((?:[^.\[\\]|\\.)+)|\[\?\(@\.(\w+)==\"([^\"]*)\"\)\]")
_MINUTE, _HOUR, _DAY, _YEAR = 60, 3600, 86400, 365 * 86400


@dataclass(frozen=True, slots=True)
class PrinterColumn:
    """One column; a column with ``is_wide`` shows only on request."""

    name: str
    value: ColumnValue
    type: str = "string"
    is_wide: bool = False


def render_table(
    resource: ServedResource, entries: Iterable[StoredEntry], now: datetime, list_metadata: Mapping[str, Any]
) -> JsonDict:
    """The ``Table`` of these entries; ``list_metadata`` is that of the list."""
    columns = _columns_of_kind(resource.kind.group, resource.kind.name)
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": dict(list_metadata),
        "columnDefinitions": [_column_definition(column) for column in columns],
        "rows": [_row(columns, entry.decoded(), now) for entry in entries],
    }


def _column_definition(column: PrinterColumn) -> JsonDict:
    return {
        "name": column.name,
        "type": column.type,
        "format": "name" if column.name == "Name" else "",
        "description": column.name,
        "priority": int(column.is_wide),
    }


def _row(columns: Sequence[PrinterColumn], body: JsonDict, now: datetime) -> JsonDict:
    part = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": body["metadata"]}
    return {"cells": [column.value(body, now) for column in columns], "object": part}


def value_at(body: Any, path: str) -> Any:
    """The value at a printer column's path, such as ``.status.conditions[?(@.type=="Ready")].status``; None if absent."""
    value = body
    for field, key, wanted in _PATH_ELEMENT.findall(path):
        if field:
            value = value.get(field.replace("\\", "")) if isinstance(value, dict) else None
        else:
            elements = value if isinstance(value, list) else ()
            value = next((element for element in elements if element.get(key) == wanted), None)
    return value


def format_age(stamp: str | None, now: datetime) -> str:
    """How long ago, in the short form of command lines: two units while the first is small, one when it is large."""
    if not stamp:
        return "<unknown>"
    seconds = max(0, int((now - parse_time(stamp)).total_seconds()))
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


def _path_value(path: str, absent: Any = "") -> ColumnValue:
    def column_value(body: JsonDict, now: datetime) -> Any:
        value = value_at(body, path)
        return absent if value is None else value

    return column_value


def _age_value(path: str) -> ColumnValue:
    return lambda body, now: format_age(value_at(body, path), now)


_NAME_COLUMN = PrinterColumn("Name", _path_value(".metadata.name"))
_AGE_COLUMN = PrinterColumn("Age", _age_value(".metadata.creationTimestamp"))


@cache
def _columns_of_kind(group: str, name: str) -> tuple[PrinterColumn, ...]:
    for crd in custom_resource_definitions():
        spec: Any = crd["spec"]
        if (spec["group"], spec["names"]["kind"]) == (group, name):
            return (
                _NAME_COLUMN,
                *(_column_of_crd(column) for column in spec["versions"][0]["additionalPrinterColumns"]),
            )
    return (_NAME_COLUMN, *_CORE_COLUMNS.get(name, ()), _AGE_COLUMN) if name != "Event" else _EVENT_COLUMNS


def _column_of_crd(column: Mapping[str, Any]) -> PrinterColumn:
    path, type_ = column["jsonPath"], column["type"]
    if type_ == "date":
        return PrinterColumn(column["name"], _age_value(path), "string")
    return PrinterColumn(
        column["name"], _path_value(path, None if type_ == "integer" else ""), type_, bool(column.get("priority"))
    )


def _pod_ready(pod: JsonDict, now: datetime) -> str:
    total = len((pod.get("spec") or {}).get("containers") or ())
    statuses = value_at(pod, ".status.containerStatuses")
    if statuses:
        return f"{sum(1 for status in statuses if status.get('ready'))}/{total}"
    ready = value_at(pod, '.status.conditions[?(@.type=="Ready")].status') == "True"
    return f"{total if ready else 0}/{total}"


def _pod_status(pod: JsonDict, now: datetime) -> str:
    if value_at(pod, ".metadata.deletionTimestamp"):
        return "Terminating"
    if value_at(pod, ".spec.schedulingGates"):
        return "SchedulingGated"
    return str(value_at(pod, ".status.reason") or value_at(pod, ".status.phase") or "Unknown")


def _restarts(pod: JsonDict, now: datetime) -> int:
    return sum(int(status.get("restartCount", 0)) for status in value_at(pod, ".status.containerStatuses") or ())


def _node_status(node: JsonDict, now: datetime) -> str:
    ready = value_at(node, '.status.conditions[?(@.type=="Ready")].status')
    words = ["Unknown" if ready is None else "Ready" if ready == "True" else "NotReady"]
    return ",".join(words + (["SchedulingDisabled"] if value_at(node, ".spec.unschedulable") else []))


def _roles(node: JsonDict, now: datetime) -> str:
    prefix = "node-role.kubernetes.io/"
    roles = sorted(
        key.removeprefix(prefix) for key in value_at(node, ".metadata.labels") or () if key.startswith(prefix)
    )
    return ",".join(roles) or "<none>"


def _ratio(ready_path: str, desired_path: str) -> ColumnValue:
    return lambda body, now: f"{value_at(body, ready_path) or 0}/{value_at(body, desired_path) or 0}"


def _event_object(event: JsonDict, now: datetime) -> str:
    about = event.get("involvedObject") or {}
    return f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}"


_CORE_COLUMNS: Mapping[str, tuple[PrinterColumn, ...]] = {
    "Pod": (
        PrinterColumn("Ready", _pod_ready),
        PrinterColumn("Status", _pod_status),
        PrinterColumn("Restarts", _restarts, "integer"),
        PrinterColumn("IP", _path_value(".status.podIP", "<none>"), is_wide=True),
        PrinterColumn("Node", _path_value(".spec.nodeName", "<none>"), is_wide=True),
        PrinterColumn("Nominated Node", _path_value(".status.nominatedNodeName", "<none>"), is_wide=True),
    ),
    "Node": (
        PrinterColumn("Status", _node_status),
        PrinterColumn("Roles", _roles),
        PrinterColumn("Version", _path_value(".status.nodeInfo.kubeletVersion", "<unknown>")),
        PrinterColumn("Type", _path_value(r".metadata.labels.node\.kubernetes\.io/instance-type"), is_wide=True),
        PrinterColumn("Zone", _path_value(r".metadata.labels.topology\.kubernetes\.io/zone"), is_wide=True),
    ),
    "Namespace": (PrinterColumn("Status", _path_value(".status.phase")),),
    "ConfigMap": (PrinterColumn("Data", lambda body, now: len(body.get("data") or ()), "integer"),),
    "Lease": (PrinterColumn("Holder", _path_value(".spec.holderIdentity")),),
    "Deployment": (
        PrinterColumn("Ready", _ratio(".status.readyReplicas", ".spec.replicas")),
        PrinterColumn("Up-to-date", _path_value(".status.updatedReplicas", 0), "integer"),
        PrinterColumn("Available", _path_value(".status.availableReplicas", 0), "integer"),
    ),
    "ReplicaSet": (
        PrinterColumn("Desired", _path_value(".spec.replicas", 0), "integer"),
        PrinterColumn("Current", _path_value(".status.replicas", 0), "integer"),
        PrinterColumn("Ready", _path_value(".status.readyReplicas", 0), "integer"),
    ),
    "DaemonSet": (
        PrinterColumn("Desired", _path_value(".status.desiredNumberScheduled", 0), "integer"),
        PrinterColumn("Ready", _path_value(".status.numberReady", 0), "integer"),
    ),
    "PodDisruptionBudget": (
        PrinterColumn("Min Available", _path_value(".spec.minAvailable", "N/A")),
        PrinterColumn("Max Unavailable", _path_value(".spec.maxUnavailable", "N/A")),
        PrinterColumn("Allowed Disruptions", _path_value(".status.disruptionsAllowed", 0), "integer"),
    ),
}
_EVENT_COLUMNS = (
    PrinterColumn(
        "Last Seen",
        lambda body, now: format_age(
            value_at(body, ".lastTimestamp") or value_at(body, ".metadata.creationTimestamp"), now
        ),
    ),
    PrinterColumn("Type", _path_value(".type")),
    PrinterColumn("Reason", _path_value(".reason")),
    PrinterColumn("Object", _event_object),
    PrinterColumn("Message", _path_value(".message")),
    PrinterColumn("Name", _path_value(".metadata.name"), is_wide=True),
)
