"""How much higher a limit of a NodePool must be so that all pods that it leaves out get nodes.

What a single pod lacks is said with the pod (`NodePoolLimitReached`). Pods of several groups, or pods that must be on one host,
share nodes, so what they lack together is no sum of that. It is found by planning with raised limits: the least increase with
which none of them is left out. What nodes take of a limit is a multiple of the greatest common divisor of what types take, so
the increases between two such multiples come to the same.

Growth: a plan for each halving of what is possible, about a dozen; done for few waiting pods only. A limit that no pod names as
its reason costs one plan more; that is done for pods with affinity by host, and for a few limits at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import gcd

from msgspec.structs import replace as edited

from karpenter.api.core import Pod
from karpenter.api.karpenter import NodePool
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.model import labels, quantity
from karpenter.model import resources as res
from karpenter.scheduling.failed_filters import NodePoolLimitReached
from karpenter.scheduling.problem import Problem
from karpenter.scheduling.solution import Solution

#: Up to so many waiting pods, each planned for about a dozen times.
MAX_PODS = 100
#: The increase that is tried first is doubled so often at most.
_MAX_DOUBLINGS = 4
#: So many limits that no pod names at most.
_MAX_QUESTIONS = 8

Solve = Callable[[Problem], Solution]


@dataclass(frozen=True, slots=True)
class LimitIncrease:
    """With a limit of a NodePool higher by this amount (in thousandths), ``pods`` pods that it leaves out get nodes.

    With less, one of them at least does not.
    """

    node_pool: str
    resource: str
    amount: int
    pods: int


def limit_increases(
    problem: Problem, solution: Solution, indexes: Mapping[str, TypeIndex], solve: Solve
) -> tuple[LimitIncrease, ...]:
    """An increase for each limit that alone leaves pods out, by NodePool and resource; none where too many pods wait."""
    if sum(len(group.pods) for group in problem.snapshot.pod_groups) > MAX_PODS:
        return ()
    increases = (
        _Search(problem, solution, indexes[pool], solve).increase_of(pool, resource, remaining)
        for (pool, resource), remaining in sorted(_limits_in_question(problem, solution).items())
    )
    return tuple(increase for increase in increases if increase is not None)


def _limits_in_question(problem: Problem, solution: Solution) -> dict[tuple[str, str], int]:
    """What is about left of each limit that may leave a pod out, by NodePool and resource.

    A limit is the stated reason of most pods that it leaves out. A pod that must be on the host of another one lacks room there
    instead, where the limit made that node too small for both; then the limits of the NodePools that the plan launches nodes for
    are in question.
    """
    reached: dict[tuple[str, str], int] = {}
    lacks_room_beside_another = False
    for unschedulable in solution.unschedulable:
        fit = unschedulable.nearest_fit
        match fit.failed_filters if fit is not None else ():
            case (NodePoolLimitReached(resource, remaining),) if fit is not None:
                reached[fit.node_pool, resource] = remaining
            case _:
                lacks_room_beside_another |= _must_be_beside_another(unschedulable.pod)
    more = _limits_of_launched(problem, solution) if lacks_room_beside_another else {}
    return {**more, **reached} if len(more) <= _MAX_QUESTIONS else reached


def _must_be_beside_another(pod: Pod) -> bool:
    """Whether the pod has a required affinity by host."""
    affinity = pod.spec.affinity.pod_affinity if pod.spec.affinity is not None else None
    return affinity is not None and any(term.topology_key == labels.HOSTNAME for term in affinity.required)


def _limits_of_launched(problem: Problem, solution: Solution) -> dict[tuple[str, str], int]:
    """What the nodes of each NodePool that the plan launches for leave of its limits."""
    launching = {claim.node_pool for claim in solution.new_claims}
    left = {
        (pool.metadata.name, resource): amount
        for pool in problem.snapshot.pools
        if pool.metadata.name in launching
        for resource, amount in res.parse_resources(pool.spec.limits).items()
    }
    for view in problem.snapshot.nodes:
        if not view.marked_for_deletion:
            for pool, resource in left:
                if pool == view.pool:
                    left[pool, resource] -= res.taken_of_limit(resource, view.capacity)
    return left


@dataclass(frozen=True)
class _Search:
    """The least increase of one limit, by plans with higher ones."""

    problem: Problem
    solution: Solution
    index: TypeIndex
    solve: Solve

    def increase_of(self, pool: str, resource: str, remaining: int) -> LimitIncrease | None:
        """None where the limit alone leaves no pod out, or no increase was found."""
        unlimited = self.solve(_with_limit(self.problem, pool, resource, None))
        hopeless = set(_left_out(unlimited))
        left_out = set(_left_out(self.solution)) - hopeless
        step = self._step(resource)
        most = self._taken(unlimited, pool, resource) - remaining
        if not left_out or not step:
            return None

        def serves_all(steps: int) -> bool:
            raised = _with_limit(self.problem, pool, resource, steps * step - remaining % step)
            return hopeless.issuperset(_left_out(self.solve(raised)))

        enough = max(1, -(-most // step))
        for _ in range(_MAX_DOUBLINGS):
            if serves_all(enough):
                break
            enough *= 2
        else:
            return None
        too_few = 0
        while enough - too_few > 1:
            middle = (enough + too_few) // 2
            too_few, enough = (too_few, middle) if serves_all(middle) else (middle, enough)
        return LimitIncrease(pool, resource, enough * step - remaining % step, len(left_out))

    def _step(self, resource: str) -> int:
        """What every increase that makes a difference is a multiple of, but for what is left of the limit."""
        return gcd(*(res.taken_of_limit(resource, each.capacity) for each in self.index.types))

    def _taken(self, solution: Solution, pool: str, resource: str) -> int:
        """What a plan takes of a limit."""
        capacities = {each.name: each.capacity for each in self.index.types}
        return sum(
            max(res.taken_of_limit(resource, capacities[name]) for name in claim.instance_types)
            for claim in solution.new_claims
            if claim.node_pool == pool
        )


def _left_out(solution: Solution) -> Iterator[tuple[str, str]]:
    return ((pod.metadata.namespace, pod.metadata.name) for pod in (each.pod for each in solution.unschedulable))


def _with_limit(problem: Problem, pool: str, resource: str, increase: int | None) -> Problem:
    """The problem with one limit higher by so much, or without it."""
    pools = tuple(_pools_with_limit(problem.snapshot.pools, pool, resource, increase))
    return replace(problem, snapshot=replace(problem.snapshot, pools=pools))


def _pools_with_limit(pools: Iterable[NodePool], name: str, resource: str, increase: int | None) -> Iterator[NodePool]:
    for pool in pools:
        if pool.metadata.name != name:
            yield pool
            continue
        limits = {**pool.spec.limits}
        before = limits.pop(resource)
        if increase is not None:
            limits[resource] = quantity.quantity_text(quantity.parse_milli(before) + increase)
        yield edited(pool, spec=edited(pool.spec, limits=limits))
