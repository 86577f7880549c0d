"""Posts events beside the controllers, without ever making one wait.

``on_event`` only appends to a bounded queue. Each destination has a task of its own, so one that is slow or dead delays no other.
A post that fails is tried again with growing pauses, a bounded number of times, and is then given up: counted and logged once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import structlog

from karpenter.metrics import Metrics
from karpenter.model.backoff import DEFAULT_BACKOFF
from karpenter.model.clock import Clock
from karpenter.notifications.notification_batches import WaitingEvents
from karpenter.notifications.notification_config import Destination, EventSeverity, NotificationConfig
from karpenter.notifications.notification_formats import Post, write_post
from karpenter.notifications.notification_rules import Notification, destinations_of
from karpenter.notifications.webhook_client import HttpPostSender, PostOutcome, PostSenderFactory, WebhookClient
from karpenter.runtime.events import ObjectEvent

#: Posts of one batch before it is given up: with the pauses between them about a minute and a half.
_MAX_POSTS = 6
_POLL_SECONDS = 1.0
_log = structlog.get_logger()


class Notifier:
    """Posts the events it is handed to the destinations of a configuration."""

    def __init__(
        self,
        config: NotificationConfig,
        clock: Clock,
        metrics: Metrics,
        new_sender: PostSenderFactory = HttpPostSender,
    ) -> None:
        self._config = config
        self._clock = clock
        self._queues = {
            destination.name: _DestinationQueue(
                destination, config.cluster, _DeliveryContext(clock, metrics, new_sender)
            )
            for destination in config.destinations
        }

    def on_event(self, event: ObjectEvent) -> None:
        """An event was published. Never waits."""
        metadata = event.involved_object.metadata
        notification = Notification(
            EventSeverity(event.type),
            event.reason,
            event.message,
            event.involved_object.kind.name,
            metadata.namespace,
            metadata.name,
            metadata.uid,
            self._clock.now(),
        )
        for destination in destinations_of(notification, self._config):
            self._queues[destination.name].add(notification)

    def loops(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """What has to run, by name."""
        return {f"notifications.{name}": queue.run for name, queue in self._queues.items()}


@dataclass(frozen=True)
class _DeliveryContext:
    """What all destinations share."""

    clock: Clock
    metrics: Metrics
    new_sender: PostSenderFactory


class _DestinationQueue:
    """The events of one destination, and the task that posts them."""

    def __init__(self, destination: Destination, cluster: str, context: _DeliveryContext) -> None:
        self._destination = destination
        self._cluster = cluster
        self._context = context
        self._waiting = WaitingEvents(destination)

    def add(self, notification: Notification) -> None:
        """One more event waits."""
        self._count("dropped", self._waiting.add(notification, _loop_time()))
        self._show_waiting()

    async def run(self) -> None:
        """Post what waits, until cancelled."""
        sender = self._context.new_sender(self._destination)
        client = WebhookClient(self._destination, sender, self._context.clock)
        while True:
            await self._post_due(client)
            await asyncio.sleep(_POLL_SECONDS)

    async def _post_due(self, client: WebhookClient) -> None:
        while batch := self._waiting.batch(self._context.clock.now(), _loop_time()):
            post = write_post(batch, self._destination, self._cluster)
            outcome = await self._post(client, post)
            self._waiting.remove(batch, _loop_time())
            self._count("failed" if outcome.error else "sent", len(batch))
            self._show_waiting()
            if outcome.error:
                _log.error(
                    "notifications given up",
                    destination=self._destination.name,
                    events=len(batch),
                    error=outcome.error,
                )

    async def _post(self, client: WebhookClient, post: Post) -> PostOutcome:
        """Post a batch, again where that may help; the last outcome."""
        for failures in range(1, _MAX_POSTS + 1):
            outcome = await client.post(post)
            if not outcome.error or not outcome.may_retry or failures == _MAX_POSTS:
                break
            await asyncio.sleep(max(DEFAULT_BACKOFF.delay(failures), outcome.pause_seconds))
        return outcome

    def _count(self, outcome: str, events: int) -> None:
        if events:
            counter = self._context.metrics.notifications_total
            counter.labels(destination=self._destination.name, outcome=outcome).inc(events)

    def _show_waiting(self) -> None:
        gauge = self._context.metrics.notifications_waiting
        gauge.labels(destination=self._destination.name).set(len(self._waiting))


def _loop_time() -> float:
    """Monotonic seconds."""
    return asyncio.get_running_loop().time()
