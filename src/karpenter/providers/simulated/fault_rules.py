"""Scripted trouble, so that users can rehearse what a cloud does on its bad days (OPS-269).

A script is a YAML or JSON file of rules. Rules are tried in order; a rule with a ``count`` is used up after that many
launches. All later faults of an instance (never registering, getting lost, being interrupted) are decided at its launch and
stored with it, so a restart of the controller neither repeats nor loses them. Counts start at zero with each process.

    insufficientCapacity:
      - {instanceType: "m5.*", zone: us-east-1a, capacityType: spot, count: 3}
    launchErrors:
      - {reason: UnauthorizedOperation, message: not allowed to run instances, count: 1}
    registration:
      - {nodePool: slow, delay: 2m}
      - {instanceType: "g*", never: true, count: 1}
    lost:
      - {after: 10m, count: 1}
    interruptions:
      - {capacityType: spot, after: 30m, notice: 2m}
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Protocol, TypeVar

import msgspec
from msgspec import Meta

from karpenter.model import durations
from karpenter.model.bounded_yaml import InvalidYaml, yaml_as

_Count = Annotated[int, Meta(ge=1)]
_DEFAULT_NOTICE = "2m"


class FaultsError(ValueError):
    """The script cannot be used. The text names the file, the place in it and what is expected there."""


@dataclass(frozen=True, slots=True)
class SimulatedLaunch:
    """What rules are matched against: the instance that is about to be launched."""

    node_pool: str
    instance_type: str
    zone: str
    capacity_type: str


class FaultRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Which launches a rule is about: shell patterns, and how many launches use it up (absent: never)."""

    node_pool: str = "*"
    instance_type: str = "*"
    zone: str = "*"
    capacity_type: str = "*"
    count: _Count | None = None

    def matches(self, simulated_launch: SimulatedLaunch) -> bool:
        """Whether the rule is about this launch."""
        return all(
            fnmatchcase(value, pattern)
            for value, pattern in (
                (simulated_launch.node_pool, self.node_pool),
                (simulated_launch.instance_type, self.instance_type),
                (simulated_launch.zone, self.zone),
                (simulated_launch.capacity_type, self.capacity_type),
            )
        )


class InsufficientCapacityRule(FaultRule, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The cloud has no such instance when asked."""


class LaunchErrorRule(FaultRule, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The cloud refuses the launch with a reason and a message."""

    reason: str = "LaunchFailed"
    message: str = "refused by a fault rule"


class RegistrationRule(FaultRule, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The instance joins the cluster ``delay`` after its launch instead of when its class says, or never."""

    delay: str = "0s"
    never: bool = False


class LostRule(FaultRule, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The instance disappears ``after`` its launch, without warning."""

    after: str


class InterruptionRule(FaultRule, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The cloud announces ``after`` the launch that it takes the instance back, and does so ``notice`` later."""

    after: str
    notice: str = _DEFAULT_NOTICE


class Faults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """A script. The default has no rules: nothing goes wrong."""

    insufficient_capacity: tuple[InsufficientCapacityRule, ...] = ()
    launch_errors: tuple[LaunchErrorRule, ...] = ()
    registration: tuple[RegistrationRule, ...] = ()
    lost: tuple[LostRule, ...] = ()
    interruptions: tuple[InterruptionRule, ...] = ()


class ScheduledFaults(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The scheduled faults of one instance, in seconds since its launch; None where there is none."""

    registration_seconds: float | None = 0.0
    lost_seconds: float | None = None
    interrupted_seconds: float | None = None
    notice_seconds: float = 0.0


R = TypeVar("R", bound=FaultRule)


class LaunchFaults(Protocol):
    """Decides what goes wrong with launches and with the instances they bring."""

    def is_out_of_capacity(self, launch: SimulatedLaunch) -> bool:
        """Whether the cloud claims to have no such instance now."""

    def launch_error(self, launch: SimulatedLaunch) -> LaunchErrorRule | None:
        """The refusal the cloud answers with, if any."""

    def schedule_faults(self, launch: SimulatedLaunch, registration_delay: timedelta) -> ScheduledFaults:
        """The faults of the instance. ``registration_delay`` is that of its class."""


@dataclass
class FaultInjector:
    """Faults being played: rules and how often each was used. Implements ``LaunchFaults``."""

    faults: Faults = field(default_factory=Faults)
    _used: dict[tuple[type[FaultRule], int], int] = field(default_factory=dict)

    def is_out_of_capacity(self, launch: SimulatedLaunch) -> bool:
        """Whether the cloud claims to have no such instance now; uses the rule."""
        return self._use_rule(self.faults.insufficient_capacity, launch) is not None

    def launch_error(self, launch: SimulatedLaunch) -> LaunchErrorRule | None:
        """The refusal the cloud answers with, if any; uses the rule."""
        return self._use_rule(self.faults.launch_errors, launch)

    def schedule_faults(self, launch: SimulatedLaunch, registration_delay: timedelta) -> ScheduledFaults:
        """The faults of the instance; uses up the rules. ``registration_delay`` is that of its class."""
        registration = self._use_rule(self.faults.registration, launch)
        lost = self._use_rule(self.faults.lost, launch)
        interruption = self._use_rule(self.faults.interruptions, launch)
        return ScheduledFaults(
            registration_seconds=_registration_seconds(registration, registration_delay),
            lost_seconds=_seconds(lost.after) if lost else None,
            interrupted_seconds=_seconds(interruption.after) if interruption else None,
            notice_seconds=_seconds(interruption.notice) if interruption else 0.0,
        )

    def _use_rule(self, rules: tuple[R, ...], launch: SimulatedLaunch) -> R | None:
        for index, rule in enumerate(rules):
            key = (type(rule), index)
            used = self._used.get(key, 0)
            if (rule.count is None or used < rule.count) and rule.matches(launch):
                self._used[key] = used + 1
                return rule
        return None


def _registration_seconds(rule: RegistrationRule | None, delay: timedelta) -> float | None:
    if rule is None:
        return delay.total_seconds()
    return None if rule.never else _seconds(rule.delay)


def _seconds(text: str) -> float:
    return durations.parse_duration(text).total_seconds()


def load_faults(path: str | Path) -> Faults:
    """The script in a YAML or JSON file. Raises ``FaultsError``."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise FaultsError(f"{path}: cannot be read ({error.strerror}); expected a file of fault rules") from None
    return parse_faults(content, str(path))


def parse_faults(content: bytes, source: str = "faults") -> Faults:
    """Like ``load_faults``, from the content; ``source`` names it in messages."""
    try:
        faults = yaml_as(content, Faults)
    except InvalidYaml as error:
        raise FaultsError(f"{source}: {error}") from None
    _check_durations(faults, source)
    return faults


def _check_durations(faults: Faults, source: str) -> None:
    texts = {f"registration[{index}].delay": rule.delay for index, rule in enumerate(faults.registration)}
    texts |= {f"lost[{index}].after": rule.after for index, rule in enumerate(faults.lost)}
    for index, rule in enumerate(faults.interruptions):
        texts |= {f"interruptions[{index}].after": rule.after, f"interruptions[{index}].notice": rule.notice}
    for place, text in texts.items():
        try:
            durations.parse_duration(text)
        except durations.DurationError as error:
            raise FaultsError(f"{source}: {place}: {error}") from None
