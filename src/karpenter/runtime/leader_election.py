"""Leader election with a Lease, compatible with other implementations such as client-go's (OPS-361).

The leader writes its identity and the time into a Lease every two seconds, each time at the version it wrote last. A candidate
reads the Lease as often, and takes it once the record has not changed for the lease duration.

Two rules keep two processes from leading at once. First, clocks of different processes are never compared; the times in the Lease
are for display. A candidate measures on its own monotonic clock for how long the record has not changed, and the leader on its
own clock how long ago its last successful renewal began. Second, the leader stops after ten seconds and a candidate waits for
fifteen, so one has stopped before the other begins, even if responses were lost. The leader's deadline is in a ``Fence``, which
every write of the process passes.

Manual edits of the Lease are safe. Every change of the record counts as a sign of life: a candidate waits again from there, also
when the holder was cleared or the Lease deleted, and never assumes that it holds a lease that it did not take. A leader whose
record was cleared or deleted writes it again; a leader that finds another holder stops. Only an orderly release (no holder,
duration of one second) passes the lease on at once. A process that creates a deleted Lease again does not know the last holder,
and acts only after holding it for a full lease duration. One gap is left: a process that starts after the Lease was deleted,
and before the leader wrote it again, has not seen that there was one.

A leader that cannot renew ends its process. It does not become a candidate again, because its state may be outdated.
"""

from __future__ import annotations

import asyncio
import math
import random
import socket
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import structlog

from karpenter.api.control_plane import Lease, LeaseSpec
from karpenter.api.kinds import LEASE
from karpenter.api.meta import ObjectMeta
from karpenter.kube.errors import AlreadyExists, Conflict, KubeError, NotFound, ServerUnavailable
from karpenter.kube.protocol import Json, JsonObject, Kube
from karpenter.kube.write_fence import Fence
from karpenter.metrics import Metrics
from karpenter.model.clock import Clock, rfc3339_micro
from karpenter.runtime.intervals import Intervals

#: What an orderly release leaves as the lease's duration, as other implementations do.
_RELEASED_SECONDS = 1
#: Candidates try again after the usual time, more or less by this share, so that they do not keep in step.
_RETRY_JITTER = 0.1
_log = structlog.get_logger()


class LeadershipLost(Exception):
    """This process led and does not any more; the message says why."""


@dataclass(frozen=True)
class LeaseDurations:
    """How long the lease lasts, how long its holder counts on it after a renewal, and how often it is renewed (OPS-361)."""

    lease_duration_seconds: int = 15
    renew_deadline_seconds: float = 10.0
    retry_period_seconds: float = 2.0

    @staticmethod
    def of(intervals: Intervals) -> LeaseDurations:
        """The durations among the intervals."""
        return LeaseDurations(
            int(intervals.lease_duration.total_seconds()),
            intervals.lease_renew_deadline.total_seconds(),
            intervals.lease_retry.total_seconds(),
        )

    @property
    def attempt_timeout_seconds(self) -> float:
        """How long one attempt may take, so that there is time for another one."""
        return self.renew_deadline_seconds / 2


@dataclass(frozen=True)
class ElectionCandidate:
    """A candidate and the Lease it competes for. ``identity`` is unique to the process."""

    namespace: str
    name: str
    identity: str = field(default_factory=lambda: f"{socket.gethostname()}_{uuid.uuid4()}")
    durations: LeaseDurations = LeaseDurations()

    @property
    def lease_path(self) -> str:
        """The Lease as messages call it."""
        return f"{self.namespace}/{self.name}"


