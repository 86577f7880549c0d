"""Figures about what is for sale, worked out anew once a minute over all NodePools (AWS-790).

A pool's class offers more than the pool takes: what its own requirements exclude counts as not available to it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import structlog

from karpenter.api.karpenter import NodePool
from karpenter.catalog.types import InstanceType
from karpenter.model.requirements import Requirements, from_labels, from_wire, intersects
from karpenter.providers.aws.surroundings import Observed
from karpenter.providers.contract import ProviderError

_PERIOD_SECONDS = 60.0
_log = structlog.get_logger()

Types = tuple[InstanceType, ...]


class _Taken(NamedTuple):
    """What a pool takes of its class's types; it holds as long as pool and list are the same objects."""

    pool: NodePool
    types: Types
    found: Types


class OfferingFigures:
    """The loop. ``types`` gives a pool's instance types and raises ``ProviderError``; ``rewrite`` replaces the figures."""

    def __init__(
        self,
        observed: Observed,
        types: Callable[[NodePool], Awaitable[Types]],
        rewrite: Callable[[Sequence[Types]], None],
    ) -> None:
        self._observed = observed
        self._types = types
        self._rewrite = rewrite
        self._taken: dict[str, _Taken] = {}

    async def look(self) -> float:
        """One round; seconds until the next. A pool whose class is not ready offers nothing."""
        taken: dict[str, _Taken] = {}
        for pool in tuple(self._observed.pools()):
            name = pool.metadata.name
            try:
                taken[name] = self._of(pool, await self._types(pool))
            except ProviderError as error:
                _log.debug("no instance types for figures", NodePool={"name": name}, error=str(error))
        self._taken = taken
        self._rewrite([item.found for item in taken.values()])
        return _PERIOD_SECONDS

    def _of(self, pool: NodePool, types: Types) -> _Taken:
        known = self._taken.get(pool.metadata.name)
        if known is not None and known.pool is pool and known.types is types:
            return known
        return _Taken(pool, types, as_sold_to(pool, types))


def as_sold_to(pool: NodePool, types: Types) -> Types:
    """The types as the pool can buy them; what it excludes is there, and not available."""
    template = pool.spec.template
    wanted = from_wire(template.spec.requirements).intersect(from_labels(template.metadata.labels))
    return tuple(_as_wanted(item, wanted) for item in types)


def _as_wanted(item: InstanceType, wanted: Requirements) -> InstanceType:
    is_wanted = intersects(item.requirements, wanted)
    found = tuple(
        replace(offering, available=False)
        if offering.available and not (is_wanted and intersects(offering.requirements, wanted))
        else offering
        for offering in item.offerings
    )
    return item if found == item.offerings else replace(item, offerings=found)
