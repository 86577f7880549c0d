"""A near miss is true: carry out the changes it names, and the pod gets its node; leave one out, and it does not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import msgspec
from hypothesis import HealthCheck, assume, given, settings

from karpenter.api.core import Pod
from karpenter.api.karpenter import NodePool
from karpenter.api.scheduling_constraints import NodeAffinity, NodeSelectorTerm
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.model import quantity
from karpenter.model import resources as res
from karpenter.scheduling.failed_filters import (
    ConflictingRequirement,
    FailedFilter,
    InsufficientResource,
    MinValuesNotMet,
    NearestFit,
    NodePoolLimitReached,
    NoMatchingOffering,
    OfferingsUnavailable,
    RequirementOwner,
    UndefinedLabel,
    UnknownResource,
    UnmetRequirement,
    UntoleratedTaint,
)
from support.builders import left, plan, tolerating
from support.examples import examples
from support.mixed_clusters import pools, types, waiting_pods

_edited = msgspec.structs.replace


@dataclass(frozen=True)
class _PodAndPools:
    pod: Pod
    pools: tuple[NodePool, ...]
    types: tuple[InstanceType, ...]

    @property
    def is_left(self) -> bool:
        return bool(left(plan(*self.pools, self.pod, types=self.types)))

    def with_spec(self, **fields: object) -> _PodAndPools:
        return replace(self, pod=_edited(self.pod, spec=_edited(self.pod.spec, **fields)))

    def with_requests(self, **changes: int) -> _PodAndPools:
        (container,) = self.pod.spec.containers
        asked = {**res.parse_resources(container.resources.requests), **changes}
        wire = {name: quantity.quantity_text(amount) for name, amount in asked.items() if amount > 0}
        resources = _edited(container.resources, requests=wire)
        return self.with_spec(containers=(_edited(container, resources=resources),))

    def without_asking(self, key: str) -> _PodAndPools:
        spec = self.pod.spec
        selector = {name: value for name, value in spec.node_selector.items() if name != key}
        result = self.with_spec(node_selector=selector)
        own = spec.affinity.node_affinity if spec.affinity is not None else None
        if own is None or own.required is None:
            return result
        kept = [_without(term, key) for term in own.required.node_selector_terms]
        if not all(term.match_expressions for term in kept):
            return result.with_spec(affinity=None)
        required = _edited(own.required, node_selector_terms=tuple(kept))
        return result.with_spec(affinity=_edited(spec.affinity, node_affinity=NodeAffinity(required=required)))


def _without(term: NodeSelectorTerm, key: str) -> NodeSelectorTerm:
    return _edited(
        term, match_expressions=tuple(requirement for requirement in term.match_expressions if requirement.key != key)
    )


def _changed(cluster: _PodAndPools, miss: NearestFit, obstacles: Iterable[FailedFilter]) -> _PodAndPools:
    for obstacle in obstacles:
        cluster = _one_changed(cluster, miss, obstacle)
    return cluster


def _one_changed(cluster: _PodAndPools, miss: NearestFit, obstacle: FailedFilter) -> _PodAndPools:
    match obstacle:
        case UntoleratedTaint(taint):
            added = tolerating(taint.key, effect=taint.effect)
            return cluster.with_spec(tolerations=(*cluster.pod.spec.tolerations, added))
        case UnknownResource(resource):
            return cluster.with_requests(**{resource: 0})
        case InsufficientResource(resource, _, there, _, daemons):
            return cluster.with_requests(**{resource: there - daemons})
        case UnmetRequirement(asked, RequirementOwner.POD) | UndefinedLabel(asked):
            return cluster.without_asking(asked.key)
        case ConflictingRequirement(asked, _):
            return _agreed(cluster, miss, asked.key)
        case OfferingsUnavailable() | NoMatchingOffering():
            raise AssertionError("left out before")
        case _:
            edited = (
                _eased(pool, obstacle) if pool.metadata.name == miss.node_pool else pool for pool in cluster.pools
            )
            return replace(cluster, pools=tuple(edited))


def _agreed(cluster: _PodAndPools, miss: NearestFit, key: str) -> _PodAndPools:
    """Drop the requirement from the pod, or from pod and pool where the nearest fit names both."""
    cluster = cluster.without_asking(key)
    if any(
        isinstance(failed_filter, UnmetRequirement) and failed_filter.asked.key == key
        for failed_filter in miss.failed_filters
    ):
        return cluster
    return replace(
        cluster,
        pools=tuple(_dropped(pool, key) if pool.metadata.name == miss.node_pool else pool for pool in cluster.pools),
    )


def _dropped(pool: NodePool, key: str) -> NodePool:
    own = tuple(requirement for requirement in pool.spec.template.spec.requirements if requirement.key != key)
    template = _edited(pool.spec.template, spec=_edited(pool.spec.template.spec, requirements=own))
    return _edited(pool, spec=_edited(pool.spec, template=template))


def _eased(pool: NodePool, obstacle: FailedFilter) -> NodePool:
    match obstacle:
        case NodePoolLimitReached(resource, left_of, needed):
            limits = {**pool.spec.limits}
            raised = quantity.parse_milli(limits[resource]) + needed - left_of
            limits[resource] = quantity.quantity_text(raised)
            return _edited(pool, spec=_edited(pool.spec, limits=limits))
        case UnmetRequirement(asked) | MinValuesNotMet(asked):
            return _dropped(pool, asked if isinstance(asked, str) else asked.key)
        case _:
            raise AssertionError(obstacle)


def _subsets(obstacles: Sequence[FailedFilter]) -> Iterable[tuple[FailedFilter, ...]]:
    return (combination for size in range(len(obstacles)) for combination in combinations(obstacles, size))


@given(waiting_pods(), pools(), types())
@settings(
    max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow]
)
def test_carrying_out_a_near_miss_gives_the_pod_its_node(
    waiting: list[Pod], found_pools: list[NodePool], found_types: tuple[InstanceType, ...]
) -> None:
    cluster = _PodAndPools(waiting[0], tuple(found_pools), found_types)
    unplaced = plan(*cluster.pools, cluster.pod, types=cluster.types).unschedulable
    assume(unplaced and unplaced[0].nearest_fit is not None)
    miss = unplaced[0].nearest_fit
    assert miss is not None
    assume(
        not any(
            isinstance(failed_filter, OfferingsUnavailable | NoMatchingOffering)
            for failed_filter in miss.failed_filters
        )
    )
    assert not _changed(cluster, miss, miss.failed_filters).is_left
    if any(
        isinstance(failed_filter, ConflictingRequirement | MinValuesNotMet) for failed_filter in miss.failed_filters
    ):
        return  # a requirement that is gone altogether frees more than what the miss asks for
    for fewer in _subsets(miss.failed_filters):
        assert _changed(cluster, miss, fewer).is_left
