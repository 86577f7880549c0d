"""Why a pod that gets a new node gets none of a heavier NodePool.

NodePools are tried by weight, so a pod in a lighter one was refused by every heavier one. The problem is solved for this pod and
that NodePool alone, without room on existing nodes: the reason why the pod is unschedulable then is the answer. Limits count with
the nodes that the plan takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import msgspec

from karpenter.api.core import Pod
from karpenter.api.karpenter import NodePool
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.model import resources as res
from karpenter.model.requirements import intersects, requirements_from_wire
from karpenter.scheduling.problem import Problem
from karpenter.scheduling.solution import NewNodeClaim, Solution, UnschedulablePod
from karpenter.scheduling.solver import solve
from karpenter.state.snapshot import PodGroup
from karpenter.state.state_node import StateNode

_MORE_PODS_THAN_A_NODE_HOLDS = 1_000_000 * res.ONE_UNIT


@dataclass(frozen=True)
class PassedNodePool:
    """A heavier NodePool that has no node for the pod. ``refusal`` is None where other pods of the plan were simply first.

    ``unavailable_offerings``: how many offerings meet its requirements, if none of them is available; 0 otherwise.
    """

    node_pool: str
    weight: int
    refusal: UnschedulablePod | None
    unavailable_offerings: int = 0


def passed_node_pools(
    claim: NewNodeClaim, pod: Pod, problem: Problem, solution: Solution, indexes: Mapping[str, TypeIndex]
) -> tuple[PassedNodePool, ...]:
    """The NodePools that are heavier than the one the pod gets its node of, heaviest first."""
    pools = {pool.metadata.name: pool for pool in problem.snapshot.pools}
    group = next((group for group in problem.snapshot.pod_groups if pod in group.pods), None)
    if group is None:
        return ()
    lone = replace(group, pods=(pod,))
    weight = _weight(pools[claim.node_pool])
    heavier = sorted(
        (pool for pool in pools.values() if _weight(pool) > weight and pool.spec.replicas is None),
        key=lambda pool: (-_weight(pool), pool.metadata.name),
    )
    return tuple(
        PassedNodePool(
            pool.metadata.name,
            _weight(pool),
            _refusal(pool, lone, problem, solution, indexes),
            _unavailable_offerings(pool, indexes.get(pool.metadata.name)),
        )
        for pool in heavier
    )


def _weight(pool: NodePool) -> int:
    return pool.spec.weight or 0


def _refusal(
    pool: NodePool, lone: PodGroup, problem: Problem, solution: Solution, indexes: Mapping[str, TypeIndex]
) -> UnschedulablePod | None:
    """Why the pod alone gets no node of the NodePool: within all of its limits, else within what the plan leaves of them."""
    refused = _refusal_alone(pool, lone, problem, indexes)
    if refused is not None:
        return refused
    remainder = _within_plan(pool, solution, indexes.get(pool.metadata.name))
    return _refusal_alone(remainder, lone, problem, indexes)


def _refusal_alone(
    pool: NodePool, lone: PodGroup, problem: Problem, indexes: Mapping[str, TypeIndex]
) -> UnschedulablePod | None:
    name = pool.metadata.name
    own = {name: indexes[name]} if name in indexes else {}
    nodes = tuple(map(_without_room, problem.snapshot.nodes))
    snapshot = replace(problem.snapshot, nodes=nodes, pools=(pool,), pod_groups=(lone,), gangs=())
    alone = replace(problem, snapshot=snapshot, instance_types={name: problem.instance_types[name] for name in own})
    unschedulable = solve(alone, own).unschedulable
    return unschedulable[0] if unschedulable else None


def _without_room(node: StateNode) -> StateNode:
    """The node with its pods and no room for another one: the pod is not there because others took the room first."""
    return replace(node, pod_requests={**node.pod_requests, res.PODS: _MORE_PODS_THAN_A_NODE_HOLDS})


def _unavailable_offerings(pool: NodePool, index: TypeIndex | None) -> int:
    """How many offerings meet the NodePool's requirements, if none of them is available."""
    required = requirements_from_wire(pool.spec.template.spec.requirements)
    offerings = [
        offering
        for instance_type in (index.types if index is not None else ())
        if intersects(instance_type.requirements, required)
        for offering in instance_type.offerings
        if intersects(offering.requirements, required)
    ]
    return 0 if any(offering.launchable for offering in offerings) else len(offerings)


def _within_plan(pool: NodePool, solution: Solution, index: TypeIndex | None) -> NodePool:
    """The NodePool with what its planned NodeClaims leave of its limits; each counts as the largest node it may become."""
    limits = res.parse_resources(pool.spec.limits)
    used = res.add(*_planned_capacities(pool.metadata.name, solution, index)) if index is not None else {}
    left = {name: max(0, limit - used.get(name, 0)) for name, limit in limits.items()}
    return msgspec.structs.replace(pool, spec=msgspec.structs.replace(pool.spec, limits=res.resources_to_wire(left)))


def _planned_capacities(pool: str, solution: Solution, index: TypeIndex) -> Iterator[res.Resources]:
    for claim in solution.new_claims:
        if claim.node_pool == pool:
            yield {**index.max_capacity(index.named(*claim.instance_types)), res.NODES: res.ONE_UNIT}
