"""Checking decoded JSON against a structural schema, all findings at once (API-034).

The API server does this for stored objects; offline there is nobody to ask, and decoding into structs stops at the first
misfit. Only the keywords our own CRDs use are understood. Patterns are read as RE2 reads them (API-026): searched, ASCII,
and ``$`` is the very end of the text.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import cast

import msgspec

Schema = Mapping[str, object]

#: Fields of object metadata, which our schemas leave open.
_METADATA_NAMES = (
    "annotations creationTimestamp deletionGracePeriodSeconds deletionTimestamp finalizers generateName generation labels "
    "managedFields name namespace ownerReferences resourceVersion selfLink uid"
)
_METADATA = tuple(_METADATA_NAMES.split())
_NEAR = 0.6


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong with an object: where, what kind of thing, and the sentence for the user (with how to mend it)."""

    path: str
    code: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


def misfits(schema: Schema, value: object, path: str = "") -> Iterator[Finding]:
    """Everything in ``value`` the schema refuses. Fields the schema does not know are ``unknown``'s business."""
    if schema.get("x-kubernetes-int-or-string"):
        yield from _quantity(schema, value, path)
    elif schema.get("type") == "object":
        yield from _object(schema, value, path)
    elif schema.get("type") == "array":
        yield from _array(schema, value, path)
    elif schema.get("type") == "integer":
        yield from _integer(schema, value, path)
    else:
        yield from _string(schema, value, path)


def unknown(schema: Schema, value: object, path: str = "") -> Iterator[Finding]:
    """Each field of ``value`` the schema does not know, with the nearest name it does know (API-021)."""
    if isinstance(value, list):
        items = cast(Schema, schema.get("items", {}))
        for index, item in enumerate(value):
            yield from unknown(items, item, f"{path}[{index}]")
    elif isinstance(value, dict) and "properties" in schema:
        properties = cast("Mapping[str, Schema]", schema["properties"])
        for name, item in value.items():
            here = at(path, name)
            if name in properties:
                yield from unknown(properties[name], item, here)
            else:
                yield _unknown(here, name, properties)
        if not path and isinstance(value.get("metadata"), dict):
            strange = [name for name in value["metadata"] if name not in _METADATA]
            yield from (_unknown(at("metadata", name), name, _METADATA) for name in strange)


def at(path: str, name: str) -> str:
    """The path of a member: ``path.name``, or ``path[name]`` where the name itself has dots or slashes."""
    if not path:
        return name
    return f"{path}.{name}" if re.fullmatch(r"\w+", name, re.ASCII) else f"{path}[{name}]"


def _unknown(path: str, name: str, known: Iterable[str]) -> Finding:
    by_lower = {candidate.lower(): candidate for candidate in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=_NEAR)
    hint = f"; did you mean {by_lower[near[0]]!r}?" if near else ""
    return Finding(path, "unknown", f"unknown field {name!r} would be dropped{hint}")


def _type(path: str, value: object, wanted: str) -> Finding:
    return Finding(path, "type", f"{_shown(value)} is not {wanted}")


def _shown(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 80 else text[:79] + "…"


def _object(schema: Schema, value: object, path: str) -> Iterator[Finding]:
    if not isinstance(value, dict):
        yield _type(path, value, "an object")
        return
    yield from _size(schema, "maxProperties", value, path)
    for name in cast("Sequence[str]", schema.get("required", ())):
        if name not in value:
            yield Finding(at(path, name), "required", f"required field {name!r} is missing")
    properties = cast("Mapping[str, Schema]", schema.get("properties", {}))
    others = cast("Schema | None", schema.get("additionalProperties"))
    for name, item in value.items():
        member = properties.get(name, others)
        if member is not None:
            yield from misfits(member, item, at(path, name))


def _array(schema: Schema, value: object, path: str) -> Iterator[Finding]:
    if not isinstance(value, list):
        yield _type(path, value, "a list")
        return
    yield from _size(schema, "maxItems", value, path)
    seen: list[object] = []
    for index, item in enumerate(value):
        here = f"{path}[{index}]"
        if schema.get("x-kubernetes-list-type") == "set" and item in seen:
            yield Finding(here, "duplicate", f"{_shown(item)} is listed twice")
        seen.append(item)
        yield from misfits(cast(Schema, schema["items"]), item, here)


def _size(schema: Schema, keyword: str, value: list[object] | dict[str, object], path: str) -> Iterator[Finding]:
    limit = cast("int | None", schema.get(keyword))
    if limit is not None and len(value) > limit:
        yield Finding(path, "size", f"has {len(value)} entries, at most {limit} are allowed")


def _integer(schema: Schema, value: object, path: str) -> Iterator[Finding]:
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not whole:
        yield _type(path, value, "a whole number")
        return
    least, most = schema.get("minimum"), schema.get("maximum")
    if isinstance(least, int) and cast(float, value) < least:
        yield Finding(path, "range", f"{value} is too small, the least is {least}")
    if isinstance(most, int) and cast(float, value) > most:
        yield Finding(path, "range", f"{value} is too large, the most is {most}")


def _string(schema: Schema, value: object, path: str) -> Iterator[Finding]:
    if not isinstance(value, str):
        yield _type(path, value, "a text (put it in quotes)" if isinstance(value, int | float) else "a text")
        return
    longest = schema.get("maxLength")
    if isinstance(longest, int) and len(value) > longest:
        yield Finding(path, "length", f"is {len(value)} characters long, at most {longest} are allowed")
    choices = cast("Sequence[str] | None", schema.get("enum"))
    if choices is not None and value not in choices:
        yield Finding(path, "enum", f"{_shown(value)} is not one of {', '.join(choices)}")
    if schema.get("format") == "date-time" and not _is_time(value):
        yield Finding(path, "format", f"{_shown(value)} is not a time such as 2025-01-31T12:00:00Z")
    yield from _pattern(schema, value, path)


def _pattern(schema: Schema, value: str, path: str) -> Iterator[Finding]:
    pattern = schema.get("pattern")
    if isinstance(pattern, str) and _compiled(pattern).search(value) is None:
        yield Finding(path, "pattern", f"{_shown(value)} does not match the pattern {pattern}")


@lru_cache(maxsize=64)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern.replace("$", r"\Z"), re.ASCII)


def _is_time(text: str) -> bool:
    try:
        msgspec.convert(text, datetime)
    except msgspec.ValidationError:
        return False
    return True


def _quantity(schema: Schema, value: object, path: str) -> Iterator[Finding]:
    if isinstance(value, bool) or not isinstance(value, int | str):
        yield _type(path, value, "a quantity: a whole number, or a text such as 500m or 4Gi")
    elif isinstance(value, str):
        yield from _pattern(schema, value, path)
