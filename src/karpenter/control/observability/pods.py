"""Series about pods: what state each is in, and how long they take to get a node and to start (OPS §5.4).

Durations are observed only for pods this process has seen Pending: of others it does not know what they waited for, and a
restart would invent samples (OPS-447). A pod is followed from then until it is ready, finished or gone; what is followed gives
the gauges of waiting times as well, which therefore end with the waiting (OPS-448).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache, partial

from karpenter.act.world import World
from karpenter.api.core import Pod
from karpenter.api.meta import OwnerReference
from karpenter.control.observability.parts import Part, Picture
from karpenter.decide.plan import Plan
from karpenter.model import conditions, labels, pods
from karpenter.telemetry.exposition import Family, Writing, escaped, pairs

_STATE = Family("karpenter_pods_state", "A pod as it is now; the value is 1.")
_UNSTARTED = Family("karpenter_pods_unstarted_time_seconds", "Since the creation of a pod that is not ready yet.")
_UNBOUND = Family("karpenter_pods_unbound_time_seconds", "Since the creation of a pod that has no node yet.")
_PLANNED_UNSTARTED = Family(
    "karpenter_pods_provisioning_unstarted_time_seconds",
    "Since the first plan with a place for a pod that is not ready yet.",
)
_PLANNED_UNBOUND = Family(
    "karpenter_pods_provisioning_unbound_time_seconds",
    "Since the first plan with a place for a pod that has no node yet.",
)
_UNDECIDED = Family(
    "karpenter_pods_provisioning_scheduling_undecided_time_seconds",
    "Since a pod was first seen to wait for a machine, as long as nothing has been decided about it.",
)

_HEALTHY = "NodeRegistrationHealthy"
_PENDING = ("Pending", "")


class PodStates(Part):
    """One series per pod (OPS-440)."""

    def picture(self, picture: Picture) -> Writing:
        """Everything is in pods and Nodes."""
        return partial(self._write, picture)

    @staticmethod
    def _write(picture: Picture) -> Iterator[str]:
        placed = {name: _placed(name, node.metadata.labels) for name, node in picture.nodes.items()}
        yield from _STATE.text((_state(pod, placed), 1) for pod in picture.pods)


def _placed(name: str, found: Mapping[str, str]) -> str:
    """What a pod's series says of the node it is on."""
    pool = found.get(labels.NODE_POOL, "")
    managed = "true" if pool else "false"
    return (
        f'node="{name}",nodepool="{pool}",zone="{found.get(labels.ZONE, "")}",arch="{found.get(labels.ARCH, "")}",'
        f'capacity_type="{found.get(labels.CAPACITY_TYPE, "")}",instance_type="{found.get(labels.INSTANCE_TYPE, "")}",'
        f'managed="{managed}"'
    )


_NOWHERE = _placed("", {})


def _state(pod: Pod, placed: Mapping[str, str]) -> str:
    meta = pod.metadata
    node_name = pod.spec.node_name
    where = (placed.get(node_name) or _placed(node_name, {})) if node_name else _NOWHERE
    owner = _owner(meta.namespace, meta.owner_references[0]) if meta.owner_references else ""
    return (
        f'name="{meta.name}",namespace="{meta.namespace}",owner="{owner}",scheduled="{"true" if node_name else "false"}",'
        f'phase="{escaped(pod.status.phase)}",ready="{_ready(pod)}",{where}'
    )


@lru_cache(maxsize=4096)
def _owner(namespace: str, owner: OwnerReference) -> str:
    """The first owner as a path (OPS-446)."""
    return escaped(f"/apis/{owner.api_version}/namespaces/{namespace}/{owner.kind.lower()}s/{owner.name}")


def _ready(pod: Pod) -> str:
    for condition in pod.status.conditions:  # asked of every pod there is
        if condition.type == "Ready":
            return "true" if condition.status == conditions.TRUE else "false"
    return "false"


@dataclass(frozen=True, slots=True)
class _Followed:
    """A pod on its way: since when it is known to wait for a machine, has been decided about, has a place planned for it."""

    pod: Pod
    seen: datetime | None = None
    decided: datetime | None = None
    planned: datetime | None = None
    is_bound: bool = False


