"""Zones the cluster keeps away from, because somebody shifts it away from them in AWS (AWS §13.3).

Every answer replaces all that was known: a shift that is taken back early is over at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime

import structlog

from karpenter.api.karpenter import NodePool
from karpenter.api.kinds import NODE_POOL
from karpenter.model import labels
from karpenter.model.clock import Clock
from karpenter.model.requirements import requirements_from_labels, requirements_from_wire
from karpenter.providers.aws import aws_labels
from karpenter.providers.aws.aws_apis import ZonalShiftApi
from karpenter.providers.aws.aws_context import AwsClusterView, AwsEventRecorder
from karpenter.providers.aws.aws_errors import AwsError
from karpenter.providers.contract import ProviderError

_PERIOD_SECONDS = 30.0
_APPLIED = "APPLIED"
_log = structlog.get_logger()


class ZonalShiftController:
    """The loop over the shifts of one cluster, by its ARN."""

    def __init__(
        self, arn: str, zonal_shift: ZonalShiftApi, cluster_view: AwsClusterView, events: AwsEventRecorder, clock: Clock
    ) -> None:
        self._arn = arn
        self._zonal_shift = zonal_shift
        self._cluster_view = cluster_view
        self._events = events
        self._clock = clock
        self._shifted_until: Mapping[str, datetime | None] = {}
        self._reported: frozenset[str] = frozenset()

    def shifted_zone_ids(self) -> frozenset[str]:
        """The ids of zones the cluster is shifted away from now (AWS-615)."""
        now = self._clock.now()
        return frozenset(zone for zone, until in self._shifted_until.items() if until is None or until > now)

    async def hydrate(self) -> None:
        """Know before the first launch. When AWS does not tell, no zone counts as shifted (AWS-618).

        Nobody is told yet: there are no watches to say which pools are concerned. The first look tells.
        """
        try:
            await self._read()
        except ProviderError as error:
            _log.error("failed hydrating zonal shifts", error=str(error))

    async def reconcile(self) -> float:
        """Ask, and tell NodePools what has changed for them; seconds until the next round. Raises ``ProviderError``.

        After a fault what was known stays.
        """
        await self._read()
        self._record_changes()
        return _PERIOD_SECONDS

    async def _read(self) -> None:
        try:
            shifts = await self._zonal_shift.get_managed_resource(self._arn)
        except AwsError as error:
            raise ProviderError(f"zonal shifts cannot be read: {error}") from error
        self._shifted_until = {
            shift.away_from: shift.expiry_time for shift in shifts if shift.applied_status == _APPLIED
        }

    def _record_changes(self) -> None:
        now = self.shifted_zone_ids()
        for zone_id in sorted(now - self._reported):
            for pool, zone in self._affected_pools(zone_id):
                text = f"Zone {zone} ({zone_id}) is shifted away from: nothing is launched there"
                self._events.warning(NODE_POOL, pool.metadata, "ZonalShiftActive", text)
        for zone_id in sorted(self._reported - now):
            for pool, zone in self._affected_pools(zone_id):
                text = f"Zone {zone} ({zone_id}) is not shifted away from any more"
                self._events.normal(NODE_POOL, pool.metadata, "ZonalShiftCleared", text)
        self._reported = now

    def _affected_pools(self, zone_id: str) -> Iterator[tuple[NodePool, str]]:
        """Pools that can use a zone, and how they call it (AWS-617)."""
        for pool in self._cluster_view.pools():
            node_class = self._cluster_view.node_class_named(pool.spec.template.spec.node_class_ref.name)
            subnets = node_class.status.subnets if node_class is not None else ()
            zone = next((subnet.zone for subnet in subnets if subnet.zone_id == zone_id), "")
            if zone and _allows(pool, zone, zone_id):
                yield pool, zone


def _allows(pool: NodePool, zone: str, zone_id: str) -> bool:
    template = pool.spec.template
    requirements = requirements_from_wire(template.spec.requirements).intersect(
        requirements_from_labels(template.metadata.labels)
    )
    return requirements.requirement_for(labels.ZONE).allows(zone) and requirements.requirement_for(
        aws_labels.ZONE_ID
    ).allows(zone_id)
