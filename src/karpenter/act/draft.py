"""A NodeClaim while one look at it lasts: steps change the draft, the end writes what differs.

Conditions are written against the version they were read at (API-608): another writer in between means looking again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime

import msgspec

from karpenter.act.patching import difference
from karpenter.act.world import World
from karpenter.api.karpenter import NodeClaim, NodeClaimStatus
from karpenter.api.kinds import NODE_CLAIM
from karpenter.api.meta import Condition, ObjectMeta
from karpenter.model import conditions

#: What is due sooner than that is due now, give or take what two clocks may differ: asking again at once could go on for ever.
_SHORTEST_SECONDS = 0.001


class Draft:
    """The claim as stored and as it should be. ``look_again_seconds`` is the soonest anybody asked for."""

    def __init__(self, claim: NodeClaim, now: datetime) -> None:
        self._stored = claim
        self.claim = claim
        self.now = now
        self.look_again_seconds: float | None = None
        self.errors: list[Exception] = []
        #: Its end was wished, and achieved: nothing else of it is written.
        self.gone = False
        self.given_up = False
        #: Name of the Node the machine just bought will register, where the cloud told it.
        self.expected_node = ""
        self._news: list[Callable[[], None]] = []
        if claim.status.conditions or claim.metadata.uid:
            self._put(conditions.initialise(claim.status.conditions, self._owner()))

    @property
    def name(self) -> str:
        """Name of the claim."""
        return self.claim.metadata.name

    @property
    def stored(self) -> NodeClaim:
        """The claim as it was read."""
        return self._stored

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
        self._put(conditions.observe(self.claim.status.conditions, self._owner()))

    def decide_anew(self, kind: str) -> None:
        """Set a condition back to where it was when the claim was new."""
        self._put(conditions.put(self.claim.status.conditions, conditions.awaiting(kind), self._owner()))

    def clear(self, kind: str) -> None:
        """Remove a condition that is not part of Ready."""
        self._put(conditions.clear(self.claim.status.conditions, kind, self._owner()))

    def status(self, status: NodeClaimStatus) -> None:
        """Replace the status."""
        self.claim = msgspec.structs.replace(self.claim, status=status)

    def merge_metadata(self, labels: Mapping[str, str], annotations: Mapping[str, str] = {}) -> None:
        """Add labels and annotations; of two values these win."""
        own = self.claim.metadata
        meta: ObjectMeta = msgspec.structs.replace(
            own, labels={**own.labels, **labels}, annotations={**own.annotations, **annotations}
        )
        self.claim = msgspec.structs.replace(self.claim, metadata=meta)

    def drop_annotations(self, keys: Iterable[str]) -> None:
        """Remove annotations."""
        own = self.claim.metadata
        dropped = frozenset(keys)
        kept = {key: value for key, value in own.annotations.items() if key not in dropped}
        self.claim = msgspec.structs.replace(self.claim, metadata=msgspec.structs.replace(own, annotations=kept))

    def look_again(self, seconds: float) -> None:
        """Ask for another look after this time at the latest."""
        wanted = max(_SHORTEST_SECONDS, seconds)
        known = self.look_again_seconds
        self.look_again_seconds = wanted if known is None else min(wanted, known)

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
