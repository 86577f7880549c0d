"""Pods that were lost by the nodes launched for them: the next NodeClaim for such a pod is created after a growing pause.

A component in the cluster may keep each new node from running the pod it was launched for: a controller that adds a taint to
every node, or one that evicts the pod. Each plan is correct by itself, so without a memory every pass would launch another node.

A node lost a pod in two cases. The pod waits, and a later plan wants another NodeClaim for it although the instance of the first
one was launched; this counts for the pod. Or the pod was bound to its node and was deleted within a minute, although the node was
not drained; its owner replaces it under a new name, so this counts for the owner. A pod that stayed bound for a minute ends the
count. Pauses run from the last NodeClaim created, so a pod whose nodes take long to boot does not wait for longer.

Nothing is stored: a restarted process begins with an empty memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from karpenter.api.core import Pod
from karpenter.controller_context import ControllerContext
from karpenter.model import conditions, pods
from karpenter.model.backoff import Backoff
from karpenter.scheduling.solution import NewNodeClaim

#: The pause after the first loss, and the longest one.
_PAUSE = Backoff(10.0, 600.0)
#: A pod that was bound for so long was not lost.
_STABLE_PERIOD = timedelta(minutes=1)
#: Counts and NodeClaims older than this are forgotten.
_MAX_AGE = timedelta(minutes=30)


@dataclass(frozen=True)
class _CreatedFor:
    """The last NodeClaim that was created for a pod."""

    claim_name: str
    node_pool: str
    created_at: datetime
    is_launched: bool = False
    bound_at: datetime | None = None


@dataclass(frozen=True)
class _LossCount:
    """Losses in a row of a pod or of the pods of an owner, and when a NodeClaim was last created for one."""

    losses: int
    last_claim: str
    #: When the NodeClaim of the last loss was created: a later one may have the same name.
    lost_created_at: datetime
    last_created_at: datetime

    def resumes_at(self) -> datetime:
        return self.last_created_at + timedelta(seconds=_PAUSE.delay(self.losses))


@dataclass(frozen=True)
class DelayedClaim:
    """A NodeClaim that is not created yet: all its pods were lost before. ``losses`` and ``last_claim`` are of its worst pod."""

    claim: NewNodeClaim
    losses: int
    last_claim: str
    until: datetime


class LostPods:
    """Remembers for which pods NodeClaims were created, and which of these were lost."""

    def __init__(self, context: ControllerContext) -> None:
        self._state = context.state
        self._clock = context.clock
        self._metrics = context.metrics
        self._created_for: dict[str, _CreatedFor] = {}
        self._counts: dict[str, _LossCount] = {}

    def pod_updated(self, old: Pod | None, new: Pod | None) -> None:
        """The watch delivered this change of a pod."""
        pod = new or old
        created = self._created_for.get(pod.metadata.uid) if pod is not None else None
        if pod is None or created is None:
            return
        if new is None or new.metadata.deletion_timestamp is not None or pods.is_finished(new):
            del self._created_for[pod.metadata.uid]
            if not pods.is_finished(pod) and self._is_lost_after_binding(created):
                self._count_loss(pods.workload_id(pod) or pod.metadata.uid, created)
        elif new.spec.node_name and created.bound_at is None:
            claim = self._state.claim(created.claim_name)
            if claim is not None and claim.status.node_name == new.spec.node_name:
                self._created_for[pod.metadata.uid] = replace(created, bound_at=self._clock.now())
            else:
                del self._created_for[pod.metadata.uid]

    def _is_lost_after_binding(self, created: _CreatedFor) -> bool:
        if created.bound_at is None or self._clock.now() - created.bound_at >= _STABLE_PERIOD:
            return False
        claim = self._state.claim(created.claim_name)
        is_going = claim is None or claim.metadata.deletion_timestamp is not None
        return not is_going and not self._state.is_disruption_pending(created.claim_name)

    def delayed(self, claims: Iterable[NewNodeClaim]) -> list[DelayedClaim]:
        """Which of the planned NodeClaims must wait: those all of whose pods were lost before and pause still."""
        self._refresh()
        delayed = []
        for claim in claims:
            self._count_unbound(claim)
            counts = [self._pausing(pod) for pod in claim.pods]
            pausing = [count for count in counts if count is not None]
            if pausing and len(pausing) == len(counts):
                worst = max(pausing, key=lambda count: count.losses)
                until = min(count.resumes_at() for count in pausing)
                delayed.append(DelayedClaim(claim, worst.losses, worst.last_claim, until))
        return delayed

    def claim_created(self, claim: NewNodeClaim) -> None:
        """The NodeClaim was created for its pods."""
        now = self._clock.now()
        for pod in claim.pods:
            if not pod.spec.node_name:
                self._created_for[pod.metadata.uid] = _CreatedFor(claim.name, claim.node_pool, now)
            for key in _keys(pod):
                if key in self._counts:
                    self._counts[key] = replace(self._counts[key], last_created_at=now)

    def _refresh(self) -> None:
        """Note which instances are launched, end the counts of pods that stayed, forget what is old."""
        now = self._clock.now()
        for uid, created in tuple(self._created_for.items()):
            if created.bound_at is not None and now - created.bound_at >= _STABLE_PERIOD:
                self._end_count(uid)
            elif now - created.created_at > _MAX_AGE:
                del self._created_for[uid]
            elif not created.is_launched:
                claim = self._state.claim(created.claim_name)
                if claim is not None and conditions.is_true(claim.status.conditions, conditions.LAUNCHED):
                    self._created_for[uid] = replace(created, is_launched=True)
        self._counts = {key: count for key, count in self._counts.items() if now - count.last_created_at <= _MAX_AGE}

    def _end_count(self, uid: str) -> None:
        created = self._created_for.pop(uid)
        claim = self._state.claim(created.claim_name)
        bound = self._state.pods_on(claim.status.node_name) if claim is not None else ()
        for pod in bound:
            if pod.metadata.uid == uid:
                for key in _keys(pod):
                    self._counts.pop(key, None)

    def _count_unbound(self, planned: NewNodeClaim) -> None:
        """Count the pods that wait although an instance was launched for them. Pods of a node that drains do not wait."""
        for pod in planned.pods:
            created = self._created_for.get(pod.metadata.uid)
            if created is None or not created.is_launched or created.bound_at is not None:
                continue
            if created.claim_name != planned.name or self._state.claim(planned.name) is None:
                del self._created_for[pod.metadata.uid]
                self._count_loss(pod.metadata.uid, created)

    def _count_loss(self, key: str, created: _CreatedFor) -> None:
        """Count a loss once for each NodeClaim, however many pods of an owner it lost."""
        last = self._counts.get(key)
        if last is None or last.lost_created_at != created.created_at:
            losses = last.losses + 1 if last is not None else 1
            self._counts[key] = _LossCount(losses, created.claim_name, created.created_at, created.created_at)
            self._metrics.pods_lost_by_new_nodes_total.labels(nodepool=created.node_pool).inc()

    def _pausing(self, pod: Pod) -> _LossCount | None:
        """The count that keeps the pod waiting for longest; None when its pause is over."""
        counts = [count for key in _keys(pod) if (count := self._counts.get(key)) is not None]
        longest = max(counts, key=_LossCount.resumes_at, default=None)
        return longest if longest is not None and longest.resumes_at() > self._clock.now() else None


def _keys(pod: Pod) -> tuple[str, ...]:
    """Under which losses of a pod are counted: its own uid and its owner's."""
    owner = pods.workload_id(pod)
    return (pod.metadata.uid, owner) if owner else (pod.metadata.uid,)
