"""The NodePool status reconciler: validation, readiness, registration health, disruption conditions and resources (API §13.2).

One pass over a pool updates its conditions and its hash. Resources change too often to be written after every event: a periodic
pass over all pools writes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import structlog

from karpenter.api.karpenter import NodePool, NodePoolStatus
from karpenter.api.kinds import NODE_POOL
from karpenter.api.meta import Condition
from karpenter.controller_context import ControllerContext
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
from karpenter.runtime.patching import merge_patch

#: Requeue delay after a write conflict.
_CONFLICT_REQUEUE_SECONDS = 0.2
_log = structlog.get_logger()


@dataclass(frozen=True)
class _NodePoolVersion:
    """Identity of a version of a pool: generation and annotations, which do not change the generation."""

    uid: str
    generation: int
    annotations: frozenset[tuple[str, str]]


@dataclass(frozen=True)
class _ValidatedVersion:
    """The validation result of one version of a pool."""

    version: _NodePoolVersion
    validation: Condition


class NodePoolReconciler:
    """Reconciles NodePools by name. ``find_class`` looks up a node class, ``enabled`` are the enabled feature gates."""

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
        """Update conditions and hash of one pool; returns seconds until the next pass, None to wait for events.

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
        """Write the resources of every pool (API-645), with its conditions as of now: registration health and freezes change."""
        self._resource_counter.update(self._context.state.state_nodes())
        managed = [pool for pool in self._context.state.pools() if self._context.is_managed(pool)]
        self._budget_error_log.log_changes(managed)
        for pool in managed:
            resources = self._resource_counter.resources_of(pool.metadata.name)
            nodes = resources[res.NODES] // res.ONE_UNIT
            status = msgspec.structs.replace(
                self._desired_status(pool), resources=res.resources_to_wire(resources), nodes=nodes
            )
            try:
                await self._write(pool, status)
            except Conflict:
                # The pool changed since it was read; the next count uses the new version.
                continue
            except KubeError as error:
                # The next count retries; the other pools are written now.
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
        """The pool's status with its current conditions."""
        owner = conditions.conditioned_object(conditions.NODE_POOL, pool.metadata, self._context.clock.now())
        node_class = self._find_class(pool.spec.template.spec.node_class_ref)
        pool_conditions = conditions.set_condition(pool.status.conditions, self._validation_condition(pool), owner)
        pool_conditions = conditions.set_condition(pool_conditions, node_class_ready_condition(node_class), owner)
        freeze = active_freeze(pool, self._context.state.freeze, owner.now)
        pool_conditions = disruption_conditions.with_disruption_conditions(pool_conditions, pool, freeze, owner)
        self._context.events.publish(*disruption_conditions.freeze_events(pool, pool_conditions))
        if node_class is None:
            return msgspec.structs.replace(pool.status, conditions=pool_conditions)
        registration_health = self._context.nodepool_health.condition(pool, node_class.generation)
        return msgspec.structs.replace(
            pool.status,
            conditions=conditions.set_condition(pool_conditions, registration_health, owner),
            node_class_observed_generation=node_class.generation,
        )

    def _validation_condition(self, pool: NodePool) -> Condition:
        """The validation condition; each version of a pool is validated once."""
        meta = pool.metadata
        version = _NodePoolVersion(meta.uid, meta.generation, _user_annotations(meta.annotations))
        validated = self._validated_versions.get(meta.name)
        if validated is None or validated.version != version:
            validated = self._validated_versions[meta.name] = _ValidatedVersion(version, validation_condition(pool))
            self._publish_findings(pool, validated.validation)
        return validated.validation

    def _publish_findings(self, pool: NodePool, validation_result: Condition) -> None:
        """Publish why the pool is not used, and advice on legal but probably unintended settings (API-640, API-078, API-088)."""
        if validation_result.status == conditions.FALSE:
            self._context.events.publish(invalid_event(pool, validation_result.message))
        self._context.events.publish(*advice_events(pool, runtime_validation.advise_object(pool, self._feature_gates)))
        for invalid_values in invalid_requirement_values(pool):
            _log.error(
                "please correct found invalid values, proceeding with valid values",
                NodePool={"name": pool.metadata.name},
                key=invalid_values.key,
                **{"valid-values": invalid_values.valid, "invalid-values": invalid_values.invalid},
            )


def _user_annotations(annotations: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    """Karpenter annotations that users set, without the hashes Karpenter sets itself."""
    hashes = (labels.NODE_POOL_HASH, labels.NODE_POOL_HASH_VERSION)
    prefix = f"{labels.GROUP}/"
    return frozenset(entry for entry in annotations.items() if entry[0].startswith(prefix) and entry[0] not in hashes)
