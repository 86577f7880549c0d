"""The controller of NodeOverlays (gate NodeOverlay): which events trigger an evaluation of all overlays (SCH-751)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from karpenter.api.karpenter import NodePool
from karpenter.api.node_overlay import NodeOverlay
from karpenter.nodeoverlay.overlaid_provider import OverlaidProvider
from karpenter.nodeoverlay.overlay_reconciler import NodeOverlayReconciler
from karpenter.runtime.controller_context import ControllerContext
from karpenter.runtime.reconciler import Reconciler

#: All overlays are evaluated together, so the queue has one key.
_ALL_OVERLAYS_KEY = "all"


class NodeOverlayController:
    """Queues the evaluation of all overlays. Its handlers receive overlay, pool and node class events, after the cluster state.

    ``on_applied`` is called when effective prices or capacities changed.
    """

    def __init__(
        self,
        context: ControllerContext,
        provider: OverlaidProvider,
        all_overlays: Callable[[], Iterable[NodeOverlay]],
        on_applied: Callable[[], None],
    ) -> None:
        reconciler = NodeOverlayReconciler(context, provider, all_overlays, on_applied)
        self._queue = Reconciler("nodeoverlay.controller", reconciler.reconcile, 1, metrics=context.metrics)
        self._queue.add(_ALL_OVERLAYS_KEY)

    def loops(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """The loops to run, by name."""
        return {self._queue.name: self._queue.run}

    def on_overlay(self, old: NodeOverlay | None, new: NodeOverlay | None) -> None:
        """An overlay was added, changed or removed. Our own status writes are ignored."""
        if old is None or new is None or old.spec != new.spec or new.metadata.deletion_timestamp is not None:
            self._queue.add(_ALL_OVERLAYS_KEY)

    def on_pool(self, old: NodePool | None, new: NodePool | None) -> None:
        """A pool was added, changed or removed."""
        if old is None or new is None or old.spec != new.spec:
            self._queue.add(_ALL_OVERLAYS_KEY)

    def on_node_class(self) -> None:
        """A node class was added, changed or removed."""
        self._queue.add(_ALL_OVERLAYS_KEY)
