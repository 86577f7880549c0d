"""What a plan means for capacity buffers, and what is left of it for everybody else (SCH-740, SCH-741)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from karpenter.api.core import Pod
from karpenter.scheduling.solution import NewNodeClaim, PlacedPods, Solution
from karpenter.state.virtual_pods import count_virtual_pods_by_buffer, is_virtual_pod


@dataclass(frozen=True)
class BufferPlacement:
    """What became of one buffer's pods: how many are on machines that are ready, need machines that are not, found no place."""

    on_ready_nodes: int = 0
    on_new_nodes: int = 0
    unschedulable: int = 0


def buffer_placements(solution: Solution, ready_nodes: Collection[str]) -> Mapping[str, BufferPlacement]:
    """The placement of every buffer with pods in the solution, by ``namespace/name``.

    ``ready_nodes``: keys of the nodes that were initialized in the snapshot the solution was made of.
    """
    fitting = count_virtual_pods_by_buffer(
        pod for placed in solution.placed_on_existing if placed.node_key in ready_nodes for pod in placed.pods
    )
    starting = count_virtual_pods_by_buffer(
        pod for placed in solution.placed_on_existing if placed.node_key not in ready_nodes for pod in placed.pods
    )
    bought = count_virtual_pods_by_buffer(pod for claim in solution.new_claims for pod in claim.pods)
    failed = count_virtual_pods_by_buffer(unplaced.pod for unplaced in solution.unschedulable)
    return {
        buffer: BufferPlacement(
            fitting.get(buffer, 0), starting.get(buffer, 0) + bought.get(buffer, 0), failed.get(buffer, 0)
        )
        for buffer in sorted({*fitting, *starting, *bought, *failed})
    }


def buffer_pods_by_node(solution: Solution) -> Mapping[str, int]:
    """How many virtual pods each machine holds, by key of its view. Beyond: those about to be bought count as well."""
    found: Counter[str] = Counter()
    for key, pods in _assigned(solution):
        found[key] += sum(map(is_virtual_pod, pods))
    return {key: count for key, count in found.items() if count}


def _assigned(solution: Solution) -> Iterable[tuple[str, tuple[Pod, ...]]]:
    yield from ((placed.node_key, placed.pods) for placed in solution.placed_on_existing)
    yield from ((claim.name, claim.pods) for claim in solution.new_claims)


def without_buffer_pods(solution: Solution) -> Solution:
    """The plan as far as it is about real pods; machines bought for virtual ones alone stay in it, for nobody."""
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
    """Only real pods, and only the machines that any of them is meant for."""
    found = (replace(item, pods=_workload_pods(item.pods)) for item in placed)
    return tuple(item for item in found if item.pods)


def claims_without_buffer_pods(claims: Iterable[NewNodeClaim]) -> tuple[NewNodeClaim, ...]:
    """All the machines, for their real pods."""
    return tuple(replace(claim, pods=_workload_pods(claim.pods)) for claim in claims)


def _workload_pods(pods: tuple[Pod, ...]) -> tuple[Pod, ...]:
    return tuple(pod for pod in pods if not is_virtual_pod(pod))
