"""The file of notifications: where they go, and which events are worth one.

Secrets are never in the file: an address or a header that is one lies in a file of its own and is read again before each post, so
a rotated secret needs no restart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from string import Template
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from karpenter.api.capacity_schedule import (
    DAYS_PATTERN,
    END_TIME_PATTERN,
    TIME_PATTERN,
    CapacityScheduleSpec,
    NodePoolSelection,
    ScheduleWindow,
)
from karpenter.model import durations
from karpenter.model.bounded_yaml import InvalidYaml, yaml_as
from karpenter.model.capacity_calendar import CapacityCalendar, CapacityScheduleError, CapacityState, capacity_calendar
from karpenter.model.texts import why_unreadable

#: Fields of the template of a line, and of the template of a body.
LINE_FIELDS = frozenset(
    {"severity", "reason", "kind", "namespace", "name", "object", "message", "count", "time", "cluster"}
)
BODY_FIELDS = frozenset({"lines", "events", "cluster"})
DEFAULT_LINE = "$severity $object: $message ($reason)"
DEFAULT_BODY = '{"text": "$lines"}'

_Name = Annotated[str, Meta(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
_HeaderName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9-]{1,100}$")]
#: Names of headers whose values are secrets.
_SECRET_HEADER = re.compile(
    r"authoriz|authentic|token|secret|passw|cookie|credential|api-?key|signature", re.IGNORECASE
)
_ANY_MOMENT = datetime(2000, 1, 1, tzinfo=UTC)
_LARGEST_BATCH = 100
_LONGEST_WINDOW = timedelta(hours=1)


class NotificationConfigError(ValueError):
    """The file cannot be used. The message names the file, the place in it and what is expected there."""


class NotificationFormat(StrEnum):
    """What is posted: events as CloudEvents 1.0, or a JSON text made by a template, as chats take it."""

    CLOUD_EVENTS = "CloudEvents"
    SLACK = "Slack"


class EventSeverity(StrEnum):
    """The type of an event."""

    NORMAL = "Normal"
    WARNING = "Warning"


class _Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel", dict=True):
    """A part of the file as written."""


class QuietWindow(_Strict, frozen=True, kw_only=True):
    """Wall time on certain days. One that ends at or before its beginning ends on the next day."""

    days: Annotated[str, Meta(pattern=DAYS_PATTERN)] = "daily"
    begin: Annotated[str, Meta(pattern=TIME_PATTERN)] = msgspec.field(name="from")
    until: Annotated[str, Meta(pattern=END_TIME_PATTERN)]


class QuietHours(_Strict, frozen=True, kw_only=True):
    """When events wait for the next hour that is not quiet. Events of the severities in ``except`` do not wait."""

    time_zone: str
    windows: Annotated[tuple[QuietWindow, ...], Meta(min_length=1, max_length=20)]
    excepted: tuple[EventSeverity, ...] = msgspec.field(name="except", default=())

    @cached_property
    def _calendar(self) -> CapacityCalendar:
        windows = tuple(
            ScheduleWindow(days=window.days, begin=window.begin, until=window.until, state="Asleep")
            for window in self.windows
        )
        return capacity_calendar(
            CapacityScheduleSpec(
                node_pools=NodePoolSelection(), time_zone=self.time_zone, windows=windows, otherwise="Awake"
            )
        )

    def are_on(self, now: datetime) -> bool:
        """Whether an aware moment is quiet. Raises ``CapacityScheduleError`` for an unknown time zone."""
        return self._calendar.state(now) is CapacityState.ASLEEP


class BatchLimits(_Strict, frozen=True, kw_only=True):
    """How long events are collected after the first, and how many go in one post at most. CloudEvents with ``maxEvents`` 1
    are posted one by one in the structured mode, which every receiver takes.
    """

    window: str = "30s"
    max_events: Annotated[int, Meta(ge=1, le=_LARGEST_BATCH)] = 50

    @property
    def window_seconds(self) -> float:
        """The window, in seconds."""
        return durations.parse_duration(self.window).total_seconds()


class Destination(_Strict, frozen=True, kw_only=True):
    """A place that takes posts. Exactly one of ``url`` and ``url_file`` is set; ``ca_file`` replaces the system's authorities."""

    name: _Name
    format: NotificationFormat = NotificationFormat.CLOUD_EVENTS
    url: str = ""
    url_file: str = ""
    headers: Mapping[_HeaderName, str] = {}
    header_files: Mapping[_HeaderName, str] = {}
    ca_file: str = ""
    batch: BatchLimits = BatchLimits()
    quiet_hours: QuietHours | None = None
    line: str = DEFAULT_LINE
    body: str = DEFAULT_BODY


