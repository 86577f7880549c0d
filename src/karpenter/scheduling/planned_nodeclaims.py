"""From a filled claim to the NodeClaim object (SCH §22). Names are derived from what the claim is for, so that creating it twice
is creating it once."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from karpenter.api.core import Pod
from karpenter.api.karpenter import (
    NodeClaim,
    NodeClaimResourceRequests,
    NodeClaimSpec,
    NodePool,
    NodeSelectorRequirementWithMinValues,
)
from karpenter.api.meta import ObjectMeta, OwnerReference
from karpenter.instancetypes.instance_type import InstanceType, Offering
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.instancetypes.type_sets import TypeSet, type_set
from karpenter.model import labels, nodepool_hash
from karpenter.model import resources as res
from karpenter.model.requirements import (
    MAX_INTEGER,
    Op,
    Requirement,
    Requirements,
    requirements_from_labels,
    requirements_to_wire,
)
from karpenter.model.resources import Resources
from karpenter.scheduling.demand import Demand, SchedulingNodeClaim
from karpenter.scheduling.devices.type_devices import DEVICE_RESOURCE_PREFIX, TypeDevices
from karpenter.scheduling.offerings.nodepool_templates import nodepool_labels, nodepool_requirements
from karpenter.scheduling.solution import NewNodeClaim
from karpenter.scheduling.volume_usage import ATTACHMENT_RESOURCE_PREFIX

#: Instance types kept on a claim (SCH-617).
MAX_INSTANCE_TYPES = 600
_MAX_POOL_NAME_LENGTH = 52
#: Up to here labels are drawn where nothing asks for more.
_DEFAULT_MAX_INTEGER = 2**31 - 1


def planned_claims(
    claims: Sequence[SchedulingNodeClaim],
    demands: Sequence[Demand],
    taken_names: Collection[str],
    devices: TypeDevices | None = None,
) -> tuple[NewNodeClaim, ...]:
    """The claims of a packing as objects, each with its own pods. ``taken_names`` belong to claims that exist.

    ``devices``: those of types, where pods ask for devices.
    """
    next_pod = [0] * len(demands)
    shapes = _ClaimShapes()
    planned = []
    for claim in claims:
        pods: list[Pod] = []
        for position, count in claim.contents:
            start = next_pod[position]
            pods += demands[position].pods[start : start + count]
            next_pod[position] = start + count
        used = _claimed_devices(claim, demands, devices) if devices is not None else _NO_CLAIMED_DEVICES
        planned.append(_planned_claim(claim, shapes.of(claim), tuple(pods), taken_names, used))
    return tuple(planned)


@dataclass(frozen=True, eq=False)
class _ClaimShape:
    """What claims with the same requirements and types have in common: names of the types kept, cheapest first, and the rest."""

    instance_types: tuple[str, ...]
    cheapest_type: int
    cheapest: Offering
    requirements: tuple[NodeSelectorRequirementWithMinValues, ...]
    daemon_requests: Resources
    annotations: Mapping[str, str]
    custom_keys: tuple[str, ...]


class _ClaimShapes:
    """The shapes of one plan, each worked out once."""

    def __init__(self) -> None:
        self._shapes: dict[tuple[int, Requirements, TypeSet, bool], _ClaimShape] = {}
        self._annotations: dict[str, Mapping[str, str]] = {}
        self._overlaid: dict[TypeIndex, Mapping[str, TypeSet]] = {}

    def of(self, claim: SchedulingNodeClaim) -> _ClaimShape:
        """The shape of a claim."""
        key = (id(claim.template), claim.requirements, claim.types, claim.min_values_relaxed)
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._shapes[key] = self._new_shape(claim)
        return shape

    def _new_shape(self, claim: SchedulingNodeClaim) -> _ClaimShape:
        template = claim.template
        index = template.index
        kept = index.cheapest(claim.requirements, claim.types, MAX_INSTANCE_TYPES)
        held, types = type_set(kept), index.types
        names = tuple(dict.fromkeys([types[position].name for position in kept]))
        relaxed = "true" if claim.min_values_relaxed else "false"
        return _ClaimShape(
            instance_types=names,
            cheapest_type=kept[0],
            cheapest=claim.prices.cheapest_offering[kept[0]],
            requirements=requirements_to_wire(_final_requirements(claim, held, names)),
            daemon_requests=template.least_overhead(claim.types),
            annotations={
                **self._annotations_of_pool(template.pool),
                labels.MIN_VALUES_RELAXED: relaxed,
                **self._overlay_annotations(index, held),
            },
            custom_keys=tuple(_custom_keys(template.requirements, index.well_known)),
        )

    def _annotations_of_pool(self, pool: NodePool) -> Mapping[str, str]:
        name = pool.metadata.name
        if name not in self._annotations:
            self._annotations[name] = _own_annotations(pool)
        return self._annotations[name]

    def _overlay_annotations(self, index: TypeIndex, held: TypeSet) -> dict[str, str]:
        """The annotations that inform a provider that scheduling used other prices and capacities than its own (SCH-620)."""
        if index not in self._overlaid:
            self._overlaid[index] = _overlaid_types(index.types)
        return {annotation: "true" for annotation, types in self._overlaid[index].items() if types & held}


def _overlaid_types(types: Sequence[InstanceType]) -> dict[str, TypeSet]:
    """By annotation, the types of which NodeOverlays changed a price, and those to which they added capacity."""
    return {
        labels.PRICE_OVERLAY: type_set(at for at, each in enumerate(types) if each.is_price_overlaid),
        labels.CAPACITY_OVERLAY: type_set(at for at, each in enumerate(types) if each.overlay_capacity),
    }


def _planned_claim(
    claim: SchedulingNodeClaim,
    shape: _ClaimShape,
    pods: tuple[Pod, ...],
    taken_names: Collection[str],
    devices: _ClaimedDevices,
) -> NewNodeClaim:
    name = _claim_name(claim.template.name, pods, taken_names)
    contents = _ClaimContents(
        shape.requirements,
        dict(_custom_labels(shape.custom_keys, claim.requirements, name)),
        {**shape.annotations, **devices.annotations},
        _requests_to_provider(res.add(claim.requests, shape.daemon_requests), devices.backed_resources),
    )
    return NewNodeClaim(
        claim=_claim_of_pool(claim.template.pool, name, contents),
        node_pool=claim.template.name,
        instance_types=shape.instance_types,
        cheapest_offering=shape.cheapest,
        pods=pods,
        cpu_surplus_per_hour=claim.template.cpu_surpluses.price_per_hour(shape.cheapest_type, claim.requests),
    )


@dataclass(frozen=True)
class _ClaimedDevices:
    """The drivers whose devices the pods of a claim use, and extended resources that are devices on some of its types."""

    drivers: tuple[str, ...] = ()
    backed_resources: frozenset[str] = frozenset()

    @property
    def annotations(self) -> dict[str, str]:
        """What makes initialization wait for the drivers (SCH-610)."""
        return {labels.REQUESTED_DRA_DRIVERS: ",".join(self.drivers)} if self.drivers else {}


_NO_CLAIMED_DEVICES = _ClaimedDevices()


def _claimed_devices(claim: SchedulingNodeClaim, demands: Sequence[Demand], devices: TypeDevices) -> _ClaimedDevices:
    index = claim.template.index
    contents = [(demands[position].device_demand, count) for position, count in claim.contents]
    return _ClaimedDevices(devices.drivers_of(index, claim.types, contents), devices.device_backed(index, claim.types))


def _requests_to_provider(requests: Resources, backed: frozenset[str]) -> Resources:
    """The requests as the provider gets them, without attachments and devices: those only decide which pods share a node."""
    return {
        name: amount
        for name, amount in requests.items()
        if name not in backed and not name.startswith((ATTACHMENT_RESOURCE_PREFIX, DEVICE_RESOURCE_PREFIX))
    }


def _claim_name(pool: str, pods: tuple[Pod, ...], taken_names: Collection[str]) -> str:
    """``<pool>-<digest of its pods>``; a name that a claim already bears is passed over: that one did not hold them."""
    identities = sorted(pod.metadata.uid or f"{pod.metadata.namespace}/{pod.metadata.name}" for pod in pods)
    names = (derived_claim_name(pool, str(attempt), *identities) for attempt in itertools.count())
    return next(name for name in names if name not in taken_names)


def derived_claim_name(pool: str, *identities: str) -> str:
    """The name of the claim that is for exactly this: ``<pool>-<digest>``."""
    digest = hashlib.sha256("\n".join([pool, *identities]).encode()).hexdigest()
    return f"{pool[:_MAX_POOL_NAME_LENGTH].rstrip('-.')}-{digest[:10]}"


def static_claim(pool: NodePool, name: str, well_known: frozenset[str], zone: str = "") -> NodeClaim:
    """A claim of a static pool: its requirements as they are, so that the provider chooses the type (SCH-623, API-138).

    ``well_known`` are the label keys nodes bring with them; labels of the pool's own are given a value (SCH-622). ``zone`` is
    where the node has to be, empty for anywhere.
    """
    requirements = nodepool_requirements(pool).without({*labels.SIMULATION_ONLY, labels.HOSTNAME})
    if zone:
        requirements = requirements.intersect(requirements_from_labels({labels.ZONE: zone}))
    custom = _custom_keys(requirements, well_known)
    own_labels = dict(_custom_labels(custom, requirements, name))
    return _claim_of_pool(
        pool, name, _ClaimContents(requirements_to_wire(requirements), own_labels, _own_annotations(pool))
    )


@dataclass(frozen=True)
class _ClaimContents:
    """What of a claim does not come from its pool alone."""

    requirements: tuple[NodeSelectorRequirementWithMinValues, ...]
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    requests: Resources = field(default_factory=dict)


def _own_annotations(pool: NodePool) -> dict[str, str]:
    """Annotations every claim of the pool gets (SCH-120)."""
    return {**pool.spec.template.metadata.annotations, **nodepool_hash.hash_annotations(pool)}


def _claim_of_pool(pool: NodePool, name: str, contents: _ClaimContents) -> NodeClaim:
    """A claim as the pool's template wants it (SCH-620)."""
    spec = pool.spec.template.spec
    return NodeClaim(
        metadata=ObjectMeta(
            name=name,
            labels={**nodepool_labels(pool), **contents.labels},
            annotations=contents.annotations,
            finalizers=(labels.TERMINATION_FINALIZER,),
            owner_references=(
                OwnerReference(
                    api_version="karpenter.sh/v1",
                    kind="NodePool",
                    name=pool.metadata.name,
                    uid=pool.metadata.uid,
                    block_owner_deletion=True,
                ),
            ),
        ),
        spec=NodeClaimSpec(
            requirements=contents.requirements,
            node_class_ref=spec.node_class_ref,
            resources=NodeClaimResourceRequests(requests=res.resources_to_wire(contents.requests)),
            taints=spec.taints,
            startup_taints=spec.startup_taints,
            expire_after=spec.expire_after,
            termination_grace_period=spec.termination_grace_period,
        ),
    )


