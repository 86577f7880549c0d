"""Evicting pods from a draining node: by the Eviction API, tier by tier, by force when a deadline is near (DIS §17.3-4)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import structlog

from karpenter.act.events import NORMAL, WARNING, Happening, about_node, about_pod
from karpenter.act.world import World
from karpenter.api.core import Node, Pod
from karpenter.api.kinds import POD
from karpenter.cluster.snapshot import pod_key
from karpenter.kube.errors import Conflict, KubeError, NotFound, TooManyRequests
from karpenter.model import pods

_FIRST_BACKOFF_SECONDS = 0.1
_LONGEST_BACKOFF_SECONDS = 10.0
_FORGET_AFTER = timedelta(minutes=1)
_log = structlog.get_logger()


def is_forced(pod: Pod, deadline: datetime | None, now: datetime) -> bool:
    """Whether the pod must be deleted now for its node to meet the deadline (DIS-530)."""
    if deadline is None:
        return False
    deleted = pod.metadata.deletion_timestamp
    if deleted is not None:
        return deleted > deadline
    grace = pod.spec.termination_grace_period_seconds
    return grace is not None and now > deadline - timedelta(seconds=grace)


def first_tier(waiting: Sequence[Pod]) -> list[Pod]:
    """The pods that go next: ordinary before DaemonSet, uncritical before critical; one tier at a time (DIS-522)."""
    tiers: dict[tuple[bool, bool], list[Pod]] = {}
    for pod in waiting:
        tiers.setdefault((pods.is_critical(pod), pods.is_daemon(pod)), []).append(pod)
    return tiers[min(tiers)] if tiers else []


class Evictor:
    """Evicts pods and remembers, per pod uid, when a refused one may be tried again."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._retry: dict[str, tuple[float, datetime]] = {}

    async def evict(self, pod: Pod, node: Node, deadline: datetime | None) -> None:
        """One try for one pod; refusals and faults leave it for a later look."""
        now = self._world.clock.now()
        if deadline is not None and is_forced(pod, deadline, now):
            await self._force(pod, node, deadline, now)
            return
        _, not_before = self._retry.get(pod.metadata.uid, (0.0, now))
        if not_before > now:
            return
        if pods.is_active(pod) and not pods.is_protected(pod, now):
            await self._ask(pod, node, now)

    async def _ask(self, pod: Pod, node: Node, now: datetime) -> None:
        namespace, name = pod_key(pod)
        try:
            await self._world.kube.evict(name, namespace, uid=pod.metadata.uid)
        except (NotFound, Conflict):
            return
        except KubeError as error:
            self._back_off(pod, error, now)
            self._say_failed(pod, node, error)
            return
        self._retry.pop(pod.metadata.uid, None)
        self._world.events.publish(Happening(about_pod(pod), NORMAL, "Evicted", f"Evicted pod: {self._reason(node)}"))

    def _say_failed(self, pod: Pod, node: Node, error: KubeError) -> None:
        """Tell why a pod stays. A budget is the pod owner's wish; anything else is a fault somebody has to mend."""
        namespace, name = pod_key(pod)
        if not isinstance(error, TooManyRequests):
            reference = {"namespace": namespace, "name": name}
            _log.error("evicting pod failed", Pod=reference, error=str(error))
        text = f"Failed to drain node, evicting pod {namespace}/{name}: {error}"
        about = about_node(node.metadata)
        self._world.events.publish(Happening(about, WARNING, "FailedDraining", text, (namespace, name)))

    def _reason(self, node: Node) -> str:
        """Why the node goes, as its claim says (DIS-534)."""
        claim = self._world.state.claim_of(node.spec.provider_id)
        if claim is None:
            return ""
        found = (c for c in claim.status.conditions if c.type == "DisruptionReason" and c.status == "True")
        return next((condition.reason for condition in found), "Forceful Termination")

    def _back_off(self, pod: Pod, error: KubeError, now: datetime) -> None:
        last, _ = self._retry.get(pod.metadata.uid, (0.0, now))
        wait = min(_LONGEST_BACKOFF_SECONDS, last * 2 or _FIRST_BACKOFF_SECONDS)
        if isinstance(error, TooManyRequests):
            wait = max(wait, min(_LONGEST_BACKOFF_SECONDS, error.retry_after_seconds))
        self._retry[pod.metadata.uid] = (wait, now + timedelta(seconds=wait))

    async def _force(self, pod: Pod, node: Node, deadline: datetime, now: datetime) -> None:
        """Delete with what time is left, at least a second: never at once, or two could run (DIS-535)."""
        namespace, name = pod_key(pod)
        grace = max(1, int((deadline - now).total_seconds()))
        try:
            await self._world.kube.delete(POD, name, namespace, uid=pod.metadata.uid, grace_period_seconds=grace)
        except (NotFound, Conflict):
            return
        except KubeError as error:
            # One pod that cannot be deleted now must not keep the others from being asked; the next look tries again.
            self._say_failed(pod, node, error)
            return
        wanted = pod.spec.termination_grace_period_seconds
        _log.debug(
            "deleting pod",
            **{
                "namespace": namespace,
                "name": name,
                "pod.terminationGracePeriodSeconds": wanted,
                "delete.gracePeriodSeconds": grace,
                "nodeclaim.terminationTime": deadline.isoformat(),
            },
        )
        text = (
            f"Deleted the pod to accommodate the terminationTime {deadline.isoformat()} of the node. The pod was granted {grace} "
            f"seconds of grace-period of its {wanted} terminationGracePeriodSeconds. This bypasses the PDB of the pod and the "
            "do-not-disrupt annotation."
        )
        self._world.events.publish(Happening(about_pod(pod), NORMAL, "Disrupted", text))

    def forget_old(self) -> None:
        """Drop what is remembered of pods nobody tries to evict any more."""
        old = self._world.clock.now() - _FORGET_AFTER
        for uid in [uid for uid, (_, due) in self._retry.items() if due < old]:
            del self._retry[uid]
