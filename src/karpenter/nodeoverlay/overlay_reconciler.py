"""The reconciler of NodeOverlays: evaluates all overlays for all pools at once and writes each overlay's status (SCH-751)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec
import structlog

from karpenter.api.karpenter import NodePool
from karpenter.api.kinds import NODE_OVERLAY
from karpenter.api.meta import Condition, Wire
from karpenter.api.node_overlay import NodeOverlay
from karpenter.controller_context import ControllerContext
from karpenter.instancetypes import overlay_application
from karpenter.instancetypes.overlay_application import NodePoolInstanceTypes, OverlayConflict
from karpenter.instancetypes.well_known_labels import well_known_labels_of
from karpenter.kube.errors import KubeError, NotFound
from karpenter.model import conditions, labels, runtime_validation
from karpenter.nodeoverlay.overlaid_provider import OverlaidProvider
from karpenter.providers.contract import ProviderError
from karpenter.runtime.patching import merge_patch
from karpenter.runtime.reconciler import Reconciler

#: Interval of evaluations without events: the offerings of clouds change.
OVERLAY_REQUEUE_SECONDS = 6 * 3600.0
#: All overlays are evaluated together, so the queue has one key.
_ALL_OVERLAYS_KEY = "all"
_log = structlog.get_logger()


@dataclass(frozen=True)
class EvaluatedOverlays:
    """All overlays with what is wrong with each, by name. ``has_changes``: whether effective prices or capacities changed.

    ``errors``: of NodePools whose instance types could not be read.
    """

    overlays: tuple[NodeOverlay, ...]
    findings: Mapping[str, runtime_validation.Findings]
    conflicts: Mapping[str, OverlayConflict]
    has_changes: bool
    errors: tuple[ProviderError, ...]


class NodeOverlayReconciler:
    """Evaluates ``all_overlays``, iterated afresh by each pass. ``on_change`` is called when effective prices or capacities
    changed.
    """

    def __init__(
        self,
        context: ControllerContext,
        provider: OverlaidProvider,
        all_overlays: Iterable[NodeOverlay],
        on_change: Callable[[], None],
    ) -> None:
        self._context = context
        self._provider = provider
        self._all_overlays = all_overlays
        self._on_change = on_change

    async def reconcile(self, _key: str) -> float:
        """Evaluate all overlays; returns seconds until the next pass. Raises ``ProviderError`` and ``KubeError`` at the end."""
        evaluated = await self.apply()
        if evaluated.has_changes:
            self._on_change()
        write_errors: list[KubeError] = []
        for overlay in evaluated.overlays:
            name = overlay.metadata.name
            condition = _validation_condition(evaluated.findings[name], evaluated.conflicts.get(name))
            try:
                await self._write_validation(overlay, condition)
            except KubeError as error:
                write_errors.append(error)
        for first_error in (*evaluated.errors, *write_errors):
            raise first_error
        return OVERLAY_REQUEUE_SECONDS

    async def apply(self) -> EvaluatedOverlays:
        """Evaluate all overlays and apply them to the provider's types; nothing is written."""
        pool_types, provider_errors = await self._instance_types_by_pool()
        overlays = [overlay for overlay in self._all_overlays if overlay.metadata.deletion_timestamp is None]
        well_known = labels.WELL_KNOWN.union(*(well_known_labels_of(overlay.types) for overlay in pool_types))
        findings = {
            overlay.metadata.name: runtime_validation.validate_node_overlay(overlay, well_known) for overlay in overlays
        }
        valid = [
            overlay_application.parse_overlay(overlay) for overlay in overlays if not findings[overlay.metadata.name]
        ]
        evaluation = overlay_application.evaluate_overlays(valid, pool_types)
        has_changes = self._provider.set_overlays(evaluation.accepted, pool_types)
        return EvaluatedOverlays(tuple(overlays), findings, evaluation.conflicts, has_changes, tuple(provider_errors))

    async def _instance_types_by_pool(self) -> tuple[list[NodePoolInstanceTypes], list[ProviderError]]:
        """The instance types of the pools, and the errors of pools whose types could not be read (SCH-752)."""
        pool_types: list[NodePoolInstanceTypes] = []
        errors: list[ProviderError] = []
        for pool in self._context.state.pools():
            if self._context.is_managed(pool) and pool.metadata.deletion_timestamp is None:
                try:
                    pool_types.append(NodePoolInstanceTypes(pool, await self._provider.types_without_overlays(pool)))
                except ProviderError as error:
                    errors.append(error)
        return pool_types, errors

    async def _write_validation(self, overlay: NodeOverlay, validation: Condition) -> None:
        """Write the validation condition of the overlay if it changed; log when the overlay becomes unused."""
        meta = overlay.metadata
        owner = conditions.conditioned_object(conditions.NODE_OVERLAY, meta, self._context.clock.now())
        overlay_conditions = conditions.set_condition(overlay.status.conditions, validation, owner)
        status = msgspec.structs.replace(overlay.status, conditions=overlay_conditions)
        patch = merge_patch(overlay, msgspec.structs.replace(overlay, status=status))
        if not patch:
            return
        if validation.status == conditions.FALSE:
            _log.error(
                "ignoring nodeoverlay",
                NodeOverlay={"name": meta.name},
                reason=validation.reason,
                error=validation.message,
            )
        try:
            await self._context.kube.patch(
                NODE_OVERLAY, meta.name, patch, subresource="status", resource_version=meta.resource_version
            )
        except NotFound:
            return


