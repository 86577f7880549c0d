"""The hash that shows whether an instance was made as its class says now (AWS-570, AWS-571, API §12.2).

Covered is what goes into the instance and cannot be compared otherwise. What selectors find is compared by what they find
(``drift``). Lists are sets, what is absent equals what is empty; the kubelet's settings count as the text of their JSON.

A hash cannot say what changed. So what went into the latest ones is remembered, for as long as the process lives: drift then
names the fields.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec
import structlog

from karpenter.api.ec2_node_class import EC2NodeClass, EC2NodeClassSpec
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import EC2_NODE_CLASS, NODE_CLAIM
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.kube.errors import NotFound
from karpenter.kube.protocol import Writer
from karpenter.model import conditions
from karpenter.providers.aws import aws_labels
from karpenter.providers.aws.aws_settings import AwsClusterInfo
from karpenter.providers.aws.bootstrap import join_rules
from karpenter.providers.aws.ec2_descriptions import InstanceInfo
from karpenter.providers.aws.nodeclass.ami_selection import ami_for
from karpenter.providers.aws.userdata.ami_families import effective_ami_family
from karpenter.providers.contract import ProviderError

#: Bumped whenever the hash of an unchanged class would change; unlike any version of another implementation (AWS-574).
HASH_VERSION = "py1"

HASH_ANNOTATION = aws_labels.NODE_CLASS_HASH
HASH_VERSION_ANNOTATION = aws_labels.NODE_CLASS_HASH_VERSION

_BYTES = 8
_HASHED_SPEC_FIELDS = (
    "user_data",
    "role",
    "instance_profile",
    "tags",
    "block_device_mappings",
    "instance_store_policy",
    "network_interfaces",
    "detailed_monitoring",
    "associate_public_ip_address",
    "ip_prefix_count",
    "metadata_options",
    "connection_tracking",
    "context",
    "cpu_options",
    "enclave_options",
    "placement_group_selector",
)
#: What is covered beside fields of the specification as they stand.
_OTHER_FIELD_NAMES = {
    "family": "amiFamily",
    "ca_bundle": "cluster CA bundle",
    **{key: f"annotation {key}" for key in join_rules.HASHED_ANNOTATIONS},
}
_MAX_REMEMBERED = 8
_ABSENT_VALUES: tuple[object, ...] = (None, "", [], {})


def node_class_hash(node_class: EC2NodeClass, cluster: AwsClusterInfo) -> str:
    """Decimal text of a 64-bit hash over the class; the same in every process."""
    return _digest(_text(_hash_fields(node_class, cluster)))


class NodeClassHashInputs:
    """What went into the hashes of each class, the latest few."""

    def __init__(self) -> None:
        self._inputs: dict[str, OrderedDict[str, Mapping[str, object]]] = {}

    def remember(self, node_class: EC2NodeClass, cluster: AwsClusterInfo) -> None:
        """Remember the class as it is now."""
        inputs: OrderedDict[str, Mapping[str, object]] = self._inputs.setdefault(
            node_class.metadata.name, OrderedDict()
        )
        fields = _hash_fields(node_class, cluster)
        inputs[_digest(_text(fields))] = fields
        while len(inputs) > _MAX_REMEMBERED:
            inputs.popitem(last=False)

    def forget(self, name: str) -> None:
        """A class is gone."""
        self._inputs.pop(name, None)

    def changed_fields(self, name: str, before: str, after: str) -> tuple[str, ...]:
        """The fields two hashes of a class differ in, as manifests spell them; empty where one is not remembered."""
        inputs: Mapping[str, Mapping[str, object]] = self._inputs.get(name, {})
        if before not in inputs or after not in inputs:
            return ()
        old, new = inputs[before], inputs[after]
        return tuple(_json_name(field) for field in sorted(old.keys() | new.keys()) if old.get(field) != new.get(field))


def _hash_fields(node_class: EC2NodeClass, cluster: AwsClusterInfo) -> dict[str, object]:
    spec = node_class.spec
    fields = {name: _canonical(getattr(spec, name)) for name in _HASHED_SPEC_FIELDS}
    fields["kubelet"] = _text(spec.kubelet) if spec.kubelet else ""
    fields["family"] = effective_ami_family(spec)
    fields["ca_bundle"] = cluster.ca_bundle
    fields |= {key: node_class.metadata.annotations.get(key) for key in join_rules.HASHED_ANNOTATIONS}
    return {name: value for name, value in fields.items() if value not in _ABSENT_VALUES}


def _canonical(value: object) -> object:
    """The same for everything that means the same: no absent or zero fields, lists sorted."""
    if isinstance(value, msgspec.Struct):
        fields = ((name, _canonical(field)) for name, field in msgspec.structs.asdict(value).items())
        return {name: field for name, field in fields if field not in _ABSENT_VALUES}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return sorted((_canonical(element) for element in value), key=_text)
    return None if value == 0 and not isinstance(value, bool) else value


def _json_name(field: str) -> str:
    if field in _OTHER_FIELD_NAMES:
        return _OTHER_FIELD_NAMES[field]
    return next(info.encode_name for info in msgspec.structs.fields(EC2NodeClassSpec) if info.name == field)


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _digest(text: str) -> str:
    return str(int.from_bytes(hashlib.sha256(text.encode()).digest()[:_BYTES], "big"))


NODE_CLASS_DRIFT = "NodeClassDrift"
AMI_DRIFT = "AMIDrift"
SECURITY_GROUP_DRIFT = "SecurityGroupDrift"
SUBNET_DRIFT = "SubnetDrift"
CAPACITY_RESERVATION_DRIFT = "CapacityReservationDrift"
PLACEMENT_GROUP_DRIFT = "PlacementGroupDrift"

_RESERVED_ONLY = "capacity-reservations-only"


class DriftNotDeterminable(ProviderError):
    """What the instance would be compared with is not known (AWS-567)."""


class NodeClassDrift(NamedTuple):
    """Why an instance no longer matches its class, and what exactly differs. Both are empty when it does match."""

    reason: str = ""
    message: str = ""


NO_DRIFT = NodeClassDrift()


class DriftComparison(NamedTuple):
    """An instance and what it is compared with.

    ``types`` are those of the class by name. ``group_id`` is the placement group the class's selector stands for, empty where it
    has no selector, None where it could not be resolved.
    """

    claim: NodeClaim
    node_class: EC2NodeClass
    instance: InstanceInfo
    types: Mapping[str, InstanceType]
    group_id: str | None


#: The fields two hashes of a class, by its name, differ in, if anybody knows.
ChangedFields = Callable[[str, str, str], tuple[str, ...]]


def node_class_drift(claim: NodeClaim, node_class: EC2NodeClass, changed_fields: ChangedFields) -> NodeClassDrift:
    """Whether the class says something else now than when the instance was made (AWS-561)."""
    then, now = claim.metadata.annotations, node_class.metadata.annotations
    stamped = all(key in notes for notes in (then, now) for key in (HASH_ANNOTATION, HASH_VERSION_ANNOTATION))
    if (
        not stamped
        or then[HASH_VERSION_ANNOTATION] != now[HASH_VERSION_ANNOTATION]
        or then[HASH_ANNOTATION] == now[HASH_ANNOTATION]
    ):
        return NO_DRIFT
    fields = changed_fields(node_class.metadata.name, then[HASH_ANNOTATION], now[HASH_ANNOTATION])
    what = f": {', '.join(fields)}" if fields else ""
    return NodeClassDrift(NODE_CLASS_DRIFT, f"EC2NodeClass {node_class.metadata.name} was changed{what}")


async def confirmed_drift(comparison: DriftComparison, read: Callable[[], Awaitable[InstanceInfo]]) -> NodeClassDrift:
    """``drift_reason``, with the instance read again where a reservation is the reason: it may have ended (AWS-565)."""
    drift = instance_drift(comparison)
    return (
        instance_drift(comparison._replace(instance=await read()))
        if drift.reason == CAPACITY_RESERVATION_DRIFT
        else drift
    )


def instance_drift(comparison: DriftComparison) -> NodeClassDrift:
    """The first reason why the instance, not its class, has drifted. Raises ``DriftUnknown``."""
    for check in _CHECKS:
        drift = check(comparison)
        if drift.reason:
            return drift
    return NO_DRIFT


def _ami_drift(comparison: DriftComparison) -> NodeClassDrift:
    own = comparison.claim.status.image_id
    name = comparison.instance.instance_type
    if not own:
        raise DriftNotDeterminable("the claim's status has no imageID")
    if name not in comparison.types:
        raise DriftNotDeterminable(f'finding node instance type "{name}"')
    if not comparison.node_class.status.amis:
        raise DriftNotDeterminable("no amis exist given constraints")
    now = ami_for(comparison.types[name], comparison.node_class.status.amis)
    if now is None:
        return NodeClassDrift(AMI_DRIFT, f"image {own} is not used any more, and none is for {name}")
    return (
        NO_DRIFT
        if now.id == own
        else NodeClassDrift(
            AMI_DRIFT, f"image {own} is not used any more for {name}, but {_ami_text(now.id, now.name)}"
        )
    )


def _ami_text(image_id: str, name: str) -> str:
    return f"{image_id} ({name})" if name else image_id


def _security_group_drift(comparison: DriftComparison) -> NodeClassDrift:
    expected = {group.id for group in comparison.node_class.status.security_groups}
    own = {group.group_id for group in comparison.instance.security_groups}
    if not expected:
        raise DriftNotDeterminable("no security groups are present in the status")
    if own == expected:
        return NO_DRIFT
    changes = (*(f"+{name}" for name in sorted(expected - own)), *(f"-{name}" for name in sorted(own - expected)))
    return NodeClassDrift(SECURITY_GROUP_DRIFT, f"security groups differ: {', '.join(changes)}")


def _subnet_drift(comparison: DriftComparison) -> NodeClassDrift:
    own = comparison.instance.subnet_id
    if not comparison.node_class.status.subnets:
        raise DriftNotDeterminable("no subnets exist given constraints")
    if own in {subnet.id for subnet in comparison.node_class.status.subnets}:
        return NO_DRIFT
    return NodeClassDrift(SUBNET_DRIFT, f"subnet {own} is not selected any more")


def _reservation_drift(comparison: DriftComparison) -> NodeClassDrift:
    own = comparison.instance.capacity_reservation_id
    reservation_ids = {reservation.id for reservation in comparison.node_class.status.capacity_reservations}
    if not _is_reserved(comparison.instance) or own in reservation_ids:
        return NO_DRIFT
    return NodeClassDrift(CAPACITY_RESERVATION_DRIFT, f"capacity reservation {own} is not selected any more")


def _is_reserved(instance: InstanceInfo) -> bool:
    """Whether it was bought from a reservation, not merely counted against an open one (AWS-523)."""
    specification = instance.capacity_reservation_specification
    only = specification is not None and specification.capacity_reservation_preference == _RESERVED_ONLY
    return only and bool(instance.capacity_reservation_id)


def _placement_group_drift(comparison: DriftComparison) -> NodeClassDrift:
    own = comparison.claim.metadata.labels.get(aws_labels.PLACEMENT_GROUP_ID, "")
    if comparison.group_id is None:
        raise DriftNotDeterminable(
            f"the placement group of EC2NodeClass {comparison.node_class.metadata.name} is not resolved"
        )
    if own == comparison.group_id:
        return NO_DRIFT
    return NodeClassDrift(
        PLACEMENT_GROUP_DRIFT, f"placement group is {own or 'none'}, not {comparison.group_id or 'none'}"
    )


_CHECKS = (_ami_drift, _security_group_drift, _subnet_drift, _reservation_drift, _placement_group_drift)

_MAX_CONCURRENT_STAMPS = 20
_log = structlog.get_logger()


class NodeClassHashStamper:
    """Keeps hashes up to date. ``claims`` gives all NodeClaims."""

    def __init__(self, kube: Writer, claims: Callable[[], Iterable[NodeClaim]]) -> None:
        self._kube = kube
        self._claims = claims

    async def stamp(self, node_class: EC2NodeClass, cluster: AwsClusterInfo) -> EC2NodeClass:
        """The class stamped, and where the version changed its claims before. Raises ``KubeError``."""
        expected = {HASH_ANNOTATION: node_class_hash(node_class, cluster), HASH_VERSION_ANNOTATION: HASH_VERSION}
        annotations = node_class.metadata.annotations
        if all(annotations.get(key) == value for key, value in expected.items()):
            return node_class
        meta = node_class.metadata
        if annotations.get(HASH_VERSION_ANNOTATION) != HASH_VERSION:
            await self._migrate_claims(meta.name, expected)
        patch = {"metadata": {"annotations": expected}}
        return await self._kube.patch(EC2_NODE_CLASS, meta.name, patch, resource_version=meta.resource_version)

    async def _migrate_claims(self, name: str, annotations: Mapping[str, str]) -> None:
        foreign = [claim for claim in self._claims() if uses_node_class(claim, name) and _has_other_hash_version(claim)]
        if not foreign:
            return
        slots = asyncio.Semaphore(_MAX_CONCURRENT_STAMPS)

        async def take(claim: NodeClaim) -> None:
            async with slots:
                with suppress(NotFound):
                    await self._stamp_claim(claim, annotations)

        await asyncio.gather(*map(take, foreign))
        fields = {"EC2NodeClass": {"name": name}, "nodeclaims": len(foreign)}
        _log.info("took over nodeclaims stamped by another version", **fields)

    async def _stamp_claim(self, claim: NodeClaim, annotations: Mapping[str, str]) -> None:
        """Against the version that was judged: a claim that has just drifted must not lose the hash it drifted by."""
        drifted = conditions.is_true(claim.status.conditions, "Drifted")
        changed = {HASH_VERSION_ANNOTATION: HASH_VERSION} if drifted else annotations
        meta = claim.metadata
        patch = {"metadata": {"annotations": changed}}
        await self._kube.patch(NODE_CLAIM, meta.name, patch, resource_version=meta.resource_version)


def _has_other_hash_version(claim: NodeClaim) -> bool:
    return claim.metadata.annotations.get(HASH_VERSION_ANNOTATION) != HASH_VERSION


def uses_node_class(claim: NodeClaim, name: str) -> bool:
    """Whether a claim's instance is made as this class says."""
    reference = claim.spec.node_class_ref
    return EC2_NODE_CLASS.is_kind_of(reference) and reference.name == name
