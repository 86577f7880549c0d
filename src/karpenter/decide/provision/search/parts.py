"""Problems that have nothing to do with each other are solved one by one: pods that could never buy from the same pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from karpenter.decide.provision.demand import Option


def parted(options: Mapping[int, Sequence[Option]]) -> list[list[int]]:
    """Positions of demands in parts, each in order: those in different ones have no pool in common, not even by way of others."""
    leader: dict[str, str] = {}

    def find(pool: str) -> str:
        while leader.setdefault(pool, pool) != pool:
            leader[pool] = leader[leader[pool]]
            pool = leader[pool]
        return pool

    for own in options.values():
        for option in own[1:]:
            leader[find(option.template.name)] = find(own[0].template.name)
    parts: dict[str, list[int]] = {}
    for position, own in options.items():
        if own:
            parts.setdefault(find(own[0].template.name), []).append(position)
    return list(parts.values())
