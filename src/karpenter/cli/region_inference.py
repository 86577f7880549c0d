"""The region of a plan: the one given, or the one that nodes, NodePools or pods name, or the one of the environment."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from karpenter.api.core import Node, Pod
from karpenter.api.ec2_node_class import EC2NodeClass
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.scheduling_constraints import NodeSelectorTerm
from karpenter.cli.cluster_objects import ClusterObjects
from karpenter.cli.terminal import WrongInput
from karpenter.instancetypes import ec2_regions
from karpenter.instancetypes.ec2_packaged_types import ZONE_ID
from karpenter.model import labels
from karpenter.state.pod_signature import required_node_affinity_terms

_ENVIRONMENT = ("AWS_REGION", "AWS_DEFAULT_REGION")
_ZONE_LABELS = (labels.ZONE, ZONE_ID)
#: How much a name must be like a region's, of 1: one wrong letter, or the letter of a zone at the end.
_MIN_SIMILARITY = 0.85
#: Sources that a person types; zones of nodes are what they are.
_TYPED_SOURCES = ("--region", "AWS_REGION")
_HOW_TO_CHOOSE = "give --region, or --instance-types with types of your own"
#: How AWS names regions, also those without packaged data, and their zones.
_AWS_REGION = re.compile(r"(?:af|ap|ca|cn|eu|eusc|il|me|mx|sa|us)(?:-[a-z]+)+-\d")
_AWS_ZONE = re.compile(rf"({_AWS_REGION.pattern})[a-z]")


@dataclass(frozen=True, slots=True)
class PlanRegion:
    """A region, and what it was taken from."""

    name: str
    basis: str


def find_region(objects: ClusterObjects, given: str, environment: Mapping[str, str]) -> PlanRegion:
    """The region to plan for. Raises ``WrongInput`` where objects name several, or for a region without packaged data."""
    if given:
        return _checked(PlanRegion(given, "--region"), f"--region={given}")
    named = region_of_objects(objects)
    if named is not None:
        return _checked(named, f"{named.basis} name {named.name}")
    for variable in _ENVIRONMENT:
        if environment.get(variable):
            return _checked(PlanRegion(environment[variable], variable), f"{variable}={environment[variable]}")
    return PlanRegion(ec2_regions.BASE_REGION, "")


def region_of_objects(objects: ClusterObjects) -> PlanRegion | None:
    """The region that nodes, subnets, NodePools, volumes or pods name, in this order. Raises ``WrongInput`` for several."""
    for basis, regions_of in _SOURCES:
        regions = sorted(set(regions_of(objects)) - {""})
        if len(regions) > 1 and basis != _PODS:
            raise WrongInput(f"{basis} name zones of several regions ({', '.join(regions)}): {_HOW_TO_CHOOSE}")
        if len(regions) == 1:
            return PlanRegion(regions[0], basis)
    return None


def _checked(region: PlanRegion, source: str) -> PlanRegion:
    if region.name not in ec2_regions.ec2_regions():
        regions = sorted(ec2_regions.ec2_regions())
        is_typed = source.startswith(_TYPED_SOURCES)
        near = difflib.get_close_matches(region.name, regions, 1, _MIN_SIMILARITY) if is_typed else []
        choice = f"did you mean {near[0]}? Otherwise give" if near else "give"
        others = "" if near else f", or another --region: {', '.join(regions)}"
        raise WrongInput(
            f"{source}: there are no packaged prices for this region; {choice} --instance-types with types of your own "
            f"(plan and explain also take --live-prices){others}"
        )
    return region


def pool_regions(pool: NodePool) -> frozenset[str]:
    """The regions whose zones a NodePool names."""
    return frozenset(_pool_regions(pool)) - {""}


def pools_of_other_regions(pools: Iterable[NodePool], region: str) -> Iterator[str]:
    """A line for each NodePool all of whose zones are in other regions: it can launch nothing."""
    for pool in pools:
        others = sorted(pool_regions(pool))
        if others and region not in others:
            yield (
                f"NodePool {pool.metadata.name} requires zones of {', '.join(others)}, but the plan is for {region}: "
                "it can launch nothing; correct its requirements, or give --region"
            )


# -- what names a region -------------------------------------------------------------------------------------------------


def _of_labels(label_values: Mapping[str, str]) -> Iterator[str]:
    region = label_values.get(labels.REGION, "")
    if _AWS_REGION.fullmatch(region):
        yield region
    for key in _ZONE_LABELS:
        if key in label_values:
            yield _region_of_zone(label_values[key])


@lru_cache(maxsize=1024)
def _region_of_zone(zone: str) -> str:
    """The region of a zone, also one without packaged data; empty where the zone is none of AWS."""
    unknown = _AWS_ZONE.fullmatch(zone)
    return ec2_regions.region_of_zone(zone) or (unknown[1] if unknown else "")


def _of_values(key: str, values: Iterable[str]) -> Iterator[str]:
    for value in values:
        yield from _of_labels({labels.normalise(key): value})


def _node_regions(objects: ClusterObjects) -> Iterator[str]:
    owners: list[Node | NodeClaim] = [*objects.nodes, *objects.claims]
    for owner in owners:
        yield from _of_labels(owner.metadata.labels)


def _node_class_regions(objects: ClusterObjects) -> Iterator[str]:
    for node_class in objects.node_classes:
        yield from _subnet_regions(node_class)


def _subnet_regions(node_class: EC2NodeClass) -> Iterator[str]:
    return (_region_of_zone(subnet.zone) for subnet in node_class.status.subnets)


def _regions_of_pools(objects: ClusterObjects) -> Iterator[str]:
    for pool in objects.pools:
        yield from _pool_regions(pool)


def _pool_regions(pool: NodePool) -> Iterator[str]:
    template = pool.spec.template
    yield from _of_labels(template.metadata.labels)
    for requirement in template.spec.requirements:
        if requirement.operator == "In":
            yield from _of_values(requirement.key, requirement.values)


def _regions_of_pods(objects: ClusterObjects) -> Iterator[str]:
    for pod in objects.pods:
        yield from _pod_regions(pod)


def _pod_regions(pod: Pod) -> Iterator[str]:
    yield from _of_labels(pod.spec.node_selector)
    yield from _regions_of_terms(required_node_affinity_terms(pod.spec.affinity))


def _regions_of_volumes(objects: ClusterObjects) -> Iterator[str]:
    for volume in objects.volumes:
        affinity = volume.spec.node_affinity
        if affinity is not None and affinity.required is not None:
            yield from _regions_of_terms(affinity.required.node_selector_terms)


def _regions_of_terms(terms: Iterable[NodeSelectorTerm]) -> Iterator[str]:
    for term in terms:
        for expression in term.match_expressions:
            if expression.operator == "In":
                yield from _of_values(expression.key, expression.values)


_PODS = "zones of pods"
_SOURCES: tuple[tuple[str, Callable[[ClusterObjects], Iterable[str]]], ...] = (
    ("zones of nodes", _node_regions),
    ("subnets of EC2NodeClasses", _node_class_regions),
    ("zones of NodePools", _regions_of_pools),
    ("zones of volumes", _regions_of_volumes),
    (_PODS, _regions_of_pods),
)
