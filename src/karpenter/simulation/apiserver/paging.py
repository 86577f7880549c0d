"""Pages of a list and their continue tokens."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from karpenter.simulation.apiserver import status_errors
from karpenter.simulation.apiserver.list_query import ObjectQuery
from karpenter.simulation.apiserver.object_store import StoredEntry


@dataclass(frozen=True, slots=True)
class ListPage:
    """Part of a consistent list. ``continue_token`` is empty at the end; ``remaining_count`` objects are left."""

    entries: tuple[StoredEntry, ...]
    version: int
    continue_token: str = ""
    remaining_count: int = 0


@dataclass(frozen=True, slots=True)
class PageRequest:
    """Which part of a list is asked for: at most ``limit`` objects (0: all), as of ``resource_version`` (0: now) or after
    ``continue_token``."""

    limit: int = 0
    resource_version: int = 0
    continue_token: str = ""


class ContinueToken(msgspec.Struct, frozen=True):
    """What a token says: the version a list shows, and namespace and name of the last object that was given."""

    rv: int
    start: str = ""
    v: str = "meta.k8s.io/v1"


def parse_continue_token(token: str) -> ContinueToken:
    """The position that a continue token stands for. Raises a 410 for a token that cannot be read."""
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)), type=ContinueToken)
    except ValueError as error:
        raise status_errors.bad_request(f"invalid continue token: continue key is not valid: {error}") from error


def sort_key(entry: StoredEntry) -> tuple[str, str]:
    """Lists are ordered by namespace and name."""
    return entry.namespace, entry.name


def sorted_entries(entries: Iterable[StoredEntry], query: ObjectQuery) -> tuple[StoredEntry, ...]:
    """The stored objects that match, in the order of a list."""
    return tuple(sorted((entry for entry in entries if query.matches(entry)), key=sort_key))
