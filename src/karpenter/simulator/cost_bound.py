"""The lower bound of a study: what no autoscaler can go below, as an integral over time.

Time is cut into steps of equal length. In each step a pod counts with the share of the step it would be there for without
waiting, and a linear program says what the nodes cost per hour at least: nodes may be fractional, pods split over node types,
moving is free, start-up takes no time, DaemonSets and topology are left out. Unmanaged nodes cost nothing, and there are as many
as the study has. The instances that a study begins with play no part: to keep one costs what it costs. The program is convex in
the pods, so the bound of the average pods is no more than the average of the bounds: the sum over the steps is a lower bound.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import msgspec

from karpenter.api.core import Pod, PodSpec, PodStatus
from karpenter.api.karpenter import NodePool, NodePoolStatus
from karpenter.api.meta import Condition
from karpenter.api.scheduling_constraints import Affinity, NodeAffinity
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.scheduling.mixture_bounds import MixtureBounds
from karpenter.scheduling.problem import build_problem
from karpenter.scheduling.scheduling_options import PackingMode, SchedulingOptions
from karpenter.scheduling.search.linear_program import load_solver
from karpenter.simulator.starting_cluster import UnmanagedNode
from karpenter.simulator.unmanaged_supply import UnmanagedKind, unmanaged_kinds
from karpenter.simulator.workload import PodLife, Workload, WorkloadPodTemplate
from karpenter.state import ClusterState

_SHORTEST_STEP_SECONDS = 600
_MOST_STEPS = 720
_HOUR = 3600
_NOW = datetime(2026, 1, 1, tzinfo=UTC)
_WAITING = Condition(type="PodScheduled", status="False", reason="Unschedulable")
_READY = Condition(type="Ready", status="True")


@dataclass(frozen=True, slots=True)
class CostBound:
    """USD per hour at least, for each step of ``step_seconds``.

    ``unschedulable``: pods that no NodePool and no unmanaged node can hold, by name.
    """

    step_seconds: int
    usd_per_hour: tuple[float, ...]
    unschedulable: tuple[str, ...]

    def cost_usd(self, until_seconds: float) -> float:
        """The bound on the cost from the start of the study until then."""
        hours = (max(0.0, min(self.step_seconds, until_seconds - at * self.step_seconds)) / _HOUR for at in self._steps)
        return sum(rate * part for rate, part in zip(self.usd_per_hour, hours, strict=True))

    def rate_at(self, seconds: float) -> float:
        """USD per hour at a moment of the study."""
        return self.usd_per_hour[min(len(self.usd_per_hour) - 1, int(seconds // self.step_seconds))]

    @property
    def _steps(self) -> range:
        return range(len(self.usd_per_hour))


@dataclass(frozen=True)
class BoundSupply:
    """What there is for pods: what NodePools sell, and unmanaged nodes.

    ``indexes``: what is sold from the start of the study on, and after each of ``price_changes``, which are in seconds since
    the start. Each is dropped before the next is asked for.
    """

    pools: Sequence[NodePool]
    indexes: Iterable[TypeIndex]
    price_changes: Sequence[int] = ()
    unmanaged: Sequence[UnmanagedNode] = ()


def cost_bound(workload: Workload, supply: BoundSupply) -> CostBound:
    """The bound for a workload."""
    price_changes, kinds = supply.price_changes, unmanaged_kinds(supply.unmanaged)
    shapes, shape_of = _shapes(workload)
    step = _step_seconds(workload.duration_seconds, price_changes)
    presence = _presence(workload, shape_of, step)
    steps = range(-(-workload.duration_seconds // step))
    rates: list[float] = []
    schedulable: frozenset[str] = frozenset()
    ends = (*price_changes, workload.duration_seconds + step)
    for index, begin, end in zip(supply.indexes, (0, *price_changes), ends, strict=True):
        bounds = _mixture_bounds(shapes, supply.pools, index, kinds)
        priced = _priced_shapes(bounds, supply.pools)
        rates.extend(bounds.per_hour(_only(priced, presence[at])) for at in steps if begin <= at * step < end)
        schedulable |= bounds.pod_names
    unmanaged = frozenset(node.name for node in supply.unmanaged)
    impossible = tuple(
        life.name
        for life in workload.pods
        if shape_of[life.name] not in schedulable and (life.running is None or life.running.node not in unmanaged)
    )
    return CostBound(step, tuple(rates), impossible)


def _priced_shapes(bounds: MixtureBounds, pools: Sequence[NodePool]) -> frozenset[str]:
    """The shapes that NodePools can hold. Others are on unmanaged nodes, or wait where those are full, and cost nothing."""
    names = frozenset(pool.metadata.name for pool in pools)
    return frozenset(shape for shape in bounds.pod_names if bounds.pools_for(shape) & names)


def _only(kept: frozenset[str], counts: Mapping[str, float]) -> Mapping[str, float]:
    return {shape: count for shape, count in counts.items() if shape in kept}


def _step_seconds(duration_seconds: int, price_changes: Sequence[int]) -> int:
    """Prices change between steps only, so that no step has two prices."""
    step = max(_SHORTEST_STEP_SECONDS, -(-duration_seconds // _MOST_STEPS))
    span = math.gcd(*price_changes)
    if not span:
        return step
    parts = -(-span // step)
    while span % parts:
        parts += 1
    return span // parts


def _shapes(workload: Workload) -> tuple[list[Pod], Mapping[str, str]]:
    """One pod of each shape, and the name of the one that stands for each pod."""
    first: dict[bytes, str] = {}
    pods: list[Pod] = []
    shape_of: dict[str, str] = {}
    for life in workload.pods:
        key = _shape_key(life.template)
        if key not in first:
            first[key] = life.name
            pods.append(_waiting_pod(life))
        shape_of[life.name] = first[key]
    return pods, shape_of


def _shape_key(template: WorkloadPodTemplate) -> bytes:
    return msgspec.json.encode((sorted(template.requests.items()), _node_constraints(template.spec)))


def _node_constraints(spec: PodSpec) -> PodSpec:
    """What a pod asks of nodes, without what it asks of other pods, and without preferences."""
    own = PodSpec(node_selector=spec.node_selector, tolerations=spec.tolerations)
    stated = spec.affinity.node_affinity if spec.affinity is not None else None
    if stated is None or stated.required is None:
        return own
    return msgspec.structs.replace(own, affinity=Affinity(node_affinity=NodeAffinity(required=stated.required)))


def _waiting_pod(life: PodLife) -> Pod:
    alone = replace(life.template, spec=_node_constraints(life.template.spec), labels={}, owner=None)
    pod = alone.pod(life.name)
    metadata = msgspec.structs.replace(pod.metadata, uid=life.name)
    return msgspec.structs.replace(pod, metadata=metadata, status=PodStatus(phase="Pending", conditions=(_WAITING,)))


def _mixture_bounds(
    shapes: Sequence[Pod], pools: Sequence[NodePool], index: TypeIndex, unmanaged: Sequence[UnmanagedKind]
) -> MixtureBounds:
    load_solver()
    state = ClusterState()
    for pool in (*pools, *(kind.pool for kind in unmanaged)):
        status = NodePoolStatus(conditions=(_READY,))
        spec = msgspec.structs.replace(pool.spec, limits={})
        state.set_pool(msgspec.structs.replace(pool, spec=spec, status=status))
    for pod in shapes:
        state.set_pod(pod)
    indexes = {pool.metadata.name: index for pool in pools}
    indexes |= {kind.pool.metadata.name: kind.index(index.well_known) for kind in unmanaged}
    options = SchedulingOptions(packing_mode=PackingMode.CLASSIC)
    return MixtureBounds(build_problem(state.snapshot(), indexes, _NOW, options), indexes)


def _presence(workload: Workload, shape_of: Mapping[str, str], step: int) -> Mapping[int, dict[str, float]]:
    """How many pods of each shape are there in each step, on average."""
    presence: defaultdict[int, dict[str, float]] = defaultdict(dict)
    lengths = [min(step, workload.duration_seconds - begin) for begin in range(0, workload.duration_seconds, step)]
    for life in workload.pods:
        begin, end = life.presence_seconds(workload.duration_seconds)
        for at in range(begin // step, -(-end // step)):
            share = (min(end, (at + 1) * step) - max(begin, at * step)) / lengths[at]
            if share > 0:
                shape = shape_of[life.name]
                presence[at][shape] = presence[at].get(shape, 0.0) + share
    return presence
