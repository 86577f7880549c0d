"""What one pod costs on a node that is full of its like: by that packings compare nodes with different pods."""

from __future__ import annotations

from karpenter.model import resources as res
from karpenter.model.resources import Resources
from karpenter.scheduling.offerings.nodepool_templates import NodePoolTemplate

_TINY = 1e-9


def cost_of_pod(node_cost: float, requests: Resources, template: NodePoolTemplate, position: int) -> float:
    """USD per hour of a pod on a node of the type that is full of its like, or full within the baseline of a burstable type."""
    share = _resource_share(requests, template, position)
    surplus = template.cpu_surpluses.by_position.get(position)
    cpu = requests.get(res.CPU, 0)
    if surplus is None or not share or not cpu:
        return node_cost * share
    full = node_cost + surplus.price_per_hour({res.CPU: int(cpu / share)})
    return min(full * share, node_cost * max(share, cpu / max(surplus.pod_baseline_millis, _TINY)))


def _resource_share(requests: Resources, template: NodePoolTemplate, position: int) -> float:
    allocatable = template.index.types[position].allocatable
    return max((amount / allocatable[name] for name, amount in requests.items() if amount > 0), default=0.0)
