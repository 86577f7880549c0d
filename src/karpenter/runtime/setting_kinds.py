"""One setting: how it is written, read and explained. Which there are is in ``settings``."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from fractions import Fraction
from ipaddress import ip_address, ip_network
from typing import Generic, TypeVar
from urllib.parse import urlsplit

from karpenter.model import durations
from karpenter.model.shares import parse_share
from karpenter.runtime import feature_gate_flags, scheduler_config
from karpenter.runtime.feature_gate_flags import AwsFeatureGates, FeatureGateError, ParsedFeatureGates
from karpenter.runtime.scheduler_config import SchedulerConfig, SchedulerConfigError
from karpenter.scheduling.scheduling_options import MinValuesPolicy, PreferencePolicy

V = TypeVar("V")

#: Where a field of ``Settings`` keeps its ``Setting``.
SETTING_METADATA = "setting"
_MAX_SHOWN_CHARACTERS = 60
_SUBDOMAIN = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_AMOUNT = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_PROVIDERS = ("simulated", "aws")
_SHORTEST_REFRESH = timedelta(minutes=1)


class SettingError(Exception):
    """A setting cannot be read; the message names it, its value and what is expected."""


@dataclass(frozen=True)
class SettingKind(Generic[V]):
    """A kind of value: its reader, which raises ``ValueError``, and what to say a value must be."""

    parse: Callable[[str], V]
    expected: str


@dataclass(frozen=True)
class Spelling:
    """How a setting is written: its flag, further flags of the same meaning, its environment variable."""

    flag: str
    aliases: tuple[str, ...]
    variable: str


@dataclass(frozen=True)
class Setting:
    """A setting: the kind of its values, its default as text, what help says, how it is written."""

    kind: SettingKind[object]
    default: str
    help: str
    spelling: Spelling

    @property
    def is_switch(self) -> bool:
        """Whether it is either on or off."""
        return self.kind is SWITCH

    def parse(self, text: str, source: str) -> object:
        """The value of a text. Raises ``SettingError``."""
        try:
            return self.kind.parse(text)
        except (FeatureGateError, SchedulerConfigError) as error:
            raise SettingError(f"{source}={_shown(text)}: {error}") from error
        except ValueError as error:
            raise SettingError(f"{source}={_shown(text)} is not {self.kind.expected}") from error

    def from_environment(self, environment: Mapping[str, str]) -> str | None:
        """What the environment says, None where it says nothing."""
        text = environment.get(self.spelling.variable, "")
        return (feature_gate_flags.BOOLEAN_SPELLINGS.get(text, text) if self.is_switch else text) or None


def setting(kind: SettingKind[V], default: str, help: str, *spelling: str) -> V:  # noqa: A002
    """A field of ``Settings``. ``spelling`` are flags and a variable where they do not follow from the field's name."""
    found: V = field(default=kind.parse(default), metadata={SETTING_METADATA: (kind, default, help, spelling)})
    return found


def setting_of_field(
    name: str, metadata: Mapping[str, tuple[SettingKind[object], str, str, tuple[str, ...]]]
) -> Setting:
    """The setting of a field of this name."""
    kind, default, text, spelling = metadata[SETTING_METADATA]
    flags = [word for word in spelling if word.startswith("--")] or ["--" + name.replace("_", "-")]
    variables = [word for word in spelling if not word.startswith("--")] or [name.upper()]
    return Setting(kind, default, text, Spelling(flags[0], tuple(flags[1:]), variables[0]))


def _shown(text: str) -> str:
    return repr(text if len(text) <= _MAX_SHOWN_CHARACTERS else text[:_MAX_SHOWN_CHARACTERS] + "…")


def _duration(text: str) -> timedelta:
    value = durations.parse_duration(text)
    if value < timedelta(0):
        raise ValueError(text)
    return value


def _switch(text: str) -> bool:
    return _one_of("true", "false")(text) == "true"


def _integer(text: str) -> int:
    return int(_matching(_INTEGER)(text))


def _port(text: str) -> int:
    value = _integer(text)
    if not 0 <= value <= 65535:
        raise ValueError(text)
    return value