class NotificationRule(_Strict, frozen=True, kw_only=True):
    """Which events go where. Reasons and kinds are shell patterns; what is left out matches all."""

    destinations: Annotated[tuple[str, ...], Meta(min_length=1)]
    reasons: tuple[str, ...] = ("*",)
    kinds: tuple[str, ...] = ("*",)
    namespaces: tuple[str, ...] = ("*",)
    severities: tuple[EventSeverity, ...] = tuple(EventSeverity)


class NotificationConfig(_Strict, frozen=True, kw_only=True):
    """The whole file. ``cluster`` names this cluster in what is posted."""

    cluster: Annotated[str, Meta(max_length=100)] = ""
    destinations: Annotated[tuple[Destination, ...], Meta(max_length=20)]
    rules: Annotated[tuple[NotificationRule, ...], Meta(max_length=200)]


def load_notification_config(path: str | Path) -> NotificationConfig:
    """The configuration in a YAML or JSON file. Raises ``NotificationConfigError``."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise NotificationConfigError(
            f"{path}: {why_unreadable(error)}; expected a file of destinations and rules"
        ) from None
    return parse_notification_config(content, str(path))


def parse_notification_config(content: bytes, source: str = "notifications") -> NotificationConfig:
    """Like ``load_notification_config``, from the content; ``source`` is how messages call it."""
    try:
        config = yaml_as(content, NotificationConfig)
    except InvalidYaml as error:
        raise NotificationConfigError(f"{source}: {error}") from None
    for place, wrong in _faults(config):
        raise NotificationConfigError(f"{source}: {place}: {wrong}")
    return config


def _faults(config: NotificationConfig) -> Iterator[tuple[str, str]]:
    """Place and what is wrong there, the first ones first."""
    names = [destination.name for destination in config.destinations]
    for index, destination in enumerate(config.destinations):
        place = f"destinations[{index}]"
        if destination.name in names[:index]:
            yield f"{place}.name", f"{destination.name!r} is used twice"
        for field, wrong in _destination_faults(destination):
            yield f"{place}.{field}", wrong
    for index, rule in enumerate(config.rules):
        for name in rule.destinations:
            if name not in names:
                yield (
                    f"rules[{index}].destinations",
                    f"{name!r} is no destination; there are {', '.join(names) or 'none'}",
                )


def _destination_faults(destination: Destination) -> Iterator[tuple[str, str]]:
    if bool(destination.url) == bool(destination.url_file):
        yield "url", "set either url or urlFile"
    if destination.url and (fault := url_fault(destination.url)):
        yield "url", fault
    for name in filter(_SECRET_HEADER.search, destination.headers):
        yield "headers", f"{name} holds a secret; put its value into a file and name it in headerFiles"
    try:
        if not timedelta() <= durations.parse_duration(destination.batch.window) <= _LONGEST_WINDOW:
            yield "batch.window", f"{destination.batch.window} is not between 0s and 1h"
    except durations.DurationError as error:
        yield "batch.window", str(error)
    if destination.quiet_hours is not None:
        try:
            destination.quiet_hours.are_on(_ANY_MOMENT)
        except CapacityScheduleError as error:
            yield "quietHours", str(error).removeprefix("spec.")
    yield from _template_faults(destination)


def _template_faults(destination: Destination) -> Iterator[tuple[str, str]]:
    for field, text, field_names in (("line", destination.line, LINE_FIELDS), ("body", destination.body, BODY_FIELDS)):
        template = Template(text)
        if not template.is_valid():
            yield field, "a $ is followed by no field; write $$ for the sign itself"
        elif unknown := set(template.get_identifiers()) - field_names:
            yield field, f"${min(unknown)} is no field; choose {', '.join(sorted(field_names))}"
        elif field == "body" and not is_json(template.substitute(dict.fromkeys(field_names, "0"))):
            yield field, "is not JSON once its fields are filled in"


def url_fault(url: str) -> str:
    """What is wrong with the address of a destination, empty where nothing is. The text does not repeat the address."""
    try:
        parts = urlsplit(url)
        port_is_valid = parts.port is None or parts.port > 0
    except ValueError:
        return "is not a URL"
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_valid:
        return "must be an http or https URL"
    return "holds credentials; put the address into a file and name it in urlFile" if parts.username else ""


def is_json(text: str) -> bool:
    """Whether a text is JSON."""
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError:
        return False
    return True
