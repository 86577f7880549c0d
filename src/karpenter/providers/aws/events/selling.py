"""Figures about what is for sale, worked out anew once a minute over all NodePools (AWS-790)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import structlog

from karpenter.api.karpenter import NodePool
from karpenter.catalog.types import InstanceType
from karpenter.providers.aws.surroundings import Observed
from karpenter.providers.contract import ProviderError

_PERIOD_SECONDS = 60.0
_log = structlog.get_logger()

Types = tuple[InstanceType, ...]


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

    async def look(self) -> float:
        """One round; seconds until the next. A pool whose class is not ready offers nothing."""
        lists: list[Types] = []
        for pool in tuple(self._observed.pools()):
            try:
                lists.append(await self._types(pool))
            except ProviderError as error:
                _log.debug("no instance types for figures", NodePool={"name": pool.metadata.name}, error=str(error))
        self._rewrite(lists)
        return _PERIOD_SECONDS
