"""What a server fills in, keeps and refuses when an object is written.

Functions of decoded JSON: they get a body they may change and return what is to be stored, or raise ``Invalid``. The defaults are
those of a real server that somebody here reads: scheduling defaults of pods, the taint of new nodes, the status of simulated
node classes. Our own kinds are checked against their structs, which are what their CRDs are generated from.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from karpenter.api.crds import schema
from karpenter.kube.errors import Invalid
from karpenter.kube.memory.resources import Resource
from karpenter.kube.memory.store import JsonDict
from karpenter.model.labels import NOT_READY_TAINT

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", re.ASCII)
_LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?", re.ASCII)
_LABEL_KEY = re.compile(r"([-a-z0-9.]{1,253}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)
_SYSTEM_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
_TOLERATED_SECONDS = 300
_DEFAULT_GRACE_SECONDS = 30
_SERVER_OWNED = (
    "uid",
    "name",
    "namespace",
    "generateName",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
)
_MUTABLE_POD_FIELDS = {"tolerations", "activeDeadlineSeconds", "schedulingGates", "terminationGracePeriodSeconds"}
_MUTABLE_GATED_FIELDS = {"nodeSelector", "affinity"}
_READY_SINCE = "2024-01-01T01:01:01Z"


def invalid(resource: Resource, name: str, cause: str) -> Invalid:
    """The 422 answer for an object whose content is refused."""
    return Invalid(f'{resource.kind.name} "{name}" is invalid: {cause}', status=422, reason="Invalid")


def on_create(resource: Resource, body: JsonDict) -> JsonDict:
    """A new object as it is stored: status reset where it has its own subresource, defaults filled in, content checked."""
    if resource.status and resource.kind.name != "Node":
        body.pop("status", None)
    _CREATE_DEFAULTS.get(resource.kind.name, _nothing)(body)
    if resource.generation:
        body["metadata"]["generation"] = 1
    body = _with_defaults(resource, body)
    check(resource, body)
    return body


def on_update(resource: Resource, old: JsonDict, new: JsonDict) -> JsonDict:
    """A changed object as it is stored: server-owned metadata and status kept, generation counted, content checked."""
    _keep_identity(resource, old, new)
    if resource.status:
        _carry(old, new, "status")
    new = _with_defaults(resource, new)
    if resource.generation and _content(old) != _content(new):
        new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
    if resource.kind.name == "Pod":
        _check_pod_update(resource, old, new)
    check(resource, new)
    if resource.kind.name == "NodeClaim":
        _check_claim_update(resource, old, new)
    return new


def on_status(resource: Resource, old: JsonDict, new: JsonDict) -> JsonDict:
    """An object after a write to its ``status`` subresource: everything else stays."""
    _check_uid(resource, old, new)
    result = dict(old)
    _carry(new, result, "status")
    check(resource, result)
    return result


def check(resource: Resource, body: JsonDict) -> None:
    """Refuse names, labels and (for our own kinds) content that a real server would refuse. Raises ``Invalid``."""
    meta = body["metadata"]
    name = meta["name"]
    if len(name) > 253 or _NAME.fullmatch(name) is None:
        raise invalid(resource, name, "metadata.name: must be lower-case letters, digits, '-' and '.', at most 253")
    for key, value in (meta.get("labels") or {}).items():
        if not _is_label(key, value):
            raise invalid(resource, name, f"metadata.labels: {key}={value!r} is not a label")
    if resource.custom:
        try:
            resource.kind.decode(msgspec.json.encode(body))
        except msgspec.ValidationError as error:
            raise invalid(resource, name, str(error)) from error


@lru_cache(maxsize=65536)
def _is_label(key: str, value: Any) -> bool:
    is_value = isinstance(value, str) and len(value) <= 63 and _LABEL_VALUE.fullmatch(value) is not None
    return is_value and _LABEL_KEY.fullmatch(key) is not None


def _content(body: JsonDict) -> JsonDict:
    return {key: value for key, value in body.items() if key not in ("metadata", "status")}


def _carry(source: JsonDict, target: JsonDict, key: str) -> None:
    if key in source:
        target[key] = source[key]
    else:
        target.pop(key, None)


def _check_uid(resource: Resource, old: JsonDict, new: JsonDict) -> None:
    wanted = new["metadata"].get("uid")
    if wanted and wanted != old["metadata"]["uid"]:
        raise invalid(resource, old["metadata"]["name"], f'metadata.uid: Invalid value: "{wanted}": field is immutable')


def _keep_identity(resource: Resource, old: JsonDict, new: JsonDict) -> None:
    before, after = old["metadata"], new["metadata"]
    _check_uid(resource, old, new)
    if after.get("name", before["name"]) != before["name"]:
        raise invalid(resource, before["name"], "metadata.name: field is immutable")
    added = set(after.get("finalizers") or ()) - set(before.get("finalizers") or ())
    if before.get("deletionTimestamp") and added:
        raise invalid(
            resource,
            before["name"],
            f"metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted: {sorted(added)}",
        )
    after.pop("managedFields", None)
    for key in _SERVER_OWNED:
        _carry(before, after, key)
    new["apiVersion"], new["kind"] = old["apiVersion"], old["kind"]


def _check_pod_update(resource: Resource, old: JsonDict, new: JsonDict) -> None:
    gated = bool((old.get("spec") or {}).get("schedulingGates"))
    mutable = _MUTABLE_POD_FIELDS | (_MUTABLE_GATED_FIELDS if gated else set())
    if _fixed_part(old, mutable) != _fixed_part(new, mutable):
        raise invalid(
            resource,
            old["metadata"]["name"],
            "spec: Forbidden: pod updates may not change fields other than images, tolerations, activeDeadlineSeconds, "
            "schedulingGates and, while gated, nodeSelector and affinity",
        )


def _fixed_part(body: JsonDict, mutable: set[str]) -> JsonDict:
    spec = {key: value for key, value in (body.get("spec") or {}).items() if key not in mutable}
    for key in ("containers", "initContainers"):
        containers = spec.get(key) or ()
        spec[key] = [{part: value for part, value in item.items() if part != "image"} for item in containers]
    return spec


def _check_claim_update(resource: Resource, old: JsonDict, new: JsonDict) -> None:
    # Compared as structs, so that writing a default out is no change.
    before, after = (getattr(resource.kind.decode(msgspec.json.encode(body)), "spec", None) for body in (old, new))
    if before != after:
        raise invalid(resource, old["metadata"]["name"], "spec: Invalid value: spec is immutable")


def _with_defaults(resource: Resource, body: JsonDict) -> JsonDict:
    """The body with the defaults of its schema written out, as a server with the CRDs stores it (API-020)."""
    filled: JsonDict = _filled(schema(resource.kind.type), body) if resource.custom else body
    return filled


def _filled(known: Mapping[str, Any], value: Any) -> Any:
    if isinstance(value, list) and "items" in known:
        return [_filled(known["items"], item) for item in value]
    properties = known.get("properties")
    if not isinstance(value, dict) or not properties:
        return value
    result = {key: _filled(properties.get(key, {}), item) for key, item in value.items()}
    for key, described in properties.items():
        if "default" in described and result.get(key) is None:
            result[key] = _filled(described, copy.deepcopy(described["default"]))
    return result


def _nothing(body: JsonDict) -> None:
    """The kind has no defaults that matter here."""


def _default_pod(body: JsonDict) -> None:
    spec = body.setdefault("spec", {})
    spec.setdefault("terminationGracePeriodSeconds", _DEFAULT_GRACE_SECONDS)
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("priority", _SYSTEM_PRIORITIES.get(spec.get("priorityClassName", ""), 0))
    spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
    for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
        _default_requests(container)
    _default_tolerations(spec)
    body["status"] = {"phase": "Pending"}


def _default_requests(container: JsonDict) -> None:
    resources = container.get("resources") or {}
    limits = resources.get("limits")
    if limits:
        resources["requests"] = {**limits, **(resources.get("requests") or {})}


def _default_tolerations(spec: JsonDict) -> None:
    tolerations = list(spec.get("tolerations") or ())
    for key in (NOT_READY_TAINT, "node.kubernetes.io/unreachable"):
        if not any(_tolerates_no_execute(item, key) for item in tolerations):
            tolerations.append(
                {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _TOLERATED_SECONDS}
            )
    spec["tolerations"] = tolerations


def _tolerates_no_execute(toleration: Mapping[str, Any], key: str) -> bool:
    return toleration.get("key", "") in ("", key) and toleration.get("effect", "") in ("", "NoExecute")


def _default_node(body: JsonDict) -> None:
    spec = body.setdefault("spec", {})
    taints = list(spec.get("taints") or ())
    if not any(taint.get("key") == NOT_READY_TAINT and taint.get("effect") == "NoSchedule" for taint in taints):
        taints.append({"key": NOT_READY_TAINT, "effect": "NoSchedule"})
    spec["taints"] = taints


def _default_namespace(body: JsonDict) -> None:
    labels = body["metadata"].setdefault("labels", {})
    labels["kubernetes.io/metadata.name"] = body["metadata"]["name"]
    body["status"] = {"phase": "Active"}


def _default_replicas(body: JsonDict) -> None:
    body.setdefault("spec", {}).setdefault("replicas", 1)
    body["status"] = {}


def _default_simulated_class(body: JsonDict) -> None:
    ready = {"type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": _READY_SINCE}
    body["status"] = {"conditions": [ready]}


_CREATE_DEFAULTS = {
    "Pod": _default_pod,
    "Node": _default_node,
    "Namespace": _default_namespace,
    "Deployment": _default_replicas,
    "ReplicaSet": _default_replicas,
    "KWOKNodeClass": _default_simulated_class,
}
