"""Registration health of NodePools: outcomes are recorded in memory, the NodePool status reconciler writes the condition.

Recording never waits and never fails, so no outcome is lost to a write conflict and no claim waits for its pool (OPS-054,
OPS-062). A change of the pool's spec or node class resets the history: earlier failures say nothing about the new configuration
(API-652).
"""

from __future__ import annotations

from dataclasses import dataclass

from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.meta import Condition
from karpenter.model import conditions
from karpenter.model.conditions import FALSE, TRUE, UNKNOWN

NODE_REGISTRATION_HEALTHY = "NodeRegistrationHealthy"


@dataclass
class _HealthRecord:
    """The record of one pool: ``pending_condition`` is not yet seen in its status, ``generations`` are those of pool and class.

    ``is_confirmed``: the stored condition has been seen to belong to these generations.
    """

    uid: str
    ring: RegistrationHistory
    pending_condition: Condition | None = None
    generations: tuple[int, int] | None = None
    is_confirmed: bool = False


class NodePoolHealth:
    """The latest outcomes of every pool (OPS-060), in memory: a new process starts from the stored conditions."""

    def __init__(self) -> None:
        self._by_pool: dict[str, _HealthRecord] = {}

    def record_success(self, claim: NodeClaim, pool: NodePool | None) -> None:
        """The claim's Node registered."""
        if pool is None or not _is_owned_by(claim, pool):
            return
        record = self._record_of(pool)
        record.ring = record.ring.with_outcomes(True)
        if record.ring.condition_status == conditions.TRUE:
            record.pending_condition = Condition(type=NODE_REGISTRATION_HEALTHY, status=conditions.TRUE)

    def record_failure(self, claim: NodeClaim, pool: NodePool | None) -> None:
        """The claim was deleted because it did not launch or register in time."""
        if pool is None or not _is_owned_by(claim, pool):
            return
        record = self._record_of(pool)
        record.ring = record.ring.with_outcomes(False)
        if record.ring.condition_status == conditions.FALSE:
            record.pending_condition = _unhealthy_condition(claim)

    def forget(self, name: str) -> None:
        """The pool is gone."""
        self._by_pool.pop(name, None)

    def condition(self, pool: NodePool, class_generation: int) -> Condition:
        """The condition the pool should have now: the pending one until it is stored, then the stored one (API-653 f.)."""
        record = self._record_of(pool)
        stored = conditions.find_condition(pool.status.conditions, NODE_REGISTRATION_HEALTHY)
        generations = (pool.metadata.generation, class_generation)
        observed = pool.status.node_class_observed_generation
        is_current = stored is not None and generations == (stored.observed_generation, observed)
        if self._is_outdated(record, generations, current=is_current):
            record.ring, record.pending_condition = RegistrationHistory(), None
        record.generations, record.is_confirmed = generations, is_current
        if stored is None or not is_current:
            return record.pending_condition or conditions.awaiting_reconciliation(NODE_REGISTRATION_HEALTHY)
        if record.pending_condition is not None and record.pending_condition.status == stored.status:
            record.pending_condition = None
        return record.pending_condition or stored

    @staticmethod
    def _is_outdated(record: _HealthRecord, basis: tuple[int, int], *, current: bool) -> bool:
        """Whether the outcomes belong to earlier generations, or the stored condition was removed (API-652)."""
        if record.generations is None:
            return not current
        return record.generations != basis or (record.is_confirmed and not current)

    def _record_of(self, pool: NodePool) -> _HealthRecord:
        name, uid = pool.metadata.name, pool.metadata.uid
        record = self._by_pool.get(name)
        if record is None or record.uid != uid:
            record = self._by_pool[name] = _HealthRecord(
                uid, history_from_status(conditions.condition_status(pool.status.conditions, NODE_REGISTRATION_HEALTHY))
            )
        return record


def _is_owned_by(claim: NodeClaim, pool: NodePool) -> bool:
    """Whether this pool, identified by uid, owns the claim (OPS-061)."""
    owners = claim.metadata.owner_references
    return any(owner.kind == "NodePool" and owner.uid == pool.metadata.uid for owner in owners)


def _unhealthy_condition(claim: NodeClaim) -> Condition:
    launched = conditions.find_condition(claim.status.conditions, "Launched")
    if launched is None or launched.status == conditions.TRUE:
        reason, message = "RegistrationFailed", "Failed to register node"
    else:
        reason, message = launched.reason, launched.message
    return Condition(type=NODE_REGISTRATION_HEALTHY, status=conditions.FALSE, reason=reason, message=message)


_MAX_OUTCOMES = 4
_UNHEALTHY_FAILURES = 2


@dataclass(frozen=True, slots=True)
class RegistrationHistory:
    """The latest outcomes, oldest first: True for a registered claim, False for one that timed out."""

    outcomes: tuple[bool, ...] = ()

    def with_outcomes(self, *outcomes: bool) -> RegistrationHistory:
        """The history after these outcomes."""
        return RegistrationHistory((*self.outcomes, *outcomes)[-_MAX_OUTCOMES:])

    @property
    def condition_status(self) -> str:
        """The condition status: True if healthy, False if not, Unknown without any outcome."""
        if not self.outcomes:
            return UNKNOWN
        return FALSE if self.outcomes.count(False) >= _UNHEALTHY_FAILURES else TRUE


def history_from_status(status: str) -> RegistrationHistory:
    """The history a new process starts from, derived from the stored condition (API-651)."""
    match status:
        case "True":
            return RegistrationHistory((True,))
        case "False":
            return RegistrationHistory((False, False))
        case _:
            return RegistrationHistory()
