"""Watches the older kinds and adds what changed to the queue of their reconciler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from karpenter.api.karpenter import NodePool
from karpenter.api.older_kinds import PROVISIONER
from karpenter.controller_context import ControllerContext
from karpenter.conversion.options import ConversionOptions
from karpenter.kube.informer import Informer
from karpenter.kube.optional_kinds import OptionalKindsReader
from karpenter.olderversions.twin_reconciler import OLDER_KINDS, OlderObject, TwinReconciler
from karpenter.olderversions.twins import CONVERTED_FROM
from karpenter.runtime.reconciler import Reconciler

_WORKERS = 4


class TwinController:
    """Provisioners, Machines and AWSNodeTemplates; a cluster need not know these kinds."""

    def __init__(self, context: ControllerContext, options: Callable[[], ConversionOptions]) -> None:
        self._reconciler = Reconciler(
            "older.twins", TwinReconciler(context, options).reconcile, _WORKERS, metrics=context.metrics
        )
        reader = OptionalKindsReader(context.kube)
        self._informers = {name: Informer(reader, kind) for name, kind in OLDER_KINDS.items()}
        for name, informer in self._informers.items():
            informer.subscribe(partial(self._on_change, name))

    def _on_change(self, kind: str, _old: OlderObject | None, new: OlderObject | None) -> None:
        if new is not None:
            self._reconciler.add((kind, new.metadata.name))

    def on_pool(self, old: NodePool | None, new: NodePool | None) -> None:
        """A NodePool: its Provisioner shows what its nodes use, and makes it anew where it was deleted."""
        pool = new or old
        if pool is not None and CONVERTED_FROM in pool.metadata.annotations:
            self._reconciler.add((PROVISIONER.name, pool.metadata.name))

    def loops(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """What has to run while this process leads."""
        watches = {f"watch {informer.kind.plural}": informer.run for informer in self._informers.values()}
        return {self._reconciler.name: self._reconciler.run, **watches}
