"""How fast disruption is decided, and how good: passes over large clusters, and a half-empty cluster brought back to size.

The half-empty cluster is a tight plan of about 500 nodes from which every second pod was deleted. Decisions are made one after
the other under budgets of 10 %, and their commands are carried out as planned. The rules of the reference are run beside them.
The same is done with 30 Deployments of 17 pods that are scaled to 8 each: a few large nodes hold them; the seed decides which
pods go.
"""

from __future__ import annotations

import random
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from bench.classic import classic
from bench.figures import Figure
from karpenter.api.core import Pod
from karpenter.api.karpenter import Budget
from karpenter.api.meta import Wire
from karpenter.disruption.decide.candidates import DisruptionContext
from karpenter.disruption.decide.command import Command
from karpenter.disruption.decide.disruption_decision import decide_disruption
from karpenter.disruption.decide.disruption_problem import DisruptionProblem
from karpenter.model import labels
from karpenter.state.snapshot import ClusterSnapshot
from support.applied_commands import CONSOLIDATABLE, QUIET, with_budget
from support.builders import NOW, flatten, node_and_claim, node_pool, owner, pod, snapshot, wanted
from support.scale_down_case import INDEX, PLAIN, OnEc2, least_price, replicas, scaled_down

_ZONES = ("us-east-1a", "us-east-1b", "us-east-1c")
_KIND = "m5.4xlarge"
_ONE_MINUTE = 60.0
#: How the pods of the half-empty cluster look.
_CPU = (100, 250, 500, 1000, 1500, 2000)
_MEMORY = (128, 256, 512, 1024, 2048, 4096)
_SEEDS = (1, 2, 3)


def figures() -> Iterator[Figure]:
    """Passes, then the way down from half-empty."""
    yield _pass("disruption pass: 1000 nodes, 15000 pods, 40 % full", 1000, 15_000, 5.0)
    yield _pass("disruption pass: 5000 nodes, 50000 pods", 5000, 50_000, 30.0)
    yield from _nothing_to_do(1000, 15_000)
    yield from _way_down("half-empty", _half_empty, 1.10)
    for seed in _SEEDS:
        yield from _way_down(f"30 Deployments, 510 pods to 240, seed {seed}", partial(scaled_down, seed), 1.06)


def largest_figures() -> Iterator[Figure]:
    """The pass over a cluster three times the size that Kubernetes is tested with."""
    yield _pass("disruption pass: 15000 nodes, 200000 pods", 15_000, 200_000, 5.0)


# -- passes ---------------------------------------------------------------------------------------------------------------


def _pass(name: str, nodes: int, count: int, target: float) -> Figure:
    taken = snapshot(_spread(nodes, count))
    started = time.perf_counter()
    found = decide_disruption(DisruptionProblem(taken, QUIET), {"np": INDEX})
    seconds = time.perf_counter() - started
    return Figure(name, seconds, "s", target, _told(found.commands))


def _told(commands: Sequence[Command]) -> str:
    gone = sum(len(command.candidates) for command in commands)
    saved = sum(command.saving_per_hour or 0.0 for command in commands)
    return f"{len(commands)} commands, {gone} nodes go, {saved:.2f} $/h saved"


def _spread(nodes: int, count: int) -> list[Wire]:
    """Nodes of one type with pods here and there."""
    draw = random.Random(1)
    own = {labels.CAPACITY_TYPE: "on-demand", labels.INSTANCE_TYPE: _KIND, labels.ARCH: "amd64", labels.OS: "linux"}
    amounts = {"cpu": "15900m", "memory": "58Gi", "pods": "110"}
    there = [
        node_and_claim(f"n{n}", amounts, labels={**own, labels.ZONE: _ZONES[n % 3]}, conditions=(CONSOLIDATABLE,))
        for n in range(nodes)
    ]
    bound = [_of_app(n, draw.randrange(300), f"n{draw.randrange(nodes)}") for n in range(count)]
    return flatten([node_pool(), there, bound])


def _of_app(number: int, app: int, host: str) -> Pod:
    requests = {"cpu": f"{100 + 50 * (app % 13)}m", "memory": f"{256 * (1 + app % 7)}Mi"}
    meta = {"labels": {"app": f"app{app}"}, "owner_references": (owner("ReplicaSet", f"rs{app}"),)}
    return pod(f"p{number}", requests, meta=meta, node_name=host)


def _nothing_to_do(nodes: int, count: int) -> Iterator[Figure]:
    """A pass over nodes none of which is a candidate, without the memory of an earlier pass."""
    there = _spread(nodes, count)
    taken = snapshot(with_budget(node_pool(), consolidate_after="Never"), there[1:])
    started = time.perf_counter()
    decide_disruption(DisruptionProblem(taken, QUIET), {"np": INDEX})
    yield Figure("disruption pass: nothing may go", time.perf_counter() - started, "s", None, f"{nodes} nodes")
    tracemalloc.start()
    decide_disruption(DisruptionProblem(taken, QUIET), {"np": INDEX})
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    yield Figure("memory of that pass", most / 1e6, "MB")


# -- the way down -----------------------------------------------------------------------------------------------------------


def _half_empty() -> OnEc2:
    draw = random.Random(1)
    small = wanted("karpenter.k8s.aws/instance-cpu", "Lt", "17")
    cluster = OnEc2(with_budget(node_pool("np", (*PLAIN, small)), Budget(nodes="10%")))
    arriving: list[Pod] = []
    for app in range(100):
        cpu, memory = f"{draw.choice(_CPU)}m", f"{draw.choice(_MEMORY)}Mi"
        arriving += replicas(app, draw.randrange(10, 90), cpu, memory)
    cluster.batch(arriving)
    cluster.delete_pods([item.metadata.uid for item in cluster.bound()][1::2])
    return cluster


def _way_down(name: str, made: Callable[[], OnEc2], target: float) -> Iterator[Figure]:
    ways: dict[str, Callable[[ClusterSnapshot], Sequence[Command]]] = {
        "": lambda taken: decide_disruption(DisruptionProblem(taken, QUIET), {"np": INDEX}).commands,
        " (rules of the reference)": _classic,
    }
    for way, decide in ways.items():
        cluster = made()
        before, count, steps, slowest = cluster.price, len(cluster.bound()), 0, 0.0
        started = time.perf_counter()
        while time.perf_counter() - started < _ONE_MINUTE * 5:
            taken = cluster.snapshot()
            at = time.perf_counter()
            commands = decide(taken)
            slowest = max(slowest, time.perf_counter() - at)
            if not commands:
                break
            cluster.carry_out(commands)
            steps += 1
        note = f"from {before:.2f} to {cluster.price:.2f} $/h in {steps} passes, the slowest {slowest:.2f} s"
        least = least_price(cluster.snapshot().pools[0], cluster.bound())
        yield Figure(f"{name}{way}: cost / bound", cluster.price / least, "x", None if way else target, note)
        yield Figure(f"{name}{way}: pods restarted", cluster.restarts / count, "", None if way else 0.6, f"of {count}")
        saved = before - cluster.price
        yield Figure(f"{name}{way}: restarts per $/h saved", cluster.restarts / saved if saved else 0.0, "")


def _classic(taken: ClusterSnapshot) -> Sequence[Command]:
    found = classic(taken, {"np": INDEX}, DisruptionContext(NOW))
    return () if found is None else (found,)
