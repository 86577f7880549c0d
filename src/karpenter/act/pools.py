"""What a NodePool tells: whether it makes sense, whether its class is there, how it fares, how much it holds (API §13.2).

One look at a pool brings its conditions and its hash up to date; a round over all pools now and then adds what their machines sum
up to, which changes too often to be written at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec
import structlog

from karpenter.act import disruption_settings
from karpenter.act.capacities import Capacities
from karpenter.act.disruption_settings import BudgetErrors
from karpenter.act.events import NODE_POOL_INVALID, advice_events, invalid_event
from karpenter.act.patching import difference
from karpenter.act.stamping import stamp
from karpenter.act.world import World
from karpenter.api.karpenter import NodeClassReference, NodePool, NodePoolStatus
from karpenter.api.kinds import NODE_POOL
from karpenter.api.meta import Condition
from karpenter.kube.errors import Conflict, KubeError, NotFound
from karpenter.model import conditions, gates, labels, validation
from karpenter.model import resources as res
from karpenter.model.freezes import freeze_of
from karpenter.model.gates import Gates

#: How soon to look again at a pool somebody else wrote in between.
_CHANGED_MEANWHILE_SECONDS = 0.2
_log = structlog.get_logger()


@dataclass(frozen=True)
class NodeClassState:
    """What readiness and registration health read of a node class."""

    conditions: tuple[Condition, ...]
    deleting: bool
    generation: int = 0


#: Finds a node class; None when it does not exist.
FindNodeClass = Callable[[NodeClassReference], NodeClassState | None]


@dataclass(frozen=True)
class _Edition:
    """What tells a pool from what it was before: annotations are no part of its generation."""

    uid: str
    generation: int
    said: frozenset[tuple[str, str]]


@dataclass(frozen=True)
class _Read:
    """What was found in one edition of a pool."""

    edition: _Edition
    validated: Condition


class PoolKeeper:
    """Keeps NodePools up to date. ``find_class`` looks a node class up, ``enabled`` are the feature gates that are on."""

    def __init__(self, world: World, find_class: FindNodeClass, enabled: Gates = gates.DEFAULT) -> None:
        self._world = world
        self._find_class = find_class
        self._enabled = enabled
        self._capacities = Capacities()
        self._read: dict[str, _Read] = {}
        self._budget_errors = BudgetErrors()

    async def look(self, name: str) -> float | None:
        """Bring one pool's conditions and hash up to date; seconds until the next look, None to wait for events.

        Raises ``KubeError``.
        """
        pool = self._world.state.pool(name)
        if pool is None:
            self._world.registrations.forget(name)
            self._read.pop(name, None)
            return None
        if not self._world.manages(pool):
            return None
        try:
            await self._write(pool, self._judged(pool))
            await stamp(self._world, pool)
        except Conflict:
            return _CHANGED_MEANWHILE_SECONDS
        return None

    async def count(self) -> None:
        """Write what every pool's machines add up to (API-645), how its latest ones fared, and what its rules say by now."""
        self._capacities.update(self._world.state.views())
        managed = [pool for pool in self._world.state.pools() if self._world.manages(pool)]
        self._budget_errors.tell(managed)
        for pool in managed:
            held = self._capacities.of(pool.metadata.name)
            nodes = held[res.NODES] // res.ONE
            status = msgspec.structs.replace(self._judged(pool), resources=res.to_wire(held), nodes=nodes)
            try:
                await self._write(pool, status)
            except Conflict:
                # Somebody wrote the pool just now; the next count sees that.
                continue
            except KubeError as error:
                # The next count tries again; the other pools are counted now.
                _log.error("counting pool failed", NodePool={"name": pool.metadata.name}, error=str(error))

    async def _write(self, pool: NodePool, status: NodePoolStatus) -> None:
        patch = difference(pool, msgspec.structs.replace(pool, status=status))
        if not patch:
            return
        version = pool.metadata.resource_version
        try:
            await self._world.kube.patch(
                NODE_POOL, pool.metadata.name, patch, subresource="status", resource_version=version
            )
        except NotFound:
            return

    def _judged(self, pool: NodePool) -> NodePoolStatus:
        """The pool's status with the conditions it should have now."""
        owner = conditions.owner(conditions.NODE_POOL, pool.metadata, self._world.clock.now())
        node_class = self._find_class(pool.spec.template.spec.node_class_ref)
        found = conditions.put(pool.status.conditions, self._validated(pool), owner)
        found = conditions.put(found, class_ready(node_class), owner)
        freeze = freeze_of(pool, self._world.state.freeze, owner.now)
        found = disruption_settings.judged(found, pool, freeze, owner)
        self._world.events.publish(*disruption_settings.turned(pool, found))
        if node_class is None:
            return msgspec.structs.replace(pool.status, conditions=found)
        healthy = self._world.registrations.condition(pool, node_class.generation)
        return msgspec.structs.replace(
            pool.status,
            conditions=conditions.put(found, healthy, owner),
            node_class_observed_generation=node_class.generation,
        )

    def _validated(self, pool: NodePool) -> Condition:
        """Each edition of a pool is read once."""
        meta = pool.metadata
        edition = _Edition(meta.uid, meta.generation, _said(meta.annotations))
        known = self._read.get(meta.name)
        if known is None or known.edition != edition:
            known = self._read[meta.name] = _Read(edition, validated(pool))
            self._tell(pool, known.validated)
        return known.validated

    def _tell(self, pool: NodePool, judged: Condition) -> None:
        """Tell the owner why the pool is not used, and what is legal and probably not meant (API-640, API-078, API-088)."""
        if judged.status == conditions.FALSE:
            self._world.events.publish(invalid_event(pool, judged.message))
        self._world.events.publish(*advice_events(pool, validation.advise(pool, self._enabled)))
        for wrong in wrong_values(pool):
            _log.error(
                "please correct found invalid values, proceeding with valid values",
                NodePool={"name": pool.metadata.name},
                key=wrong.key,
                **{"valid-values": wrong.valid, "invalid-values": wrong.invalid},
            )


