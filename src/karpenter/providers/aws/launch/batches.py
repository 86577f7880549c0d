"""Who is in which purchase: the identity of a batch, and the shares of its claims in what was bought (AWS-750). Pure.

The protocol is told in ``launcher``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from karpenter.api.karpenter import NodeClaim
from karpenter.providers.aws import facts, names

_HASH_LENGTH = 32


def batch_of(claim: NodeClaim) -> str:
    """The purchase a claim last took part in, empty where it never did."""
    return claim.metadata.annotations.get(names.BATCH, "")


def batch_id(claims: Iterable[NodeClaim]) -> str:
    """The identity of the next purchase of these claims.

    It follows from who they are and which purchase each took part in before, so it is new whenever a purchase is, and the same
    when nothing came of the attempt to write it down. EC2 takes 64 characters of it.
    """
    parts = sorted(f"{claim.metadata.uid}={batch_of(claim)}" for claim in claims)
    return f"b-{hashlib.sha256('|'.join(parts).encode()).hexdigest()[:_HASH_LENGTH]}"


@dataclass(frozen=True)
class Shares:
    """The living claims of a batch that have no machine yet, and the instances that are other claims' already."""

    claims: tuple[NodeClaim, ...]
    taken: frozenset[str]


def shares(batch: str, claims: Iterable[NodeClaim], asking: str) -> Shares:
    """Who is still owed a machine of the batch; ``asking`` is the uid of one whose provider ID does not count."""
    owed: list[NodeClaim] = []
    taken: set[str] = set()
    for claim in claims:
        is_asking = claim.metadata.uid == asking
        if claim.status.provider_id and not is_asking:
            taken.add(_instance(claim))
        elif batch_of(claim) == batch and claim.metadata.deletion_timestamp is None:
            owed.append(claim)
    return Shares(tuple(sorted(owed, key=lambda claim: claim.metadata.uid)), frozenset(taken))


def unsettled(claims: Iterable[NodeClaim]) -> frozenset[str]:
    """Batches somebody is still owed a machine of: their instances are nobody's garbage."""
    return frozenset(
        batch_of(claim)
        for claim in claims
        if claim.metadata.deletion_timestamp is None and not claim.status.provider_id and batch_of(claim)
    )


def deal(owed: Iterable[NodeClaim], free: Iterable[str]) -> Mapping[str, str]:
    """Instance per claim uid, one each, in the order given."""
    return {claim.metadata.uid: instance for claim, instance in zip(owed, free, strict=False)}


def _instance(claim: NodeClaim) -> str:
    try:
        return facts.instance_id(claim.status.provider_id)
    except facts.BadProviderId:
        return ""
