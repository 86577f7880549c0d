"""Which launches are known to come: NodeClaims that wait for an instance and have not been launched by this process yet.

The launcher keeps a batch open for them (``request_batching``): a hundred NodeClaims that are created together are one
batch then, also where the process is too busy to get to all of them within milliseconds.

An expectation ends after 30 seconds. A NodeClaim may never come to its launch, or not soon: what precedes the launch fails, or
all workers of its controller wait for launches. It would lengthen every launch of others for as long as it exists.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import EC2_NODE_CLASS

#: How long the launch of a NodeClaim is expected after the NodeClaim was first seen.
EXPECTED_FOR = timedelta(seconds=30)


class ExpectedLaunches:
    """Follows NodeClaims by uid. A launch is expected once: what fails is retried at a time of its own."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        #: NodeClaims that exist and have no instance, by uid: until when their launch is expected, None once it has begun.
        self._waiting: dict[str, datetime | None] = {}

    def on_claim(self, old: NodeClaim | None, new: NodeClaim | None) -> None:
        """Informer handler: a NodeClaim was added, updated or deleted."""
        if old is not None and (new is None or old.metadata.uid != new.metadata.uid):
            self._forget(old.metadata.uid)
        if new is None:
            return
        uid = new.metadata.uid
        if not _waits(new):
            self._forget(uid)
        elif uid not in self._waiting:
            self._waiting[uid] = self._now() + EXPECTED_FOR

    def begin(self, uid: str) -> None:
        """The launch of this NodeClaim has begun, or was refused before it could. One that is gone is not remembered."""
        if uid in self._waiting:
            self._waiting[uid] = None

    def has_more(self) -> bool:
        """Whether launches are to come."""
        now = self._now()
        return any(until is not None and now < until for until in self._waiting.values())

    def _forget(self, uid: str) -> None:
        self._waiting.pop(uid, None)


def _waits(claim: NodeClaim) -> bool:
    is_ours = claim.spec.node_class_ref.kind == EC2_NODE_CLASS.name
    return is_ours and not claim.status.provider_id and claim.metadata.deletion_timestamp is None
