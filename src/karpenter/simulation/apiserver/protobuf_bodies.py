"""Reading the protobuf bodies that ``kubectl create`` and ``kubectl drain`` insist on.

Generated Kubernetes clients send core kinds as protobuf and cannot be talked out of it. The messages they send are few, so a
table of field numbers and a reader of the wire format (https://protobuf.dev/programming-guides/encoding/) do. The table holds
what command lines write and what decisions read; a field outside it refuses the whole body by name, rather than losing it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from typing import Any

from karpenter.kube.errors import Invalid
from karpenter.simulation.apiserver.object_store import JsonDict

_MAGIC = b"k8s\x00"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

#: Message to its fields: number, name and type (text where none is given; ``[]`` repeats, ``map`` is by text; ``-`` is dropped
#: because the server decides on it).
_MESSAGES = {
    "Namespace": "1 metadata:ObjectMeta, 2 spec:-, 3 status:-",
    "ConfigMap": "1 metadata:ObjectMeta, 2 data:map, 4 immutable:bool",
    "Pod": "1 metadata:ObjectMeta, 2 spec:PodSpec, 3 status:-",
    "Node": "1 metadata:ObjectMeta, 2 spec:NodeSpec, 3 status:-",
    "Deployment": "1 metadata:ObjectMeta, 2 spec:DeploymentSpec, 3 status:-",
    "ReplicaSet": "1 metadata:ObjectMeta, 2 spec:ReplicaSetSpec, 3 status:-",
    "PodDisruptionBudget": "1 metadata:ObjectMeta, 2 spec:PodDisruptionBudgetSpec, 3 status:-",
    "Event": (
        "1 metadata:ObjectMeta, 2 involvedObject:ObjectReference, 3 reason, 4 message, 5 source:EventSource, "
        "6 firstTimestamp:Time, 7 lastTimestamp:Time, 8 count:int, 9 type, 10 eventTime:MicroTime, 12 action, "
        "13 related:ObjectReference, 14 reportingComponent, 15 reportingInstance"
    ),
    "Lease": "1 metadata:ObjectMeta, 2 spec:LeaseSpec",
    "Binding": "1 metadata:ObjectMeta, 2 target:ObjectReference",
    "Eviction": "1 metadata:ObjectMeta, 2 deleteOptions:DeleteOptions",
    "DeleteOptions": (
        "1 gracePeriodSeconds:int, 2 preconditions:Preconditions, 3 orphanDependents:bool, 4 propagationPolicy, 5 dryRun[]"
    ),
    "Preconditions": "1 uid, 2 resourceVersion",
    "ObjectMeta": (
        "1 name, 2 generateName, 3 namespace, 4 selfLink:-, 5 uid, 6 resourceVersion, 7 generation:-, "
        "8 creationTimestamp:Time, 9 deletionTimestamp:Time, 10 deletionGracePeriodSeconds:int, 11 labels:map, "
        "12 annotations:map, 13 ownerReferences:OwnerReference[], 14 finalizers[], 17 managedFields:-"
    ),
    "OwnerReference": "1 kind, 3 name, 4 uid, 5 apiVersion, 6 controller:bool, 7 blockOwnerDeletion:bool",
    "LabelSelector": "1 matchLabels:map, 2 matchExpressions:Expression[]",
    "Expression": "1 key, 2 operator, 3 values[]",
    "ObjectReference": "1 kind, 2 namespace, 3 name, 4 uid, 5 apiVersion, 6 resourceVersion, 7 fieldPath",
    "EventSource": "1 component, 2 host",
    "LeaseSpec": (
        "1 holderIdentity, 2 leaseDurationSeconds:int, 3 acquireTime:MicroTime, 4 renewTime:MicroTime, 5 leaseTransitions:int"
    ),
    "PodDisruptionBudgetSpec": (
        "1 minAvailable:IntOrString, 2 selector:LabelSelector, 3 maxUnavailable:IntOrString, 4 unhealthyPodEvictionPolicy"
    ),
    "DeploymentSpec": (
        "1 replicas:int, 2 selector:LabelSelector, 3 template:PodTemplateSpec, 4 strategy:DeploymentStrategy, "
        "5 minReadySeconds:int, 6 revisionHistoryLimit:int, 7 paused:bool, 9 progressDeadlineSeconds:int"
    ),
    "DeploymentStrategy": "1 type, 2 rollingUpdate:RollingUpdate",
    "RollingUpdate": "1 maxUnavailable:IntOrString, 2 maxSurge:IntOrString",
    "ReplicaSetSpec": "1 replicas:int, 2 selector:LabelSelector, 3 template:PodTemplateSpec, 4 minReadySeconds:int",
    "PodTemplateSpec": "1 metadata:ObjectMeta, 2 spec:PodSpec",
    "NodeSpec": "1 podCIDR, 3 providerID, 4 unschedulable:bool, 5 taints:Taint[], 7 podCIDRs[]",
    "Taint": "1 key, 2 value, 3 effect, 4 timeAdded:Time",
    "PodSpec": (
        "2 containers:Container[], 3 restartPolicy, 4 terminationGracePeriodSeconds:int, 5 activeDeadlineSeconds:int, "
        "6 dnsPolicy, 7 nodeSelector:map, 8 serviceAccountName, 9 serviceAccount, 10 nodeName, 11 hostNetwork:bool, "
        "12 hostPID:bool, 13 hostIPC:bool, 14 securityContext:PodSecurityContext, 16 hostname, 17 subdomain, "
        "18 affinity:Affinity, 19 schedulerName, 20 initContainers:Container[], 21 automountServiceAccountToken:bool, "
        "22 tolerations:Toleration[], 24 priorityClassName, 25 priority:int, 29 runtimeClassName, "
        "30 enableServiceLinks:bool, 31 preemptionPolicy, 32 overhead:Quantities, "
        "33 topologySpreadConstraints:TopologySpreadConstraint[], 38 schedulingGates:SchedulingGate[], "
        "40 resources:ResourceRequirements"
    ),
    "PodSecurityContext": "2 runAsUser:int, 3 runAsNonRoot:bool, 5 fsGroup:int, 6 runAsGroup:int",
    "SchedulingGate": "1 name",
    "Container": (
        "1 name, 2 image, 3 command[], 4 args[], 5 workingDir, 6 ports:ContainerPort[], 7 env:EnvVar[], "
        "8 resources:ResourceRequirements, 13 terminationMessagePath, 14 imagePullPolicy, 16 stdin:bool, 17 stdinOnce:bool, "
        "18 tty:bool, 20 terminationMessagePolicy, 24 restartPolicy"
    ),
    "ContainerPort": "1 name, 2 hostPort:int, 3 containerPort:int, 4 protocol, 5 hostIP",
    "EnvVar": "1 name, 2 value",
    "ResourceRequirements": "1 limits:Quantities, 2 requests:Quantities",
    "Toleration": "1 key, 2 operator, 3 value, 4 effect, 5 tolerationSeconds:int",
    "Affinity": "1 nodeAffinity:NodeAffinity",
    "NodeAffinity": "1 requiredDuringSchedulingIgnoredDuringExecution:NodeSelector",
    "NodeSelector": "1 nodeSelectorTerms:NodeSelectorTerm[]",
    "NodeSelectorTerm": "1 matchExpressions:Expression[], 2 matchFields:Expression[]",
    "TopologySpreadConstraint": (
        "1 maxSkew:int, 2 topologyKey, 3 whenUnsatisfiable, 4 labelSelector:LabelSelector, 5 minDomains:int, "
        "6 nodeAffinityPolicy, 7 nodeTaintsPolicy, 8 matchLabelKeys[]"
    ),
}


def decode_protobuf(data: bytes) -> JsonDict:
    """The JSON form of a body with its type. Raises ``Invalid`` (415) for a kind or field the table does not hold."""
    if not data.startswith(_MAGIC):
        raise _unsupported("the body does not start as a Kubernetes protobuf body does")
    try:
        envelope = dict(_raw_fields(data[len(_MAGIC) :]))
        head = dict(_raw_fields(envelope[1]))
        api_version, kind = (head[number].decode() for number in (1, 2))
        if kind not in _MESSAGES:
            raise _unsupported(f"kind {kind} is not known in this form")
        return {"apiVersion": api_version, "kind": kind, **_decode_message(kind, envelope.get(2, b""))}
    except (IndexError, KeyError, ValueError, AttributeError, TypeError) as error:
        raise _unsupported(f"the body is broken ({error!r})") from error


def _unsupported(cause: str) -> Invalid:
    return Invalid(f"protobuf: {cause}; send application/json instead", status=415, reason="UnsupportedMediaType")


@cache
def _message_fields(message: str) -> dict[int, tuple[str, str, bool]]:
    table = {}
    for line in _MESSAGES[message].split(", "):
        number, _, rest = line.partition(" ")
        name, _, type_ = rest.removesuffix("[]").partition(":")
        table[int(number)] = (name, type_, rest.endswith("[]"))
    return table


def _decode_message(message: str, data: bytes) -> JsonDict:
    result: JsonDict = {}
    table = _message_fields(message)
    for number, raw in _raw_fields(data):
        if number not in table:
            raise _unsupported(f"field {number} of {message} is not known in this form")
        name, type_, repeated = table[number]
        value = _decode_value(type_, raw)
        if repeated:
            result.setdefault(name, []).append(value)
        elif type_ in ("map", "Quantities"):
            result.setdefault(name, {}).update(value)
        elif value not in (None, ""):  # absent text and times are written as empty ones
            result[name] = value
    return result


def _decode_value(type_: str, raw: Any) -> Any:
    match type_:
        case "":
            return raw.decode()
        case "-":
            return None
        case "int":
            return raw - (1 << 64) if raw >> 63 else raw
        case "bool":
            return bool(raw)
        case "map" | "Quantities":
            return _decode_map_entry(raw, quantity=type_ == "Quantities")
        case "Time" | "MicroTime":
            return _decode_time(raw, precise=type_ == "MicroTime")
        case "IntOrString":
            parts = dict(_raw_fields(raw))
            return parts.get(3, b"").decode() if parts.get(1) else _decode_value("int", parts.get(2, 0))
        case _:
            return _decode_message(type_, raw)


def _decode_map_entry(raw: bytes, *, quantity: bool) -> dict[str, str]:
    parts = dict(_raw_fields(raw))
    value = dict(_raw_fields(parts.get(2, b""))).get(1, b"") if quantity else parts.get(2, b"")
    return {parts.get(1, b"").decode(): value.decode()}


def _decode_time(raw: bytes, *, precise: bool) -> str | None:
    parts = dict(_raw_fields(raw))
    if not parts.get(1):
        return None
    moment = datetime.fromtimestamp(parts[1], UTC).replace(microsecond=parts.get(2, 0) // 1000)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ" if precise else "%Y-%m-%dT%H:%M:%SZ")


def _raw_fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Field numbers and raw values of one message: integers or bytes."""
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, place = _varint(data, place)
            yield number, value
            continue
        if wire == _BYTES:
            length, place = _varint(data, place)
        else:
            length = {_FIXED64: 8, _FIXED32: 4}[wire]
        if place + length > len(data):
            raise ValueError("cut off")
        yield number, data[place : place + length]
        place += length


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place