class LeaderElection:
    """One process's part in the election. Opens the fence when it has won and keeps it open while it renews in time.

    ``kube`` should be a connection of its own, without a limit to its pace: a renewal must not wait behind other work.
    """

    def __init__(self, kube: Kube, candidate: ElectionCandidate, fence: Fence, clock: Clock, metrics: Metrics) -> None:
        self._kube = kube
        self._candidate = candidate
        self._fence = fence
        self._clock = clock
        self._master_status = metrics.leader_election_master_status.labels(name=candidate.name)
        self._slowpath_total = metrics.leader_election_slowpath_total.labels(name=candidate.name)
        self._master_status.set(0)
        self._observed_record: LeaseSpec | None = None
        self._has_observed_lease = False
        #: From when on no other process can hold the lease, by what this process has observed.
        self._acquirable_at = -math.inf
        self._own_record = LeaseSpec()
        self._resource_version = ""
        self._renew_deadline = -math.inf
        #: From when on holding the lease means leading.
        self._leading_from = -math.inf
        #: Why the last attempt brought no answer.
        self.fault: KubeError | None = None

    async def run(self, on_started_leading: Callable[[], None], release: asyncio.Event) -> None:
        """Stand for election, call ``on_started_leading`` once elected, keep the lease until ``release`` is set, and give it up.

        The caller sets ``release`` only after it has stopped all writes. Raises ``LeadershipLost``.
        """
        leaving = asyncio.create_task(release.wait())
        leading = asyncio.create_task(self._lead(on_started_leading))
        try:
            await asyncio.wait({leaving, leading}, return_when=asyncio.FIRST_COMPLETED)
            if leading.done():
                leading.result()
        finally:
            for task in (leaving, leading):
                task.cancel()
            await asyncio.gather(leaving, leading, return_exceptions=True)
        await self._release_lease()

    async def _lead(self, on_started_leading: Callable[[], None]) -> None:
        await self._acquire()
        await self._hold_until_leading()
        self._master_status.set(1)
        try:
            on_started_leading()
            await self._renew_until_lost()
        finally:
            self._fence.extend_until(-math.inf)
            self._master_status.set(0)

    # -- winning ------------------------------------------------------------------------------------------------------

    async def _acquire(self) -> None:
        _log.info(f"attempting to acquire leader lease {self._candidate.lease_path}...")
        while not await self._attempt(self._try_acquire):
            usual = self._candidate.durations.retry_period_seconds * random.uniform(
                1 - _RETRY_JITTER, 1 + _RETRY_JITTER
            )
            left = self._acquirable_at - asyncio.get_running_loop().time()
            await asyncio.sleep(min(usual, left) if left > 0.0 else usual)
        _log.info(f"successfully acquired lease {self._candidate.lease_path}")

    async def _attempt(self, operation: Callable[[], Awaitable[bool]]) -> bool:
        """Whether the step succeeded; a fault is kept and means no."""
        seconds = self._candidate.durations.attempt_timeout_seconds
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                done = await operation()
        except TimeoutError:
            if not limit.expired():
                raise
            self.fault = ServerUnavailable(f"no answer about lease {self._candidate.lease_path} within {seconds:g} s")
            return False
        except KubeError as fault:
            self.fault = fault
            return False
        self.fault = None
        return done

    async def _try_acquire(self) -> bool:
        lease = await self._read()
        now = asyncio.get_running_loop().time()
        self._observe(lease, now)
        if lease is not None and self._is_own_record(lease.spec):
            # The answer to our taking it was lost.
            return await self._try_write_record(lease, lease.spec)
        if now < self._acquirable_at:
            return False
        stamp = rfc3339_micro(self._clock.now())
        before = lease.spec.lease_transitions or 0 if lease is not None else -1
        return await self._try_write_record(lease, LeaseSpec(acquire_time=stamp, lease_transitions=before + 1))

    def _observe(self, lease: Lease | None, now: float) -> None:
        """Compute from observed changes when no other process can hold the lease any more."""
        spec = lease.spec if lease is not None else None
        if spec == self._observed_record:
            return
        holder = spec.holder_identity if spec is not None else ""
        if holder and (self._observed_record is None or holder != self._observed_record.holder_identity):
            _log.info("new leader elected", identity=holder)
        recorded = (spec.lease_duration_seconds or 0) if spec is not None else 0
        promised = max(recorded, self._candidate.durations.lease_duration_seconds)
        self._acquirable_at = now if _is_released(spec) else now + promised
        self._observed_record = spec
        self._has_observed_lease = True

    def _is_own_record(self, spec: LeaseSpec) -> bool:
        """Whether this process took the lease; our name in the record alone is not enough."""
        taken = self._own_record.acquire_time
        return spec.holder_identity == self._candidate.identity and taken is not None and spec.acquire_time == taken

    async def _try_write_record(self, lease: Lease | None, record: LeaseSpec) -> bool:
        """Write our identity into the lease as it was read. False where another process was faster."""
        began = asyncio.get_running_loop().time()
        self._own_record = record
        is_again = lease is None and self._has_observed_lease
        self._leading_from = began + self._candidate.durations.renew_deadline_seconds if is_again else began
        try:
            self._extend_lease(await self._write(lease), began)
        except (AlreadyExists, Conflict):
            return False
        return True

    async def _hold_until_leading(self) -> None:
        """Hold the lease until that means leading."""
        if asyncio.get_running_loop().time() >= self._leading_from:
            return
        limit = asyncio.timeout_at(self._leading_from)
        try:
            async with limit:
                await self._renew_until_lost()
        except TimeoutError:
            if not limit.expired():
                raise
        self._fence.extend_until(self._renew_deadline)

    # -- keeping ------------------------------------------------------------------------------------------------------

    async def _renew_until_lost(self) -> None:
        retry = self._candidate.durations.retry_period_seconds
        while True:
            limit = asyncio.timeout_at(self._renew_deadline)
            try:
                async with limit:
                    await asyncio.sleep(retry)
                    while not await self._attempt(self._renew):
                        await asyncio.sleep(retry)
            except TimeoutError:
                if not limit.expired():
                    raise
                raise LeadershipLost(self._lost_message()) from self.fault

    def _lost_message(self) -> str:
        why = f": {self.fault}" if self.fault is not None else ": this process stood still"
        deadline = self._candidate.durations.renew_deadline_seconds
        return f"lease {self._candidate.lease_path} was not renewed within {deadline:g} s{why}"

    async def _renew(self) -> bool:
        began = asyncio.get_running_loop().time()
        try:
            answer = await self._patch(self._resource_version)
        except (Conflict, NotFound):
            self._slowpath_total.inc()
            lease = await self._read()
            if lease is not None and lease.spec.holder_identity not in ("", self._candidate.identity):
                text = f"lease {self._candidate.lease_path} was taken by {lease.spec.holder_identity}"
                raise LeadershipLost(text) from None
            began = asyncio.get_running_loop().time()
            answer = await self._write(lease)
        self._extend_lease(answer, began)
        return True

    def _extend_lease(self, lease: Lease, requested_at: float) -> None:
        """The lease is ours, counted from when we asked for it."""
        self._resource_version = lease.metadata.resource_version
        self._renew_deadline = requested_at + self._candidate.durations.renew_deadline_seconds
        if requested_at >= self._leading_from:
            self._fence.extend_until(self._renew_deadline)

    # -- giving back --------------------------------------------------------------------------------------------------

    async def _release_lease(self) -> None:
        """Let the next one take it at once; where that fails it takes the usual time."""
        if not self._resource_version:
            return
        if not await self._attempt(self._try_release) and self.fault is not None:
            _log.error("the lease could not be given back", lease=self._candidate.lease_path, error=str(self.fault))

    async def _try_release(self) -> bool:
        for _ in range(2):
            lease = await self._read()
            if lease is None or lease.spec.holder_identity != self._candidate.identity:
                return True
            now = rfc3339_micro(self._clock.now())
            free: JsonObject = {
                "holderIdentity": "",
                "leaseDurationSeconds": _RELEASED_SECONDS,
                "acquireTime": now,
                "renewTime": now,
            }
            try:
                await self._send(free, lease.metadata.resource_version)
            except Conflict:
                # A renewal of ours whose answer we did not wait for.
                continue
            return True
        return False

    # -- the object ---------------------------------------------------------------------------------------------------

    async def _read(self) -> Lease | None:
        try:
            return await self._kube.get(LEASE, self._candidate.name, self._candidate.namespace)
        except NotFound:
            return None

    async def _write(self, lease: Lease | None) -> Lease:
        """Our record, in place of what was read. Raises ``Conflict``, ``AlreadyExists`` where that has changed."""
        if lease is not None:
            return await self._patch(lease.metadata.resource_version)
        meta = ObjectMeta(name=self._candidate.name, namespace=self._candidate.namespace)
        spec = LeaseSpec(
            holder_identity=self._candidate.identity,
            lease_duration_seconds=self._candidate.durations.lease_duration_seconds,
            acquire_time=self._own_record.acquire_time,
            renew_time=rfc3339_micro(self._clock.now()),
            lease_transitions=self._own_record.lease_transitions,
        )
        return await self._kube.create(LEASE, Lease(metadata=meta, spec=spec))

    async def _patch(self, version: str) -> Lease:
        record: dict[str, Json] = {
            "holderIdentity": self._candidate.identity,
            "leaseDurationSeconds": self._candidate.durations.lease_duration_seconds,
            "acquireTime": self._own_record.acquire_time,
            "renewTime": rfc3339_micro(self._clock.now()),
            "leaseTransitions": self._own_record.lease_transitions,
        }
        return await self._send(record, version)

    async def _send(self, record: JsonObject, version: str) -> Lease:
        patch: JsonObject = {"spec": record}
        return await self._kube.patch(
            LEASE, self._candidate.name, patch, self._candidate.namespace, resource_version=version
        )


def _is_released(spec: LeaseSpec | None) -> bool:
    """Whether a holder gave it up in order, or it never had one."""
    return spec is not None and not spec.holder_identity and (spec.lease_duration_seconds or 0) <= _RELEASED_SECONDS
