"""How the provisioning decision grows: with pods, pod groups, existing nodes, instance types.

Series grow one thing alone; the exponent fitted to them on log scales says how the time grows. Shapes are inputs made to be hard,
with a ceiling each: none may explode. Times are CPU seconds of one decision in this process, the best of three. Memory is what
one decision allocates at its peak beside its input, in a run of its own that is not timed; the solver's own is not counted.
`KARPENTER_BENCH_CHART` names a file for the chart of the series.

The pods are the mixture of SCH-901 (plain, spread over zones, spread over hosts, zonal self-affinity, anti-affinity by host), the
existing cluster carries the same kinds.
"""

from __future__ import annotations

import os
import random
import resource
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import log
from pathlib import Path

from bench import growth_shapes
from bench.figures import Figure
from bench.growth_chart import growth_chart
from karpenter.api.core import Pod
from karpenter.api.karpenter import NodePool
from karpenter.api.meta import LabelSelector, Wire
from karpenter.api.scheduling_constraints import (
    Affinity,
    PodAffinity,
    PodAffinityTerm,
    TopologySpreadConstraint,
    WeightedPodAffinityTerm,
)
from karpenter.instancetypes import ec2_packaged_types
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.instancetypes.well_known_labels import well_known_labels_of
from karpenter.model import labels
from karpenter.scheduling.problem import build_problem
from karpenter.scheduling.solution import Solution
from karpenter.scheduling.solver import solve
from karpenter.state import ClusterState
from karpenter.state.snapshot import ClusterSnapshot
from support.builders import NOW, affinity, expr, feed, flatten, node_and_claim, node_pool, pod, term
from support.instance_types import inc

_REPEATS = 3
#: What takes longer is not repeated.
_ONCE_FROM_SECONDS = 2.0
_ZONES = ("us-east-1a", "us-east-1b", "us-east-1c")
_CPU = (100, 250, 500, 1000, 1500)
_MEMORY = (100, 256, 512, 1024, 2048, 4096)
_NAMES = tuple("abcdefg")

#: Makes the objects and instance types of a size.
_Make = Callable[[int], tuple[list[Wire], tuple[InstanceType, ...]]]
_Decision = Callable[[], Solution]


def figures() -> Iterator[Figure]:
    """Absolute times with their targets, and how they grow."""
    small = _decided("pods: 2500 mixed", _mixed(2500, _CPU, _MEMORY), inc(400))
    large = _decided("pods: 10000 mixed", _mixed(10_000, _CPU, _MEMORY), inc(400), target=1.5)
    yield from (small, large)
    yield Figure("growth with pods: four times as many", large.value / small.value, "x", 4.0)
    few = _decided("pod groups: 2000 pods of few", _mixed(2000, _CPU[:1], _MEMORY[:1]), inc(400))
    many = _decided("pod groups: 2000 pods of many", _mixed(2000, tuple(range(100, 1600, 10)), _MEMORY), inc(400))
    yield from (few, many)
    yield _decided("types: 2000 pods, 100 types", _mixed(2000, _CPU, _MEMORY), inc(100))
    yield _decided("types: 2000 pods, 800 types", _mixed(2000, _CPU, _MEMORY), inc(800))
    yield _decided("preferences: 4000 pods with three wishes", _wishing(4000), inc(400), target=0.5)
    for nodes, target in ((500, None), (5000, 1.0)):
        yield _decided(
            f"nodes: 1000 pods onto {nodes}", _busy(nodes), ec2_packaged_types.packaged_instance_types(), target=target
        )
    yield from _series()
    yield from _shapes()
    yield Figure("memory: resident at most", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "MB")


def largest_figures() -> Iterator[Figure]:
    """Pods that wait beside a cluster three times the size that Kubernetes is tested with."""
    objects = _busy(15_000, waiting_pods=5_000)
    yield _decided("nodes: 5000 pods onto 15000", objects, ec2_packaged_types.packaged_instance_types(), target=4.0)


