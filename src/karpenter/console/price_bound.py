"""What the pods of a cluster cost per hour at least, on the nodes that its NodePools may launch.

The bound is that of the simulator's studies: nodes may be fractional, pods split over node types, moving is free, DaemonSets,
topology and limits are left out. No autoscaler reaches it; what matters is how far away the price stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from karpenter.api.core import Pod, PodStatus
from karpenter.api.karpenter import NodePool
from karpenter.api.meta import Condition
from karpenter.console.console_input import ConsoleInput
from karpenter.model import pods
from karpenter.scheduling.mixture_bounds import MixtureBounds
from karpenter.scheduling.problem import build_problem
from karpenter.scheduling.scheduling_options import PackingMode, SchedulingOptions
from karpenter.scheduling.search.linear_program import load_solver
from karpenter.state import ClusterState

#: The status of a pod that waits for any node.
WAITING = PodStatus(
    phase="Pending", conditions=(Condition(type="PodScheduled", status="False", reason="Unschedulable"),)
)
_PLACEMENT_ONLY = {"topology_spread_constraints": (), "node_name": "", "volumes": (), "scheduling_gates": ()}


def price_bound_per_hour(given: ConsoleInput) -> float:
    """USD per hour at least for the pods on nodes of NodePools; 0 without any.

    Pods that wait, pods that no NodePool can hold, and pods that a node brings along count nothing.
    """
    load_solver()
    shapes: dict[bytes, Pod] = {}
    counts: Counter[str] = Counter()
    for pod in _counted_pods(given):
        shape = _shape(pod)
        stands_for = shapes.setdefault(msgspec.json.encode(shape.spec), shape)
        counts[stands_for.metadata.name] += 1
    if not shapes:
        return 0.0
    return _bounds(given, shapes.values()).per_hour(counts)


def _counted_pods(given: ConsoleInput) -> Iterable[Pod]:
    for view in given.snapshot.nodes:
        if view.managed:
            yield from (pod for pod in view.pods if pods.is_reschedulable(pod))


def _shape(pod: Pod) -> Pod:
    """The pod as one that waits for any node: without the constraints that depend on other pods."""
    affinity = pod.spec.affinity
    if affinity is not None:
        affinity = msgspec.structs.replace(affinity, pod_affinity=None, pod_anti_affinity=None)
    spec = msgspec.structs.replace(pod.spec, affinity=affinity, **_PLACEMENT_ONLY)
    name = f"{pod.metadata.namespace}.{pod.metadata.name}"
    metadata = msgspec.structs.replace(pod.metadata, name=name, uid=name, labels={}, annotations={})
    return msgspec.structs.replace(pod, metadata=metadata, spec=spec, status=WAITING)


def _bounds(given: ConsoleInput, shapes: Iterable[Pod]) -> MixtureBounds:
    state = ClusterState()
    for pool in given.snapshot.pools:
        state.set_pool(without_limits(pool))
    for pod in shapes:
        state.set_pod(pod)
    options = SchedulingOptions(packing_mode=PackingMode.CLASSIC)
    problem = build_problem(state.snapshot(), given.indexes, given.now, options)
    return MixtureBounds(problem, given.indexes)


def without_limits(pool: NodePool) -> NodePool:
    """The NodePool without its limits."""
    return msgspec.structs.replace(pool, spec=msgspec.structs.replace(pool.spec, limits={}))
