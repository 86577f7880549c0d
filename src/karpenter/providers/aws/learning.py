"""What Nodes teach about their types, kept across restarts (AWS-316 to AWS-318, Beyond: a ConfigMap).

Every registered Node is heard once per process and whenever its memory changes. What is known is written down a while after it
changed, and read back before anything is bought.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from karpenter.api.core import ConfigMap, Node
from karpenter.api.ec2 import EC2NodeClass
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import CONFIG_MAP
from karpenter.api.meta import ObjectMeta
from karpenter.catalog.types import InstanceType
from karpenter.kube.errors import AlreadyExists, KubeError, NotFound
from karpenter.kube.protocol import Kube
from karpenter.model import labels
from karpenter.model import resources as res
from karpenter.providers.aws.nodeclass.images import image_for
from karpenter.providers.aws.surroundings import Observed
from karpenter.providers.aws.types.learned import LearnedMemory, Lessons
from karpenter.providers.contract import ProviderError

NAME = "karpenter-learned"
NAMESPACE = "kube-system"
_KEY = "memory"
#: News within this time are written down together.
_WRITE_SECONDS = 60.0
_log = structlog.get_logger()

#: The types of a class as they are sold now. Raises ``ProviderError``.
TypesFor = Callable[[EC2NodeClass], tuple[InstanceType, ...]]
#: A class by its name.
ClassNamed = Callable[[str], EC2NodeClass | None]


class Learning:
    """Listens to Nodes and keeps what they teach."""

    def __init__(self, kube: Kube, memory: LearnedMemory, types_for: TypesFor, class_named: ClassNamed) -> None:
        self._kube = kube
        self._memory = memory
        self._lessons = Lessons(memory, image_for)
        self._types_for = types_for
        self._class_named = class_named
        self._heard: dict[str, object] = {}
        self._waiting: dict[str, Node] = {}
        self._written = b""

    # -- listening --------------------------------------------------------------------------------------------------------------

    def node(self, old: Node | None, new: Node | None) -> None:
        """A Node has come, changed or gone. It is heard in the next round: types may not be known yet."""
        if new is None:
            if old is not None:
                self._heard.pop(old.metadata.name, None)
                self._waiting.pop(old.metadata.name, None)
            return
        memory = new.status.capacity.get(res.MEMORY)
        if new.metadata.labels.get(labels.REGISTERED) == "true" and self._heard.get(new.metadata.name) != memory:
            self._waiting[new.metadata.name] = new

    def hear(self, observed: Observed) -> None:
        """Learn of the Nodes that wait to be heard."""
        waiting, self._waiting = self._waiting, {}
        for node in waiting.values():
            claim = observed.claim_of(node.spec.provider_id.rpartition("/")[2])
            if claim is not None and self._attended(node, claim):
                self._heard[node.metadata.name] = node.status.capacity.get(res.MEMORY)

    def _attended(self, node: Node, claim: NodeClaim) -> bool:
        node_class = self._class_named(claim.spec.node_class_ref.name)
        name = claim.metadata.labels.get(labels.INSTANCE_TYPE, "")
        if node_class is None:
            return False
        try:
            types = self._types_for(node_class)
        except ProviderError:
            return False
        found = next((item for item in types if item.name == name), None)
        if found is not None:
            self._lessons.attend(node, claim, found, node_class.status.amis)
        return True

    # -- keeping ----------------------------------------------------------------------------------------------------------------

    async def recall(self) -> None:
        """Take over what was written down. Nothing there, or something unreadable, means to begin anew."""
        try:
            found = await self._kube.get(CONFIG_MAP, NAME, NAMESPACE)
            self._written = found.data.get(_KEY, "[]").encode()
            self._memory.load(self._written)
        except NotFound:
            return
        except (KubeError, ValueError) as error:
            _log.error("what was learned about machines cannot be read", error=str(error))

    async def run(self, observed: Observed) -> None:
        """Listen and write down, until cancelled. First of all what others wrote since the start is taken over.

        A process may wait for years to lead; what it then writes down must not be less than what was known meanwhile.
        """
        await self.recall()
        while True:
            self.hear(observed)
            await self._write_down()
            await asyncio.sleep(_WRITE_SECONDS)

    async def _write_down(self) -> None:
        text = self._memory.dump()
        if text in (self._written, b"[]"):
            return
        try:
            await self._put(text.decode())
        except KubeError as error:
            _log.error("what was learned about machines cannot be written down", error=str(error))
            return
        self._written = text

    async def _put(self, text: str) -> None:
        data = {_KEY: text}
        try:
            await self._kube.create(
                CONFIG_MAP, ConfigMap(metadata=ObjectMeta(name=NAME, namespace=NAMESPACE), data=data)
            )
        except AlreadyExists:
            await self._kube.patch(CONFIG_MAP, NAME, {"data": data}, NAMESPACE)
