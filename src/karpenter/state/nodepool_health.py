"""Registration health of NodePools: outcomes are noted at once, the condition is written by whoever writes the pool's status.

Noting never waits and never fails, so no outcome is lost to a conflict and no claim waits for its pool (OPS-054, OPS-062). A pool
whose spec or node class changed starts anew: what failed before says nothing about it (API-652).
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
    """What is known of one pool: ``verdict`` waits to be seen in its status, ``basis`` are the generations of pool and class.

    ``settled``: the stored condition has been seen to belong to that basis.
    """

    uid: str
    ring: RegistrationHistory
    pending_condition: Condition | None = None
    generations: tuple[int, int] | None = None
    is_confirmed: bool = False


class NodePoolHealth:
    """The latest outcomes of every pool (OPS-060). In memory: a new process starts from the conditions the last one left."""

    def __init__(self) -> None:
        self._by_pool: dict[str, _HealthRecord] = {}

    def record_success(self, claim: NodeClaim, pool: NodePool | None) -> None:
        """The claim's Node registered."""
        if pool is None or not _is_owned_by(claim, pool):
            return
        known = self._record_of(pool)
        known.ring = known.ring.with_outcomes(True)
        if known.ring.condition_status == conditions.TRUE:
            known.pending_condition = Condition(type=NODE_REGISTRATION_HEALTHY, status=conditions.TRUE)

    def record_failure(self, claim: NodeClaim, pool: NodePool | None) -> None:
        """The claim was given up because it did not launch or register in time."""
        if pool is None or not _is_owned_by(claim, pool):
            return
        known = self._record_of(pool)
        known.ring = known.ring.with_outcomes(False)
        if known.ring.condition_status == conditions.FALSE:
            known.pending_condition = _unhealthy_condition(claim)

    def forget(self, name: str) -> None:
        """The pool is gone."""
        self._by_pool.pop(name, None)

    def condition(self, pool: NodePool, class_generation: int) -> Condition:
        """The condition the pool should have now: the latest verdict until that is stored, then what is stored (API-653 f.)."""
        known = self._record_of(pool)
        stored = conditions.find_condition(pool.status.conditions, NODE_REGISTRATION_HEALTHY)
        basis = (pool.metadata.generation, class_generation)
        current = stored is not None and basis == (
            stored.observed_generation,
            pool.status.node_class_observed_generation,
        )
        if self._is_outdated(known, basis, current=current):
            known.ring, known.pending_condition = RegistrationHistory(), None
        known.generations, known.is_confirmed = basis, current
        if stored is None or not current:
            return known.pending_condition or conditions.awaiting_reconciliation(NODE_REGISTRATION_HEALTHY)
        if known.pending_condition is not None and known.pending_condition.status == stored.status:
            known.pending_condition = None
        return known.pending_condition or stored

    @staticmethod
    def _is_outdated(record: _HealthRecord, basis: tuple[int, int], *, current: bool) -> bool:
        """Whether the outcomes are about another pool or class than today's, or somebody took the condition away (API-652)."""
        if record.generations is None:
            return not current
        return record.generations != basis or (record.is_confirmed and not current)

    def _record_of(self, pool: NodePool) -> _HealthRecord:
        name, uid = pool.metadata.name, pool.metadata.uid
        known = self._by_pool.get(name)
        if known is None or known.uid != uid:
            known = self._by_pool[name] = _HealthRecord(
                uid, history_from_status(conditions.condition_status(pool.status.conditions, NODE_REGISTRATION_HEALTHY))
            )
        return known


def _is_owned_by(claim: NodeClaim, pool: NodePool) -> bool:
    """Whether the claim is of this very pool (OPS-061)."""
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
    """The latest outcomes, oldest first: True for a machine that registered, False for one given up."""

    outcomes: tuple[bool, ...] = ()

    def with_outcomes(self, *outcomes: bool) -> RegistrationHistory:
        """The ring after these outcomes."""
        return RegistrationHistory((*self.outcomes, *outcomes)[-_MAX_OUTCOMES:])

    @property
    def condition_status(self) -> str:
        """As the status of a condition: True is healthy, False is not, Unknown without any outcome."""
        if not self.outcomes:
            return UNKNOWN
        return FALSE if self.outcomes.count(False) >= _UNHEALTHY_FAILURES else TRUE


def history_from_status(status: str) -> RegistrationHistory:
    """The ring a new process starts from, by the condition the last one left (API-651)."""
    match status:
        case "True":
            return RegistrationHistory((True,))
        case "False":
            return RegistrationHistory((False, False))
        case _:
            return RegistrationHistory()
