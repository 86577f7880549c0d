"""How much memory nodes really have, learned from those that joined (AWS-316 to AWS-318).

What the hypervisor takes can only be guessed before a type's first node; afterwards its like have just as much. The figure
belongs to a type and a set of images. Only a smaller one replaces it: an estimate may be too low, never too high, or pods would
be planned into memory that is not there (AWS-315). Beyond Karpenter it survives restarts: ``dump`` and ``load``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

import msgspec
import structlog

from karpenter.api.core import ConfigMap, Node
from karpenter.api.ec2_node_class import AMI, EC2NodeClass
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import CONFIG_MAP
from karpenter.api.meta import ObjectMeta
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.kube.errors import AlreadyExists, KubeError, NotFound
from karpenter.kube.protocol import Kube
from karpenter.model import labels, quantity
from karpenter.model import resources as res
from karpenter.model.clock import Clock
from karpenter.providers.aws.aws_context import AwsClusterView
from karpenter.providers.aws.instancetype.nodeclass_terms import image_set
from karpenter.providers.aws.nodeclass.ami_selection import ami_for
from karpenter.providers.contract import ProviderError

#: How long a figure holds that no node confirms.
DISCOVERED_CAPACITY_TTL = timedelta(days=60)

_log = structlog.get_logger()
_encode = msgspec.json.Encoder(order="deterministic").encode
_Key = tuple[str, str]

#: The image a type gets of a class's images (``ami_selection.ami_for``).
AmiForType = Callable[[InstanceType, Sequence[AMI]], AMI | None]


class _Entry(msgspec.Struct, frozen=True, array_like=True):
    """One figure as it is kept."""

    instance_type: str
    images: str
    memory_bytes: int
    until: datetime


class DiscoveredCapacity:
    """Memory by type and set of images, each figure kept for ``DISCOVERED_CAPACITY_TTL`` after it was last seen."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: dict[_Key, _Entry] = {}
        #: Grows with every change of a figure.
        self.version = 0

    def memory_bytes(self, instance_type: str, images: str) -> int | None:
        """Bytes such a node has, None where none was seen lately."""
        entry = self._entries.get((instance_type, images))
        return entry.memory_bytes if entry is not None and entry.until > self._clock.now() else None

    def record(self, instance_type: str, images: str, memory_bytes: int) -> bool:
        """Record the memory of a node; returns whether the known value changed.

        A larger value is ignored, an equal one confirms the known one.
        """
        current = self.memory_bytes(instance_type, images)
        if memory_bytes <= 0 or (current is not None and memory_bytes > current):
            return False
        until = self._clock.now() + DISCOVERED_CAPACITY_TTL
        self._entries[instance_type, images] = _Entry(instance_type, images, memory_bytes, until)
        if memory_bytes == current:
            return False
        self.version += 1
        _log.debug(
            "updating discovered capacity cache", **{"memory-capacity": memory_bytes, "instance-type": instance_type}
        )
        return True

    def dump(self) -> bytes:
        """Everything that was learned, as text; equal content gives equal text."""
        now = self._clock.now()
        return _encode([entry for _, entry in sorted(self._entries.items()) if entry.until > now])

    def load(self, text: bytes) -> None:
        """Take over what ``dump`` wrote, beside what is known; the smaller figure counts. Raises ``ValueError``."""
        now = self._clock.now()
        for entry in msgspec.json.decode(text, type=list[_Entry]):
            current = self.memory_bytes(entry.instance_type, entry.images)
            if entry.until > now and entry.memory_bytes > 0 and (current is None or entry.memory_bytes < current):
                self._entries[entry.instance_type, entry.images] = entry
                self.version += 1


class CapacityLearner:
    """What a Node that has joined teaches about its type."""

    def __init__(self, capacity: DiscoveredCapacity, ami_for: AmiForType) -> None:
        self._capacity = capacity
        self._ami_for = ami_for

    def learn(self, node: Node, claim: NodeClaim, instance_type: InstanceType, amis: Sequence[AMI]) -> bool:
        """Learn the memory of a registered Node; returns whether the known value changed.

        ``amis`` are those of the claim's class now. Nothing is learned from an instance whose image the class would not use for
        the type any more (AWS-316).
        """
        image = self._ami_for(instance_type, amis)
        if image is None or claim.status.image_id != image.id or res.MEMORY not in node.status.capacity:
            return False
        try:
            memory = quantity.parse_milli(node.status.capacity[res.MEMORY]) // quantity.MILLI
        except quantity.QuantityError:
            return False
        return self._capacity.record(instance_type.name, image_set(amis), memory)


