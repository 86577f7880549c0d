"""Checks and comparisons of JSON objects that the API server makes on writes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from karpenter.simulation.apiserver import status_errors
from karpenter.simulation.apiserver.object_store import JsonDict, StoredEntry
from karpenter.simulation.apiserver.served_resources import ServedResource

NAMESPACE_MISMATCH = "the namespace of the provided object does not match the namespace sent on the request"


def without_nulls_in_tuples(value: Any) -> Any:
    """The value without members that are null, also inside tuples."""
    if isinstance(value, dict):
        return {key: without_nulls_in_tuples(member) for key, member in value.items() if member is not None}
    return [without_nulls_in_tuples(element) for element in value] if isinstance(value, (list, tuple)) else value


def drop_empty(value: JsonDict, keys: Iterable[str]) -> None:
    """Remove these keys from the object where their value is empty."""
    for key in keys:
        if not value.get(key, True):
            del value[key]


def equal_as_json(old: JsonDict, new: JsonDict) -> bool:
    """Equal as JSON. Python takes ``1`` for ``True``, so what compares equal is compared once more as text."""
    if old != new:
        return False
    encoder = msgspec.json.Encoder(order="deterministic")
    return encoder.encode(old) == encoder.encode(new)


def check_identity(entry: StoredEntry, new: JsonDict) -> None:
    """Refuse a body that is about another object than the path it was sent to. Raises ``Invalid``."""
    kind, meta = entry.resource.kind, new["metadata"]
    if not meta.get("name"):
        raise status_errors.bad_request(f"the name of the object ({entry.name} based on URL) was undeterminable")
    if meta["name"] != entry.name:
        text = f"the name of the object ({meta['name']}) does not match the name on the URL ({entry.name})"
        raise status_errors.bad_request(text)
    if meta.get("namespace", entry.namespace) != entry.namespace:
        raise status_errors.bad_request(NAMESPACE_MISMATCH)
    if entry.pending_finalizers is None and meta.get("deletionTimestamp"):
        cause = f'metadata.deletionTimestamp: Invalid value: "{meta["deletionTimestamp"]}": field is immutable'
        raise status_errors.invalid(entry.resource, entry.name, cause)
    for key, expected in (("apiVersion", kind.api_version), ("kind", kind.name)):
        if new.get(key, expected) != expected:
            raise status_errors.invalid(
                entry.resource, entry.name, f'{key}: Invalid value: "{new[key]}": must be {expected}'
            )


def type_mismatch(resource: ServedResource, body: JsonDict) -> str:
    """What is of the wrong type in an object of a core kind, as far as its struct goes; empty if nothing is."""
    if resource.is_custom:  # those have a schema, and admission has seen to it
        return ""
    try:
        resource.kind.decode(msgspec.json.encode(body))
    except msgspec.DecodeError as error:
        return str(error)
    return ""


def check_event(resource: ServedResource, body: JsonDict) -> None:
    """An event lives with its object, or in the default namespace when that has none. Raises ``Invalid``."""
    about = (body.get("involvedObject") or {}).get("namespace", "")
    if body["metadata"]["namespace"] != (about or "default"):
        cause = f'involvedObject.namespace: Invalid value: "{about}": does not match event.namespace'
        raise status_errors.invalid(resource, body["metadata"]["name"], cause)
