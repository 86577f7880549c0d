"""The controllers of what AWS reports: the interruption queue, instance status, zonal shifts (AWS §§13.3, 14.1, 14.2).

A message leaves the queue once it is handled, or cannot be parsed. One whose handling failed stays there and is received again
after twenty seconds, until the queue drops it (five minutes as the stack sets it up, AWS-730). Nothing that a message announces
waits longer. Each answer about zonal shifts replaces all that was known, so a shift that is taken back early ends at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

import structlog

from karpenter.api.karpenter import NodePool
from karpenter.api.kinds import NODE_POOL
from karpenter.model import labels
from karpenter.model.clock import Clock
from karpenter.model.requirements import requirements_from_labels, requirements_from_wire
from karpenter.providers.aws import aws_labels
from karpenter.providers.aws.aws_apis import InstanceApi, SqsApi, ZonalShiftApi
from karpenter.providers.aws.aws_context import AwsClusterView, AwsEventRecorder
from karpenter.providers.aws.aws_errors import AwsError
from karpenter.providers.aws.aws_metrics import InterruptionMetrics
from karpenter.providers.aws.aws_types import Ec2Filter, SqsMessage
from karpenter.providers.aws.ec2_descriptions import InstanceStatus, StatusSummary
from karpenter.providers.aws.interruption.interruption_handling import InterruptionHandler, gather_all
from karpenter.providers.aws.interruption.interruption_messages import (
    InterruptionKind,
    InterruptionMessage,
    MalformedInterruptionMessage,
    parse_interruption_message,
)
from karpenter.providers.contract import ProviderError

_log = structlog.get_logger()


class InterruptionQueueController:
    """The loop over one queue, by its name."""

    def __init__(
        self, name: str, sqs: SqsApi, handler: InterruptionHandler, metrics: InterruptionMetrics, clock: Clock
    ) -> None:
        self._name = name
        self._sqs = sqs
        self._handler = handler
        self._metrics = metrics
        self._clock = clock
        self._url = ""

    async def reconcile(self) -> float:
        """Wait for messages, up to twenty seconds, and handle them concurrently; 0: the next round may begin at once.

        Raises ``ProviderError`` where the queue cannot be reached, and what the first message that failed raised, once all others
        are dealt with.
        """
        messages = await self._receive()
        await gather_all(self._handle_message(message) for message in messages)
        return 0.0

    async def _receive(self) -> tuple[SqsMessage, ...]:
        """AWS-640. A queue that is gone is looked up again, because a new one of its name may have another URL."""
        try:
            if not self._url:
                self._url = await self._sqs.get_queue_url(self._name)
                _log.info("watching interruption queue", queue=self._name)
            return await self._sqs.receive_messages(self._url)
        except AwsError as error:
            if not error.is_not_found:
                raise ProviderError(f"the interruption queue {self._name} cannot be read: {error}") from error
            self._url = ""
            advice = "create it, or correct --interruption-queue"
            raise ProviderError(f"there is no interruption queue {self._name}: {error}; {advice}") from error

    async def _handle_message(self, message: SqsMessage) -> None:
        notice = self._parse(message)
        if notice is None:
            await self._delete(message)
            return
        self._metrics.received_messages_total.labels(message_type=str(notice.kind)).inc()
        await self._handler.handle(notice)
        if notice.start_time is not None:
            late = (self._clock.now() - notice.start_time).total_seconds()
            self._metrics.message_queue_duration_seconds.observe(late)
        await self._delete(message)

    def _parse(self, message: SqsMessage) -> InterruptionMessage | None:
        """The message; None if it is malformed, which is logged and not counted (AWS-642)."""
        try:
            return parse_interruption_message(message.body)
        except MalformedInterruptionMessage as error:
            _log.error("failed parsing interruption message", messageID=message.message_id, error=str(error))
            return None

    async def _delete(self, message: SqsMessage) -> None:
        try:
            await self._sqs.delete_message(self._url, message.receipt_handle)
        except AwsError as error:
            raise ProviderError(f"a message of {self._name} cannot be deleted: {error}") from error
        self._metrics.deleted_messages_total.inc()


_STATUS_PERIOD_SECONDS = 60.0
#: A missing permission may be granted while we run (AWS-669).
_UNAUTHORIZED_RETRY_SECONDS = 3600.0
_IMPAIRED_TOLERATION = timedelta(minutes=2)
_FAILED = "failed"
_FINISHED_EVENT_PREFIXES = ("[completed]", "[canceled]")
_STATUS_FILTERS = (
    Ec2Filter(name="instance-status.status", values=("impaired",)),
    Ec2Filter(name="system-status.status", values=("impaired",)),
    Ec2Filter(
        name="event.code",
        values=("instance-reboot", "system-reboot", "system-maintenance", "instance-retirement", "instance-stop"),
    ),
)
#: What figures call the kinds (AWS-668).
_CATEGORIES = {
    InterruptionKind.INSTANCE_STATUS: "InstanceStatus",
    InterruptionKind.SYSTEM_STATUS: "SystemStatus",
    InterruptionKind.EVENT_STATUS: "EventStatus",
}


class UnhealthyStatus(NamedTuple):
    """An instance, and in what way it is ill."""

    instance_id: str
    kind: InterruptionKind


class InstanceStatusController:
    """Reads instance status periodically and handles what it finds as interruptions."""

    def __init__(
        self,
        ec2: InstanceApi,
        cluster_view: AwsClusterView,
        handler: InterruptionHandler,
        metrics: InterruptionMetrics,
        clock: Clock,
    ) -> None:
        self._ec2 = ec2
        self._cluster_view = cluster_view
        self._handler = handler
        self._metrics = metrics
        self._clock = clock
        self._unhealthy: frozenset[UnhealthyStatus] = frozenset()

    async def reconcile(self) -> float:
        """Find what is ill and act on it; seconds until the next round. Raises ``ProviderError``, ``KubeError``."""
        try:
            answers = await asyncio.gather(*(self._ec2.describe_instance_status((ask,)) for ask in _STATUS_FILTERS))
        except AwsError as error:
            if not error.is_unauthorized:
                raise ProviderError(f"the status of instances cannot be read: {error}") from error
            _log.error(
                "instance status monitoring is not permitted: allow ec2:DescribeInstanceStatus", error=str(error)
            )
            return _UNAUTHORIZED_RETRY_SECONDS
        status_by_instance = {status.instance_id: status for answer in answers for status in answer}
        now = self._clock.now()
        messages_by_instance = [
            tuple(status_messages(status, now))
            for status in status_by_instance.values()
            if self._cluster_view.claim_of(status.instance_id) is not None
        ]
        self._count(message for messages in messages_by_instance for message in messages)
        # An instance that fails several checks is deleted once, for the first of them: a failed check comes before an event.
        await gather_all(self._handler.handle(messages[0]) for messages in messages_by_instance if messages)
        return _STATUS_PERIOD_SECONDS

    def _count(self, messages: Iterable[InterruptionMessage]) -> None:
        """Each illness once, until it has gone (AWS-668)."""
        ill = frozenset(UnhealthyStatus(notice.instance_ids[0], notice.kind) for notice in messages)
        for illness in ill - self._unhealthy:
            self._metrics.instance_status_unhealthy_total.labels(category=_CATEGORIES[illness.kind]).inc()
        self._unhealthy = ill


def status_messages(status: InstanceStatus, now: datetime) -> Iterator[InterruptionMessage]:
    """What is wrong with an instance, one notice of each kind (AWS-666, AWS-667)."""
    instances = (status.instance_id,)
    kinds = (InterruptionKind.INSTANCE_STATUS, InterruptionKind.SYSTEM_STATUS)
    for kind, summary in zip(kinds, (status.instance_status, status.system_status), strict=True):
        since = _impaired_since(summary)
        if since is not None and now - since >= _IMPAIRED_TOLERATION:
            yield InterruptionMessage(kind, instances, since)
    coming = [event for event in status.events if not event.description.lower().startswith(_FINISHED_EVENT_PREFIXES)]
    if coming:
        times = [event.not_before for event in coming if event.not_before is not None]
        begins = min(times) if len(times) == len(coming) else None
        yield InterruptionMessage(InterruptionKind.EVENT_STATUS, instances, None, begins)


def _impaired_since(summary: StatusSummary) -> datetime | None:
    return min(
        (
            status_detail.impaired_since
            for status_detail in summary.details
            if status_detail.status == _FAILED and status_detail.impaired_since is not None
        ),
        default=None,
    )


_ZONAL_SHIFT_PERIOD_SECONDS = 30.0
_APPLIED = "APPLIED"


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
        """Read the shifts before the first launch. While AWS does not answer, no zone counts as shifted (AWS-618).

        The first reconcile publishes the events: before the watches nothing says which NodePools are concerned.
        """
        try:
            await self._read()
        except ProviderError as error:
            _log.error("failed hydrating zonal shifts", error=str(error))

    async def reconcile(self) -> float:
        """Query EC2 and pass changes on to the NodePools; returns the seconds until the next round. Raises ``ProviderError``.

        After an error the known state is kept.
        """
        await self._read()
        self._record_changes()
        return _ZONAL_SHIFT_PERIOD_SECONDS

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
