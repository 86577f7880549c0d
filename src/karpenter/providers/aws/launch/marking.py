"""Writing a purchase's identity on the claims it is for, before anything is bought."""

from __future__ import annotations

from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE_CLAIM
from karpenter.kube.errors import Conflict, KubeError, NotFound
from karpenter.kube.protocol import Kube
from karpenter.providers.aws import names
from karpenter.providers.aws.launch.batches import batch_of
from karpenter.providers.contract import ProviderError

#: A claim is also written by those who look after it; so often we read it again before the next look has to.
_ATTEMPTS = 5


class Changed(Exception):
    """The claim takes part in another purchase than we knew. ``claim`` is what it is now."""

    def __init__(self, claim: NodeClaim) -> None:
        super().__init__(claim.metadata.name)
        self.claim = claim


async def mark(kube: Kube, claim: NodeClaim, batch: str) -> NodeClaim:
    """Write the batch on a claim, against the version it was read at, so that no other purchase of it is overwritten.

    Raises ``Changed``; ``ProviderError`` for a claim that is gone, going, has a machine, or cannot be written.
    """
    name = claim.metadata.name
    patch = {"metadata": {"annotations": {names.BATCH: batch}}}
    current = claim
    for _ in range(_ATTEMPTS):
        try:
            return await kube.patch(NODE_CLAIM, name, patch, resource_version=current.metadata.resource_version)
        except Conflict:
            current = await read(kube, claim)
        except KubeError as error:
            raise ProviderError(f"writing the launch of claim {name} down, {error}") from error
        if batch_of(current) != batch_of(claim):
            raise Changed(current)
    raise ProviderError(f"claim {name} changes all the time")


async def read(kube: Kube, claim: NodeClaim) -> NodeClaim:
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
        raise ProviderError(f"claim {name} has a machine already")
    return current
