"""Which launches are known to come: NodeClaims that wait for an instance and have not been launched by this process yet.

The launcher keeps a purchase open for them (``request_batching``): a hundred NodeClaims that are created together are one
purchase then, also where the process is too busy to get to all of them within milliseconds.
"""

from __future__ import annotations

from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import EC2_NODE_CLASS


class ExpectedLaunches:
    """Follows NodeClaims by uid. A launch is expected once: what fails is retried at a time of its own."""

    def __init__(self) -> None:
        self._expected: set[str] = set()
        #: NodeClaims without instance whose launch has begun.
        self._begun: set[str] = set()

    def on_claim(self, old: NodeClaim | None, new: NodeClaim | None) -> None:
        """Informer handler: a NodeClaim was added, updated or deleted."""
        if old is not None and (new is None or old.metadata.uid != new.metadata.uid):
            self._forget(old.metadata.uid)
        if new is None:
            return
        uid = new.metadata.uid
        if not _waits(new):
            self._forget(uid)
        elif uid not in self._begun:
            self._expected.add(uid)

    def begin(self, uid: str) -> None:
        """The launch of this NodeClaim has begun, or was refused before it could."""
        self._begun.add(uid)
        self._expected.discard(uid)

    def has_more(self) -> bool:
        """Whether launches are to come."""
        return bool(self._expected)

    def _forget(self, uid: str) -> None:
        self._expected.discard(uid)
        self._begun.discard(uid)


def _waits(claim: NodeClaim) -> bool:
    is_ours = claim.spec.node_class_ref.kind == EC2_NODE_CLASS.name
    return is_ours and not claim.status.provider_id and claim.metadata.deletion_timestamp is None