class PodTimes(Part):
    """How long pods take, and what pods have been waiting for how long (OPS-441 to OPS-443, OPS-118)."""

    def __init__(self, world: World) -> None:
        self._state = world.state
        self._metrics = world.metrics
        self._clock = world.clock
        self._followed: dict[str, _Followed] = {}

    def pod(self, old: Pod | None, new: Pod | None) -> None:
        """Follow a pod that waits, and observe the ends of its waiting."""
        if new is None or pods.is_finished(new):
            gone = new or old
            if gone is not None:
                self._followed.pop(gone.metadata.uid, None)
        elif new.status.phase in _PENDING:
            self._wait(new)
        elif new.metadata.uid in self._followed:
            self._start(new, self._followed[new.metadata.uid])

    def _wait(self, pod: Pod) -> None:
        known = self._followed.get(pod.metadata.uid, _Followed(pod))
        seen = known.seen or (self._clock.now() if pods.is_provisionable(pod) else None)
        self._followed[pod.metadata.uid] = replace(known, pod=pod, seen=seen)

    def _start(self, pod: Pod, known: _Followed) -> None:
        """The pod is past Pending: it has a node, and perhaps is ready."""
        if not known.is_bound:
            at = self._since(pod, "PodScheduled")
            _observe(self._metrics.pods_bound_duration_seconds.observe, pod.metadata.creation_timestamp, at)
            _observe(self._metrics.pods_provisioning_bound_duration_seconds.observe, known.planned, at)
        if not conditions.is_true(pod.status.conditions, "Ready"):
            self._followed[pod.metadata.uid] = replace(known, pod=pod, is_bound=True)
            return
        at = self._since(pod, "Ready")
        _observe(self._metrics.pods_startup_duration_seconds.observe, pod.metadata.creation_timestamp, at)
        _observe(self._metrics.pods_provisioning_startup_duration_seconds.observe, known.planned, at)
        del self._followed[pod.metadata.uid]

    def _since(self, pod: Pod, type_: str) -> datetime:
        condition = conditions.find(pod.status.conditions, type_)
        since = condition.last_transition_time if condition is not None else None
        return since or self._clock.now()

    def decided(self, plan: Plan) -> None:
        """Note what a pass decided: a place counts as planned while its NodePool's nodes register (OPS-118)."""
        now = self._clock.now()
        for claim in plan.claims:
            self._plan(claim.pods, now if self._is_healthy(claim.node_pool) else None, now)
        for placed in plan.existing:
            self._plan(placed.pods, now if self._is_healthy(self._pool_of(placed.key)) else None, now)
        self._plan((unplaced.pod for unplaced in plan.unplaced), None, now)

    def _plan(self, found: Iterable[Pod], planned: datetime | None, now: datetime) -> None:
        for pod in found:
            known = self._followed.get(pod.metadata.uid)
            if known is None or known.is_bound or known.pod.spec.node_name:
                continue
            if known.decided is None:
                _observe(self._metrics.pods_scheduling_decision_duration_seconds.observe, known.seen, now)
            since = (known.planned or planned) if planned is not None else None
            self._followed[pod.metadata.uid] = replace(known, decided=known.decided or now, planned=since)

    def _is_healthy(self, name: str) -> bool:
        pool = self._state.pool(name)
        return pool is not None and conditions.is_true(pool.status.conditions, _HEALTHY)

    def _pool_of(self, key: str) -> str:
        machine = self._state.claim(key) or self._state.node(key)
        return machine.metadata.labels.get(labels.NODE_POOL, "") if machine is not None else ""

    def picture(self, picture: Picture) -> Writing:
        """What is followed belongs to it."""
        return partial(self._write, tuple(self._followed.values()), picture.now)

    @staticmethod
    def _write(followed: tuple[_Followed, ...], now: datetime) -> Iterator[str]:
        unbound = [item for item in followed if not item.pod.spec.node_name]
        undecided = [item for item in unbound if item.decided is None]
        yield from _UNSTARTED.text(_seconds(now, ((i.pod, i.pod.metadata.creation_timestamp) for i in followed)))
        yield from _UNBOUND.text(_seconds(now, ((i.pod, i.pod.metadata.creation_timestamp) for i in unbound)))
        yield from _PLANNED_UNSTARTED.text(_seconds(now, ((i.pod, i.planned) for i in followed)))
        yield from _PLANNED_UNBOUND.text(_seconds(now, ((i.pod, i.planned) for i in unbound)))
        yield from _UNDECIDED.text(_seconds(now, ((i.pod, i.seen) for i in undecided)))


def _seconds(now: datetime, since: Iterable[tuple[Pod, datetime | None]]) -> Iterator[tuple[str, float]]:
    """How long ago it was for each pod; those for which it has not been are left out."""
    for pod, moment in since:
        if moment is not None:
            yield pairs(name=pod.metadata.name, namespace=pod.metadata.namespace), (now - moment).total_seconds()


def _observe(observe: Callable[[float], None], since: datetime | None, until: datetime) -> None:
    """Observe a duration that has a beginning. The API tells the end in whole seconds, so it may come out before it."""
    if since is not None:
        observe(max(0.0, (until - since).total_seconds()))
