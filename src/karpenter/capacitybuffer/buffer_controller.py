"""The controller of capacity buffers (gate CapacityBuffer): which events requeue which buffer (SCH-721)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from karpenter.api.capacity_buffer import CapacityBuffer
from karpenter.api.core import PodTemplate
from karpenter.api.kinds import CAPACITY_BUFFER
from karpenter.capacitybuffer.buffer_reconciler import CapacityBufferReconciler
from karpenter.kube.informer import Informer
from karpenter.runtime.controller_context import ControllerContext
from karpenter.runtime.reconciler import Reconciler
from karpenter.scheduling.solution import Solution
from karpenter.state.snapshot import ClusterSnapshot

_WORKERS = 10


class CapacityBufferController:
    """Queues buffers. ``informer`` holds them; ``trigger_provisioning`` requests a scheduling pass for a uid."""

    def __init__(
        self,
        context: ControllerContext,
        informer: Informer[CapacityBuffer],
        trigger_provisioning: Callable[[str], None],
    ) -> None:
        self._informer = informer
        self._reconciler = CapacityBufferReconciler(context, informer.get, trigger_provisioning)
        self._queue = Reconciler(
            "capacitybuffer", self._reconciler.reconcile, _WORKERS, CAPACITY_BUFFER, context.metrics
        )
        informer.subscribe(self._on_buffer)

    def loops(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """The loops to run, by name."""
        return {self._queue.name: self._queue.run}

    def _on_buffer(self, old: CapacityBuffer | None, new: CapacityBuffer | None) -> None:
        """A buffer was added, changed or removed. Our own status writes are ignored."""
        buffer = new or old
        if buffer is not None and (old is None or new is None or _spec_changed(old, new)):
            self._queue.add(_key(buffer))

    def on_pod_template(self, old: PodTemplate | None, new: PodTemplate | None) -> None:
        """A PodTemplate was added, changed or removed: requeue the buffers that refer to it."""
        template = new or old
        assert template is not None
        template_key = (template.metadata.namespace, template.metadata.name)
        for buffer in self._informer:
            reference = buffer.spec.pod_template_ref
            if reference is not None and (buffer.metadata.namespace, reference.name) == template_key:
                self._queue.add(_key(buffer))

    def on_plan(self, snapshot: ClusterSnapshot, plan: Solution) -> None:
        """A scheduling pass over the snapshot was executed: requeue the buffers whose placement changed."""
        for key in self._reconciler.record_plan(snapshot, plan):
            self._queue.add(key)


def _key(buffer: CapacityBuffer) -> str:
    return f"{buffer.metadata.namespace}/{buffer.metadata.name}"


def _spec_changed(old: CapacityBuffer, new: CapacityBuffer) -> bool:
    return old.spec != new.spec or new.metadata.deletion_timestamp is not None
