"""A NodeClaim while one look at it lasts: steps change the draft, the end writes what differs.

Conditions are written against the version they were read at (API-608): another writer in between means looking again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

import msgspec

from karpenter.act.patching import difference
from karpenter.act.world import World
from karpenter.api.karpenter import NodeClaim, NodeClaimStatus
from karpenter.api.kinds import NODE_CLAIM
from karpenter.api.meta import Condition, ObjectMeta
from karpenter.model import conditions


class Draft:
    """The claim as stored and as it should be. ``look_again_seconds`` is the soonest anybody asked for."""

    def __init__(self, claim: NodeClaim, now: datetime) -> None:
        self._stored = claim
        self.claim = claim
        self.now = now
        self.look_again_seconds: float | None = None
        self.errors: list[Exception] = []
        self.gone = False
        #: Name of the Node the machine just bought will register, where the cloud told it.
        self.expected_node = ""
        self._news: list[Callable[[], None]] = []
        if claim.status.conditions or claim.metadata.uid:
            self._put(conditions.initialise(claim.status.conditions, self._owner()))

    @property
    def name(self) -> str:
        """Name of the claim."""
        return self.claim.metadata.name

    def _owner(self) -> conditions.Owner:
        return conditions.owner(conditions.NODE_CLAIM, self.claim.metadata, self.now)

    def _put(self, changed: tuple[Condition, ...]) -> None:
        self.status(msgspec.structs.replace(self.claim.status, conditions=changed))

    def is_true(self, kind: str) -> bool:
        """Whether a condition is True."""
        return conditions.is_true(self.claim.status.conditions, kind)

    def condition(self, kind: str) -> Condition | None:
        """A condition, None when it was never set."""
        return conditions.find(self.claim.status.conditions, kind)

    def set(self, kind: str, status: str, reason: str = "", message: str = "") -> None:
        """Set a condition."""
        wish = Condition(type=kind, status=status, reason=reason, message=message)
        self._put(conditions.put(self.claim.status.conditions, wish, self._owner()))

    def refresh(self) -> None:
        """Let decided conditions of the life cycle observe the claim's generation (OPS-010, OPS-020); nothing else changes."""
        for kind in conditions.NODE_CLAIM.dependents:
            found = self.condition(kind)
            stale = found is not None and found.observed_generation != self.claim.metadata.generation
            if found is not None and stale and found.status != conditions.UNKNOWN:
                self.set(kind, found.status, found.reason, found.message)

    def clear(self, kind: str) -> None:
        """Remove a condition that is not part of Ready."""
        self._put(conditions.clear(self.claim.status.conditions, kind, self._owner()))

    def status(self, status: NodeClaimStatus) -> None:
        """Replace the status."""
        self.claim = msgspec.structs.replace(self.claim, status=status)

    def merge_metadata(self, labels: Mapping[str, str], annotations: Mapping[str, str]) -> None:
        """Replace labels and annotations."""
        meta: ObjectMeta = msgspec.structs.replace(self.claim.metadata, labels=labels, annotations=annotations)
        self.claim = msgspec.structs.replace(self.claim, metadata=meta)

    def look_again(self, seconds: float) -> None:
        """Ask for another look after this time at the latest."""
        sooner = self.look_again_seconds is None or seconds < self.look_again_seconds
        self.look_again_seconds = max(0.0, seconds) if sooner else self.look_again_seconds

    def announce(self, news: Callable[[], None]) -> None:
        """Say something (a log line) once what it is about has been written, and not again when the write is repeated."""
        self._news.append(news)

    async def write(self, world: World) -> str:
        """Write metadata, then status, where they differ; the resource version written, empty if there was nothing to write."""
        version = self._stored.metadata.resource_version
        written = ""
        meta = difference(self._stored.metadata, self.claim.metadata)
        if meta:
            stored = await world.kube.patch(NODE_CLAIM, self.name, {"metadata": meta}, resource_version=version)
            version = written = stored.metadata.resource_version
        status = difference(self._stored.status, self.claim.status)
        if status:
            stored = await world.kube.patch(
                NODE_CLAIM, self.name, {"status": status}, subresource="status", resource_version=version
            )
            written = stored.metadata.resource_version
        for news in self._news:
            news()
        return written
