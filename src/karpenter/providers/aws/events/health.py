"""Asking AWS how machines are, once a minute (AWS §14.3): the queue tells nothing of checks that fail.

A failed check counts once it has failed for two minutes, a scheduled event at once. Events that are over stay listed for days;
their description says so. What is wrong with attached volumes is not the machine's illness.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import NamedTuple

import structlog

from karpenter.model.clock import Clock
from karpenter.providers.aws.errors import AwsError
from karpenter.providers.aws.events.messages import Notice, NoticeKind
from karpenter.providers.aws.events.responding import Responder
from karpenter.providers.aws.events.together import together
from karpenter.providers.aws.ports import InstancePort
from karpenter.providers.aws.shapes import Filter, InstanceStatus, StatusSummary
from karpenter.providers.aws.surroundings import Observed
from karpenter.providers.contract import ProviderError
from karpenter.telemetry.aws import InterruptionMetrics

_PERIOD_SECONDS = 60.0
#: Whoever may not ask may get the permission while we run (AWS-669).
_FORBIDDEN_SECONDS = 3600.0
_PATIENCE = timedelta(minutes=2)
_FAILED = "failed"
_OVER = ("[completed]", "[canceled]")
_QUESTIONS = (
    Filter(name="instance-status.status", values=("impaired",)),
    Filter(name="system-status.status", values=("impaired",)),
    Filter(
        name="event.code",
        values=(
            "instance-reboot",
            "system-reboot",
            "system-maintenance",
            "instance-retirement",
            "instance-stop",
        ),
    ),
)
#: What figures call the kinds (AWS-668).
_CATEGORIES = {
    NoticeKind.INSTANCE_STATUS: "InstanceStatus",
    NoticeKind.SYSTEM_STATUS: "SystemStatus",
    NoticeKind.EVENT_STATUS: "EventStatus",
}
_log = structlog.get_logger()


class Illness(NamedTuple):
    """A machine, and in what way it is ill."""

    instance: str
    kind: NoticeKind


class InstanceHealth:
    """The loop. ``look`` is one round."""

    def __init__(
        self,
        port: InstancePort,
        observed: Observed,
        responder: Responder,
        metrics: InterruptionMetrics,
        clock: Clock,
    ) -> None:
        self._port = port
        self._observed = observed
        self._responder = responder
        self._metrics = metrics
        self._clock = clock
        self._known: frozenset[Illness] = frozenset()

    async def look(self) -> float:
        """Find what is ill and act on it; seconds until the next round. Raises ``ProviderError``, ``KubeError``."""
        try:
            answers = await asyncio.gather(*(self._port.describe_instance_status((ask,)) for ask in _QUESTIONS))
        except AwsError as error:
            if not error.is_unauthorized:
                raise ProviderError(f"the status of instances cannot be read: {error}") from error
            _log.error(
                "instance status monitoring is not permitted: allow ec2:DescribeInstanceStatus", error=str(error)
            )
            return _FORBIDDEN_SECONDS
        found = {status.instance_id: status for answer in answers for status in answer}
        now = self._clock.now()
        notices = [
            notice
            for status in found.values()
            if self._observed.claim_of(status.instance_id) is not None
            for notice in illnesses(status, now)
        ]
        self._count(notices)
        await together(self._responder.act(notice) for notice in notices)
        return _PERIOD_SECONDS

    def _count(self, notices: Iterable[Notice]) -> None:
        """Each illness once, until it has gone (AWS-668)."""
        ill = frozenset(Illness(notice.instances[0], notice.kind) for notice in notices)
        for illness in ill - self._known:
            self._metrics.instance_status_unhealthy_total.labels(category=_CATEGORIES[illness.kind]).inc()
        self._known = ill


def illnesses(status: InstanceStatus, now: datetime) -> Iterator[Notice]:
    """What is wrong with a machine, one notice of each kind (AWS-666, AWS-667)."""
    instances = (status.instance_id,)
    for kind, summary in (
        (NoticeKind.INSTANCE_STATUS, status.instance_status),
        (NoticeKind.SYSTEM_STATUS, status.system_status),
    ):
        since = _failing_since(summary)
        if since is not None and now - since >= _PATIENCE:
            yield Notice(kind, instances, since)
    coming = [event for event in status.events if not event.description.lower().startswith(_OVER)]
    if coming:
        times = [event.not_before for event in coming if event.not_before is not None]
        begins = min(times) if len(times) == len(coming) else None
        yield Notice(NoticeKind.EVENT_STATUS, instances, None, begins)


def _failing_since(summary: StatusSummary) -> datetime | None:
    return min(
        (item.impaired_since for item in summary.details if item.status == _FAILED and item.impaired_since is not None),
        default=None,
    )