def _series() -> Iterator[Figure]:
    """Each series with its exponent: 1.0 is proportional. Writes the chart where one is wanted."""
    linear = inc(400)
    ec2 = ec2_packaged_types.packaged_instance_types()
    series: dict[str, tuple[tuple[int, ...], _Make, float]] = {
        "pods of 20 groups": ((1250, 2500, 5000, 10_000), lambda n: (growth_shapes.alike(n), linear), 1.1),
        "pods, no two alike": ((500, 1000, 2000), lambda n: (growth_shapes.all_different(n), linear), 1.0),
        "nodes": ((1250, 2500, 5000), lambda n: (_busy(n), ec2), 1.1),
        "instance types": ((100, 200, 400, 800), lambda n: (_mixed(2000, _CPU, _MEMORY), inc(n)), 1.1),
        "topology groups": ((250, 500, 1000, 2000), lambda n: (growth_shapes.spread_groups(n), linear), 1.1),
        "NodePools": (
            (25, 50, 100, 200),
            lambda n: ([*growth_shapes.pools(n), *growth_shapes.alike(2000)], linear),
            1.1,
        ),
    }
    times: dict[str, list[tuple[float, float]]] = {}
    exponents: dict[str, float] = {}
    for what, (sizes, make, target) in series.items():
        memory: list[float] = []
        for size in sizes:
            decision = _prepared(*make(size))
            figure = _measured(f"series {what}: {size}", decision)
            memory.append(_peak_megabytes(decision))
            times.setdefault(what, []).append((size, figure.value))
            yield replace(figure, note=f"{memory[-1]:.1f} MB, {figure.note}")
        exponents[what] = fitted_exponent(sizes, [seconds for _, seconds in times[what]])
        yield Figure(f"series {what}: exponent", exponents[what], "", target)
        yield Figure(f"series {what}: exponent of memory", fitted_exponent(sizes, memory), "", target)
    if chart := os.environ.get("KARPENTER_BENCH_CHART"):
        Path(chart).write_text(growth_chart(times, exponents), encoding="utf-8")


