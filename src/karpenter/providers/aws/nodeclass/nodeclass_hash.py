"""The hash of a node class: it differs where an instance was launched with other settings than the present (AWS-570, API §12.2).

The hash covers what goes into the instance and cannot be compared otherwise. What selectors find is compared by what they find
(`nodeclass_drift`). Lists are sets, what is absent equals what is empty; the kubelet's settings count as the text of their JSON.

A hash cannot say what changed. So the inputs of the latest hashes are remembered for the life of the process: drift then
names the fields.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

import msgspec
import structlog

from karpenter.api.ec2_node_class import EC2NodeClass, EC2NodeClassSpec
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import EC2_NODE_CLASS, NODE_CLAIM
from karpenter.kube.errors import NotFound
from karpenter.kube.protocol import Writer
from karpenter.model import conditions
from karpenter.providers.aws import aws_labels
from karpenter.providers.aws.aws_settings import AwsClusterInfo
from karpenter.providers.aws.bootstrap import join_rules
from karpenter.providers.aws.userdata.ami_families import effective_ami_family

_MAX_CONCURRENT_STAMPS = 20
_log = structlog.get_logger()
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
        """Patch the resource version that was checked, so that a claim that has just drifted keeps its old hash."""
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
