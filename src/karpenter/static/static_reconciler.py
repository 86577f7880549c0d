"""The reconciler of static NodePools: creates missing claims and deletes excess ones (SCH §24).

A claim that cannot launch is deleted and therefore missing again at once. If that happened to the last batch of claims, the next
batch waits: one second at first, doubling up to one minute.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import structlog

from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.kinds import NODE_CLAIM, NODE_POOL
from karpenter.controller_context import ControllerContext
from karpenter.instancetypes.well_known_labels import well_known_labels_of
from karpenter.kube.errors import KubeError, NotFound
from karpenter.model import conditions, labels
from karpenter.model.backoff import DEFAULT_BACKOFF
from karpenter.model.quantity_checks import check_quantities
from karpenter.provisioning.claim_creation import create_claim
from karpenter.runtime.reconciler import Reconciler
from karpenter.scheduling.planned_nodeclaims import static_claim
from karpenter.static import replicas

#: Requeue delay when nothing is to do, and while the node limit is reached (SCH-702).
_REQUEUE_SECONDS = 60.0
_LIMIT_REACHED_REQUEUE_SECONDS = 30.0
#: How many claims of all static pools are created or deleted concurrently.
_MAX_CONCURRENT_WRITES = 64
_WORKERS = 10
#: Of all pools: more claims than any cluster has replaced at once.
_MOST_FORMER_NAMES = 10_000
_log = structlog.get_logger()


@dataclass(frozen=True)
class _ClaimBatch:
    """The last claims created for a pool, when (event loop time), and the delay of the next batch if one of these is lost."""

    names: tuple[str, ...]
    created_at: float
    backoff_seconds: float


class StaticCapacityReconciler:
    """Reconciles static pools by name and ignores all others."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        #: Names of claims that have gone lately, the latest last.
        self._former_names: dict[str, None] = {}
        #: Nodes being created now, by pool (OPS-120).
        self._reserved: Counter[str] = Counter()
        self._last_batches: dict[str, _ClaimBatch] = {}
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT_WRITES)

    async def reconcile_provisioning(self, name: str) -> float | None:
        """Create the claims a pool lacks; returns seconds until the next pass, None to wait for events.

        Raises ``KubeError`` and ``ProviderError``.
        """
        pool = self._static_pool(name)
        # Ready may refer to the previous generation; the limits of the current one may not be validated yet.
        if pool is None or not conditions.is_true(pool.status.conditions, conditions.READY) or check_quantities(pool):
            return None
        counts = replicas.count_replicas(self._members(name))
        scale_up = replicas.scale_up(pool, counts, self._reserved[name])
        if not scale_up.wanted:
            return _REQUEUE_SECONDS
        if not self._is_within_limits(pool, scale_up):
            return _LIMIT_REACHED_REQUEUE_SECONDS
        backoff = self._backoff_seconds(name)
        if backoff > 0:
            return backoff
        _log.info(
            "provisioning nodeclaims to satisfy replica count",
            current=counts.active,
            desired=pool.spec.replicas,
            **{"provision-count": scale_up.allowed},
        )
        await self._create_claims(pool, scale_up.allowed)
        return _REQUEUE_SECONDS if scale_up.allowed == scale_up.wanted else _LIMIT_REACHED_REQUEUE_SECONDS

    async def reconcile_deprovisioning(self, name: str) -> float | None:
        """Delete the excess claims of a pool; returns seconds until the next pass, None for events only. Raises ``KubeError``."""
        pool = self._static_pool(name)
        if pool is None:
            return None
        members = self._members(name)
        excess = replicas.scale_down_claims(pool, members, self._context.clock.now())
        if excess:
            _log.info(
                "deprovisioning nodeclaims to satisfy replica count",
                current=replicas.count_replicas(members).active,
                desired=pool.spec.replicas,
                **{"deprovision-count": len(excess)},
            )
            _raise_first(await asyncio.gather(*(self._delete_claim(claim) for claim in excess)))
        return _REQUEUE_SECONDS

    def claim_gone(self, name: str) -> None:
        """A claim of a static pool has gone: for a while no other one gets its name."""
        self._former_names.pop(name, None)
        self._former_names[name] = None
        if len(self._former_names) > _MOST_FORMER_NAMES:
            del self._former_names[next(iter(self._former_names))]

    def _static_pool(self, name: str) -> NodePool | None:
        """The pool, if it is static, managed and not being deleted."""
        pool = self._context.state.pool(name)
        if pool is None or pool.spec.replicas is None or pool.metadata.deletion_timestamp is not None:
            self._last_batches.pop(name, None)
            return None
        return pool if self._context.is_managed(pool) else None

    def _members(self, pool: str) -> list[replicas.StaticClaim]:
        state = self._context.state
        return [
            replicas.StaticClaim(
                claim, state.pods_on(claim.status.node_name), state.is_disruption_pending(claim.metadata.name)
            )
            for claim in state.claims()
            if claim.metadata.labels.get(labels.NODE_POOL) == pool
        ]

    def _is_within_limits(self, pool: NodePool, scale_up: replicas.ScaleUp) -> bool:
        exceeded = replicas.exceeded_limits(pool, self._context.state.state_nodes())
        if exceeded:
            _log.error("resource usage exceeds limit", **{"resource-name": ", ".join(exceeded)})
        elif not scale_up.allowed:
            _log.info("nodepool node limit reached")
        return bool(scale_up.allowed) and not exceeded

    def _backoff_seconds(self, name: str) -> float:
        """Remaining delay of the next batch because a claim of the last batch was lost; 0 or less when there is none."""
        last = self._last_batches.get(name)
        if last is None or not any(self._is_lost(claim) for claim in last.names):
            return 0.0
        return last.created_at + last.backoff_seconds - _monotonic_now()

    def _is_lost(self, name: str) -> bool:
        claim = self._context.state.claim(name)
        return claim is None or claim.metadata.deletion_timestamp is not None

    async def _create_claims(self, pool: NodePool, count: int) -> None:
        """Create claims with the names of free slots. A failed creation is retried by the next pass, with the same name."""
        name = pool.metadata.name
        self._reserved[name] += count
        try:
            types = await self._context.provider.instance_types(pool)
            well_known = labels.WELL_KNOWN | well_known_labels_of(types)
            taken_names = {claim.metadata.name for claim in self._context.state.claims()}
            zones = replicas.spread_zones(pool, types)
            slots = replicas.free_slots(pool, taken_names, count, zones, self._former_names)
            self._record_batch(name, tuple(slot.name for slot in slots))
            claims = (static_claim(pool, slot.name, well_known, slot.zone) for slot in slots)
            _raise_first(await asyncio.gather(*(self._create_claim(claim) for claim in claims)))
        finally:
            self._reserved[name] -= count

    def _record_batch(self, pool: str, names: tuple[str, ...]) -> None:
        last, now = self._last_batches.get(pool), _monotonic_now()
        previous_was_lost = (
            last is not None
            and now - last.created_at <= 2 * DEFAULT_BACKOFF.max_seconds
            and any(map(self._is_lost, last.names))
        )
        backoff = DEFAULT_BACKOFF.after(last.backoff_seconds if last is not None and previous_was_lost else 0.0)
        self._last_batches[pool] = _ClaimBatch(names, now, backoff)

    async def _create_claim(self, claim: NodeClaim) -> KubeError | None:
        async with self._slots:
            try:
                await create_claim(self._context, claim)
            except KubeError as error:
                return error
        return None

    async def _delete_claim(self, claim: NodeClaim) -> KubeError | None:
        """Delete a claim and mark it for deletion at once, before the watch delivers the deletion."""
        name = claim.metadata.name
        self._context.state.mark_for_deletion(name)
        async with self._slots:
            _log.debug("deleting nodeclaim", NodeClaim={"name": name})
            try:
                await self._context.kube.delete(NODE_CLAIM, name, uid=claim.metadata.uid)
            except NotFound:
                return None
            except KubeError as error:
                self._context.state.unmark_for_deletion(name)
                return error
        return None


def _raise_first(errors: Sequence[KubeError | None]) -> None:
    """Raise the first error, after all writes were tried."""
    for error in errors:
        if error is not None:
            raise error


def _monotonic_now() -> float:
    return asyncio.get_running_loop().time()


class StaticCapacityController:
    """Queues static pools. Its handlers receive every pool and claim event, after the cluster state."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._reconciler = reconciler = StaticCapacityReconciler(context)
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
        if new is None:
            self._reconciler.claim_gone(claim.metadata.name)
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
