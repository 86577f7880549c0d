"""Telling what holds an ending up: in a condition at once, as an event and a log line when it lasts.

A condition's message says what holds the node now, and is written only when the text changes and at most every ten seconds. After
five minutes a Warning event on Node and NodeClaim and a line in the log say the same, again after pauses that double up to an
hour. The time counts from the deletion the API server recorded, so a new process does not start it anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from karpenter.act.culprits import joined
from karpenter.act.events import WARNING, About, Happening, about_claim, about_node
from karpenter.act.world import World
from karpenter.api.core import Node
from karpenter.api.karpenter import NodeClaim
from karpenter.model.clock import rfc3339

_FIRST_PAUSE = timedelta(minutes=5)
_LONGEST_PAUSE = timedelta(hours=1)
_BETWEEN_MESSAGES = timedelta(seconds=10)
_log = structlog.get_logger()


@dataclass(frozen=True)
class Told:
    """When the next report about an object is due, and how long the pause after it will be."""

    due: datetime
    pause: timedelta

    @staticmethod
    def first(since: datetime) -> Told:
        """Nothing has been told yet about what began then."""
        return Told(since + _FIRST_PAUSE, _FIRST_PAUSE)

    def then(self, now: datetime) -> Told:
        """After a report now."""
        return Told(now + self.pause, min(_LONGEST_PAUSE, self.pause * 2))


class Reporter:
    """Reports lasting culprits, with growing pauses."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._told: dict[str, Told] = {}

    def tell(self, node: Node | None, claim: NodeClaim | None, culprits: Sequence[str]) -> float:
        """Say what holds these up, if it is time to; seconds until it will be. At least one of the two is given."""
        metadata = [item.metadata for item in (node, claim) if item is not None]
        now = self._world.clock.now()
        since = metadata[0].deletion_timestamp or now
        told = self._told.get(metadata[0].uid) or Told.first(since)
        if now >= told.due:
            self._say(_about(node, claim), since, culprits)
            told = told.then(now)
        self._told[metadata[0].uid] = told
        return (told.due - now).total_seconds()

    def forget(self, uid: str) -> None:
        """The object is gone."""
        self._told.pop(uid, None)

    def _say(self, subjects: Sequence[About], since: datetime, culprits: Sequence[str]) -> None:
        _log.error("termination is held up", since=rfc3339(since), culprits=list(culprits))
        text = f"Termination, wanted since {rfc3339(since)}, is held up: {joined(culprits)}"
        self._world.events.publish(
            *(Happening(subject, WARNING, "FailedTermination", text, (text,)) for subject in subjects)
        )


def _about(node: Node | None, claim: NodeClaim | None) -> list[About]:
    found = [about_node(node.metadata)] if node is not None else []
    return found + ([about_claim(claim.metadata)] if claim is not None else [])


class Messages:
    """Keeps texts that change often from being written often: at most every ten seconds each."""

    def __init__(self) -> None:
        self._not_before: dict[str, datetime] = {}

    def settle(self, key: str, stored: str, wished: str, now: datetime) -> str:
        """The text to write under ``key``: the wished one, or what is stored already while that is young."""
        if stored == wished or now < self._not_before.get(key, now):
            return stored
        self._not_before[key] = now + _BETWEEN_MESSAGES
        return wished

    def forget(self, key: str) -> None:
        """What the text was about is gone."""
        self._not_before.pop(key, None)
