"""Registration health of NodePools: outcomes are noted at once, the condition is written by whoever writes the pool's status.

Noting never waits and never fails, so no outcome is lost to a conflict and no claim waits for its pool (OPS-054, OPS-062). A pool
whose spec or node class changed starts anew: what failed before says nothing about it (API-652).
"""

from __future__ import annotations

from dataclasses import dataclass

from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.meta import Condition
from karpenter.model import conditions
from karpenter.model.registrations import Ring, seeded

TYPE = "NodeRegistrationHealthy"


@dataclass
class _Known:
    """What is known of one pool: ``verdict`` waits to be seen in its status, ``basis`` are the generations of pool and class.

    ``settled``: the stored condition has been seen to belong to that basis.
    """

    uid: str
    ring: Ring
    verdict: Condition | None = None
    basis: tuple[int, int] | None = None
    settled: bool = False


class Registrations:
    """The latest outcomes of every pool (OPS-060). In memory: a new process starts from the conditions the last one left."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def succeeded(self, claim: NodeClaim, pool: NodePool | None) -> None:
        """The claim's Node registered."""
        if pool is None or not _belongs(claim, pool):
            return
        known = self._of(pool)
        known.ring = known.ring.then(True)
        if known.ring.status == conditions.TRUE:
            known.verdict = Condition(type=TYPE, status=conditions.TRUE)

    def failed(self, claim: NodeClaim, pool: NodePool | None) -> None:
        """The claim was given up because it did not launch or register in time."""
        if pool is None or not _belongs(claim, pool):
            return
        known = self._of(pool)
        known.ring = known.ring.then(False)
        if known.ring.status == conditions.FALSE:
            known.verdict = _unhealthy(claim)

    def forget(self, name: str) -> None:
        """The pool is gone."""
        self._known.pop(name, None)

    def condition(self, pool: NodePool, class_generation: int) -> Condition:
        """The condition the pool should have now: the latest verdict until that is stored, then what is stored (API-653 f.)."""
        known = self._of(pool)
        stored = conditions.find(pool.status.conditions, TYPE)
        basis = (pool.metadata.generation, class_generation)
        current = stored is not None and basis == (
            stored.observed_generation,
            pool.status.node_class_observed_generation,
        )
        if self._is_outdated(known, basis, current=current):
            known.ring, known.verdict = Ring(), None
        known.basis, known.settled = basis, current
        if stored is None or not current:
            return known.verdict or conditions.awaiting(TYPE)
        if known.verdict is not None and known.verdict.status == stored.status:
            known.verdict = None
        return known.verdict or stored

    @staticmethod
    def _is_outdated(known: _Known, basis: tuple[int, int], *, current: bool) -> bool:
        """Whether the outcomes are about another pool or class than today's, or somebody took the condition away (API-652)."""
        if known.basis is None:
            return not current
        return known.basis != basis or (known.settled and not current)

    def _of(self, pool: NodePool) -> _Known:
        name, uid = pool.metadata.name, pool.metadata.uid
        known = self._known.get(name)
        if known is None or known.uid != uid:
            known = self._known[name] = _Known(uid, seeded(conditions.status(pool.status.conditions, TYPE)))
        return known


def _belongs(claim: NodeClaim, pool: NodePool) -> bool:
    """Whether the claim is of this very pool (OPS-061)."""
    owners = claim.metadata.owner_references
    return any(owner.kind == "NodePool" and owner.uid == pool.metadata.uid for owner in owners)


def _unhealthy(claim: NodeClaim) -> Condition:
    launched = conditions.find(claim.status.conditions, "Launched")
    if launched is None or launched.status == conditions.TRUE:
        reason, message = "RegistrationFailed", "Failed to register node"
    else:
        reason, message = launched.reason, launched.message
    return Condition(type=TYPE, status=conditions.FALSE, reason=reason, message=message)
