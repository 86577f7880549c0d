"""Placement of virtual pods in a solution, and the solution without them (SCH-740, SCH-741)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from karpenter.api.core import Pod
from karpenter.model import conditions
from karpenter.scheduling.solution import NewNodeClaim, PlacedPods, Solution
from karpenter.state.state_node import StateNode
from karpenter.state.virtual_pods import count_virtual_pods_by_buffer, is_virtual_pod


@dataclass(frozen=True)
class BufferPlacement:
    """How many pods of one buffer fit on ready nodes, need new or starting nodes, or are unschedulable."""

    on_ready_nodes: int = 0
    on_new_nodes: int = 0
    unschedulable: int = 0


def nodes_with_room_now(nodes: Iterable[StateNode], solution: Solution) -> frozenset[str]:
    """Keys of the nodes that can take their pods of the solution now: initialized, or without a NodeClaim.

    Nodes where terminating pods have to end first are left out.
    """
    later = {placed.node_key for placed in solution.awaiting_terminating_pods}
    return frozenset(
        node.key
        for node in nodes
        if (node.claim is None or conditions.is_true(node.claim.status.conditions, conditions.INITIALIZED))
        and node.key not in later
    )


def buffer_placements(solution: Solution, ready_nodes: Collection[str]) -> Mapping[str, BufferPlacement]:
    """The placement of every buffer with pods in the solution, by ``namespace/name``.

    ``ready_nodes``: keys of the nodes that count as ready, as of the snapshot the solution was made of (`nodes_with_room_now`).
    """
    on_ready = count_virtual_pods_by_buffer(
        pod for placed in solution.placed_on_existing if placed.node_key in ready_nodes for pod in placed.pods
    )
    on_starting = count_virtual_pods_by_buffer(
        pod for placed in solution.placed_on_existing if placed.node_key not in ready_nodes for pod in placed.pods
    )
    on_new = count_virtual_pods_by_buffer(pod for claim in solution.new_claims for pod in claim.pods)
    failed = count_virtual_pods_by_buffer(unplaced.pod for unplaced in solution.unschedulable)
    return {
        buffer: BufferPlacement(
            on_ready.get(buffer, 0), on_starting.get(buffer, 0) + on_new.get(buffer, 0), failed.get(buffer, 0)
        )
        for buffer in sorted({*on_ready, *on_starting, *on_new, *failed})
    }


def buffer_pods_by_node(solution: Solution) -> Mapping[str, int]:
    """Number of virtual pods per node, by key of its state node. Beyond: new node claims are included."""
    counts: Counter[str] = Counter()
    for key, pods in _assigned(solution):
        counts[key] += sum(map(is_virtual_pod, pods))
    return {key: count for key, count in counts.items() if count}


def _assigned(solution: Solution) -> Iterable[tuple[str, tuple[Pod, ...]]]:
    yield from ((placed.node_key, placed.pods) for placed in solution.placed_on_existing)
    yield from ((claim.name, claim.pods) for claim in solution.new_claims)


def without_buffer_pods(solution: Solution) -> Solution:
    """The solution without virtual pods; node claims needed only by virtual pods stay, without pods."""
    if not any(True for _ in _buffer_pods(solution)):
        return solution
    return replace(
        solution,
        new_claims=claims_without_buffer_pods(solution.new_claims),
        placed_on_existing=placed_without_buffer_pods(solution.placed_on_existing),
        unschedulable=tuple(unplaced for unplaced in solution.unschedulable if not is_virtual_pod(unplaced.pod)),
    )


def _buffer_pods(solution: Solution) -> Iterable[Pod]:
    yield from (pod for _, pods in _assigned(solution) for pod in pods if is_virtual_pod(pod))
    yield from (unplaced.pod for unplaced in solution.unschedulable if is_virtual_pod(unplaced.pod))


def placed_without_buffer_pods(placed: Iterable[PlacedPods]) -> tuple[PlacedPods, ...]:
    """Placements of real pods only; nodes without any are dropped."""
    workload_placements = (replace(placement, pods=_workload_pods(placement.pods)) for placement in placed)
    return tuple(placement for placement in workload_placements if placement.pods)


def claims_without_buffer_pods(claims: Iterable[NewNodeClaim]) -> tuple[NewNodeClaim, ...]:
    """All node claims, with their real pods only."""
    return tuple(replace(claim, pods=_workload_pods(claim.pods)) for claim in claims)


def _workload_pods(pods: tuple[Pod, ...]) -> tuple[Pod, ...]:
    return tuple(pod for pod in pods if not is_virtual_pod(pod))
