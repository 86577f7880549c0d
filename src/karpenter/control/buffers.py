"""The controller of capacity buffers (gate CapacityBuffer): which news makes it look at which buffer (SCH-721)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from karpenter.act.buffers import BufferKeeper
from karpenter.act.world import World
from karpenter.api.buffer import CapacityBuffer
from karpenter.api.core import PodTemplate
from karpenter.api.kinds import CAPACITY_BUFFER
from karpenter.cluster.snapshot import Snapshot
from karpenter.control.queue import WorkQueue
from karpenter.decide.plan import Plan
from karpenter.kube.informer import Informer

_WORKERS = 10


class Buffers:
    """Wakes the looks at buffers. ``informer`` knows them; ``plan_again`` asks for a plan, for the sake of a uid."""

    def __init__(self, world: World, informer: Informer[CapacityBuffer], plan_again: Callable[[str], None]) -> None:
        self._informer = informer
        self._keeper = BufferKeeper(world, informer.get, plan_again)
        self._queue = WorkQueue("capacitybuffer", self._keeper.look, _WORKERS, CAPACITY_BUFFER, world.metrics)
        informer.subscribe(self._buffer)

    def loops(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """What has to run."""
        return {self._queue.name: self._queue.run}

    def _buffer(self, old: CapacityBuffer | None, new: CapacityBuffer | None) -> None:
        """A buffer appeared, changed or went. What is written of it ourselves is no news."""
        subject = new or old
        if subject is not None and (old is None or new is None or _differs(old, new)):
            self._queue.add(_key(subject))

    def template(self, old: PodTemplate | None, new: PodTemplate | None) -> None:
        """A PodTemplate appeared, changed or went: so did the buffers that refer to it."""
        subject = new or old
        assert subject is not None
        changed = (subject.metadata.namespace, subject.metadata.name)
        for buffer in self._informer:
            reference = buffer.spec.pod_template_ref
            if reference is not None and (buffer.metadata.namespace, reference.name) == changed:
                self._queue.add(_key(buffer))

    def decided(self, snapshot: Snapshot, plan: Plan) -> None:
        """A plan was made of the snapshot and carried out."""
        for key in self._keeper.decided(snapshot, plan):
            self._queue.add(key)


def _key(buffer: CapacityBuffer) -> str:
    return f"{buffer.metadata.namespace}/{buffer.metadata.name}"


def _differs(old: CapacityBuffer, new: CapacityBuffer) -> bool:
    return old.spec != new.spec or new.metadata.deletion_timestamp is not None
