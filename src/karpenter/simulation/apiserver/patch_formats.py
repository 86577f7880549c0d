"""The three patch formats, as functions from one decoded JSON value to another. Nothing here changes its arguments.

JSON merge patch (RFC 7396) and JSON patch (RFC 6902) are complete. A strategic merge patch needs the merge keys of every list
of every kind, which real servers take from their own types; here a short table of the lists command-line clients touch stands in
for them, and every other list is replaced as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

#: Field name to the key its elements are merged by.
_MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "imagePullSecrets": "name",
    "ports": "containerPort",
    "conditions": "type",
    "addresses": "type",
    "ownerReferences": "uid",
    "topologySpreadConstraints": "topologyKey",
    "schedulingGates": "name",
}
#: Lists of plain values that are merged as sets.
_MERGED_SETS = {"finalizers"}


class PatchError(ValueError):
    """A patch that cannot be applied to this object. The message says which part."""


def merge_patch(target: Any, patch: Any) -> Any:
    """The result of a JSON merge patch: objects merge, ``null`` removes, anything else replaces."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            result[key] = merge_patch(result.get(key), value)
        else:
            result[key] = value
    return result


def strategic_merge_patch(target: Any, patch: Any) -> Any:
    """The result of a strategic merge patch, for the lists this module knows (see its head)."""
    if not isinstance(patch, dict):
        return patch
    if patch.get("$patch") == "replace":
        return {key: value for key, value in patch.items() if key != "$patch"}
    if patch.get("$patch") == "delete":
        return {}
    result = dict(target) if isinstance(target, dict) else {}
    kept = patch.get("$retainKeys")
    if kept is not None:
        result = {key: value for key, value in result.items() if key in kept}
    for key, value in patch.items():
        _strategic_member(result, key, value)
    return result


def _strategic_member(result: dict[str, Any], key: str, value: Any) -> None:
    if key.startswith("$deleteFromPrimitiveList/"):
        field = key.partition("/")[2]
        result[field] = [element for element in result.get(field, ()) if element not in value]
    elif key.startswith("$setElementOrder/"):
        field = key.partition("/")[2]
        result[field] = _in_element_order(field, result.get(field, []), value)
    elif key.startswith("$"):
        return
    elif value is None:
        result.pop(key, None)
    elif isinstance(value, dict):
        result[key] = strategic_merge_patch(result.get(key), value)
    elif key in _MERGE_KEYS and isinstance(value, list) and all(isinstance(element, dict) for element in value):
        result[key] = _merge_list(_MERGE_KEYS[key], result.get(key) or [], value)
    elif key in _MERGED_SETS and isinstance(value, list):
        present = list(result.get(key) or [])
        result[key] = present + [element for element in value if element not in present]
    else:
        result[key] = value


def _merge_list(key: str, present: list[Any], patch: Sequence[Any]) -> list[Any]:
    if any(element == {"$patch": "replace"} for element in patch):
        return [element for element in patch if "$patch" not in element]
    result = list(present)
    for element in patch:
        identity = element.get(key)
        place = next((index for index, old in enumerate(result) if old.get(key) == identity), None)
        if element.get("$patch") == "delete":
            result = [old for old in result if old.get(key) != identity]
        elif place is None:
            result.append(strategic_merge_patch(None, element))
        else:
            result[place] = strategic_merge_patch(result[place], element)
    return result


def _in_element_order(field: str, present: list[Any], order: Sequence[Any]) -> list[Any]:
    key = _MERGE_KEYS.get(field)

    def identity(element: Any) -> Any:
        return element.get(key) if key is not None and isinstance(element, dict) else element

    ranks = [identity(element) for element in order]
    return sorted(
        present, key=lambda element: ranks.index(identity(element)) if identity(element) in ranks else len(ranks)
    )


def json_patch(target: Any, operations: Any) -> Any:
    """The result of a JSON patch. Raises ``PatchError`` for a path that does not exist or a failed test."""
    if not isinstance(operations, list):
        raise PatchError("a JSON patch is a list of operations")
    for operation in operations:
        target = _apply_operation(target, operation)
    return target


def _apply_operation(target: Any, operation: Any) -> Any:
    try:
        verb, path = operation["op"], _parse_pointer(operation["path"])
        match verb:
            case "add" | "replace":
                return _with_value_at(target, path, operation["value"], insert=verb == "add")
            case "remove":
                return _without_value_at(target, path)
            case "test":
                if _value_at(target, path) != operation["value"]:
                    raise PatchError(f"test of {operation['path']} failed")
                return target
            case "copy":
                return _with_value_at(target, path, _value_at(target, _parse_pointer(operation["from"])), insert=True)
            case "move":
                source = _parse_pointer(operation["from"])
                return _with_value_at(_without_value_at(target, source), path, _value_at(target, source), insert=True)
            case _:
                raise PatchError(f"unknown operation {verb!r}")
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise PatchError(f"the operation {operation!r} does not fit the object") from error


def _parse_pointer(text: str) -> list[str]:
    if text and not text.startswith("/"):
        raise PatchError(f"{text!r} is not a JSON pointer")
    return [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:]]


def _value_at(value: Any, path: Sequence[str]) -> Any:
    for part in path:
        value = value[_list_index(value, part)] if isinstance(value, list) else value[part]
    return value


def _list_index(elements: list[Any], part: str) -> int:
    if not part.isdecimal():
        raise PatchError(f"{part!r} is not a list position")
    return int(part)


def _with_value_at(target: Any, path: Sequence[str], value: Any, *, insert: bool) -> Any:
    if not path:
        return value
    head, rest = path[0], path[1:]
    if isinstance(target, list):
        elements = list(target)
        place = len(elements) if head == "-" else _list_index(elements, head)
        if rest:
            elements[place] = _with_value_at(elements[place], rest, value, insert=insert)
        elif insert and place <= len(elements):
            elements.insert(place, value)
        else:
            elements[place] = value
        return elements
    if rest:
        target[head]  # a missing parent is an error
    return {**target, head: _with_value_at(target.get(head), rest, value, insert=insert)}


def _without_value_at(target: Any, path: Sequence[str]) -> Any:
    if not path:
        raise PatchError("the whole object cannot be removed")
    head, rest = path[0], path[1:]
    if isinstance(target, list):
        elements = list(target)
        place = _list_index(elements, head)
        elements[place : place + 1] = [_without_value_at(elements[place], rest)] if rest else []
        return elements
    if rest:
        return {**target, head: _without_value_at(target[head], rest)}
    target[head]
    return {key: value for key, value in target.items() if key != head}
