"""Debug lines about devices that ResourceClaims take and give back (K15-176)."""

from __future__ import annotations

import structlog

from karpenter.api.resource_claims import ResourceClaim

_log = structlog.get_logger()


def log_tracked_devices(old: ResourceClaim | None, new: ResourceClaim | None) -> None:
    """A ResourceClaim changed: which devices it has taken and given back, and which it has now, each as driver/pool/device."""
    claim = new or old
    before, now = _devices_of(old), _devices_of(new)
    if claim is None or before == now:
        return
    _log.debug(
        "updated tracked devices for claim",
        ResourceClaim={"name": claim.metadata.name, "namespace": claim.metadata.namespace},
        added=sorted(now - before),
        removed=sorted(before - now),
        tracked=sorted(now),
    )


def _devices_of(claim: ResourceClaim | None) -> frozenset[str]:
    """The devices that a claim holds; with admin access it holds none."""
    allocation = claim.status.allocation if claim is not None else None
    results = allocation.devices.results if allocation is not None else ()
    return frozenset(f"{one.driver}/{one.pool}/{one.device}" for one in results if not one.admin_access)
