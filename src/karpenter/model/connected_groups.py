"""Groups of things that are connected, directly or by way of others."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def connected_groups(members: Sequence[T], links: Iterable[tuple[Hashable, Hashable]]) -> list[list[T]]:
    """The members in groups: those that links connect are together.

    Links may lead over what is no member. Members are in their order within a group, and groups in that of their first member.
    The work grows with members and links.
    """
    leader: dict[Hashable, Hashable] = {}

    def find(key: Hashable) -> Hashable:
        while leader.setdefault(key, key) != key:
            leader[key] = leader[leader[key]]
            key = leader[key]
        return key

    for left, right in links:
        leader[find(left)] = find(right)
    groups: dict[Hashable, list[T]] = {}
    for member in members:
        groups.setdefault(find(member), []).append(member)
    return list(groups.values())
