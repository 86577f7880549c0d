"""What machines a class is tried with before it counts as valid (AWS-127, AWS-128, AWS-446). Pure.

One type per architecture is tried, of those the class's pools would buy: permissions and templates do not differ between types,
images do. Where the pools allow spot, that is tried too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from karpenter.api.ec2 import AMI, EC2NodeClass
from karpenter.api.karpenter import NodePool
from karpenter.api.kinds import EC2_NODE_CLASS
from karpenter.catalog.types import InstanceType
from karpenter.model import labels
from karpenter.model.requirements import Requirements, from_labels, from_wire, intersects
from karpenter.providers.aws import names
from karpenter.providers.aws.nodeclass.images import image_for, is_standard
from karpenter.providers.aws.settings import Cluster
from karpenter.providers.aws.shapes import (
    FleetOverride,
    FleetRequest,
    FleetTemplate,
    LaunchTemplateData,
    OnDemandOptions,
    SpotOptions,
    TagSpecification,
    TargetCapacity,
    TemplateReference,
    tags,
)
from karpenter.providers.aws.userdata.families import family_of

_DEDICATED = "dedicated"
#: Tried where no pool says what it would buy.
_USUAL_TYPES = frozenset({"m5.large", "m6g.large"})


class Trial(NamedTuple):
    """A machine to try: a type, its image, and how it would be bought."""

    instance_type: InstanceType
    image: AMI
    capacity_type: str
    tenancy: str


#: Whether machines of the class can be made of a type at all (AWS-340).
Fits = Callable[[EC2NodeClass, InstanceType], bool]


class _Pair(NamedTuple):
    instance_type: InstanceType
    image: AMI


def trials(
    node_class: EC2NodeClass, pools: Iterable[NodePool], types: Sequence[InstanceType], fits: Fits
) -> tuple[Trial, ...]:
    """What to try; empty where no type fits any of the class's images. ``types`` are all of the class."""
    wishes = [_wishes(pool) for pool in pools if _uses(pool, node_class)]
    fitting = [item for item in types if fits(node_class, item)]
    pairs = _pairs(node_class, _admitted(node_class, fitting, wishes))
    pairs = (
        pairs or _pairs(node_class, [item for item in types if item.name in _USUAL_TYPES]) or _pairs(node_class, types)
    )
    # Images for accelerators may need larger volumes than the class has.
    preferred = [pair for pair in pairs if is_standard(pair.image)] or pairs
    chosen: dict[frozenset[str], _Pair] = {}
    for pair in sorted(preferred, key=_unusual):
        chosen.setdefault(pair.instance_type.requirements.of(labels.ARCH).values, pair)
    tenancy = _DEDICATED if any(_allows_dedicated(wish) for wish in wishes) else names.DEFAULT
    kinds = [labels.ON_DEMAND]
    if any(wish.of(labels.CAPACITY_TYPE).allows(labels.SPOT) for wish in wishes):
        kinds.append(labels.SPOT)
    return tuple(Trial(pair.instance_type, pair.image, kind, tenancy) for pair in chosen.values() for kind in kinds)


def fleet_request(node_class: EC2NodeClass, cluster: Cluster, trial: Trial, template: str) -> FleetRequest:
    """The CreateFleet request of a trial: the type in every subnet (AWS-116)."""
    overrides = tuple(
        FleetOverride(
            instance_type=trial.instance_type.name,
            subnet_id=subnet.id,
            availability_zone=subnet.zone,
            image_id=trial.image.id,
        )
        for subnet in node_class.status.subnets
    )
    reference = TemplateReference(launch_template_name=template)
    spot = trial.capacity_type == labels.SPOT
    return FleetRequest(
        launch_template_configs=(FleetTemplate(launch_template_specification=reference, overrides=overrides),),
        target_capacity_specification=TargetCapacity(
            total_target_capacity=1, default_target_capacity_type=trial.capacity_type
        ),
        tag_specifications=_tagged(("instance", "volume", "fleet"), resource_tags(node_class, cluster)),
        spot_options=SpotOptions(allocation_strategy="price-capacity-optimized") if spot else None,
        on_demand_options=None if spot else OnDemandOptions(allocation_strategy="lowest-price"),
        context=node_class.spec.context,
    )


def machine_data(node_class: EC2NodeClass, cluster: Cluster, data: LaunchTemplateData) -> LaunchTemplateData:
    """A template's data as RunInstances is tried with it: tagged as a launch would tag it (AWS-128)."""
    kinds = ("instance", "volume", "network-interface")
    return replace(data, tag_specifications=_tagged(kinds, resource_tags(node_class, cluster)))


def template_tags(node_class: EC2NodeClass, cluster: Cluster) -> TagSpecification:
    """Tags of the launch template itself."""
    return TagSpecification(resource_type="launch-template", tags=tags(resource_tags(node_class, cluster)))


def resource_tags(node_class: EC2NodeClass, cluster: Cluster) -> Mapping[str, str]:
    """Tags of everything a launch for this class makes; here of no pool, which policies ask for all the same (AWS-721)."""
    return names.tags_for(node_class, cluster, "")


def restricted_tags(node_class: EC2NodeClass) -> tuple[str, ...]:
    """The class's tags that are ours to set (AWS-040, AWS-108)."""
    return tuple(key for key in sorted(node_class.spec.tags) if not key or names.is_restricted_tag(key))


def _tagged(kinds: Iterable[str], values: Mapping[str, str]) -> tuple[TagSpecification, ...]:
    return tuple(TagSpecification(resource_type=kind, tags=tags(values)) for kind in kinds)


def _uses(pool: NodePool, node_class: EC2NodeClass) -> bool:
    reference = pool.spec.template.spec.node_class_ref
    kind = EC2_NODE_CLASS
    return (reference.group, reference.kind, reference.name) == (kind.group, kind.name, node_class.metadata.name)


def _wishes(pool: NodePool) -> Requirements:
    template = pool.spec.template
    return from_wire(template.spec.requirements).intersect(from_labels(template.metadata.labels))


def _admitted(
    node_class: EC2NodeClass, types: Sequence[InstanceType], wishes: Sequence[Requirements]
) -> list[InstanceType]:
    """Types some pool would buy. Windows needs more room than the smallest types have, so there the usual ones are tried."""
    if family_of(node_class.spec).is_windows:
        return []
    return [item for item in types if any(intersects(item.requirements, wish) for wish in wishes)]


def _pairs(node_class: EC2NodeClass, types: Sequence[InstanceType]) -> list[_Pair]:
    return list(_paired(node_class, types))


def _paired(node_class: EC2NodeClass, types: Sequence[InstanceType]) -> Iterator[_Pair]:
    for item in types:
        image = image_for(item, node_class.status.amis)
        if image is not None:
            yield _Pair(item, image)


def _unusual(pair: _Pair) -> tuple[bool, bool]:
    """Types that can be had now and are sold everywhere come first: EC2 refuses others for reasons of their own."""
    item = pair.instance_type
    return not any(offering.available for offering in item.offerings), item.name not in _USUAL_TYPES


def _allows_dedicated(wish: Requirements) -> bool:
    """Only where the pool speaks of tenancy: default is meant otherwise, though anything is allowed."""
    return names.TENANCY in wish and wish[names.TENANCY].allows(_DEDICATED)
