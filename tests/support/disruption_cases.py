"""Builders for disruption decisions: nodes of known types with pods on them, and the decision about them.

Three types, each with room for its CPUs (no overhead): ``s`` 2 CPU at 1 $/h, ``m`` 4 CPU at 2 $/h, ``l`` 8 CPU at 4 $/h, on
demand in two zones, spot at half of that in both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from karpenter.api.core import Pod
from karpenter.api.karpenter import Budget, NodeClaim, NodePool
from karpenter.api.meta import Condition, Wire
from karpenter.disruption.decide.blocker_messages import blocker_message
from karpenter.disruption.decide.candidates import BlockedNode, CandidateChecks, DisruptionContext
from karpenter.disruption.decide.command import Command, DisruptionReason
from karpenter.disruption.decide.disruption_decision import decide_disruption
from karpenter.disruption.decide.disruption_problem import DisruptionOptions, DisruptionProblem, DisruptionSolution
from karpenter.instancetypes.instance_type import InstanceType, Offering
from karpenter.model import labels
from support.applied_commands import CONSOLIDATABLE, QUIET, USUAL, with_budget
from support.builders import (
    NOW,
    Types,
    flatten,
    indexes,
    node_and_claim,
    node_pool,
    owner,
    pod,
    replaced,
    snapshot,
    wanted,
)
from support.instance_types import offering, shape
from support.replay_check import check_disruption_replay

CPUS = {"s": 2, "m": 4, "l": 8}
ON_DEMAND = wanted(labels.CAPACITY_TYPE, "In", "on-demand")
ANY = wanted(labels.CAPACITY_TYPE, "Exists")


def sold(price: float, *, spot: float | None = None, zones: Sequence[str] = ("z1", "z2")) -> list[Offering]:
    """On-demand offerings at a price, and spot ones at another."""
    offerings = [offering("on-demand", zone, price) for zone in zones]
    return offerings + ([] if spot is None else [offering("spot", zone, spot) for zone in zones])


def kind(name: str, cpu: int, offerings: Iterable[Offering]) -> InstanceType:
    """A type with so many CPUs, no overhead, and memory for anything."""
    return shape(name, {"cpu": cpu, "memory": "64Gi", "pods": 50}, offerings, overhead={})


KINDS = tuple(kind(name, cpu, sold(cpu / 2, spot=cpu / 4)) for name, cpu in CPUS.items())


def pool(
    name: str = "np", *budgets: Budget, requirements: Sequence[object] = (ON_DEMAND,), **disruption: object
) -> NodePool:
    """A NodePool; without budgets nothing is limited. Its nodes are on demand unless ``requirements`` say otherwise."""
    return with_budget(node_pool(name, requirements), *budgets, **disruption)


def on(host: str, *cpus: float | str, prefix: str = "", **fields: object) -> list[Pod]:
    """Pods of ReplicaSets bound to a node, each with so many CPUs."""
    given: Mapping[str, object] = fields.pop("meta", {})
    meta = {"owner_references": (owner("ReplicaSet", "rs"),), **given}
    return [
        pod(f"{prefix or host}-{number}", {"cpu": str(cpu)}, meta=meta, node_name=host, **fields)
        for number, cpu in enumerate(cpus)
    ]


def running(
    name: str,
    kind: str = "m",
    *cpus: float | str,
    pool: str = "np",
    zone: str = "z1",
    capacity_type: str = "on-demand",
    conditions: tuple[Condition, ...] = (CONSOLIDATABLE,),
    **fields: object,
) -> list[Wire]:
    """An initialized node of a type and its claim, with pods of so many CPUs."""
    own = {labels.INSTANCE_TYPE: kind, labels.ZONE: zone, labels.CAPACITY_TYPE: capacity_type}
    own |= {labels.ARCH: "amd64", labels.OS: "linux"}
    offered = {"cpu": CPUS.get(kind, 4), "memory": "64Gi", "pods": 50}
    pair = node_and_claim(name, offered, pool=pool, labels=own, conditions=conditions, **fields)
    return [*pair, *on(name, *cpus)]


def drifted(at: object = None) -> tuple[Condition, ...]:
    """Conditions of a claim that has drifted, since then."""
    return (Condition(type="Drifted", status="True", reason="NodePoolDrifted", last_transition_time=at),)


def decide(
    *objects: object,
    types: Types = KINDS,
    circumstances: DisruptionContext = QUIET,
    options: DisruptionOptions = USUAL,
) -> DisruptionSolution:
    """The decision for a cluster of these objects, which its problem file gives again."""
    wires = flatten(objects)
    problem, prepared = DisruptionProblem(snapshot(wires), circumstances, options), indexes(wires, types)
    solution = decide_disruption(problem, prepared)
    check_disruption_replay(problem, prepared, solution)
    return solution


def verdict(
    name: str, *objects: object, reason: DisruptionReason = DisruptionReason.UNDERUTILIZED, **circumstances: object
) -> str:
    """Why the node (or claim) may not be chosen for the reason, empty where it may; ``-`` where there is nothing to say."""
    wires = flatten(objects)
    taken = snapshot(wires)
    checks = CandidateChecks(taken, indexes(wires, KINDS), DisruptionContext(NOW, **circumstances))
    view = next(view for view in taken.nodes if view.name == name)
    if not checks.is_considered(view):
        return "-"
    result = checks.candidate_or_blocker(view, reason)
    return blocker_message(result.blocker) if isinstance(result, BlockedNode) else ""


def gone(decision: DisruptionSolution | Iterable[Command]) -> list[str]:
    """The nodes that go, sorted."""
    commands = decision.commands if isinstance(decision, DisruptionSolution) else decision
    return sorted(candidate.state_node.name for command in commands for candidate in command.candidates)


def replacement_types(solution: DisruptionSolution) -> list[str]:
    """The cheapest type of every node that is launched, sorted."""
    return sorted(planned.instance_types[0] for command in solution.commands for planned in command.replacements)


def why(solution: DisruptionSolution, name: str) -> str:
    """What keeps a node, all that is said of it."""
    return "; ".join(
        blocker_message(blocked_node.blocker)
        for blocked_node in solution.blocked_nodes
        if blocked_node.state_node.name == name
    )


def with_annotation(wire: Wire, key: str, value: str) -> Wire:
    """The object with one more annotation."""
    meta = wire.metadata  # type: ignore[attr-defined]
    return replaced(wire, metadata=replaced(meta, annotations={**meta.annotations, key: value}))


def claimed(objects: Sequence[Wire], **spec: object) -> list[Wire]:
    """The same objects, their claims with these fields of the specification."""
    return [
        replaced(wire, spec=replaced(wire.spec, **spec)) if isinstance(wire, NodeClaim) else wire for wire in objects
    ]
