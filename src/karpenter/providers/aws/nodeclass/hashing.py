"""The hash that tells whether a machine was made as its class says now (AWS-570, AWS-571, API §12.2).

Covered is what goes into the machine and cannot be compared otherwise. What selectors find is compared by what they find
(``drift``). Lists are sets, what is absent equals what is empty; the kubelet's settings count as the text of their JSON.

A hash cannot say what changed. So what went into the latest ones is remembered, for as long as the process lives: drift then
names the fields.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence

import msgspec

from karpenter.api.ec2 import EC2NodeClass, EC2NodeClassSpec
from karpenter.providers.aws import names
from karpenter.providers.aws.settings import Cluster
from karpenter.providers.aws.userdata.families import effective_family

#: Bumped whenever the hash of an unchanged class would change; unlike any version of another implementation (AWS-574).
HASH_VERSION = "py1"

HASH = names.CLASS_HASH
VERSION = names.CLASS_HASH_VERSION

_BYTES = 8
_COVERED = (
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
    "placement_group_selector",
)
#: What is covered beside fields of the specification as they stand.
_OTHERS = {"family": "amiFamily", "ca_bundle": "cluster CA bundle"}
_REMEMBERED = 8
_ABSENT: tuple[object, ...] = (None, "", [], {})


def static_hash(node_class: EC2NodeClass, cluster: Cluster) -> str:
    """Decimal text of a 64-bit hash over the class; the same in every process."""
    return _digest(_text(_covered(node_class, cluster)))


class Editions:
    """What went into the hashes of each class, the latest few."""

    def __init__(self) -> None:
        self._known: dict[str, OrderedDict[str, Mapping[str, object]]] = {}

    def remember(self, node_class: EC2NodeClass, cluster: Cluster) -> None:
        """Remember the class as it is now."""
        known: OrderedDict[str, Mapping[str, object]] = self._known.setdefault(node_class.metadata.name, OrderedDict())
        fields = _covered(node_class, cluster)
        known[_digest(_text(fields))] = fields
        while len(known) > _REMEMBERED:
            known.popitem(last=False)

    def forget(self, name: str) -> None:
        """A class is gone."""
        self._known.pop(name, None)

    def changed(self, name: str, before: str, after: str) -> tuple[str, ...]:
        """The fields two hashes of a class differ in, as manifests spell them; empty where one is not remembered."""
        known: Mapping[str, Mapping[str, object]] = self._known.get(name, {})
        if before not in known or after not in known:
            return ()
        old, new = known[before], known[after]
        return tuple(_spelled(field) for field in sorted(old.keys() | new.keys()) if old.get(field) != new.get(field))


def _covered(node_class: EC2NodeClass, cluster: Cluster) -> dict[str, object]:
    spec = node_class.spec
    found = {name: _canonical(getattr(spec, name)) for name in _COVERED}
    found["kubelet"] = _text(spec.kubelet) if spec.kubelet else ""
    found["family"] = effective_family(spec)
    found["ca_bundle"] = cluster.ca_bundle
    return {name: value for name, value in found.items() if value not in _ABSENT}


def _canonical(value: object) -> object:
    """The same for everything that means the same: no absent or zero fields, lists sorted."""
    if isinstance(value, msgspec.Struct):
        fields = ((name, _canonical(item)) for name, item in msgspec.structs.asdict(value).items())
        return {name: item for name, item in fields if item not in _ABSENT}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return sorted((_canonical(item) for item in value), key=_text)
    return None if value == 0 and not isinstance(value, bool) else value


def _spelled(field: str) -> str:
    if field in _OTHERS:
        return _OTHERS[field]
    return next(item.encode_name for item in msgspec.structs.fields(EC2NodeClassSpec) if item.name == field)


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _digest(text: str) -> str:
    return str(int.from_bytes(hashlib.sha256(text.encode()).digest()[:_BYTES], "big"))
