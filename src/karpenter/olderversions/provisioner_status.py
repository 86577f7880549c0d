"""What a Provisioner's status says of the nodes of its NodePool (API-856)."""

from __future__ import annotations

from datetime import datetime

import msgspec

from karpenter.api.meta import WireResources
from karpenter.api.older_kinds import OlderStatus
from karpenter.model import resources as res


def with_pool_resources(status: OlderStatus, resources: WireResources, now: datetime) -> OlderStatus:
    """The status with the pool's resources; ``lastScaleTime`` is ``now`` where the number of nodes has changed.

    The number of nodes is kept in the status, so a new leader sees a change that happened before it led.
    """
    has_scaled = _nodes(status.resources) != _nodes(resources)
    last_scale_time = now.replace(microsecond=0) if has_scaled else status.last_scale_time
    return msgspec.structs.replace(status, resources=resources, last_scale_time=last_scale_time)


def _nodes(resources: WireResources) -> str:
    return str(resources.get(res.NODES, "0"))
