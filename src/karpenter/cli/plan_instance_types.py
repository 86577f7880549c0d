"""Instance types of a plan: of a file, or the packaged ones of a region; changed by each NodePool's node class and overlays."""

from __future__ import annotations

import difflib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from karpenter.api import kinds
from karpenter.api.karpenter import NodeClassReference
from karpenter.cli.cluster_objects import ClusterObjects
from karpenter.cli.host_types import host_types, uses_hosts
from karpenter.cli.instance_type_sources import PriceSource, TypeSource
from karpenter.cli.terminal import print_error
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.instancetypes.well_known_labels import well_known_labels_of
from karpenter.model import labels

if TYPE_CHECKING:
    from karpenter.api.ec2_node_class import EC2NodeClass
    from karpenter.api.karpenter import NodePool

_EC2 = kinds.EC2_NODE_CLASS.name
_NODE_CLASS_GROUPS = {
    kind.name: kind.group for kind in (kinds.EC2_NODE_CLASS, kinds.KWOK_NODE_CLASS, kinds.MACHINE_NODE_CLASS)
}
#: A NodePool with the types it chooses from.
_PoolTypes = tuple["NodePool", tuple[InstanceType, ...]]
_WITHOUT_CLASS = {
    kinds.EC2_NODE_CLASS.name: "planned as with a class without settings",
    kinds.KWOK_NODE_CLASS.name: "planned as with a class without settings",
    kinds.MACHINE_NODE_CLASS.name: "without its hosts nothing can be launched",
}


@dataclass(frozen=True, slots=True)
class PlanInstanceTypes:
    """The types that each NodePool chooses from, by its name; where they come from, and how long loading took."""

    indexes: Mapping[str, TypeIndex]
    prices: PriceSource
    load_seconds: float


def build_plan_types(objects: ClusterObjects, source: TypeSource) -> PlanInstanceTypes:
    """The types of each NodePool. Reports NodeOverlays that are left out. Raises ``CommandError``."""
    begun = time.perf_counter()
    indexes: dict[int, TypeIndex] = {}
    by_pool: dict[str, TypeIndex] = {}
    pool_types = list(_pool_types(objects, source))
    for pool, types in _with_overlays(objects, pool_types) if objects.overlays else pool_types:
        if id(types) not in indexes:
            indexes[id(types)] = TypeIndex(types, well_known_labels_of(types) | labels.WELL_KNOWN)
        by_pool[pool.metadata.name] = indexes[id(types)]
    return PlanInstanceTypes(by_pool, source.prices, source.load_seconds + time.perf_counter() - begun)


def _pool_types(objects: ClusterObjects, source: TypeSource) -> Iterator[_PoolTypes]:
    """The types of each NodePool without overlays; NodePools of one class share them."""
    hosts = host_types(objects)
    by_class = {node_class.metadata.name: source.class_types(node_class) for node_class in _used_classes(objects)}
    for pool in objects.pools:
        reference = pool.spec.template.spec.node_class_ref
        if uses_hosts(pool):
            yield pool, hosts.get(reference.name, ())
            continue
        own = by_class.get(reference.name) if reference.kind == _EC2 else None
        yield pool, source.types() if own is None else own


def _used_classes(objects: ClusterObjects) -> Iterator[EC2NodeClass]:
    references = {pool.spec.template.spec.node_class_ref for pool in objects.pools}
    names = {reference.name for reference in references if reference.kind == _EC2}
    return (node_class for node_class in objects.node_classes if node_class.metadata.name in names)


# -- overlays -----------------------------------------------------------------------------------------------------------


def _with_overlays(objects: ClusterObjects, pool_types: Sequence[_PoolTypes]) -> Iterator[_PoolTypes]:
    """The types with the overlays that do not conflict. Reports conflicts."""
    from karpenter.instancetypes import overlay_application

    offered = [overlay_application.NodePoolInstanceTypes(pool, types) for pool, types in pool_types]
    overlays = [overlay_application.parse_overlay(overlay) for overlay in objects.overlays]
    evaluation = overlay_application.evaluate_overlays(overlays, offered)
    for name, conflict in sorted(evaluation.conflicts.items()):
        print_error(f"NodeOverlay {name} is left out: {conflict.message}")
    overlaid = overlay_application.apply_overlays_to_pools(evaluation.accepted, offered)
    yield from zip((unchanged.node_pool for unchanged in offered), overlaid, strict=True)


# -- missing node classes -----------------------------------------------------------------------------------------------


def missing_node_classes(objects: ClusterObjects) -> Iterator[str]:
    """A line for each NodePool whose node class is not there: in a cluster it launches nothing."""
    classes: dict[str, list[str]] = {
        kinds.EC2_NODE_CLASS.name: [node_class.metadata.name for node_class in objects.node_classes],
        kinds.KWOK_NODE_CLASS.name: [node_class.metadata.name for node_class in objects.kwok_node_classes],
        kinds.MACHINE_NODE_CLASS.name: [node_class.metadata.name for node_class in objects.machine_node_classes],
    }
    for pool in objects.pools:
        reference = pool.spec.template.spec.node_class_ref
        where = f"NodePool {pool.metadata.name}: spec.template.spec.nodeClassRef"
        group = _NODE_CLASS_GROUPS.get(reference.kind)
        if _is_of_another_provider(reference):
            continue
        if group is None:
            yield f"{where}.kind: there is no node class {reference.kind}{_hint(reference.kind, _NODE_CLASS_GROUPS)}"
        elif group != reference.group:
            yield f"{where}.group: {reference.kind} is not in group {reference.group or 'core'}; expected {group}"
        elif _is_missing(reference, classes[reference.kind]):
            hint = _hint(reference.name, classes[reference.kind])
            yield f"{where}.name: {reference.kind} {reference.name} is not there{hint}; {_WITHOUT_CLASS[reference.kind]}"


def _is_of_another_provider(reference: NodeClassReference) -> bool:
    """Whether neither kind nor group is one of ours, nor misspelt: a provider of another package has such classes."""
    groups = _NODE_CLASS_GROUPS.values()
    is_near = difflib.get_close_matches(reference.group, groups, 1)
    return bool(reference.group) and reference.kind not in _NODE_CLASS_GROUPS and not is_near


def _is_missing(reference: NodeClassReference, names: Sequence[str]) -> bool:
    """Whether a class is needed and not there. KWOKNodeClasses do not change a plan: with none at all, none is needed."""
    return reference.name not in names and (reference.kind != kinds.KWOK_NODE_CLASS.name or bool(names))


def _hint(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, names, 1)
    return f"; did you mean {near[0]}?" if near else ""
