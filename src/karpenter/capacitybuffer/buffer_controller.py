"""The controller of capacity buffers (gate CapacityBuffer): which news makes it look at which buffer (SCH-721)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from karpenter.api.capacity_buffer import CapacityBuffer
from karpenter.api.core import PodTemplate
from karpenter.api.kinds import CAPACITY_BUFFER
from karpenter.capacitybuffer.buffer_reconciler import CapacityBufferReconciler
from karpenter.kube.informer import Informer
from karpenter.runtime.controller_context import ControllerContext
from karpenter.runtime.reconciler import ReconcilerQueue
from karpenter.scheduling.solution import Solution
from karpenter.state.snapshot import ClusterSnapshot

_WORKERS = 10


class CapacityBufferController:
    """Wakes the looks at buffers. ``informer`` knows them; ``plan_again`` asks for a plan, for the sake of a uid."""

    def __init__(
        self,
        context: ControllerContext,
        informer: Informer[CapacityBuffer],
        trigger_provisioning: Callable[[str], None],
    ) -> None:
        self._informer = informer
        self._reconciler = CapacityBufferReconciler(context, informer.get, trigger_provisioning)
        self._queue = ReconcilerQueue(
            "capacitybuffer", self._reconciler.reconcile, _WORKERS, CAPACITY_BUFFER, context.metrics
        )
        informer.subscribe(self._on_buffer)

    def loops(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """What has to run."""
        return {self._queue.name: self._queue.run}

    def _on_buffer(self, old: CapacityBuffer | None, new: CapacityBuffer | None) -> None:
        """A buffer appeared, changed or went. What is written of it ourselves is no news."""
        subject = new or old
        if subject is not None and (old is None or new is None or _spec_changed(old, new)):
            self._queue.add(_key(subject))

    def on_pod_template(self, old: PodTemplate | None, new: PodTemplate | None) -> None:
        """A PodTemplate appeared, changed or went: so did the buffers that refer to it."""
        subject = new or old
        assert subject is not None
        changed = (subject.metadata.namespace, subject.metadata.name)
        for buffer in self._informer:
            reference = buffer.spec.pod_template_ref
            if reference is not None and (buffer.metadata.namespace, reference.name) == changed:
                self._queue.add(_key(buffer))

    def on_plan(self, snapshot: ClusterSnapshot, plan: Solution) -> None:
        """A plan was made of the snapshot and carried out."""
        for key in self._reconciler.record_plan(snapshot, plan):
            self._queue.add(key)


def _key(buffer: CapacityBuffer) -> str:
    return f"{buffer.metadata.namespace}/{buffer.metadata.name}"


def _spec_changed(old: CapacityBuffer, new: CapacityBuffer) -> bool:
    return old.spec != new.spec or new.metadata.deletion_timestamp is not None