def _final_requirements(claim: SchedulingNodeClaim, held: TypeSet, kept_names: Sequence[str]) -> Requirements:
    """SCH-620: without what only the simulation needs, with the kept types and the capacity types they can be launched with."""
    names = frozenset(kept_names)
    fewest = claim.requirements[labels.INSTANCE_TYPE].min_values if labels.INSTANCE_TYPE in claim.requirements else None
    own = claim.requirements.without({*labels.SIMULATION_ONLY, labels.HOSTNAME, labels.INSTANCE_TYPE})
    result = own.intersect(Requirements((Requirement(labels.INSTANCE_TYPE, False, names, min_values=fewest),)))
    sold = frozenset(_capacity_types(claim, held))
    if not sold:
        return result
    least = result.requirement_for(labels.CAPACITY_TYPE).min_values
    capacity_type = Requirement(labels.CAPACITY_TYPE, False, sold, min_values=least)
    return result.without((labels.CAPACITY_TYPE,)).intersect(Requirements((capacity_type,)))


def _capacity_types(claim: SchedulingNodeClaim, held: TypeSet) -> Iterator[str]:
    """Capacity types of the available offerings the claim accepts, over the kept types."""
    wanted = claim.requirements.requirement_for(labels.CAPACITY_TYPE)
    index = claim.template.index
    for capacity_type in (labels.ON_DEMAND, labels.RESERVED, labels.SPOT):
        if wanted.allows(capacity_type):
            only = Requirements((Requirement(labels.CAPACITY_TYPE, False, frozenset((capacity_type,))),))
            if index.with_available_offering(claim.requirements.intersect(only)) & held:
                yield capacity_type


