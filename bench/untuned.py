"""Plans for inputs that the search was not tuned on: other NodePools, pods and sizes. Each NodePool shows its worst ratio.

The bound is the plan's own: the least cost of fractions of nodes. A NodePool with limits is compared with what its pods would
cost without them, and weights hold whatever they cost. So these two do not measure the search and are shown apart.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from random import Random

from bench.figures import Figure
from karpenter.api.core import Pod
from karpenter.api.karpenter import NodePool
from karpenter.instancetypes import ec2_packaged_types
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.instancetypes.well_known_labels import well_known_labels_of
from karpenter.model import labels
from karpenter.scheduling.objective import NO_EXPOSURE_LIMITS, Objective
from karpenter.scheduling.problem import build_problem
from karpenter.scheduling.scheduling_options import ArrivalForecast, SchedulingOptions
from karpenter.scheduling.search.linear_program import load_solver
from karpenter.scheduling.solver import solve
from support.builders import NOW, node_pool, pod, snapshot, wanted

_AWS = "karpenter.k8s.aws"
_ON_DEMAND = wanted(labels.CAPACITY_TYPE, "In", "on-demand")
_ANY = wanted(labels.CAPACITY_TYPE, "In", "on-demand", "spot")
_USUAL = wanted(f"{_AWS}/instance-category", "In", "c", "m", "r")
_MODERN = wanted(f"{_AWS}/instance-generation", "Gt", "4")
_AMD64, _ARM64 = wanted(labels.ARCH, "In", "amd64"), wanted(labels.ARCH, "In", "arm64")
POOLS: dict[str, list[NodePool]] = {
    "amd64": [node_pool("d", [_ON_DEMAND, _USUAL, _MODERN, _AMD64])],
    "arm64": [node_pool("d", [_ON_DEMAND, _USUAL, _MODERN, _ARM64])],
    "both architectures, spot": [node_pool("d", [_ANY, _USUAL, _MODERN])],
    "local NVMe": [node_pool("d", [_ON_DEMAND, wanted(f"{_AWS}/instance-local-nvme", "Gt", "100"), _AMD64])],
    "one family": [node_pool("d", [_ON_DEMAND, wanted(f"{_AWS}/instance-family", "In", "m6i")])],
    "two equal pools": [
        node_pool(category, [_ON_DEMAND, wanted(f"{_AWS}/instance-category", "In", category), _MODERN])
        for category in ("c", "r")
    ],
    "everything": [node_pool("d", [_ANY])],
    "weights and a limit": [
        node_pool("heavy", [_ON_DEMAND, _USUAL, _MODERN], weight=50, limits={"cpu": "40"}),
        node_pool("light", [_ANY, _USUAL, _MODERN], weight=1),
    ],
}
SIZES = (30, 200, 1000)
_PRICE_ALONE = SchedulingOptions(
    objective=Objective(0.0, exposure=NO_EXPOSURE_LIMITS), arrival_forecast=ArrivalForecast.NONE
)


def _web(dice: Random) -> dict[str, str]:
    return {
        "cpu": f"{dice.choice([100, 250, 500, 1000, 1500])}m",
        "memory": f"{dice.choice([100, 256, 512, 1024, 4096])}Mi",
    }


def _each_different(dice: Random) -> dict[str, str]:
    return {"cpu": f"{int(dice.lognormvariate(6, 1))}m", "memory": f"{int(dice.lognormvariate(6.5, 1.2))}Mi"}


def _big(dice: Random) -> dict[str, str]:
    return {"cpu": f"{dice.randrange(1000, 30000)}m", "memory": f"{dice.randrange(1, 120)}Gi"}


def _much_memory(dice: Random) -> dict[str, str]:
    return {"cpu": "200m", "memory": f"{dice.choice([2, 4, 8, 16])}Gi"}


WORKLOADS: dict[str, Callable[[Random], dict[str, str]]] = {
    "web": _web,
    "each different": _each_different,
    "big": _big,
    "memory": _much_memory,
}


def figures() -> Iterator[Figure]:
    """Per pool and number of pods the worst ratio of price to bound over the workloads."""
    load_solver()
    types = ec2_packaged_types.packaged_instance_types()
    index = TypeIndex(types, well_known_labels_of(types) | labels.WELL_KNOWN)
    for name, pools in POOLS.items():
        for size in SIZES:
            yield max((_ratio(name, pools, size, kind, index) for kind in WORKLOADS), key=lambda figure: figure.value)


def _ratio(name: str, pools: list[NodePool], size: int, kind: str, index: TypeIndex) -> Figure:
    dice = random.Random(f"{kind} {size}")
    pods: list[Pod] = [pod(f"p{number}", WORKLOADS[kind](dice)) for number in range(size)]
    taken = snapshot(*pools, *pods)
    begun = time.process_time()
    plan = solve(build_problem(taken, {pool.metadata.name: index for pool in pools}, NOW, _PRICE_ALONE))
    seconds = time.process_time() - begun
    assert plan.lower_bound_per_hour
    note = f"{kind}: {len(plan.new_claims)} nodes, {seconds:.2f} s of CPU"
    return Figure(
        f"untuned, {name}, {size} pods: price", plan.price_per_hour / plan.lower_bound_per_hour, "", None, note
    )