CONFIG_MAP_NAME = "karpenter-learned"
CONFIG_MAP_NAMESPACE = "kube-system"
_KEY = "memory"
#: Figures learned within this time are saved together.
_SAVE_PERIOD_SECONDS = 60.0

#: The types of a class as they are sold now. Raises ``ProviderError``.
TypesFor = Callable[[EC2NodeClass], tuple[InstanceType, ...]]


class DiscoveredCapacityController:
    """Learns the memory of registered Nodes and saves it in a ConfigMap."""

    def __init__(
        self, kube: Kube, capacity: DiscoveredCapacity, types_for: TypesFor, cluster_view: AwsClusterView
    ) -> None:
        self._kube = kube
        self._capacity = capacity
        self._learner = CapacityLearner(capacity, ami_for)
        self._types_for = types_for
        self._cluster_view = cluster_view
        self._learned: dict[str, object] = {}
        self._waiting_nodes: dict[str, Node] = {}
        self._written = b""
        self._is_current = False

    # -- listening --------------------------------------------------------------------------------------------------------------

    def on_node(self, old: Node | None, new: Node | None) -> None:
        """Informer handler. The next pass learns from the Node, because instance types may not be known yet."""
        if new is None:
            if old is not None:
                self._learned.pop(old.metadata.name, None)
                self._waiting_nodes.pop(old.metadata.name, None)
            return
        memory = new.status.capacity.get(res.MEMORY)
        if new.metadata.labels.get(labels.REGISTERED) == "true" and self._learned.get(new.metadata.name) != memory:
            self._waiting_nodes[new.metadata.name] = new

    def learn_from_waiting(self) -> None:
        """Learn from the Nodes that events named since the last pass."""
        waiting, self._waiting_nodes = self._waiting_nodes, {}
        for node in waiting.values():
            claim = self._cluster_view.claim_of(node.spec.provider_id.rpartition("/")[2])
            if claim is not None and self._learn_from_node(node, claim):
                self._learned[node.metadata.name] = node.status.capacity.get(res.MEMORY)

    def _learn_from_node(self, node: Node, claim: NodeClaim) -> bool:
        node_class = self._cluster_view.node_class_named(claim.spec.node_class_ref.name)
        name = claim.metadata.labels.get(labels.INSTANCE_TYPE, "")
        if node_class is None:
            return False
        try:
            types = self._types_for(node_class)
        except ProviderError:
            return False
        instance_type = next((candidate for candidate in types if candidate.name == name), None)
        if instance_type is not None:
            self._learner.learn(node, claim, instance_type, node_class.status.amis)
        return True

    # -- keeping ----------------------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Load the saved figures. Without them, or if they are unreadable, learning starts from nothing."""
        try:
            config_map = await self._kube.get(CONFIG_MAP, CONFIG_MAP_NAME, CONFIG_MAP_NAMESPACE)
            self._written = config_map.data.get(_KEY, "[]").encode()
            self._capacity.load(self._written)
        except NotFound:
            return
        except (KubeError, ValueError) as error:
            _log.error("what was learned about instances cannot be read", error=str(error))

    async def reconcile(self) -> float:
        """Learn and save; returns the seconds until the next pass. Raises ``KubeError``.

        The first pass of a leader loads once more: the previous leader may have saved figures since this process started, and
        must not lose them.
        """
        if not self._is_current:
            await self.load()
            self._is_current = True
        self.learn_from_waiting()
        await self._save()
        return _SAVE_PERIOD_SECONDS

    async def _save(self) -> None:
        text = self._capacity.dump()
        if text not in (self._written, b"[]"):
            await self._write_config_map(text.decode())
            self._written = text

    async def _write_config_map(self, text: str) -> None:
        data = {_KEY: text}
        try:
            await self._kube.create(
                CONFIG_MAP,
                ConfigMap(metadata=ObjectMeta(name=CONFIG_MAP_NAME, namespace=CONFIG_MAP_NAMESPACE), data=data),
            )
        except AlreadyExists:
            await self._kube.patch(CONFIG_MAP, CONFIG_MAP_NAME, {"data": data}, CONFIG_MAP_NAMESPACE)
