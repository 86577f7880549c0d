"""Writes deletion costs on pods; for each pod only the latest wanted cost (K15-351)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from enum import StrEnum

from karpenter.api.core import Pod
from karpenter.api.kinds import POD
from karpenter.controller_context import ControllerContext
from karpenter.kube.errors import Conflict, KubeError, NotFound
from karpenter.kube.protocol import JsonObject
from karpenter.model.pod_disruption import DELETION_COST_ANNOTATION
from karpenter.poddeletioncost.deletion_cost_ranking import CostChange

#: A NodePool and a node of it.
_NodeOfPool = tuple[str, str]


class WriteResult(StrEnum):
    """What became of a write (K15-461)."""

    UPDATED = "updated"
    UNCHANGED = "skipped_unchanged"
    NOT_FOUND = "skipped_notfound"
    CONFLICT = "skipped_conflict"
    ERROR = "error"


class DeletionCostWriter:
    """Reconciles pods by ``namespace/name``. ``wake`` adds a key to the work queue that calls ``reconcile``.

    ``find_pod`` knows pods with all their annotations.
    """

    def __init__(
        self,
        context: ControllerContext,
        find_pod: Callable[[str, str], Pod | None],
        wake: Callable[[str], None],
    ) -> None:
        self._context = context
        self._find_pod = find_pod
        self._wake = wake
        self._wishes: dict[str, CostChange] = {}
        self._pods_left: Counter[_NodeOfPool] = Counter()
        self._nodes_left: dict[str, int] = {}

    def set_costs(self, changes: Iterable[CostChange]) -> None:
        """Write these; all earlier changes are dropped, since a pod without a change has the cost it should have."""
        self._wishes = {"/".join(change.key): change for change in changes}
        self._pods_left = Counter((wish.node_pool, wish.node) for wish in self._wishes.values())
        nodes = Counter(pool for pool, _ in self._pods_left)
        # A NodePool that had some stays, with 0.
        self._nodes_left = dict.fromkeys(self._nodes_left, 0) | nodes
        for pool in self._nodes_left:
            self._show_pending(pool)
        for key in self._wishes:
            self._wake(key)

    async def reconcile(self, key: str) -> float | None:
        """Write the cost of one pod. Errors other than conflicts are raised, and so tried again with backoff."""
        wish = self._wishes.get(key)
        if wish is None:
            return None
        try:
            result = await self._write(wish)
        except KubeError:
            self._count(WriteResult.ERROR)
            raise
        self._count(result)
        if self._wishes.get(key) is wish:
            del self._wishes[key]
            self._count_down(wish.node_pool, wish.node)
        return None

    def _count_down(self, pool: str, node: str) -> None:
        self._pods_left[pool, node] -= 1
        if not self._pods_left[pool, node]:
            self._nodes_left[pool] -= 1
            self._show_pending(pool)

    async def _write(self, wish: CostChange) -> WriteResult:
        namespace, name = wish.key
        pod = self._find_pod(name, namespace)
        if pod is None or pod.metadata.uid != wish.uid:
            return WriteResult.NOT_FOUND
        if pod.metadata.annotations.get(DELETION_COST_ANNOTATION) == wish.value:
            return WriteResult.UNCHANGED
        patch: JsonObject = {"metadata": {"annotations": {DELETION_COST_ANNOTATION: wish.value}}}
        try:
            await self._context.kube.patch(POD, name, patch, namespace, resource_version=pod.metadata.resource_version)
        except NotFound:
            return WriteResult.NOT_FOUND
        except Conflict:
            return WriteResult.CONFLICT
        return WriteResult.UPDATED

    def _count(self, result: WriteResult) -> None:
        self._context.metrics.pod_deletion_cost_pod_annotation_writes_total.labels(result=result.value).inc()

    def _show_pending(self, pool: str) -> None:
        """Nodes whose pods wait for a write, by NodePool (K15-460)."""
        gauge = self._context.metrics.pod_deletion_cost_nodes_with_pending_annotation_writes
        gauge.labels(nodepool=pool).set(self._nodes_left[pool])
