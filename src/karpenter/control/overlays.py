"""The controller of NodeOverlays (gate NodeOverlay): which news makes it judge them all again (SCH-751)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from karpenter.act.overlays import OverlayKeeper
from karpenter.act.world import World
from karpenter.api.karpenter import NodePool
from karpenter.api.overlay import NodeOverlay
from karpenter.control.queue import WorkQueue
from karpenter.providers.overlaid import OverlaidProvider

#: All overlays are judged together: there is one thing to look at.
_ALL = "all"


class Overlays:
    """Wakes the look at all overlays. Told of every overlay and pool, and of news about node classes, after the state was.

    ``changed`` is called when other prices or capacities are in force.
    """

    def __init__(
        self,
        world: World,
        provider: OverlaidProvider,
        all_overlays: Callable[[], Iterable[NodeOverlay]],
        changed: Callable[[], None],
    ) -> None:
        keeper = OverlayKeeper(world, provider, all_overlays, changed)
        self._queue = WorkQueue("nodeoverlay.controller", keeper.look, 1, metrics=world.metrics)
        self._queue.add(_ALL)

    def loops(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """What has to run."""
        return {self._queue.name: self._queue.run}

    def overlay(self, old: NodeOverlay | None, new: NodeOverlay | None) -> None:
        """An overlay appeared, changed or went. What is written of it ourselves is no news."""
        if old is None or new is None or old.spec != new.spec or new.metadata.deletion_timestamp is not None:
            self._queue.add(_ALL)

    def pool(self, old: NodePool | None, new: NodePool | None) -> None:
        """A pool appeared, changed or went."""
        if old is None or new is None or old.spec != new.spec:
            self._queue.add(_ALL)

    def node_class(self) -> None:
        """There is news about a node class."""
        self._queue.add(_ALL)
