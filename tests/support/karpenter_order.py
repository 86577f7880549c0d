"""Karpenter's scheduling algorithm in a few lines, for pods and NodePools that only speak of a few labels: what it leaves out.

Pods go in the order of SCH-231, each into the open claim with the fewest pods that takes it, else into a new claim of the first
NodePool by weight whose limits allow one (SCH-111, SCH-260, SCH-382). A new claim reserves the largest of its types (SCH-384).
The algorithm reads wire objects and shares no code with the engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from karpenter.api.core import Pod
from karpenter.api.karpenter import NodePool
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.model import labels
from karpenter.model import resources as res

#: The values of a label that are allowed; labels that are missing are open.
Allowed = Mapping[str, frozenset[str]]
_OFFERING_KEYS = (labels.ZONE, labels.CAPACITY_TYPE)


@dataclass
class _Claim:
    pool: NodePool
    allowed: Allowed
    types: list[InstanceType]
    requests: dict[str, int]
    pods: int = 0


def pods_left_out(pods: Iterable[Pod], pools: Iterable[NodePool], types: Sequence[InstanceType]) -> list[str]:
    """Names of the pods for which Karpenter's algorithm finds no place, on an empty cluster."""
    return _packed(pods, pools, types)[1]


def pods_per_node(pods: Iterable[Pod], pools: Iterable[NodePool], types: Sequence[InstanceType]) -> list[int]:
    """How many pods Karpenter's algorithm puts on each new node, on an empty cluster, the fewest first."""
    return sorted(claim.pods for claim in _packed(pods, pools, types)[0])


def _packed(
    pods: Iterable[Pod], pools: Iterable[NodePool], types: Sequence[InstanceType]
) -> tuple[list[_Claim], list[str]]:
    limits = {pool.metadata.name: res.parse_resources(pool.spec.limits) for pool in pools}
    by_weight = sorted(pools, key=lambda pool: (pool.spec.weight or 0, pool.metadata.name), reverse=True)
    claims: list[_Claim] = []
    left: list[str] = []
    for pod in sorted(pods, key=_pod_order):
        claims.sort(key=lambda claim: claim.pods)
        if not any(_join(claim, pod) for claim in claims) and not _open(pod, by_weight, types, limits, claims):
            left.append(pod.metadata.name)
    return claims, left


def _pod_order(pod: Pod) -> tuple[int, int, str]:
    requests = _requests(pod)
    return -requests.get(res.CPU, 0), -requests.get(res.MEMORY, 0), pod.metadata.uid


def _requests(pod: Pod) -> dict[str, int]:
    return {**res.parse_resources(pod.spec.containers[0].resources.requests), **res.parse_resources({"pods": 1})}


def _join(claim: _Claim, pod: Pod) -> bool:
    allowed = _together(claim.allowed, {key: frozenset((value,)) for key, value in pod.spec.node_selector.items()})
    requests = res.add(claim.requests, _requests(pod))
    types = [each for each in claim.types if _holds(each, allowed, requests)]
    if not types or not all(allowed.values()):
        return False
    claim.allowed, claim.requests, claim.types, claim.pods = allowed, dict(requests), types, claim.pods + 1
    return True


def _open(
    pod: Pod,
    by_weight: Sequence[NodePool],
    types: Sequence[InstanceType],
    limits: Mapping[str, dict[str, int]],
    claims: list[_Claim],
) -> bool:
    for pool in by_weight:
        left = limits[pool.metadata.name]
        affordable = [each for each in types if all(each.capacity.get(name, 0) <= left[name] for name in left)]
        if left.get(res.NODES, 1) <= 0:
            continue
        claim = _Claim(pool, _asked(pool), affordable, {})
        if _join(claim, pod):
            claims.append(claim)
            for name in left:
                left[name] -= max(each.capacity.get(name, 0) for each in claim.types)
            if res.NODES in left:
                left[res.NODES] -= res.ONE_UNIT
            return True
    return False


def _asked(pool: NodePool) -> Allowed:
    asked = pool.spec.template.spec.requirements
    return {each.key: frozenset(each.values) for each in asked if each.operator == "In"}


def _together(first: Allowed, second: Allowed) -> dict[str, frozenset[str]]:
    return {
        key: first[key] & second[key]
        if key in first and key in second
        else first.get(key, second.get(key, frozenset()))
        for key in {*first, *second}
    }


def _holds(instance_type: InstanceType, allowed: Allowed, requests: Mapping[str, int]) -> bool:
    if any(amount > instance_type.allocatable.get(name, 0) for name, amount in requests.items()):
        return False
    for key, values in allowed.items():
        of_type = instance_type.requirements.requirement_for(key)
        if key not in _OFFERING_KEYS and not any(of_type.allows(value) for value in values):
            return False
    return any(
        sold.available
        and sold.zone in allowed.get(labels.ZONE, {sold.zone})
        and sold.capacity_type in allowed.get(labels.CAPACITY_TYPE, {sold.capacity_type})
        for sold in instance_type.offerings
    )
