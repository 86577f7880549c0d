"""The store of simulated instances: one ConfigMap per instance, so that they survive a restart of the controller (OPS-211).

The name of an instance is derived from its claim, so that a repeated launch finds the first instance. ConfigMap and Node share
that name. The record is written once at launch; later only ``ending_at`` is added, when the instance is terminated or
interrupted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

from karpenter.api.core import ConfigMap
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import CONFIG_MAP
from karpenter.api.meta import ObjectMeta
from karpenter.api.resource_claims import ResourceSliceSpec
from karpenter.api.scheduling_constraints import Taint
from karpenter.kube.errors import AlreadyExists, KubeError, NotFound
from karpenter.kube.protocol import Kube
from karpenter.model import resources as res
from karpenter.providers.contract import Instance, InstanceNotFound, ProviderError
from karpenter.providers.simulated.fault_rules import ScheduledFaults

INSTANCE_NAMESPACE = "kube-system"
INSTANCE_LABEL = "karpenter.kwok.sh/instance"
INSTANCE_SELECTOR = f"{INSTANCE_LABEL}=true"
PROVIDER_ID_SCHEME = "kwok://"
NODE_NAME_PREFIX = "kwok-"

_DATA_KEY = "instance.json"
_HASH_LENGTH = 6
_LONGEST_NAME = 63


class SimulatedInstance(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One instance: its claim, its type, the contents of its Node and its scheduled faults.

    ``capacity`` and ``allocatable`` are wire quantities, ``node_labels`` and ``taints`` what the instance registers with.
    ``devices`` are the slices that its drivers publish.
    """

    node_name: str
    claim_name: str
    claim_uid: str
    instance_type: str
    zone: str
    capacity_type: str
    price_per_hour: float
    created_at: datetime
    labels: Mapping[str, str]
    node_labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    capacity: Mapping[str, str]
    allocatable: Mapping[str, str]
    fate: ScheduledFaults = ScheduledFaults()
    ending_at: datetime | None = None
    devices: tuple[ResourceSliceSpec, ...] = ()

    @property
    def provider_id(self) -> str:
        """``kwok://<node name>`` (OPS-258)."""
        return PROVIDER_ID_SCHEME + self.node_name

    @property
    def terminating(self) -> bool:
        """Whether the instance was terminated or interrupted."""
        return self.ending_at is not None

    def time_after_launch(self, seconds: float | None) -> datetime | None:
        """The moment so many seconds after the launch."""
        return None if seconds is None else self.created_at + timedelta(seconds=seconds)

    def instance(self) -> Instance:
        """The instance as defined by the provider contract."""
        return Instance(
            provider_id=self.provider_id,
            claim_name=self.claim_name,
            labels=dict(self.labels),
            capacity=res.parse_resources(self.capacity),
            allocatable=res.parse_resources(self.allocatable),
            created_at=self.created_at,
            node_name=name_from_provider_id(self.provider_id),
            terminating=self.terminating,
        )


def instance_name(claim: NodeClaim) -> str:
    """Name of the claim's instance and Node: the claim's own with a hash of its uid, so that a namesake gets its own."""
    digest = hashlib.sha256(f"{claim.metadata.name}/{claim.metadata.uid}".encode()).hexdigest()[:_HASH_LENGTH]
    room = _LONGEST_NAME - len(NODE_NAME_PREFIX) - 1 - _HASH_LENGTH
    return f"{NODE_NAME_PREFIX}{claim.metadata.name[:room].rstrip('.-')}-{digest}"


def name_from_provider_id(provider_id: str) -> str:
    """Name of the instance with this provider ID; ``InstanceNotFound`` for one of another provider."""
    if not provider_id.startswith(PROVIDER_ID_SCHEME):
        raise InstanceNotFound(f"{provider_id or 'an empty provider ID'} is no simulated instance")
    return provider_id.removeprefix(PROVIDER_ID_SCHEME)