def fitted_exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The slope of the least-squares line through the points on log scales."""
    xs, ys = [log(size) for size in sizes], [log(value) for value in values]
    middle_x, middle_y = sum(xs) / len(xs), sum(ys) / len(ys)
    covariance = sum((x - middle_x) * (y - middle_y) for x, y in zip(xs, ys, strict=True))
    return covariance / sum((x - middle_x) ** 2 for x in xs)


def _shapes() -> Iterator[Figure]:
    linear = inc(400)
    racks = [growth_shapes.racks_pool(90), *growth_shapes.domain_combinations(90)]
    yield _decided("shape: 5000 pods, no two alike", growth_shapes.all_different(5000), linear, target=10.0)
    yield _decided("shape: 200 NodePools", [*growth_shapes.pools(200), *growth_shapes.alike(2000)], linear, target=10.0)
    yield _decided("shape: 300 labels on 1000 pods", growth_shapes.many_labels(300), linear, target=10.0)
    yield _decided("shape: 2000 spread groups", growth_shapes.spread_groups(2000), linear, target=10.0)
    yield _decided("shape: 2000 pods apart from all", growth_shapes.apart_from_all(2000), linear, target=10.0)
    yield _decided("shape: 540 domain combinations", racks, linear, target=10.0)
    daemons = [*growth_shapes.daemon_sets(5000), *growth_shapes.alike(500)]
    yield _decided("shape: 5000 DaemonSets", daemons, linear, target=10.0)


def _decided(name: str, objects: list[Wire], types: tuple[InstanceType, ...], target: float | None = None) -> Figure:
    return _measured(name, _prepared(objects, types), target)


def _prepared(objects: list[Wire], types: tuple[InstanceType, ...]) -> _Decision:
    """The decision on these objects, which are in the cluster state already."""
    pools = [given for given in objects if isinstance(given, NodePool)]
    own = [] if pools else [node_pool()]
    snapshot = feed(ClusterState(), [*own, *objects]).snapshot()
    type_index = TypeIndex(types, well_known_labels_of(types))
    return partial(_decide, snapshot, {pool.metadata.name: type_index for pool in (*pools, *own)})


def _decide(snapshot: ClusterSnapshot, index: Mapping[str, TypeIndex]) -> Solution:
    return solve(build_problem(snapshot, index, NOW), index)


def _measured(name: str, decide: _Decision, target: float | None = None) -> Figure:
    taken: list[float] = []
    plan = Solution()
    for _ in range(_REPEATS):
        started = time.process_time()
        plan = decide()
        taken.append(time.process_time() - started)
        if taken[-1] > _ONCE_FROM_SECONDS:
            break
    placed = sum(len(item.pods) for item in plan.placed_on_existing)
    note = f"{len(plan.new_claims)} claims, {placed} pods on existing nodes, {len(plan.unschedulable)} left"
    return Figure(name, min(taken), "s", target, note)


def _peak_megabytes(decide: _Decision) -> float:
    """What a decision allocates at its peak."""
    tracemalloc.start()
    try:
        decide()
        return tracemalloc.get_traced_memory()[1] / 2**20
    finally:
        tracemalloc.stop()


def _mixed(count: int, cpus: tuple[int, ...], memories: tuple[int, ...]) -> list[Wire]:
    """SCH-901, a fifth of each kind."""
    draw = random.Random(42)
    return [
        _drawn(f"p{number}", number % 5, draw.choice(_NAMES), draw.choice(cpus), draw.choice(memories))
        for number in range(count)
    ]


def _drawn(name: str, kind: int, value: str, cpu: int, memory: int) -> Pod:
    own = {"app": "nginx"} if kind == 4 else {"my-label": value, "kind": str(kind)}
    return pod(name, {"cpu": f"{cpu}m", "memory": f"{memory}Mi"}, meta={"labels": own}, **_constraint(kind, own))  # type: ignore[arg-type]


def _constraint(kind: int, own: Mapping[str, str]) -> dict[str, object]:
    mine = LabelSelector(match_labels=own)
    match kind:
        case 1 | 2:
            key = labels.ZONE if kind == 1 else labels.HOSTNAME
            spread = TopologySpreadConstraint(
                max_skew=1, topology_key=key, when_unsatisfiable="DoNotSchedule", label_selector=mine
            )
            return {"topology_spread_constraints": (spread,)}
        case 3:
            near = PodAffinityTerm(topology_key=labels.ZONE, label_selector=mine)
            return {"affinity": Affinity(pod_affinity=PodAffinity(required=(near,)))}
        case 4:
            far = PodAffinityTerm(topology_key=labels.HOSTNAME, label_selector=mine)
            return {"affinity": Affinity(pod_anti_affinity=PodAffinity(required=(far,)))}
        case _:
            return {}


def _wishing(count: int) -> list[Wire]:
    """A zone wished for, an anti-affinity by zone that cannot be had, one by host that can (SCH-901)."""
    mine = LabelSelector(match_labels={"app": "wishing"})
    zone = affinity(preferred=[(1, term(expr(labels.ZONE, "In", "z1")))])
    apart = tuple(
        WeightedPodAffinityTerm(weight=weight, pod_affinity_term=PodAffinityTerm(topology_key=key, label_selector=mine))
        for weight, key in ((50, labels.ZONE), (1, labels.HOSTNAME))
    )
    preferred = Affinity(node_affinity=zone.node_affinity, pod_anti_affinity=PodAffinity(preferred=apart))
    return [
        pod(f"p{n}", {"cpu": "100m", "memory": "100Mi"}, meta={"labels": {"app": "wishing"}}, affinity=preferred)
        for n in range(count)
    ]


def _busy(nodes: int, waiting_pods: int = 1000) -> list[Wire]:
    """Nodes with ten pods each of five hundred workloads, and pods of two hundred of these waiting."""
    there = [
        node_and_claim(f"n{n}", {"cpu": "16", "memory": "64Gi", "pods": "58"}, labels={labels.ZONE: _ZONES[n % 3]})
        for n in range(nodes)
    ]
    bound = [
        _of_app(f"b{n}", n * 7 % 500, "1500m", "4Gi", node_name=f"n{n % nodes}", status={"phase": "Running"})
        for n in range(10 * nodes)
    ]
    waiting = [_of_app(f"w{n}", n % 200, f"{500 + n % 200 * 10}m", "2Gi") for n in range(waiting_pods)]
    return flatten([there, bound, waiting])


def _of_app(name: str, app: int, cpu: str, memory: str, **fields: object) -> Pod:
    own = {"app": f"app{app}"}
    constraint = _constraint((0, 1, 3, 4)[app % 4], own)
    return pod(name, {"cpu": cpu, "memory": memory}, meta={"labels": own}, **constraint, **fields)  # type: ignore[arg-type]
