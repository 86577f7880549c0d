"""A near miss is true: carry out the changes it names, and the pod gets its machine; leave one out, and it does not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import msgspec
from hypothesis import HealthCheck, assume, given, settings

from karpenter.api.core import NodeAffinity, NodeSelectorTerm, Pod
from karpenter.api.karpenter import NodePool
from karpenter.catalog.types import InstanceType
from karpenter.decide.obstacles import (
    Clashing,
    LimitReached,
    Miss,
    Obstacle,
    Short,
    Side,
    SoldOut,
    Tainted,
    TooFewValues,
    Unknown,
    Unlabelled,
    Unmatched,
    Unoffered,
)
from karpenter.model import quantity
from karpenter.model import resources as res
from support.builders import left, plan, tolerating
from support.worlds import pools, types, waiting_pods

_edited = msgspec.structs.replace


@dataclass(frozen=True)
class _World:
    pod: Pod
    pools: tuple[NodePool, ...]
    types: tuple[InstanceType, ...]

    @property
    def is_left(self) -> bool:
        return bool(left(plan(*self.pools, self.pod, types=self.types)))

    def with_spec(self, **fields: object) -> _World:
        return replace(self, pod=_edited(self.pod, spec=_edited(self.pod.spec, **fields)))  # type: ignore[arg-type]

    def with_requests(self, **changes: int) -> _World:
        (container,) = self.pod.spec.containers
        asked = {**res.parse(container.resources.requests), **changes}
        wire = {name: quantity.text(amount) for name, amount in asked.items() if amount > 0}
        resources = _edited(container.resources, requests=wire)
        return self.with_spec(containers=(_edited(container, resources=resources),))

    def without_asking(self, key: str) -> _World:
        spec = self.pod.spec
        selector = {name: value for name, value in spec.node_selector.items() if name != key}
        found = self.with_spec(node_selector=selector)
        own = spec.affinity.node_affinity if spec.affinity is not None else None
        if own is None or own.required is None:
            return found
        kept = [_without(term, key) for term in own.required.node_selector_terms]
        if not all(term.match_expressions for term in kept):
            return found.with_spec(affinity=None)
        required = _edited(own.required, node_selector_terms=tuple(kept))
        return found.with_spec(affinity=_edited(spec.affinity, node_affinity=NodeAffinity(required=required)))


def _without(term: NodeSelectorTerm, key: str) -> NodeSelectorTerm:
    return _edited(term, match_expressions=tuple(item for item in term.match_expressions if item.key != key))


def _changed(world: _World, miss: Miss, obstacles: Iterable[Obstacle]) -> _World:
    for obstacle in obstacles:
        world = _one_changed(world, miss, obstacle)
    return world


def _one_changed(world: _World, miss: Miss, obstacle: Obstacle) -> _World:
    match obstacle:
        case Tainted(taint):
            added = tolerating(taint.key, effect=taint.effect)
            return world.with_spec(tolerations=(*world.pod.spec.tolerations, added))
        case Unknown(resource):
            return world.with_requests(**{resource: 0})
        case Short(resource, _, there, _, daemons):
            return world.with_requests(**{resource: there - daemons})
        case Unmatched(asked, Side.POD) | Unlabelled(asked):
            return world.without_asking(asked.key)
        case Clashing(asked, _):
            return _agreed(world, miss, asked.key)
        case SoldOut() | Unoffered():
            raise AssertionError("left out before")
        case _:
            edited = (_eased(pool, obstacle) if pool.metadata.name == miss.node_pool else pool for pool in world.pools)
            return replace(world, pools=tuple(edited))


def _agreed(world: _World, miss: Miss, key: str) -> _World:
    """Pod and pool agree: one of them gives way, unless the miss says that both have to."""
    world = world.without_asking(key)
    if any(isinstance(item, Unmatched) and item.asked.key == key for item in miss.obstacles):
        return world
    return replace(
        world,
        pools=tuple(_dropped(pool, key) if pool.metadata.name == miss.node_pool else pool for pool in world.pools),
    )


def _dropped(pool: NodePool, key: str) -> NodePool:
    own = tuple(item for item in pool.spec.template.spec.requirements if item.key != key)
    template = _edited(pool.spec.template, spec=_edited(pool.spec.template.spec, requirements=own))
    return _edited(pool, spec=_edited(pool.spec, template=template))


def _eased(pool: NodePool, obstacle: Obstacle) -> NodePool:
    match obstacle:
        case LimitReached(resource, left_of, needed):
            limits = {**pool.spec.limits}
            raised = quantity.milli(limits[resource]) + needed - left_of
            limits[resource] = quantity.text(raised)
            return _edited(pool, spec=_edited(pool.spec, limits=limits))
        case Unmatched(asked) | TooFewValues(asked):
            return _dropped(pool, asked if isinstance(asked, str) else asked.key)
        case _:
            raise AssertionError(obstacle)


def _subsets(obstacles: Sequence[Obstacle]) -> Iterable[tuple[Obstacle, ...]]:
    return (found for size in range(len(obstacles)) for found in combinations(obstacles, size))


@given(waiting_pods(), pools(), types())
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
def test_carrying_out_a_near_miss_gives_the_pod_its_machine(
    waiting: list[Pod], found_pools: list[NodePool], found_types: tuple[InstanceType, ...]
) -> None:
    world = _World(waiting[0], tuple(found_pools), found_types)
    unplaced = plan(*world.pools, world.pod, types=world.types).unplaced
    assume(unplaced and unplaced[0].nearest is not None)
    miss = unplaced[0].nearest
    assert miss is not None
    assume(not any(isinstance(item, SoldOut | Unoffered) for item in miss.obstacles))
    assert not _changed(world, miss, miss.obstacles).is_left
    if any(isinstance(item, Clashing | TooFewValues) for item in miss.obstacles):
        return  # a requirement that is gone altogether frees more than what the miss asks for
    for fewer in _subsets(miss.obstacles):
        assert _changed(world, miss, fewer).is_left
