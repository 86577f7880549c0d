"""Capacity that is there when a window begins although no pod asks for it yet: virtual pods for ``wake.warm`` (pure).

``AsBefore`` remembers how many pods of which size ran when the sleep began. The memory is in the schedule's status.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from karpenter.api.capacity_schedule import RememberedCapacity, RememberedPods
from karpenter.api.core import Container, Pod, PodSpec, ResourceRequirements
from karpenter.api.karpenter import NodePool
from karpenter.api.meta import LabelSelector, ObjectMeta
from karpenter.api.scheduling_constraints import (
    Affinity,
    NodeAffinity,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    PodAffinity,
    PodAffinityTerm,
    Toleration,
)
from karpenter.capacityschedule.sleep_decision import WARM_AS_BEFORE, ActiveSchedule
from karpenter.model import labels, pods
from karpenter.model import resources as res
from karpenter.model.budget_windows import TimeSpan
from karpenter.state.virtual_pods import VIRTUAL_POD_PRIORITY, virtual_pod

#: So long after the beginning of the window warm capacity is kept for pods that may come.
WARM_HOLD = timedelta(minutes=15)
#: Sizes that are remembered at most, the most frequent first: a status must stay small.
_MOST_SIZES = 100
#: No namespace can have this name, so no CapacityBuffer has the same key.
_NAMESPACE = "capacityschedules.karpenter.sh"
_SMALLEST_REQUEST = {"cpu": 1}
#: A size: NodePool, and sorted requests in thousandths without the pod itself.
PodSize = tuple[str, tuple[tuple[str, int], ...]]


@dataclass(frozen=True)
class WarmGroup:
    """Virtual pods that are all alike. ``key`` names the group among all virtual pods."""

    key: str
    pods: tuple[Pod, ...]


def is_warming(schedule: ActiveSchedule, now: datetime) -> bool:
    """Whether a window of the schedule is about to begin, or has just begun."""
    period = TimeSpan(now - WARM_HOLD - timedelta(minutes=1), now + schedule.lead + timedelta(minutes=1))
    begins = (span.begin for span in schedule.calendar.awake_spans(period) if span.begin > period.begin)
    return any(begin - schedule.lead <= now < begin + WARM_HOLD for begin in begins)


def pod_sizes(pods_by_pool: Iterable[tuple[str, Pod]]) -> Counter[PodSize]:
    """How many pods of which size there are by NodePool. DaemonSets bring their own pods and do not count."""
    return Counter(
        (pool, _size(pod)) for pool, pod in pods_by_pool if pods.is_active(pod) and pods.is_reschedulable(pod)
    )


def _size(pod: Pod) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((name, amount) for name, amount in pods.pod_requests(pod).items() if name != "pods"))


def remembered_capacity(began_at: datetime, sizes: Counter[PodSize]) -> RememberedCapacity:
    """The sizes as they are kept in the status."""
    return RememberedCapacity(
        since=began_at,
        pods=tuple(
            RememberedPods(node_pool=pool, requests=res.resources_to_wire(dict(size)), count=count)
            for (pool, size), count in sorted(sizes.most_common(_MOST_SIZES))
        ),
    )


def warm_groups(
    schedule: ActiveSchedule,
    remembered: RememberedCapacity | None,
    pools: Iterable[NodePool],
    existing: Counter[PodSize],
    now: datetime,
) -> tuple[WarmGroup, ...]:
    """The virtual pods of a schedule that is warming.

    ``existing`` are the pods there are by now, those without a node under an empty NodePool: they ask for capacity themselves.
    """
    warm, name = schedule.spec.wake.warm, schedule.schedule.metadata.name
    awake = {pool.metadata.name: pool for pool in pools}
    nodes = schedule.warm_nodes()
    if nodes is not None:
        return (_node_group(name, tuple(awake.values()), nodes, now),) if awake else ()
    if warm != WARM_AS_BEFORE or remembered is None:
        return ()
    return tuple(_remembered_groups(name, remembered, awake, existing, now))


def _node_group(name: str, pools: tuple[NodePool, ...], count: int, now: datetime) -> WarmGroup:
    """Pods that share no node: where there are fewer nodes, the cheapest are launched."""
    own = {labels.CAPACITY_SCHEDULE: name}
    one_per_node = PodAffinityTerm(topology_key=labels.HOSTNAME, label_selector=LabelSelector(match_labels=own))
    spec = _spec(pools, _SMALLEST_REQUEST, PodAffinity(required=(one_per_node,)))
    return _group(f"{name}-nodes", spec, own, count, now)


def _remembered_groups(
    name: str, remembered: RememberedCapacity, pools: dict[str, NodePool], existing: Counter[PodSize], now: datetime
) -> Iterator[WarmGroup]:
    waiting = Counter({size: count for (pool, size), count in existing.items() if not pool})
    for number, entry in enumerate(remembered.pods):
        pool = pools.get(entry.node_pool)
        if pool is None:
            continue
        size = tuple(sorted(res.parse_resources(entry.requests).items()))
        taken = min(entry.count, waiting[size])
        waiting[size] -= taken
        missing = entry.count - taken - existing[(entry.node_pool, size)]
        if missing > 0:
            yield _group(f"{name}-{number}", _spec((pool,), dict(size)), {}, missing, now)


def _spec(pools: tuple[NodePool, ...], requests: dict[str, int], anti_affinity: PodAffinity | None = None) -> PodSpec:
    names = tuple(sorted(pool.metadata.name for pool in pools))
    wanted = NodeSelectorRequirement(key=labels.NODE_POOL, operator="In", values=names)
    selector = NodeSelector(node_selector_terms=(NodeSelectorTerm(match_expressions=(wanted,)),))
    tolerations = {
        Toleration(key=taint.key, operator="Exists", effect=taint.effect)
        for pool in pools
        for taint in pool.spec.template.spec.taints
    }
    return PodSpec(
        priority=VIRTUAL_POD_PRIORITY,
        containers=(Container(name="warm", resources=ResourceRequirements(requests=res.resources_to_wire(requests))),),
        affinity=Affinity(node_affinity=NodeAffinity(required=selector), pod_anti_affinity=anti_affinity),
        tolerations=tuple(sorted(tolerations, key=lambda toleration: (toleration.key, toleration.effect))),
    )


def _group(name: str, spec: PodSpec, own_labels: dict[str, str], count: int, now: datetime) -> WarmGroup:
    made = tuple(
        virtual_pod(
            ObjectMeta(
                name=f"capacity-schedule-{name}-{number}",
                namespace=_NAMESPACE,
                uid=f"capacity-schedule-{name}-{number}",
                labels=own_labels,
                creation_timestamp=now,
            ),
            spec,
            (_NAMESPACE, name),
        )
        for number in range(1, count + 1)
    )
    return WarmGroup(f"{_NAMESPACE}/{name}", made)
