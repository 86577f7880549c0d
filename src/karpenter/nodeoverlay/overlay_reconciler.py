"""Bringing NodeOverlays into force: all of them, over all pools, at once (SCH-751), and saying of each whether it is used."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
import structlog

from karpenter.api.kinds import NODE_OVERLAY
from karpenter.api.meta import Condition
from karpenter.api.node_overlay import NodeOverlay
from karpenter.instancetypes import overlay_application
from karpenter.instancetypes.overlay_application import NodePoolInstanceTypes, OverlayConflict
from karpenter.instancetypes.well_known_labels import well_known_labels_of
from karpenter.kube.errors import KubeError, NotFound
from karpenter.model import conditions, labels, runtime_validation
from karpenter.nodeoverlay.overlaid_provider import OverlaidProvider
from karpenter.providers.contract import ProviderError
from karpenter.runtime.controller_context import ControllerContext
from karpenter.runtime.patching import merge_patch

#: Overlays are judged again this often without news: what clouds offer changes.
OVERLAY_REQUEUE_SECONDS = 6 * 3600.0
_log = structlog.get_logger()


class NodeOverlayReconciler:
    """Judges overlays: all that ``all_overlays`` tells. ``changed`` is called when other prices or capacities are in force."""

    def __init__(
        self,
        context: ControllerContext,
        provider: OverlaidProvider,
        all_overlays: Callable[[], Iterable[NodeOverlay]],
        on_change: Callable[[], None],
    ) -> None:
        self._context = context
        self._provider = provider
        self._all_overlays = all_overlays
        self._on_change = on_change

    async def reconcile(self, _key: str) -> float:
        """Judge all overlays; seconds until the next look. Raises ``ProviderError`` and ``KubeError`` once all else is done."""
        offered, faults = await self._instance_types_by_pool()
        found = [item for item in self._all_overlays() if item.metadata.deletion_timestamp is None]
        well_known = labels.WELL_KNOWN.union(*(well_known_labels_of(item.types) for item in offered))
        findings = {item.metadata.name: runtime_validation.validate_node_overlay(item, well_known) for item in found}
        valid = [overlay_application.parse_overlay(item) for item in found if not findings[item.metadata.name]]
        judgement = overlay_application.evaluate_overlays(valid, offered)
        if self._provider.set_overlays(judgement.accepted, offered):
            self._on_change()
        unsaid: list[KubeError] = []
        for item in found:
            name = item.metadata.name
            try:
                await self._write_validation(item, _validation_condition(findings[name], judgement.conflicts.get(name)))
            except KubeError as error:
                unsaid.append(error)
        for fault in (*faults, *unsaid):
            raise fault
        return OVERLAY_REQUEUE_SECONDS

    async def _instance_types_by_pool(self) -> tuple[list[NodePoolInstanceTypes], list[ProviderError]]:
        """What is offered to the pools, and what went wrong with the others (SCH-752)."""
        offered: list[NodePoolInstanceTypes] = []
        faults: list[ProviderError] = []
        for pool in self._context.state.pools():
            if self._context.is_managed(pool) and pool.metadata.deletion_timestamp is None:
                try:
                    offered.append(NodePoolInstanceTypes(pool, await self._provider.types_without_overlays(pool)))
                except ProviderError as error:
                    faults.append(error)
        return offered, faults

    async def _write_validation(self, overlay: NodeOverlay, validation: Condition) -> None:
        """Write the verdict on the overlay, and log it when it is news that it is not used."""
        meta = overlay.metadata
        owner = conditions.conditioned_object(conditions.NODE_OVERLAY, meta, self._context.clock.now())
        found = conditions.set_condition(overlay.status.conditions, validation, owner)
        wanted = msgspec.structs.replace(overlay.status, conditions=found)
        patch = merge_patch(overlay, msgspec.structs.replace(overlay, status=wanted))
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


def _validation_condition(findings: runtime_validation.Findings, clash: OverlayConflict | None) -> Condition:
    if findings:
        text = "; ".join(map(str, findings))
        return Condition(
            type=conditions.VALIDATION_SUCCEEDED, status=conditions.FALSE, reason="RuntimeValidation", message=text
        )
    if clash is not None:
        what = "the price" if clash.setting == overlay_application.PRICE_SETTING else clash.setting
        text = (
            f"conflict with another overlay: {clash.accepted_overlay} also sets {what} of instance type {clash.instance_type} "
            f"in NodePool {clash.pool} and has the same weight ({clash.weight}); give one of them another weight"
        )
        return Condition(type=conditions.VALIDATION_SUCCEEDED, status=conditions.FALSE, reason="Conflict", message=text)
    return Condition(type=conditions.VALIDATION_SUCCEEDED, status=conditions.TRUE)
