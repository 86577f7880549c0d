"""Deletion of one particular object, not of a later one with its name."""

from __future__ import annotations

from karpenter.api.kinds import Kind
from karpenter.api.meta import ObjectMeta
from karpenter.kube.errors import Conflict, NotFound
from karpenter.kube.protocol import T, Writer


async def delete_if_present(
    kube: Writer, kind: Kind[T], metadata: ObjectMeta, grace_period_seconds: int | None = None
) -> bool:
    """Delete the object with this UID. Returns False if it is gone, also if another object has its name. Raises ``KubeError``."""
    try:
        await kube.delete(
            kind, metadata.name, metadata.namespace, uid=metadata.uid, grace_period_seconds=grace_period_seconds
        )
    except (NotFound, Conflict):
        return False
    return True