def _custom_keys(defined: Requirements, well_known: frozenset[str]) -> list[str]:
    """The label keys a pool defines on its own (SCH-622, its Beyond: not those that only a pod mentions)."""
    common = {labels.HOSTNAME, *labels.SIMULATION_ONLY}
    return sorted(key for key in defined if key not in well_known and key not in common)


def _custom_labels(keys: Iterable[str], requirements: Requirements, name: str) -> Iterator[tuple[str, str]]:
    """One concrete value per custom label."""
    for key in keys:
        requirement = requirements[key]
        if requirement.operator is Op.IN:
            yield key, min(requirement.values)
        elif requirement.complement:
            yield key, _drawn_label_value(requirement, name)


def _drawn_label_value(requirement: Requirement, name: str) -> str:
    """A value for an open label: drawn per claim, as users isolate workloads by it, yet the same for the same claim (SCH-863)."""
    low = requirement.gte if requirement.gte is not None else 0
    high = (
        requirement.lte
        if requirement.lte is not None
        else min(max(low + len(requirement.values), _DEFAULT_MAX_INTEGER), MAX_INTEGER)
    )
    seed = int.from_bytes(hashlib.sha256(f"{name}/{requirement.key}".encode()).digest()[:8], "big")
    span = high - low + 1
    candidates = (str(low + (seed + step) % span) for step in range(len(requirement.values) + 1))
    return next(value for value in candidates if value not in requirement.values)
