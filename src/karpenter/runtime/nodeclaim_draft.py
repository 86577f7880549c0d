"""A NodeClaim during one reconcile: steps change the draft, the end writes what differs.

Conditions are written against the version they were read at (API-608): another writer in between means another reconcile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime

import msgspec

from karpenter.api.karpenter import NodeClaim, NodeClaimStatus
from karpenter.api.kinds import NODE_CLAIM
from karpenter.api.meta import Condition, ObjectMeta
from karpenter.kube.protocol import Kube
from karpenter.model import conditions
from karpenter.runtime.patching import merge_patch

#: What is due sooner than that is due now, give or take what two clocks may differ: asking again at once could go on for ever.
_MIN_REQUEUE_SECONDS = 0.001


class NodeClaimDraft:
    """The claim as stored and as it should be. ``requeue_after_seconds`` is the shortest requested requeue."""

    def __init__(self, claim: NodeClaim, now: datetime) -> None:
        self._stored = claim
        self.claim = claim
        self.now = now
        self.requeue_after_seconds: float | None = None
        self.errors: list[Exception] = []
        #: Its deletion was requested and succeeded: no other change of it is written.
        self.is_deleted = False
        self.was_deleted_here = False
        #: Name of the Node that the new instance registers, where the cloud provides it.
        self.expected_node_name = ""
        self._after_write: list[Callable[[], None]] = []
        if claim.status.conditions or claim.metadata.uid:
            self._set_conditions(conditions.with_missing_conditions(claim.status.conditions, self._owner()))

    @property
    def name(self) -> str:
        """Name of the claim."""
        return self.claim.metadata.name

    @property
    def stored(self) -> NodeClaim:
        """The claim as it was read."""
        return self._stored

    def _owner(self) -> conditions.ConditionedObject:
        return conditions.conditioned_object(conditions.NODE_CLAIM, self.claim.metadata, self.now)

    def _set_conditions(self, new_conditions: tuple[Condition, ...]) -> None:
        self.set_status(msgspec.structs.replace(self.claim.status, conditions=new_conditions))

    def is_true(self, condition_type: str) -> bool:
        """Whether a condition is True."""
        return conditions.is_true(self.claim.status.conditions, condition_type)

    def condition(self, condition_type: str) -> Condition | None:
        """A condition, None when it was never set."""
        return conditions.find_condition(self.claim.status.conditions, condition_type)

    def set_condition(self, condition_type: str, status: str, reason: str = "", message: str = "") -> None:
        """Set a condition."""
        condition = Condition(type=condition_type, status=status, reason=reason, message=message)
        self._set_conditions(conditions.set_condition(self.claim.status.conditions, condition, self._owner()))

    def observe_generation(self) -> None:
        """Let decided conditions of the life cycle observe the claim's generation (OPS-010, OPS-020); nothing else changes."""
        self._set_conditions(conditions.observe_generation(self.claim.status.conditions, self._owner()))

    def reset_condition(self, condition_type: str) -> None:
        """Set a condition back to where it was when the claim was new."""
        self._set_conditions(
            conditions.set_condition(
                self.claim.status.conditions, conditions.awaiting_reconciliation(condition_type), self._owner()
            )
        )

    def clear_condition(self, condition_type: str) -> None:
        """Remove a condition that is not part of Ready."""
        self._set_conditions(conditions.clear(self.claim.status.conditions, condition_type, self._owner()))

    def set_status(self, status: NodeClaimStatus) -> None:
        """Replace the status."""
        self.claim = msgspec.structs.replace(self.claim, status=status)

    def merge_metadata(self, labels: Mapping[str, str], annotations: Mapping[str, str] = {}) -> None:
        """Add labels and annotations; of two values these win."""
        own = self.claim.metadata
        meta: ObjectMeta = msgspec.structs.replace(
            own, labels={**own.labels, **labels}, annotations={**own.annotations, **annotations}
        )
        self.claim = msgspec.structs.replace(self.claim, metadata=meta)

    def remove_annotations(self, keys: Iterable[str]) -> None:
        """Remove annotations."""
        own = self.claim.metadata
        dropped = frozenset(keys)
        kept = {key: value for key, value in own.annotations.items() if key not in dropped}
        self.claim = msgspec.structs.replace(self.claim, metadata=msgspec.structs.replace(own, annotations=kept))

    def requeue_after(self, seconds: float) -> None:
        """Ask for another reconcile after this time at the latest."""
        wanted = max(_MIN_REQUEUE_SECONDS, seconds)
        requeue = self.requeue_after_seconds
        self.requeue_after_seconds = wanted if requeue is None else min(wanted, requeue)

    def after_write(self, callback: Callable[[], None]) -> None:
        """Say something (a log line) once what it is about has been written, and not again when the write is repeated."""
        self._after_write.append(callback)

    async def write(self, kube: Kube) -> str:
        """Write metadata, then status, where they differ; the resource version written, empty if there was nothing to write."""
        version = self._stored.metadata.resource_version
        written = ""
        meta = merge_patch(self._stored.metadata, self.claim.metadata)
        if meta:
            stored = await kube.patch(NODE_CLAIM, self.name, {"metadata": meta}, resource_version=version)
            version = written = stored.metadata.resource_version
        status = merge_patch(self._stored.status, self.claim.status)
        if status:
            stored = await kube.patch(
                NODE_CLAIM, self.name, {"status": status}, subresource="status", resource_version=version
            )
            written = stored.metadata.resource_version
        for news in self._after_write:
            news()
        return written
