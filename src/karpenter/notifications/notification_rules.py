"""Which destinations an event goes to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase

from karpenter.notifications.notification_config import Destination, EventSeverity, NotificationConfig, NotificationRule


@dataclass(frozen=True)
class Notification:
    """An event as it is posted: what happened to which object, when (aware), and how often since it was first collected."""

    severity: EventSeverity
    reason: str
    message: str
    kind: str
    namespace: str
    name: str
    uid: str
    time: datetime
    count: int = 1

    @property
    def object(self) -> str:
        """The object as users write it: ``NodeClaim/web-1``, ``Pod/shop/api-0``."""
        return "/".join(part for part in (self.kind, self.namespace, self.name) if part)

    @property
    def key(self) -> tuple[str, ...]:
        """What makes two events of a batch the same."""
        return (self.severity, self.reason, self.message, self.kind, self.namespace, self.name, self.uid)


def destinations_of(notification: Notification, config: NotificationConfig) -> tuple[Destination, ...]:
    """Where an event goes, each place once, in the order of the file."""
    names = {name for rule in config.rules if _matches(rule, notification) for name in rule.destinations}
    return tuple(destination for destination in config.destinations if destination.name in names)


def _matches(rule: NotificationRule, notification: Notification) -> bool:
    return (
        notification.severity in rule.severities
        and _any_pattern(rule.reasons, notification.reason)
        and _any_pattern(rule.kinds, notification.kind)
        and _any_pattern(rule.namespaces, notification.namespace)
    )


def _any_pattern(patterns: Iterable[str], value: str) -> bool:
    return any(fnmatchcase(value, pattern) for pattern in patterns)
