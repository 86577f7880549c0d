"""Gangs: how long a decision takes where all fit, and where a limit holds half of them."""

from __future__ import annotations

import time
from collections.abc import Iterator

from bench.figures import Figure
from karpenter.model import labels
from karpenter.scheduling.problem import build_problem
from karpenter.scheduling.search.linear_program import load_solver
from karpenter.scheduling.solver import solve
from support.builders import NOW, node_pool, snapshot
from support.gang_builders import gang
from support.instance_types import inc, index_of

GANGS = 100
PODS = 8


def figures() -> Iterator[Figure]:
    """CPU seconds of a decision for all gangs."""
    load_solver()
    what = f"decision for {GANGS} gangs of {PODS}"
    yield Figure(what, _seconds({}), "s")
    yield Figure(f"{what}, each in one zone", _seconds({}, labels.ZONE), "s")
    yield Figure(f"{what}, half of them within a limit", _seconds({"cpu": f"{GANGS * PODS}"}), "s")


def _seconds(limits: dict[str, str], topology_key: str = "") -> float:
    indexes = {"np": index_of(inc(60))}
    gangs = [gang(f"g{at:03}", PODS, {"cpu": f"{1 + at % 3}", "memory": "1Gi"}, topology_key) for at in range(GANGS)]
    problem = build_problem(snapshot(node_pool("np", limits=limits), *gangs), indexes, NOW)
    begun = time.process_time()
    solution = solve(problem, indexes)
    assert any(outcome.is_complete for outcome in solution.gangs)
    return time.process_time() - begun