def decode_instance(stored: ConfigMap) -> SimulatedInstance | None:
    """The instance a ConfigMap holds; None if its data does not decode."""
    try:
        return msgspec.json.decode(stored.data.get(_DATA_KEY, ""), type=SimulatedInstance)
    except msgspec.DecodeError:
        return None


def stored_instance(instance: SimulatedInstance) -> ConfigMap:
    """The ConfigMap that holds an instance."""
    metadata = ObjectMeta(name=instance.node_name, namespace=INSTANCE_NAMESPACE, labels={INSTANCE_LABEL: "true"})
    return ConfigMap(metadata=metadata, data=_encoded(instance))


def _encoded(instance: SimulatedInstance) -> dict[str, str]:
    return {_DATA_KEY: msgspec.json.encode(instance).decode()}


@dataclass(frozen=True)
class SimulatedInstanceStore:
    """The simulated cloud's books. All methods raise ``ProviderError`` for what the API server cannot do."""

    kube: Kube

    async def create(self, instance: SimulatedInstance) -> SimulatedInstance:
        """Store a new instance, or return the existing one of that name."""
        try:
            await self.kube.create(CONFIG_MAP, stored_instance(instance))
        except AlreadyExists:
            return await self.get(instance.node_name)
        except KubeError as error:
            raise ProviderError(f"storing simulated instance {instance.node_name}, {error}") from error
        return instance

    async def get(self, name: str) -> SimulatedInstance:
        """One instance; raises ``InstanceNotFound`` if it is gone."""
        try:
            record = decode_instance(await self.kube.get(CONFIG_MAP, name, INSTANCE_NAMESPACE))
        except NotFound as error:
            raise InstanceNotFound(f"simulated instance {name} is gone") from error
        except KubeError as error:
            raise ProviderError(f"reading simulated instance {name}, {error}") from error
        if record is None:
            raise ProviderError(
                f"ConfigMap {INSTANCE_NAMESPACE}/{name} does not hold a simulated instance; delete it to terminate the instance"
            )
        return record

    async def all(self) -> tuple[SimulatedInstance, ...]:
        """All instances, by name; ConfigMaps without a valid record are skipped."""
        try:
            listing = await self.kube.list(CONFIG_MAP, INSTANCE_NAMESPACE, label_selector=INSTANCE_SELECTOR)
        except KubeError as error:
            raise ProviderError(f"listing simulated instances, {error}") from error
        records = (decode_instance(entry) for entry in listing.items)
        return tuple(sorted((entry for entry in records if entry is not None), key=lambda entry: entry.node_name))

    async def interrupt(self, instance: SimulatedInstance, now: datetime, notice: timedelta) -> None:
        """Announce now that the cloud takes the instance back after ``notice``. Raises ``ProviderError``."""
        seconds = (now - instance.created_at).total_seconds()
        fate = msgspec.structs.replace(
            instance.fate, interrupted_seconds=seconds, notice_seconds=notice.total_seconds()
        )
        interrupted = msgspec.structs.replace(instance, fate=fate)
        try:
            await self.kube.patch(CONFIG_MAP, instance.node_name, {"data": _encoded(interrupted)}, INSTANCE_NAMESPACE)
        except KubeError as error:
            raise ProviderError(f"interrupting simulated instance {instance.node_name}, {error}") from error

    async def terminate(self, instance: SimulatedInstance, now: datetime) -> None:
        """Terminate an instance (idempotent). Raises ``InstanceNotFound`` if it is gone."""
        if instance.terminating:
            return
        ending = msgspec.structs.replace(instance, ending_at=now)
        try:
            await self.kube.patch(CONFIG_MAP, instance.node_name, {"data": _encoded(ending)}, INSTANCE_NAMESPACE)
        except NotFound as error:
            raise InstanceNotFound(f"simulated instance {instance.node_name} is gone") from error
        except KubeError as error:
            raise ProviderError(f"ending simulated instance {instance.node_name}, {error}") from error
