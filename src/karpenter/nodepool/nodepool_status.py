"""What a NodePool tells: whether it makes sense, whether its class is there, how it fares, how much it holds (API §13.2).

One look at a pool brings its conditions and its hash up to date; a round over all pools now and then adds what their machines sum
up to, which changes too often to be written at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import structlog

from karpenter.api.karpenter import NodePool, NodePoolStatus
from karpenter.api.kinds import NODE_POOL
from karpenter.api.meta import Condition
from karpenter.kube.errors import Conflict, KubeError, NotFound
from karpenter.model import conditions, feature_gates, labels, runtime_validation
from karpenter.model import resources as res
from karpenter.model.feature_gates import FeatureGates
from karpenter.model.freezes import active_freeze
from karpenter.nodepool import disruption_conditions
from karpenter.nodepool.counter import NodePoolResourceCounter
from karpenter.nodepool.disruption_conditions import BudgetErrorLog
from karpenter.nodepool.hash_annotations import reconcile_hash
from karpenter.nodepool.readiness import (
    FindNodeClass,
    advice_events,
    invalid_event,
    invalid_requirement_values,
    node_class_ready_condition,
    validation_condition,
)
from karpenter.runtime.controller_context import ControllerContext
from karpenter.runtime.patching import merge_patch

#: How soon to look again at a pool somebody else wrote in between.
_CONFLICT_REQUEUE_SECONDS = 0.2
_log = structlog.get_logger()


@dataclass(frozen=True)
class _NodePoolVersion:
    """What tells a pool from what it was before: annotations are no part of its generation."""

    uid: str
    generation: int
    annotations: frozenset[tuple[str, str]]


@dataclass(frozen=True)
class _ValidatedVersion:
    """What was found in one edition of a pool."""

    version: _NodePoolVersion
    validation: Condition


class NodePoolReconciler:
    """Keeps NodePools up to date. ``find_class`` looks a node class up, ``enabled`` are the feature gates that are on."""

    def __init__(
        self,
        context: ControllerContext,
        find_class: FindNodeClass,
        enabled: FeatureGates = feature_gates.DEFAULT_FEATURE_GATES,
    ) -> None:
        self._context = context
        self._find_class = find_class
        self._feature_gates = enabled
        self._resource_counter = NodePoolResourceCounter()
        self._validated_versions: dict[str, _ValidatedVersion] = {}
        self._budget_error_log = BudgetErrorLog()

    async def reconcile(self, name: str) -> float | None:
        """Bring one pool's conditions and hash up to date; seconds until the next look, None to wait for events.

        Raises ``KubeError``.
        """
        pool = self._context.state.pool(name)
        if pool is None:
            self._context.nodepool_health.forget(name)
            self._validated_versions.pop(name, None)
            return None
        if not self._context.is_managed(pool):
            return None
        try:
            await self._write(pool, self._desired_status(pool))
            await reconcile_hash(self._context, pool)
        except Conflict:
            return _CONFLICT_REQUEUE_SECONDS
        return None

    async def reconcile_resources(self) -> None:
        """Write what every pool's machines add up to (API-645), how its latest ones fared, and what its rules say by now."""
        self._resource_counter.update(self._context.state.state_nodes())
        managed = [pool for pool in self._context.state.pools() if self._context.is_managed(pool)]
        self._budget_error_log.log_changes(managed)
        for pool in managed:
            held = self._resource_counter.resources_of(pool.metadata.name)
            nodes = held[res.NODES] // res.ONE_UNIT
            status = msgspec.structs.replace(
                self._desired_status(pool), resources=res.resources_to_wire(held), nodes=nodes
            )
            try:
                await self._write(pool, status)
            except Conflict:
                # Somebody wrote the pool just now; the next count sees that.
                continue
            except KubeError as error:
                # The next count tries again; the other pools are counted now.
                _log.error("counting pool failed", NodePool={"name": pool.metadata.name}, error=str(error))

    async def _write(self, pool: NodePool, status: NodePoolStatus) -> None:
        patch = merge_patch(pool, msgspec.structs.replace(pool, status=status))
        if not patch:
            return
        version = pool.metadata.resource_version
        try:
            await self._context.kube.patch(
                NODE_POOL, pool.metadata.name, patch, subresource="status", resource_version=version
            )
        except NotFound:
            return

    def _desired_status(self, pool: NodePool) -> NodePoolStatus:
        """The pool's status with the conditions it should have now."""
        owner = conditions.conditioned_object(conditions.NODE_POOL, pool.metadata, self._context.clock.now())
        node_class = self._find_class(pool.spec.template.spec.node_class_ref)
        found = conditions.set_condition(pool.status.conditions, self._validation_condition(pool), owner)
        found = conditions.set_condition(found, node_class_ready_condition(node_class), owner)
        freeze = active_freeze(pool, self._context.state.freeze, owner.now)
        found = disruption_conditions.with_disruption_conditions(found, pool, freeze, owner)
        self._context.events.publish(*disruption_conditions.freeze_events(pool, found))
        if node_class is None:
            return msgspec.structs.replace(pool.status, conditions=found)
        healthy = self._context.nodepool_health.condition(pool, node_class.generation)
        return msgspec.structs.replace(
            pool.status,
            conditions=conditions.set_condition(found, healthy, owner),
            node_class_observed_generation=node_class.generation,
        )

    def _validation_condition(self, pool: NodePool) -> Condition:
        """Each edition of a pool is read once."""
        meta = pool.metadata
        edition = _NodePoolVersion(meta.uid, meta.generation, _user_annotations(meta.annotations))
        known = self._validated_versions.get(meta.name)
        if known is None or known.version != edition:
            known = self._validated_versions[meta.name] = _ValidatedVersion(edition, validation_condition(pool))
            self._publish_findings(pool, known.validation)
        return known.validation

    def _publish_findings(self, pool: NodePool, validation_result: Condition) -> None:
        """Tell the owner why the pool is not used, and what is legal and probably not meant (API-640, API-078, API-088)."""
        if validation_result.status == conditions.FALSE:
            self._context.events.publish(invalid_event(pool, validation_result.message))
        self._context.events.publish(*advice_events(pool, runtime_validation.advise_object(pool, self._feature_gates)))
        for wrong in invalid_requirement_values(pool):
            _log.error(
                "please correct found invalid values, proceeding with valid values",
                NodePool={"name": pool.metadata.name},
                key=wrong.key,
                **{"valid-values": wrong.valid, "invalid-values": wrong.invalid},
            )


def _user_annotations(annotations: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    """What users say in annotations of ours; hashes are our own."""
    hashes = (labels.NODE_POOL_HASH, labels.NODE_POOL_HASH_VERSION)
    ours = f"{labels.GROUP}/"
    return frozenset(item for item in annotations.items() if item[0].startswith(ours) and item[0] not in hashes)
