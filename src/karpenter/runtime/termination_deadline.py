"""The end of a drain, as an annotation of the NodeClaim: writers may only tighten it (K15-016)."""

from __future__ import annotations

from datetime import datetime

from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE_CLAIM
from karpenter.kube.errors import Conflict
from karpenter.kube.protocol import JsonObject, Kube
from karpenter.model import labels
from karpenter.model.clock import parse_annotation_time, rfc3339

_MAX_ATTEMPTS = 3


def is_tighter(claim: NodeClaim, deadline: datetime) -> bool:
    """Whether the deadline is before that of the claim, which may have none, or one that cannot be parsed."""
    current = parse_annotation_time(claim.metadata.annotations.get(labels.TERMINATION_TIMESTAMP, ""))
    return current is None or deadline < current


async def tighten_deadline(kube: Kube, claim: NodeClaim, deadline: datetime) -> bool:
    """Write the deadline unless the claim has one that is not later; whether it was written. Raises ``KubeError``."""
    name = claim.metadata.name
    text = rfc3339(deadline)
    patch: JsonObject = {"metadata": {"annotations": {labels.TERMINATION_TIMESTAMP: text}}}
    for _ in range(_MAX_ATTEMPTS):
        if not is_tighter(claim, deadline):
            return False
        try:
            await kube.patch(NODE_CLAIM, name, patch, resource_version=claim.metadata.resource_version)
            return True
        except Conflict:
            claim = await kube.get(NODE_CLAIM, name)
    raise Conflict(f"nodeclaim {name} keeps changing")
