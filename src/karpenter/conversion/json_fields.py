"""Fields of decoded JSON that users wrote: nulls count as absent, scalars become text where text is meant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from karpenter.conversion.notes import NotConvertible, NoteList
from karpenter.model.structural_schema import child_path, nearest_name, shown_value

Json = dict[str, object]


def object_field(parent: Mapping[str, object], name: str, path: str) -> Json:
    """The object in a field of ``parent``, which stands at ``path``; empty where it is absent or null.

    Raises ``NotConvertible`` where something else stands there.
    """
    return as_object(parent.get(name), child_path(path, name))


def as_object(value: object, path: str) -> Json:
    """The value as an object; null counts as an empty one. Raises ``NotConvertible`` for anything else."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise NotConvertible(path, f"{shown_value(value)} is not an object")
    return {str(key): member for key, member in value.items()}


def list_field(parent: Mapping[str, object], name: str, path: str) -> list[object]:
    """The list in a field; empty where it is absent or null. Raises ``NotConvertible`` where something else stands there."""
    value = parent.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise NotConvertible(child_path(path, name), f"{shown_value(value)} is not a list")
    return value


def text_of(value: object) -> str:
    """A scalar as text, as YAML writes it (API-830); null is empty."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def text_field(parent: Mapping[str, object], name: str) -> str:
    """The text of a field, white space at its ends removed; empty where it is absent."""
    return text_of(parent.get(name)).strip()


def text_map(parent: Mapping[str, object], name: str, path: str) -> dict[str, str]:
    """A map of texts, such as labels; entries without a value are left out."""
    entries = object_field(parent, name, path)
    return {key: text_of(value) for key, value in entries.items() if value is not None}


def count_field(parent: Mapping[str, object], name: str, path: str) -> int | None:
    """A whole number of at least 0, None where it is absent. Raises ``NotConvertible`` for anything else."""
    value = parent.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise NotConvertible(child_path(path, name), f"{shown_value(value)} is not a whole number of at least 0")
    return value


def without_empty(fields: Mapping[str, object]) -> Json:
    """The fields that have a value: null, empty text, lists and objects are left out."""
    return {name: value for name, value in fields.items() if value is not None and value not in ("", [], {})}


def warn_unknown_fields(parent: Mapping[str, object], field_names: Iterable[str], path: str, notes: NoteList) -> None:
    """A warning for each field that the kind never had (API-836)."""
    names = tuple(field_names)
    for name, value in parent.items():
        if name not in names and value is not None:
            near = nearest_name(name, names)
            hint = f"; did you mean {near!r}?" if near else ""
            notes.warn(child_path(path, name), f"unknown field {name!r} is dropped{hint}")
