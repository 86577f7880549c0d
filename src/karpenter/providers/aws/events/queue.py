"""Listening to the interruption queue (AWS §14.1).

A message leaves the queue once it is dealt with, or cannot be read. One whose handling failed stays there, and comes again after
twenty seconds, until the queue forgets it (five minutes as it is set up, AWS-730): longer than anything waits that it announces.
"""

from __future__ import annotations

import structlog

from karpenter.model.clock import Clock
from karpenter.providers.aws.errors import AwsError
from karpenter.providers.aws.events.messages import NOTHING, Notice, Unreadable, read
from karpenter.providers.aws.events.responding import Responder
from karpenter.providers.aws.events.together import together
from karpenter.providers.aws.ports import QueuePort
from karpenter.providers.aws.shapes import Message
from karpenter.providers.contract import ProviderError
from karpenter.telemetry.aws import InterruptionMetrics

_log = structlog.get_logger()


class InterruptionQueue:
    """The loop over one queue, by its name. ``look`` is one round."""

    def __init__(
        self, name: str, port: QueuePort, responder: Responder, metrics: InterruptionMetrics, clock: Clock
    ) -> None:
        self._name = name
        self._port = port
        self._responder = responder
        self._metrics = metrics
        self._clock = clock
        self._url = ""

    async def look(self) -> float:
        """Wait for messages, up to twenty seconds, and deal with them side by side; 0: the next round may begin at once.

        Raises ``ProviderError`` where the queue cannot be reached, and what the first message that failed raised, once all others
        are dealt with.
        """
        messages = await self._received()
        await together(self._handle(message) for message in messages)
        return 0.0

    async def _received(self) -> tuple[Message, ...]:
        """AWS-640. A queue that is gone is looked for anew, since one of its name may have another address."""
        try:
            if not self._url:
                self._url = await self._port.get_queue_url(self._name)
                _log.info("watching interruption queue", queue=self._name)
            return await self._port.receive_messages(self._url)
        except AwsError as error:
            if not error.is_not_found:
                raise ProviderError(f"the interruption queue {self._name} cannot be read: {error}") from error
            self._url = ""
            advice = "create it, or correct --interruption-queue"
            raise ProviderError(f"there is no interruption queue {self._name}: {error}; {advice}") from error

    async def _handle(self, message: Message) -> None:
        notice = self._read(message)
        self._metrics.received_messages_total.labels(message_type=str(notice.kind)).inc()
        await self._responder.act(notice)
        if notice.at is not None:
            late = (self._clock.now() - notice.at).total_seconds()
            self._metrics.message_queue_duration_seconds.observe(late)
        await self._delete(message)

    def _read(self, message: Message) -> Notice:
        """What it says; nothing, where it cannot be read (AWS-642)."""
        try:
            return read(message.body)
        except Unreadable as error:
            _log.error("failed parsing interruption message", messageID=message.message_id, error=str(error))
            return NOTHING

    async def _delete(self, message: Message) -> None:
        try:
            await self._port.delete_message(self._url, message.receipt_handle)
        except AwsError as error:
            raise ProviderError(f"a message of {self._name} cannot be deleted: {error}") from error
        self._metrics.deleted_messages_total.inc()
