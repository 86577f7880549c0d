"""Pods that each narrow another label: price over the optimum where that is proven, else over the lower bound.

Every pod asks for one to three of zone, capacity type, architecture, category and generation, drawn at random, so few pods ask
the same. ``search alone`` is the price search without the exact packing, against the optimum of the same pods.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from statistics import fmean

from bench.figures import Figure
from karpenter.api.core import Pod
from karpenter.instancetypes import ec2_packaged_types
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.instancetypes.well_known_labels import well_known_labels_of
from karpenter.model import labels
from karpenter.scheduling.objective import NO_EXPOSURE_LIMITS, Objective
from karpenter.scheduling.packing import exact_packing
from karpenter.scheduling.problem import build_problem
from karpenter.scheduling.scheduling_options import ArrivalForecast, SchedulingOptions
from karpenter.scheduling.search.linear_program import load_solver
from karpenter.scheduling.solution import Solution
from karpenter.scheduling.solver import solve
from support.builders import NOW, affinity, expr, node_pool, pod, snapshot, term, wanted

_AWS = "karpenter.k8s.aws"
_ASKED = (
    (labels.ZONE, "In", ("us-east-1a",)),
    (labels.ZONE, "In", ("us-east-1b", "us-east-1c")),
    (labels.CAPACITY_TYPE, "In", ("on-demand",)),
    (labels.CAPACITY_TYPE, "In", ("spot",)),
    (labels.ARCH, "In", ("amd64",)),
    (labels.ARCH, "In", ("arm64",)),
    (f"{_AWS}/instance-category", "In", ("c", "m")),
    (f"{_AWS}/instance-category", "NotIn", ("t",)),
    (f"{_AWS}/instance-generation", "Gt", ("5",)),
    (f"{_AWS}/instance-cpu-manufacturer", "In", ("intel",)),
)
_PRICE_AND_FEE = SchedulingOptions(
    objective=Objective(exposure=NO_EXPOSURE_LIMITS), arrival_forecast=ArrivalForecast.NONE
)
#: Pods in a plan, and plans of that size.
SIZES = ((5, 40), (8, 40), (12, 20), (20, 20), (40, 10))


def figures() -> Iterator[Figure]:
    """Mean and worst ratio, and mean CPU time, per number of pods."""
    load_solver()
    types = ec2_packaged_types.packaged_instance_types()
    index = TypeIndex(types, well_known_labels_of(types) | labels.WELL_KNOWN)
    for pods, plans in SIZES:
        yield from _of_size(pods, plans, index)


def _of_size(pods: int, plans: int, index: TypeIndex) -> Iterator[Figure]:
    chosen, alone, seconds, proven = [], [], [], 0
    for number in range(plans):
        waiting = _mixture(Random(f"{pods} {number}"), pods)
        began = time.process_time()
        plan = _planned(waiting, index)
        seconds.append(time.process_time() - began)
        with _without_exact_packing():
            searched = _planned(waiting, index)
        least = _cost(plan) if plan.is_optimal else (plan.lower_bound_per_hour or 0.0)
        proven += plan.is_optimal
        chosen.append(_cost(plan) / least)
        alone.append(_cost(searched) / least)
    note = f"{proven} of {plans} plans proven optimal, worst {max(chosen):.3f}"
    yield Figure(f"mixtures, {pods} pods: cost over least", fmean(chosen), note=note, unit="")
    yield Figure(f"mixtures, {pods} pods: search alone", fmean(alone), note=f"worst {max(alone):.3f}", unit="")
    yield Figure(f"mixtures, {pods} pods: CPU", fmean(seconds), note=f"worst {max(seconds):.3f}", unit="s")


def _mixture(dice: Random, count: int) -> list[Pod]:
    return [_pod(dice, number) for number in range(count)]


def _pod(dice: Random, number: int) -> Pod:
    requests = {
        "cpu": f"{dice.choice([250, 500, 1000, 1500, 3000])}m",
        "memory": f"{dice.choice([512, 1024, 2048, 6144])}Mi",
    }
    asked = {key: (operator, values) for key, operator, values in dice.sample(_ASKED, dice.choice([1, 1, 2, 3]))}
    expressions = [expr(key, operator, *values) for key, (operator, values) in sorted(asked.items())]
    return pod(f"p{number}", requests, affinity=affinity(term(*expressions)))


def _planned(waiting: list[Pod], index: TypeIndex) -> Solution:
    pool = node_pool("d", [wanted(labels.CAPACITY_TYPE, "In", "on-demand", "spot")])
    return solve(build_problem(snapshot(pool, *waiting), {"d": index}, NOW, _PRICE_AND_FEE))


def _cost(plan: Solution) -> float:
    return plan.price_per_hour + _PRICE_AND_FEE.objective.node_fee_per_hour * len(plan.new_claims)


@contextmanager
def _without_exact_packing() -> Iterator[None]:
    pods = exact_packing.MAX_PODS
    exact_packing.MAX_PODS = 0
    try:
        yield
    finally:
        exact_packing.MAX_PODS = pods