def _validation_condition(findings: runtime_validation.Findings, conflict: OverlayConflict | None) -> Condition:
    if findings:
        text = "; ".join(map(str, findings))
        return Condition(
            type=conditions.VALIDATION_SUCCEEDED, status=conditions.FALSE, reason="RuntimeValidation", message=text
        )
    if conflict is not None:
        return Condition(
            type=conditions.VALIDATION_SUCCEEDED, status=conditions.FALSE, reason="Conflict", message=conflict.message
        )
    return Condition(type=conditions.VALIDATION_SUCCEEDED, status=conditions.TRUE)


class NodeOverlayController:
    """Queues the evaluation of all overlays. Its handlers receive overlay, pool and node class events, after the cluster state.

    ``on_applied`` is called when effective prices or capacities changed.
    """

    def __init__(
        self,
        context: ControllerContext,
        provider: OverlaidProvider,
        all_overlays: Iterable[NodeOverlay],
        on_applied: Callable[[], None],
    ) -> None:
        self._reconciler = NodeOverlayReconciler(context, provider, all_overlays, on_applied)
        self._queue = Reconciler("nodeoverlay.controller", self._reconciler.reconcile, 1, metrics=context.metrics)
        self._queue.add(_ALL_OVERLAYS_KEY)

    def loops(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """The loops to run, by name."""
        return {self._queue.name: self._queue.run}

    async def apply(self) -> None:
        """Apply the overlays in a process that does not lead: its view has their prices, and it writes nothing."""
        await self._reconciler.apply()

    def on_overlay(self, old: NodeOverlay | None, new: NodeOverlay | None) -> None:
        """An overlay was added, changed or removed. Our own status writes are ignored."""
        if old is None or new is None or old.spec != new.spec or new.metadata.deletion_timestamp is not None:
            self._queue.add(_ALL_OVERLAYS_KEY)

    def on_pool(self, old: NodePool | None, new: NodePool | None) -> None:
        """A pool was added, changed or removed."""
        if old is None or new is None or old.spec != new.spec:
            self._queue.add(_ALL_OVERLAYS_KEY)

    def on_node_class(self, _old: Wire | None, _new: Wire | None) -> None:
        """A node class was added, changed or removed."""
        self._queue.add(_ALL_OVERLAYS_KEY)
