"""How much memory nodes really have, learned from those that joined (AWS-316 to AWS-318).

What the hypervisor takes can only be guessed before a type's first node; afterwards its like have just as much. The figure
belongs to a type and a set of images. Only a smaller one replaces it: an estimate may be too low, never too high, or pods would
be planned into memory that is not there (AWS-315). Beyond the reference it survives restarts: ``dump`` and ``load``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta

import msgspec
import structlog

from karpenter.api.core import Node
from karpenter.api.ec2 import AMI
from karpenter.api.karpenter import NodeClaim
from karpenter.catalog.types import InstanceType
from karpenter.model import quantity
from karpenter.model import resources as res
from karpenter.model.clock import Clock

#: How long a figure holds that no node confirms.
LIFE = timedelta(days=60)

_log = structlog.get_logger()
_encode = msgspec.json.Encoder(order="deterministic").encode
_Key = tuple[str, str]

#: The image a type gets of a class's images (``nodeclass.images.image_for``).
ImageOf = Callable[[InstanceType, Sequence[AMI]], AMI | None]


class _Entry(msgspec.Struct, frozen=True, array_like=True):
    """One figure as it is kept."""

    instance_type: str
    images: str
    memory_bytes: int
    until: datetime


def image_set(amis: Iterable[AMI]) -> str:
    """A name for a set of images and what each is for; neither their order matters nor what else is known of them."""
    return hashlib.sha256(b"\n".join(sorted(_encode((ami.id, ami.requirements)) for ami in amis))).hexdigest()[:16]


class LearnedMemory:
    """Memory by type and set of images, each figure kept for ``LIFE`` after it was last seen."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: dict[_Key, _Entry] = {}
        #: Grows with every change of a figure.
        self.version = 0

    def known(self, instance_type: str, images: str) -> int | None:
        """Bytes such a node has, None where none was seen lately."""
        entry = self._entries.get((instance_type, images))
        return entry.memory_bytes if entry is not None and entry.until > self._clock.now() else None

    def learn(self, instance_type: str, images: str, memory_bytes: int) -> bool:
        """A node has this much. Whether that is news; more than is known never is, the same confirms it."""
        known = self.known(instance_type, images)
        if memory_bytes <= 0 or (known is not None and memory_bytes > known):
            return False
        until = self._clock.now() + LIFE
        self._entries[instance_type, images] = _Entry(instance_type, images, memory_bytes, until)
        if memory_bytes == known:
            return False
        self.version += 1
        _log.debug(
            "updating discovered capacity cache",
            **{"memory-capacity": memory_bytes, "instance-type": instance_type},
        )
        return True

    def dump(self) -> bytes:
        """Everything that is known, for whoever keeps it; equal memories are equal texts."""
        now = self._clock.now()
        return _encode([entry for _, entry in sorted(self._entries.items()) if entry.until > now])

    def load(self, text: bytes) -> None:
        """Take over what ``dump`` wrote, beside what is known; the smaller figure counts. Raises ``ValueError``."""
        now = self._clock.now()
        for entry in msgspec.json.decode(text, type=list[_Entry]):
            known = self.known(entry.instance_type, entry.images)
            if entry.until > now and entry.memory_bytes > 0 and (known is None or entry.memory_bytes < known):
                self._entries[entry.instance_type, entry.images] = entry
                self.version += 1


class Lessons:
    """What a Node that has joined teaches about its type."""

    def __init__(self, memory: LearnedMemory, image_of: ImageOf) -> None:
        self._memory = memory
        self._image_of = image_of

    def attend(self, node: Node, claim: NodeClaim, instance_type: InstanceType, amis: Sequence[AMI]) -> bool:
        """Learn the memory of a registered Node, and say whether that is news.

        ``amis`` are those of the claim's class now. Nothing is learned from a machine whose image the class would not use for
        the type any more (AWS-316).
        """
        image = self._image_of(instance_type, amis)
        if image is None or claim.status.image_id != image.id or res.MEMORY not in node.status.capacity:
            return False
        try:
            memory = quantity.milli(node.status.capacity[res.MEMORY]) // quantity.MILLI
        except quantity.QuantityError:
            return False
        return self._memory.learn(instance_type.name, image_set(amis), memory)
