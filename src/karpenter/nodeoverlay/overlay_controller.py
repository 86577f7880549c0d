"""The controller of NodeOverlays (gate NodeOverlay): which news makes it judge them all again (SCH-751)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from karpenter.api.karpenter import NodePool
from karpenter.api.node_overlay import NodeOverlay
from karpenter.nodeoverlay.overlaid_provider import OverlaidProvider
from karpenter.nodeoverlay.overlay_reconciler import NodeOverlayReconciler
from karpenter.runtime.controller_context import ControllerContext
from karpenter.runtime.reconciler import ReconcilerQueue

#: All overlays are judged together: there is one thing to look at.
_ALL_OVERLAYS_KEY = "all"


class NodeOverlayController:
    """Wakes the look at all overlays. Told of every overlay and pool, and of news about node classes, after the state was.

    ``changed`` is called when other prices or capacities are in force.
    """

    def __init__(
        self,
        context: ControllerContext,
        provider: OverlaidProvider,
        all_overlays: Callable[[], Iterable[NodeOverlay]],
        on_applied: Callable[[], None],
    ) -> None:
        keeper = NodeOverlayReconciler(context, provider, all_overlays, on_applied)
        self._queue = ReconcilerQueue("nodeoverlay.controller", keeper.reconcile, 1, metrics=context.metrics)
        self._queue.add(_ALL_OVERLAYS_KEY)

    def loops(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """What has to run."""
        return {self._queue.name: self._queue.run}

    def on_overlay(self, old: NodeOverlay | None, new: NodeOverlay | None) -> None:
        """An overlay appeared, changed or went. What is written of it ourselves is no news."""
        if old is None or new is None or old.spec != new.spec or new.metadata.deletion_timestamp is not None:
            self._queue.add(_ALL_OVERLAYS_KEY)

    def on_pool(self, old: NodePool | None, new: NodePool | None) -> None:
        """A pool appeared, changed or went."""
        if old is None or new is None or old.spec != new.spec:
            self._queue.add(_ALL_OVERLAYS_KEY)

    def on_node_class(self) -> None:
        """There is news about a node class."""
        self._queue.add(_ALL_OVERLAYS_KEY)
