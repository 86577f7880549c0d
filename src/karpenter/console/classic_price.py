"""What the pods of a cluster would cost with classic packing: first-fit decreasing on an empty cluster, a node at a time.

It is the price an autoscaler without price search would pay for the same pods, with all their constraints, if it could place them
anew. It is an estimate of a comparison, not of a bill.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from karpenter.api.core import Pod
from karpenter.console.console_input import ConsoleInput
from karpenter.console.price_bound import WAITING, without_limits
from karpenter.model import pods
from karpenter.scheduling.problem import build_problem
from karpenter.scheduling.scheduling_options import PackingMode, SchedulingOptions
from karpenter.scheduling.search.linear_program import load_solver
from karpenter.scheduling.solver import solve
from karpenter.state import ClusterState
from karpenter.state.snapshot import ClusterSnapshot

#: With more pods the comparison costs more than it tells; it takes about two seconds for so many.
MAX_COMPARED_PODS = 2000


def classic_price_per_hour(given: ConsoleInput) -> float | None:
    """USD per hour for the pods on nodes of NodePools; None without instance types, without pods and with too many of them."""
    moved = [pod for view in given.snapshot.nodes if view.managed for pod in view.pods if pods.is_reschedulable(pod)]
    if not given.indexes or not 0 < len(moved) <= MAX_COMPARED_PODS:
        return None
    load_solver()
    options = SchedulingOptions(packing_mode=PackingMode.CLASSIC)
    problem = build_problem(_empty_cluster(given.snapshot, moved), given.indexes, given.now, options)
    return float(solve(problem, given.indexes).price_per_hour)


def _empty_cluster(snapshot: ClusterSnapshot, moved: list[Pod]) -> ClusterSnapshot:
    """The same NodePools and DaemonSets, no nodes, and all these pods pending."""
    state = ClusterState()
    for pool in snapshot.pools:
        state.set_pool(without_limits(pool))
    for pod in moved:
        spec = msgspec.structs.replace(pod.spec, node_name="", scheduling_gates=())
        state.set_pod(msgspec.structs.replace(pod, spec=spec, status=WAITING))
    return replace(
        state.snapshot(),
        daemonset_pods=snapshot.daemonset_pods,
        namespaces=snapshot.namespaces,
        volumes=snapshot.volumes,
        workload_selectors=snapshot.workload_selectors,
    )
