"""What a server fills in, keeps and refuses when an object is written.

Functions of decoded JSON: they get a body they may change and return what is to be stored, or raise ``Invalid``. Our own kinds
are treated as by a real server that has their CRDs: ``model.crd_admission`` completes and judges them. Of core kinds only the
defaults that this project reads are filled in (scheduling defaults of pods, the taint of new nodes), and only metadata is judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from karpenter.api.kinds import LIMIT_RANGE, PRIORITY_CLASS
from karpenter.api.meta import ObjectMeta
from karpenter.model import crd_admission, labels, structural_schema
from karpenter.model.limit_range_defaults import container_defaults
from karpenter.model.pod_defaults import default_pod_spec, priority_classes_of
from karpenter.simulation.apiserver.object_store import JsonDict, StoredEntry
from karpenter.simulation.apiserver.served_resources import ServedResource
from karpenter.simulation.apiserver.status_errors import bad_request, forbidden, invalid

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
_EMPTY_VALUES: tuple[object, ...] = (None, "", [], {})


def on_create(resource: ServedResource, body: JsonDict) -> JsonDict:
    """A new object as it is stored: status reset where it has its own subresource, defaults filled in, content checked."""
    if resource.has_status and resource.kind.name != "Node":
        body.pop("status", None)
    _CREATE_DEFAULTS.get(resource.kind.name, _no_defaults)(body)
    if resource.has_generation:
        body["metadata"]["generation"] = 1
    return _admit(resource, body, None)


def set_priority(resource: ServedResource, pod: JsonDict, classes: Iterable[StoredEntry]) -> None:
    """Give a new pod the priority of its class. Raises ``Forbidden`` where there is no such class."""
    spec = pod.setdefault("spec", {})
    name = spec.get("priorityClassName") or ""
    priority_classes = priority_classes_of(PRIORITY_CLASS.decode(stored.data) for stored in classes)
    priority = priority_classes.priority_of(name)
    if priority is None:
        raise forbidden(resource, pod["metadata"]["name"], f"no PriorityClass with name {name} was found")
    spec.setdefault("priority", priority)


def apply_limit_ranges(pod: JsonDict, limit_ranges: Iterable[StoredEntry]) -> None:
    """Give the containers of a new pod the defaults of these LimitRanges of its namespace."""
    defaults = container_defaults(LIMIT_RANGE.decode(stored.data) for stored in limit_ranges)
    if defaults is not None:
        defaults.apply_to(pod.setdefault("spec", {}))


def on_update(resource: ServedResource, old: JsonDict, new: JsonDict) -> JsonDict:
    """A changed object as it is stored: server-owned metadata and status kept, generation counted, content checked."""
    _keep_identity(resource, old, new)
    if resource.has_status:
        _copy_or_remove(old, new, "status")
    new = _admit(resource, new, old)
    if resource.has_generation and _spec_part(old) != _spec_part(new):
        new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
    if resource.kind.name == "Pod":
        _check_pod_update(resource, old, new)
    return new


def on_status(resource: ServedResource, old: JsonDict, new: JsonDict) -> JsonDict:
    """An object after a write to its ``status`` subresource: everything else stays."""
    _check_uid(resource, old, new)
    result = dict(old)
    _copy_or_remove(new, result, "status")
    return _admit(resource, result, old)


def _admit(resource: ServedResource, body: JsonDict, old: JsonDict | None) -> JsonDict:
    """The object as it is stored. Raises ``Invalid`` where a real server would refuse it."""
    meta = body["metadata"] = _typed_metadata(resource, body["metadata"])
    causes = [*_metadata_errors(meta)]
    if resource.is_custom:
        # Callers in this process may use tuples, which are lists by the time the object is read.
        body = crd_admission.prune_and_default_object(resource.kind, msgspec.json.decode(msgspec.json.encode(body)))
        before = None if old is None else crd_admission.prune_and_default_object(resource.kind, old)
        causes += map(str, crd_admission.validate_object(resource.kind, body, before))
    if causes:
        raise invalid(resource, meta["name"], *causes)
    return (
        {name: structural_schema.canonical_json(value) for name, value in body.items()} if resource.is_custom else body
    )


def _typed_metadata(resource: ServedResource, meta: Mapping[str, Any]) -> JsonDict:
    """Metadata as a typed server keeps it: known fields with something in them. Raises ``Invalid`` for wrong types."""
    kept = {
        name: _null_values_as_empty(value)
        for name, value in meta.items()
        if name in structural_schema.METADATA_FIELDS and value not in _EMPTY_VALUES
    }
    try:
        msgspec.convert(kept, ObjectMeta)
    except msgspec.ValidationError as error:
        kind = resource.kind
        text = f'{kind.name} in version "{kind.version}" cannot be handled as a {kind.name}: metadata: {error}'
        raise bad_request(text) from error
    return kept


def _null_values_as_empty(value: Any) -> Any:
    """A map of texts reads a null as an empty one."""
    return {key: "" if text is None else text for key, text in value.items()} if isinstance(value, dict) else value


def _metadata_errors(meta: Mapping[str, Any]) -> Iterator[str]:
    if not labels.is_dns_subdomain(meta["name"]):
        yield "metadata.name: must be lower-case letters, digits, '-' and '.', at most 253"
    for key, value in (meta.get("labels") or {}).items():
        if not _is_label(key, value):
            yield f"metadata.labels: {key}={value!r} is not a label"
    for key in meta.get("annotations") or ():
        if not labels.is_qualified_name(key.lower()):
            yield f"metadata.annotations: {key!r} is not a qualified name"
    for name in meta.get("finalizers") or ():
        if not labels.is_qualified_name(name):
            yield f"metadata.finalizers: {name!r} is not a qualified name"


@lru_cache(maxsize=65536)
def _is_label(key: str, value: str) -> bool:
    return labels.is_qualified_name(key) and labels.is_label_value(value)


def _spec_part(body: JsonDict) -> JsonDict:
    return {key: value for key, value in body.items() if key not in ("metadata", "status")}


def _copy_or_remove(source: JsonDict, target: JsonDict, key: str) -> None:
    if key in source:
        target[key] = source[key]
    else:
        target.pop(key, None)


def _check_uid(resource: ServedResource, old: JsonDict, new: JsonDict) -> None:
    wanted = new["metadata"].get("uid")
    if wanted and wanted != old["metadata"]["uid"]:
        raise invalid(resource, old["metadata"]["name"], f'metadata.uid: Invalid value: "{wanted}": field is immutable')


def _keep_identity(resource: ServedResource, old: JsonDict, new: JsonDict) -> None:
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
        _copy_or_remove(before, after, key)
    new["apiVersion"], new["kind"] = old["apiVersion"], old["kind"]


def _check_pod_update(resource: ServedResource, old: JsonDict, new: JsonDict) -> None:
    gated = bool((old.get("spec") or {}).get("schedulingGates"))
    mutable = _MUTABLE_POD_FIELDS | (_MUTABLE_GATED_FIELDS if gated else set())
    if _immutable_part(old, mutable) != _immutable_part(new, mutable):
        raise invalid(
            resource,
            old["metadata"]["name"],
            "spec: Forbidden: pod updates may not change fields other than images, tolerations, activeDeadlineSeconds, "
            "schedulingGates and, while gated, nodeSelector and affinity",
        )


def _immutable_part(body: JsonDict, mutable: set[str]) -> JsonDict:
    spec = {key: value for key, value in (body.get("spec") or {}).items() if key not in mutable}
    for key in ("containers", "initContainers"):
        containers = spec.get(key) or ()
        spec[key] = [{part: value for part, value in container.items() if part != "image"} for container in containers]
    return spec


def _no_defaults(body: JsonDict) -> None:
    """The kind has no defaults that matter here."""


def _default_pod(body: JsonDict) -> None:
    spec = body.setdefault("spec", {})
    default_pod_spec(spec)
    body["status"] = {"phase": "Pending"}


def _default_node(body: JsonDict) -> None:
    spec = body.setdefault("spec", {})
    taints = list(spec.get("taints") or ())
    if not any(taint.get("key") == labels.NOT_READY_TAINT and taint.get("effect") == "NoSchedule" for taint in taints):
        taints.append({"key": labels.NOT_READY_TAINT, "effect": "NoSchedule"})
    spec["taints"] = taints


def _default_namespace(body: JsonDict) -> None:
    body["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = body["metadata"]["name"]
    body["status"] = {"phase": "Active"}


def _default_replicas(body: JsonDict) -> None:
    body.setdefault("spec", {}).setdefault("replicas", 1)
    body["status"] = {}


_CREATE_DEFAULTS = {
    "Pod": _default_pod,
    "Node": _default_node,
    "Namespace": _default_namespace,
    "Deployment": _default_replicas,
    "ReplicaSet": _default_replicas,
    "StatefulSet": _default_replicas,
}
