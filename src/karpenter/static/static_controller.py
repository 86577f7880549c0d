"""The two controllers of static NodePools (gate StaticCapacity): which events requeue which pool (SCH-702, SCH-703)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable

from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.kinds import NODE_POOL
from karpenter.model import conditions, labels
from karpenter.runtime.controller_context import ControllerContext
from karpenter.runtime.reconciler import Reconciler
from karpenter.static.static_reconciler import StaticCapacityReconciler

_WORKERS = 10


class StaticCapacityController:
    """Queues static pools. Its handlers receive every pool and claim event, after the cluster state."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        reconciler = StaticCapacityReconciler(context)
        self._provisioning_queue = Reconciler(
            "static.provisioning", reconciler.reconcile_provisioning, _WORKERS, NODE_POOL, context.metrics
        )
        #: Names of the claims of every pool, maintained from watch events.
        self._claim_names_by_pool: defaultdict[str, set[str]] = defaultdict(set)
        self._deprovisioning_queue = Reconciler(
            "static.deprovisioning", reconciler.reconcile_deprovisioning, _WORKERS, NODE_POOL, context.metrics
        )

    def loops(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """The loops to run, by name."""
        return {queue.name: queue.run for queue in (self._provisioning_queue, self._deprovisioning_queue)}

    def on_pool(self, old: NodePool | None, new: NodePool | None) -> None:
        """A pool was added, changed or removed."""
        if new is None or new.spec.replicas is None:
            return
        if old is None or old.spec.replicas != new.spec.replicas:
            self._provisioning_queue.add(new.metadata.name)
            self._deprovisioning_queue.add(new.metadata.name)
        elif _is_ready(new) and not _is_ready(old):
            self._provisioning_queue.add(new.metadata.name)

    def on_claim(self, old: NodeClaim | None, new: NodeClaim | None) -> None:
        """A claim was added, changed or removed."""
        claim = new or old
        assert claim is not None
        name = claim.metadata.labels.get(labels.NODE_POOL, "")
        claim_names = self._claim_names_by_pool[name]
        (claim_names.discard if new is None else claim_names.add)(claim.metadata.name)
        pool = self._context.state.pool(name)
        if pool is None or pool.spec.replicas is None:
            return
        if old is None:
            # Counting all claims at every added claim would cost O(n²) while a pool fills up.
            if len(claim_names) > pool.spec.replicas:
                self._deprovisioning_queue.add(name)
        elif new is None or (_is_deleting(new) and not _is_deleting(old)):
            self._provisioning_queue.add(name)


def _is_ready(pool: NodePool) -> bool:
    return conditions.is_true(pool.status.conditions, conditions.READY)


def _is_deleting(claim: NodeClaim) -> bool:
    return claim.metadata.deletion_timestamp is not None
