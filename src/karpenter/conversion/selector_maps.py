"""Selector maps of ``v1alpha1`` as selector terms (API-790 to API-793)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from karpenter.conversion.json_fields import Json
from karpenter.conversion.notes import NotConvertible, NoteList

_ID_KEYS = ("aws-ids", "aws::ids")
_NAME_KEY, _OWNER_KEY = "aws::name", "aws::owners"
_MAX_TERMS, _MAX_TAGS = 30, 20


def selector_terms(selector: Mapping[str, str], path: str, notes: NoteList) -> list[Json]:
    """Terms that select the same subnets, security groups or images as the map at ``path``.

    Raises ``NotConvertible`` where they are more than an EC2NodeClass may have.
    """
    ids = [part for key in _ID_KEYS for part in _parts(selector.get(key, ""))]
    others = {key: value for key, value in selector.items() if key not in _ID_KEYS}
    if ids and others:
        notes.warn(path, f"the ids select alone; dropped: {', '.join(sorted(others))}")
    terms: list[Json] = [{"id": name} for name in ids] if ids else _tag_terms(others, path)
    if len(terms) > _MAX_TERMS:
        raise NotConvertible(path, f"makes {len(terms)} terms; an EC2NodeClass may have {_MAX_TERMS}")
    return terms


def _tag_terms(selector: Mapping[str, str], path: str) -> list[Json]:
    tag_keys = sorted(key for key in selector if key not in {_NAME_KEY, _OWNER_KEY})
    if len(tag_keys) > _MAX_TAGS:
        raise NotConvertible(path, f"has {len(tag_keys)} tags; a term may have {_MAX_TAGS}")
    owners: Sequence[str] = _parts(selector.get(_OWNER_KEY, "")) or [""]
    names: Sequence[str] = _parts(selector.get(_NAME_KEY, "")) or [""]
    combinations = product(*(_parts(selector[key]) or ["*"] for key in tag_keys))
    tag_sets = [dict(zip(tag_keys, values, strict=True)) for values in combinations]
    terms: list[Json] = []
    for owner, name, tags in product(owners, names, tag_sets):
        term: Json = {"tags": tags} if tags else {}
        terms.append(term | ({"name": name} if name else {}) | ({"owner": owner} if owner else {}))
    return [term for term in terms if term]


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
