"""The identity of a batch, and which instance of it each claim gets (AWS-750). Pure.

``fleet_launcher`` explains the protocol.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE_CLAIM
from karpenter.kube.errors import Conflict, KubeError, NotFound
from karpenter.kube.protocol import Kube
from karpenter.providers.aws import aws_labels
from karpenter.providers.aws.instance import instance_info
from karpenter.providers.contract import ProviderError

_HASH_LENGTH = 32


def batch_of_claim(claim: NodeClaim) -> str:
    """The batch a claim last took part in, empty where it never did."""
    return claim.metadata.annotations.get(aws_labels.LAUNCH_BATCH, "")


def batch_id(claims: Iterable[NodeClaim]) -> str:
    """The identity of the next batch of these claims.

    It is a hash of their uids and of the batch each took part in before. So each new batch gets a new identity, and a failed
    attempt to write the identity gives the same one again. EC2 accepts up to 64 characters.
    """
    parts = sorted(f"{claim.metadata.uid}={batch_of_claim(claim)}" for claim in claims)
    return f"b-{hashlib.sha256('|'.join(parts).encode()).hexdigest()[:_HASH_LENGTH]}"


@dataclass(frozen=True)
class BatchClaims:
    """The claims of a batch that are not being deleted and have no instance yet, and the instance ids that other claims hold."""

    owed: tuple[NodeClaim, ...]
    taken_instance_ids: frozenset[str]


def batch_claims(batch: str, claims: Iterable[NodeClaim], asking_uid: str) -> BatchClaims:
    """The claims still owed an instance of the batch; the provider ID of the claim with ``asking_uid`` is ignored."""
    owed: list[NodeClaim] = []
    owned: set[str] = set()
    for claim in claims:
        is_asking = claim.metadata.uid == asking_uid
        if claim.status.provider_id and not is_asking:
            owned.add(_claimed_instance_id(claim))
        elif batch_of_claim(claim) == batch and claim.metadata.deletion_timestamp is None:
            owed.append(claim)
    return BatchClaims(tuple(sorted(owed, key=lambda claim: claim.metadata.uid)), frozenset(owned))


def unsettled_batches(claims: Iterable[NodeClaim]) -> frozenset[str]:
    """Batches in which a claim still waits for its instance: garbage collection keeps all their instances."""
    return frozenset(
        batch_of_claim(claim)
        for claim in claims
        if claim.metadata.deletion_timestamp is None and not claim.status.provider_id and batch_of_claim(claim)
    )


def assign_instances(owed: Iterable[NodeClaim], instance_ids: Iterable[str]) -> Mapping[str, str]:
    """Instance per claim uid, one each, in the order given."""
    return {claim.metadata.uid: instance for claim, instance in zip(owed, instance_ids, strict=False)}


def _claimed_instance_id(claim: NodeClaim) -> str:
    try:
        return instance_info.parse_instance_id(claim.status.provider_id)
    except instance_info.InvalidProviderId:
        return ""


#: Other controllers write the claim as well: after so many conflicts the write is left to the next reconcile.
_MARK_ATTEMPTS = 5


class BatchChanged(Exception):
    """The claim takes part in another batch than we knew. ``claim`` is what it is now."""

    def __init__(self, claim: NodeClaim) -> None:
        super().__init__(claim.metadata.name)
        self.claim = claim


async def mark_claim(kube: Kube, claim: NodeClaim, batch: str) -> NodeClaim:
    """Write the batch on a claim, against the version it was read at, so that no other batch of it is overwritten.

    Raises ``BatchChanged``; ``ProviderError`` for a claim that is gone, going, has an instance, or cannot be written.
    """
    name = claim.metadata.name
    patch = {"metadata": {"annotations": {aws_labels.LAUNCH_BATCH: batch}}}
    current = claim
    for _ in range(_MARK_ATTEMPTS):
        try:
            return await kube.patch(NODE_CLAIM, name, patch, resource_version=current.metadata.resource_version)
        except Conflict:
            current = await read_claim(kube, claim)
        except KubeError as error:
            raise ProviderError(f"writing the launch of claim {name} down, {error}") from error
        if batch_of_claim(current) != batch_of_claim(claim):
            raise BatchChanged(current)
    raise ProviderError(f"claim {name} changes all the time")


async def read_claim(kube: Kube, claim: NodeClaim) -> NodeClaim:
    """The claim as it is stored. Raises ``ProviderError`` where it is not to be launched any more."""
    name = claim.metadata.name
    try:
        current = await kube.get(NODE_CLAIM, name)
    except NotFound as error:
        raise ProviderError(f"claim {name} is gone") from error
    except KubeError as error:
        raise ProviderError(f"reading claim {name}, {error}") from error
    if current.metadata.uid != claim.metadata.uid:
        raise ProviderError(f"claim {name} is gone, and another of its name is there")
    if current.metadata.deletion_timestamp is not None:
        raise ProviderError(f"claim {name} is being deleted")
    if current.status.provider_id != claim.status.provider_id:
        raise ProviderError(f"claim {name} has an instance already")
    return current
