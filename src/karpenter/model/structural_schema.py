"""What an API server does with decoded JSON and a structural schema: default it, prune unknown fields, validate it.

The API server does this for stored objects; offline and in the in-memory server there is no API server, and decoding into structs
stops at the first misfit. Only the keywords our own CRDs use are understood. Patterns are read as RE2 reads them (API-026):
searched, ASCII, ``$`` is the very end of the text, and a vertical tab is no space.

A server ratchets: in an update, an unchanged value passes, even where
today's schema would refuse it. So an object stored under a looser schema can still be changed elsewhere, its status first of all.
Members are followed by name; items of a list only where the list has keys, which makes other lists pass or fail as a whole.
"""

from __future__ import annotations

import copy
import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from typing import Final, cast

import msgspec

from karpenter.model.texts import shorten

Schema = Mapping[str, object]

#: No value at all, where None would be a JSON null.
ABSENT: Final = object()

_METADATA_NAMES = (
    "annotations creationTimestamp deletionGracePeriodSeconds deletionTimestamp finalizers generateName generation labels "
    "managedFields name namespace ownerReferences resourceVersion selfLink uid"
)
#: Fields of object metadata, which our schemas leave open.
METADATA_FIELDS = tuple(_METADATA_NAMES.split())
_MIN_SIMILARITY = 0.6
_COMPOSITE_TYPES = ("object", "array")
_LONGEST_SHOWN = 80
_LARGEST_INTEGER = 2**63 - 1
#: Up to here every whole number has a floating-point form of its own, so a server takes ``5.0`` for an integer.
_MAX_EXACT_FLOAT = 2.0**53 - 1
#: RFC 3339, with the letters in either case.
_DATE_TIME = re.compile(
    r"\d{4}-\d{2}-\d{2}t([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d+)?(z|[+-]\d{2}:\d{2})", re.ASCII | re.IGNORECASE
)
_ENCODER = msgspec.json.Encoder(order="deterministic")


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong with an object: where, what kind of thing, and the sentence for the user (with how to fix it)."""

    path: str
    code: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


def prune_and_default(schema: Schema, value: object) -> object:
    """The value as a server takes it in: nulls and unknown fields dropped, defaults filled in, all the way down (API-020).

    Nulls inside lists stay, and fail later. A part whose schema names no fields (object metadata) is left alone.
    """
    if isinstance(value, list) and "items" in schema:
        element_schema = cast(Schema, schema["items"])
        return (
            [prune_and_default(element_schema, element) for element in value]
            if element_schema.get("type") in _COMPOSITE_TYPES
            else value
        )
    if not isinstance(value, dict):
        return value
    if "additionalProperties" in schema:
        element_schema = cast(Schema, schema["additionalProperties"])
        return {name: prune_and_default(element_schema, member) for name, member in value.items() if member is not None}
    if "properties" not in schema:
        return value
    return _completed_fields(cast("Mapping[str, Schema]", schema["properties"]), value)


def _completed_fields(properties: Mapping[str, Schema], value: Mapping[str, object]) -> dict[str, object]:
    given = {name: member for name, member in value.items() if name in properties and member is not None}
    defaults = {
        name: copy.deepcopy(member_schema["default"])
        for name, member_schema in properties.items()
        if name not in given and "default" in member_schema
    }
    return {name: prune_and_default(properties[name], member) for name, member in (given | defaults).items()}


def canonical_json(value: object) -> object:
    """The value as a server writes it down: whole numbers without a fraction."""
    if isinstance(value, dict):
        return {name: canonical_json(member) for name, member in value.items()}
    if isinstance(value, list):
        return [canonical_json(element) for element in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def is_unchanged(old: object, new: object) -> bool:
    """Whether two values are there and the same JSON. Python takes ``1`` for ``True``, so equal values are compared as text."""
    if old is ABSENT or new is ABSENT or old != new:
        return False
    return _ENCODER.encode(old) == _ENCODER.encode(new)


def get_member(value: object, *names: str) -> object:
    """What stands in ``value`` under these names, one inside the other; ``ABSENT`` where one is missing."""
    for name in names:
        if not isinstance(value, dict) or name not in value:
            return ABSENT
        value = value[name]
    return value


def schema_findings(schema: Schema, value: object, path: str = "", old: object = ABSENT) -> Iterator[Finding]:
    """Everything in ``value`` the schema refuses, save what ``old``, which it replaces, had just so.

    ``unknown_field_findings`` reports fields the schema does not know.
    """
    if is_unchanged(old, value):
        return
    if schema.get("x-kubernetes-int-or-string"):
        yield from _quantity(schema, value, path)
    elif schema.get("type") == "object":
        yield from _object(schema, value, path, old)
    elif schema.get("type") == "array":
        yield from _array(schema, value, path, old)
    elif schema.get("type") == "integer":
        yield from _integer(schema, value, path)
    elif schema.get("type") == "boolean":
        yield from _boolean(value, path)
    elif "type" not in schema and schema.get("x-kubernetes-preserve-unknown-fields"):
        return
    else:
        yield from _string(schema, value, path)


def unknown_field_findings(schema: Schema, value: object, path: str = "") -> Iterator[Finding]:
    """Each field of ``value`` the schema does not know, with the nearest name it does know (API-021)."""
    if isinstance(value, list):
        element_schema = cast(Schema, schema.get("items", {}))
        for index, member in enumerate(value):
            yield from unknown_field_findings(element_schema, member, f"{path}[{index}]")
    elif isinstance(value, dict) and "properties" in schema:
        properties = cast("Mapping[str, Schema]", schema["properties"])
        for name, member in value.items():
            here = child_path(path, name)
            if name in properties:
                yield from unknown_field_findings(properties[name], member, here)
            else:
                yield _unknown_field(here, name, properties)
        if not path and isinstance(value.get("metadata"), dict):
            strange = [name for name in value["metadata"] if name not in METADATA_FIELDS]
            yield from (_unknown_field(child_path("metadata", name), name, METADATA_FIELDS) for name in strange)


def child_path(path: str, name: str) -> str:
    """The path of a member: ``path.name``, or ``path[name]`` where the name itself has dots or slashes."""
    if not path:
        return name
    return f"{path}.{name}" if re.fullmatch(r"\w+", name, re.ASCII) else f"{path}[{name}]"


def _unknown_field(path: str, name: str, field_names: Iterable[str]) -> Finding:
    near = nearest_name(name, field_names)
    hint = f"; did you mean {near!r}?" if near else ""
    return Finding(path, "unknown", f"unknown field {name!r} would be dropped{hint}")


def nearest_name(text: str, names: Iterable[str], cutoff: float = _MIN_SIMILARITY) -> str:
    """The name that was probably meant, whatever its case; empty where none is near."""
    by_lower = {name.lower(): name for name in names}
    near = difflib.get_close_matches(text.lower(), by_lower, n=1, cutoff=cutoff)
    return by_lower[near[0]] if near else ""


def _wrong_type(path: str, value: object, wanted: str) -> Finding:
    return Finding(path, "type", f"{shown_value(value)} is not {wanted}")


def shown_value(value: object) -> str:
    """The value as JSON, shortened for a message."""
    return _truncated(msgspec.json.encode(value).decode())


def _truncated(text: str) -> str:
    return shorten(text, _LONGEST_SHOWN)


def _object(schema: Schema, value: object, path: str, old: object) -> Iterator[Finding]:
    if not isinstance(value, dict):
        yield _wrong_type(path, value, "an object")
        return
    yield from _size_findings(schema, "maxProperties", value, path)
    for name in cast("Sequence[str]", schema.get("required", ())):
        if name not in value:
            yield Finding(child_path(path, name), "required", f"required field {name!r} is missing")
    properties = cast("Mapping[str, Schema]", schema.get("properties", {}))
    others = cast("Schema | None", schema.get("additionalProperties"))
    for name, member in value.items():
        member_schema = properties.get(name, others)
        if member_schema is not None:
            yield from schema_findings(member_schema, member, child_path(path, name), get_member(old, name))


def _array(schema: Schema, value: object, path: str, old: object) -> Iterator[Finding]:
    if not isinstance(value, list):
        yield _wrong_type(path, value, "a list")
        return
    yield from _size_findings(schema, "maxItems", value, path)
    yield from _duplicates(schema, value, path)
    keys = cast("Sequence[str]", schema.get("x-kubernetes-list-map-keys", ()))
    before = {_list_item_key(element, keys): element for element in old} if keys and isinstance(old, list) else {}
    for index, element in enumerate(value):
        earlier = before.get(_list_item_key(element, keys), ABSENT)
        yield from schema_findings(cast(Schema, schema["items"]), element, f"{path}[{index}]", earlier)


def _duplicates(schema: Schema, value: Sequence[object], path: str) -> Iterator[Finding]:
    """Items of a set that are the same, or of a keyed list that have the same key."""
    keys = cast("Sequence[str]", schema.get("x-kubernetes-list-map-keys", ()))
    if not keys and schema.get("x-kubernetes-list-type") != "set":
        return
    seen: set[bytes] = set()
    for index, element in enumerate(value):
        identity = _list_item_key(element, keys)
        if identity in seen:
            yield Finding(f"{path}[{index}]", "duplicate", f"{_truncated(identity.decode())} is listed twice")
        seen.add(identity)


def _list_item_key(element: object, keys: Sequence[str]) -> bytes:
    """What tells an item of a list from the others, as JSON: its keys, or the item itself."""
    if keys and isinstance(element, dict):
        element = {key: element[key] for key in keys if key in element}
    return _ENCODER.encode(element)


def _size_findings(
    schema: Schema, keyword: str, value: list[object] | dict[str, object], path: str
) -> Iterator[Finding]:
    limit = cast("int | None", schema.get(keyword))
    if limit is not None and len(value) > limit:
        yield Finding(path, "size", f"has {len(value)} entries, at most {limit} are allowed")


def _integer(schema: Schema, value: object, path: str) -> Iterator[Finding]:
    if not _is_integer(value):
        yield _wrong_type(path, value, "a whole number of at most 64 bits")
        return
    number = cast(int, value)
    least, most = schema.get("minimum"), schema.get("maximum")
    if isinstance(least, int) and number < least:
        yield Finding(path, "range", f"{shown_value(value)} is too small, the least is {least}")
    if isinstance(most, int) and number > most:
        yield Finding(path, "range", f"{shown_value(value)} is too large, the most is {most}")


def _is_integer(value: object) -> bool:
    if isinstance(value, float):
        return value.is_integer() and abs(value) <= _MAX_EXACT_FLOAT
    return isinstance(value, int) and not isinstance(value, bool) and -_LARGEST_INTEGER - 1 <= value <= _LARGEST_INTEGER


def _boolean(value: object, path: str) -> Iterator[Finding]:
    if not isinstance(value, bool):
        yield _wrong_type(path, value, "true or false")


def _string(schema: Schema, value: object, path: str) -> Iterator[Finding]:
    if not isinstance(value, str):
        yield _wrong_type(path, value, "a text (put it in quotes)" if isinstance(value, int | float) else "a text")
        return
    shortest, longest = schema.get("minLength"), schema.get("maxLength")
    if isinstance(shortest, int) and len(value) < shortest:
        yield Finding(path, "length", f"is {len(value)} characters long, at least {shortest} are needed")
    if isinstance(longest, int) and len(value) > longest:
        yield Finding(path, "length", f"is {len(value)} characters long, at most {longest} are allowed")
    choices = cast("Sequence[str] | None", schema.get("enum"))
    if choices is not None and value not in choices:
        hint = f"; did you mean {near}?" if (near := nearest_name(value, choices)) else ""
        yield Finding(path, "enum", f"{shown_value(value)} is not one of {', '.join(choices)}{hint}")
    if schema.get("format") == "date-time" and not _is_time(value):
        yield Finding(path, "format", f"{shown_value(value)} is not a time such as 2025-01-31T12:00:00Z")
    yield from _pattern(schema, value, path)


def _pattern(schema: Schema, value: str, path: str) -> Iterator[Finding]:
    pattern = schema.get("pattern")
    if isinstance(pattern, str) and _compiled(pattern).search(value) is None:
        yield Finding(path, "pattern", f"{shown_value(value)} does not match the pattern {pattern}")


@lru_cache(maxsize=64)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern.replace("$", r"\Z").replace(r"\s", r"[\t\n\f\r ]"), re.ASCII)


def _is_time(text: str) -> bool:
    if _DATE_TIME.fullmatch(text) is None:
        return False
    try:
        date.fromisoformat(text[:10])
    except ValueError:
        return False
    return True


def _quantity(schema: Schema, value: object, path: str) -> Iterator[Finding]:
    if isinstance(value, str):
        yield from _pattern(schema, value, path)
    elif not _is_integer(value):
        yield _wrong_type(path, value, "a quantity: a whole number, or a text such as 500m or 4Gi")