def _said(annotations: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    """What users say in annotations of ours; hashes are our own."""
    hashes = (labels.NODE_POOL_HASH, labels.NODE_POOL_HASH_VERSION)
    ours = f"{labels.GROUP}/"
    return frozenset(item for item in annotations.items() if item[0].startswith(ours) and item[0] not in hashes)


def class_ready(state: NodeClassState | None) -> Condition:
    """The NodeClassReady condition of a pool whose class is in this state (API-641)."""
    if state is None:
        return _not_ready("NodeClassNotFound", "NodeClass not found on cluster")
    if state.deleting:
        return _not_ready("NodeClassTerminating", "NodeClass is Terminating")
    ready = conditions.find(state.conditions, "Ready")
    if ready is None or ready.status == conditions.UNKNOWN:
        return _not_ready("NodeClassReadinessUnknown", "Node Class Readiness Unknown")
    if ready.status == conditions.FALSE:
        return _not_ready(ready.reason, ready.message)
    return Condition(type="NodeClassReady", status=conditions.TRUE)


def _not_ready(reason: str, message: str) -> Condition:
    return Condition(type="NodeClassReady", status=conditions.FALSE, reason=reason, message=message)


def validated(pool: NodePool) -> Condition:
    """The ValidationSucceeded condition of a pool (API §2.3)."""
    findings = validation.runtime(pool)
    if not findings:
        return Condition(type="ValidationSucceeded", status=conditions.TRUE)
    text = "; ".join(str(finding) for finding in findings)
    return Condition(type="ValidationSucceeded", status=conditions.FALSE, reason=NODE_POOL_INVALID, message=text)


@dataclass(frozen=True)
class WrongValues:
    """Values of a requirement that do not exist, beside some that do."""

    key: str
    valid: list[str]
    invalid: list[str]


def wrong_values(pool: NodePool) -> Iterable[WrongValues]:
    """Requirements of which some values are ignored (API-078)."""
    for item in pool.spec.template.spec.requirements:
        key = labels.normalise(item.key)
        known = labels.CLOSED_VALUES.get(key, frozenset(item.values))
        valid = [value for value in item.values if value in known]
        if item.operator == "In" and valid and len(valid) < len(item.values):
            yield WrongValues(key, valid, [value for value in item.values if value not in known])
