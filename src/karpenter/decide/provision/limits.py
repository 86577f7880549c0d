"""What NodePool limits still allow (SCH §15): less what machines have, and what those on their way may become at most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from karpenter.catalog.index import TypeSet, members
from karpenter.cluster.nodes import NodeView
from karpenter.decide.provision.prospects import Prospects
from karpenter.decide.provision.templates import Template
from karpenter.model import resources as res
from karpenter.model.resources import Resources


def left_of_limits(template: Template, views: Sequence[NodeView], prospects: Prospects) -> dict[str, int]:
    """Limits minus the capacity of the pool's machines (SCH-381); a claim yet to launch counts as the largest it may become."""
    limits = res.parse(template.pool.spec.limits)
    if not limits:
        return {}
    used = res.add(
        *(_counted(view, template, prospects) for view in views if view.pool == template.name and not view.leaving)
    )
    return res.subtract(limits, used)


def _counted(view: NodeView, template: Template, prospects: Prospects) -> dict[str, int]:
    in_flight = not view.launched and view.claim is not None
    return {**(prospects.capacity(view, template.index) if in_flight else view.capacity), res.NODES: res.ONE}


def affordable(template: Template, left: Mapping[str, int]) -> TypeSet:
    """Types of the pool that what is left of its limits allows (SCH-382)."""
    if left.get(res.NODES, res.ONE) < res.ONE:
        return 0
    return template.index.within({name: amount for name, amount in left.items() if name != res.NODES})


def largest_capacity(template: Template, types: TypeSet) -> Resources:
    """The most of each resource any of the types brings."""
    return res.maximum(template.index.types[position].capacity for position in members(types))