def _positive(text: str) -> int:
    value = _integer(text)
    if value <= 0:
        raise ValueError(text)
    return value


def _count(text: str) -> int:
    value = _integer(text)
    if value < 0:
        raise ValueError(text)
    return value


def _fraction(text: str) -> Fraction:
    return Fraction(_matching(_AMOUNT)(text))


def _refresh(text: str) -> timedelta:
    value = durations.parse_duration(text)
    if value < _SHORTEST_REFRESH:
        raise ValueError(text)
    return value


def _interval(text: str) -> timedelta:
    value = durations.parse_duration(text)
    if value <= timedelta(0):
        raise ValueError(text)
    return value


def _lease_duration(text: str) -> timedelta:
    value = _interval(text)
    if value.total_seconds() % 1:
        raise ValueError(text)
    return value


def _endpoint(text: str) -> str:
    if text and not (urlsplit(text).scheme and urlsplit(text).hostname):
        raise ValueError(text)
    return text


def _base64(text: str) -> str:
    b64decode(text, validate=True)
    return text


def _usd(text: str) -> float:
    return float(_matching(_AMOUNT)(text))


def _one_of(*choices: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in choices:
            raise ValueError(text)
        return text

    return read


def _matching(pattern: re.Pattern[str]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if pattern.fullmatch(text) is None:
            raise ValueError(text)
        return text

    return read


def _paths(text: str) -> tuple[str, ...]:
    paths = tuple(part.strip() for part in text.split(",") if part.strip())
    if not paths:
        raise ValueError(text)
    return paths


SWITCH = SettingKind(_switch, "true or false")
PORT = SettingKind(_port, "a port number")
INTEGER = SettingKind(_integer, "a whole number")
POSITIVE = SettingKind(_positive, "a positive whole number")
USD = SettingKind(_usd, "an amount of USD such as 0.005")
SHARE: SettingKind[Fraction] = SettingKind(parse_share, "off or a number above 0 and up to 1, such as 0.5")
DURATION = SettingKind(_duration, "a duration such as 10s")
COUNT = SettingKind(_count, "a whole number of at least 0")
FRACTION: SettingKind[Fraction] = SettingKind(_fraction, "a number of at least 0 such as 0.075")
INTERVAL = SettingKind(_interval, "a duration above 0 such as 10s")
LEASE_DURATION = SettingKind(_lease_duration, "a duration of whole seconds such as 15s")
REFRESH_INTERVAL = SettingKind(_refresh, "a duration of at least 1m")
ENDPOINT = SettingKind(_endpoint, "a URL such as https://10.0.0.1:6443")
CA_BUNDLE = SettingKind(_base64, "base64 of a certificate bundle")
IP_ADDRESS = SettingKind(lambda text: str(ip_address(text)) if text else text, "an IP address")
CIDR = SettingKind(lambda text: str(ip_network(text)) if text else text, "a range of addresses such as 10.96.0.0/12")
TEXT = SettingKind(str, "a text")
LOG_PATHS = SettingKind(_paths, "a list of paths, separated by commas")
OBJECT_NAME = SettingKind(_matching(_SUBDOMAIN), "the name of an object")
NAMESPACE = SettingKind(lambda text: _matching(_LABEL)(text) if text else text, "the name of a namespace")
PROVIDER = SettingKind(_one_of(*_PROVIDERS), f"a provider; choose {', '.join(_PROVIDERS)}")
LOG_LEVEL = SettingKind(lambda text: _one_of("debug", "info", "error")(text or "info"), "debug, info or error")
PREFERENCE_POLICY = SettingKind(PreferencePolicy, "Respect or Ignore")
MIN_VALUES_POLICY = SettingKind(MinValuesPolicy, "Strict or BestEffort")
AWS_FEATURE_GATES: SettingKind[AwsFeatureGates] = SettingKind(
    feature_gate_flags.parse_aws_feature_gates, "a list of gates"
)
FEATURE_GATES: SettingKind[ParsedFeatureGates] = SettingKind(feature_gate_flags.parse_feature_gates, "a list of gates")
SCHEDULER_CONFIG: SettingKind[SchedulerConfig] = SettingKind(
    scheduler_config.parse_scheduler_config, "a scheduler configuration"
)
