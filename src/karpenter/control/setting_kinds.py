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

from karpenter.control import gates, scheduler_config
from karpenter.control.gates import AwsGates, FeatureGates, GateError
from karpenter.control.scheduler_config import SchedulerConfig, SchedulerConfigError
from karpenter.decide.provision import MinValuesPolicy, PreferencePolicy
from karpenter.model import durations
from karpenter.model.shares import parse_share

V = TypeVar("V")

#: Where a field of ``Settings`` keeps its ``Setting``.
METADATA = "setting"
_LONGEST_SHOWN = 60
_SUBDOMAIN = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_AMOUNT = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_PROVIDERS = ("simulated", "aws")
_SHORTEST_REFRESH = timedelta(minutes=1)


class SettingError(Exception):
    """A setting cannot be read; the message names it, its value and what is expected."""


@dataclass(frozen=True)
class Kind(Generic[V]):
    """A kind of value: its reader, which raises ``ValueError``, and what to say a value must be."""

    read: Callable[[str], V]
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

    kind: Kind[object]
    default: str
    help: str
    spelling: Spelling

    @property
    def is_switch(self) -> bool:
        """Whether it is either on or off."""
        return self.kind is SWITCH

    def value(self, text: str, source: str) -> object:
        """The value of a text. Raises ``SettingError``."""
        try:
            return self.kind.read(text)
        except (GateError, SchedulerConfigError) as error:
            raise SettingError(f"{source}={_shown(text)}: {error}") from error
        except ValueError as error:
            raise SettingError(f"{source}={_shown(text)} is not {self.kind.expected}") from error

    def in_environment(self, environment: Mapping[str, str]) -> str | None:
        """What the environment says, None where it says nothing."""
        text = environment.get(self.spelling.variable, "")
        return (gates.SPELLINGS.get(text, text) if self.is_switch else text) or None


def setting(kind: Kind[V], default: str, help: str, *spelling: str) -> V:  # noqa: A002
    """A field of ``Settings``. ``spelling`` are flags and a variable where they do not follow from the field's name."""
    found: V = field(default=kind.read(default), metadata={METADATA: (kind, default, help, spelling)})
    return found


def named(name: str, metadata: Mapping[str, tuple[Kind[object], str, str, tuple[str, ...]]]) -> Setting:
    """The setting of a field of this name."""
    kind, default, text, spelling = metadata[METADATA]
    flags = [word for word in spelling if word.startswith("--")] or ["--" + name.replace("_", "-")]
    variables = [word for word in spelling if not word.startswith("--")] or [name.upper()]
    return Setting(kind, default, text, Spelling(flags[0], tuple(flags[1:]), variables[0]))


def _shown(text: str) -> str:
    return repr(text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "…")


def _duration(text: str) -> timedelta:
    value = durations.parse(text)
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


def _part(text: str) -> Fraction:
    return Fraction(_matching(_AMOUNT)(text))


def _refresh(text: str) -> timedelta:
    value = durations.parse(text)
    if value < _SHORTEST_REFRESH:
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


def _one_of(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in words:
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
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    if not found:
        raise ValueError(text)
    return found


SWITCH = Kind(_switch, "true or false")
PORT = Kind(_port, "a port number")
INTEGER = Kind(_integer, "a whole number")
POSITIVE = Kind(_positive, "a positive whole number")
USD = Kind(_usd, "an amount of USD such as 0.005")
SHARE: Kind[Fraction] = Kind(parse_share, "off or a number above 0 and up to 1, such as 0.5")
DURATION = Kind(_duration, "a duration such as 10s")
COUNT = Kind(_count, "a whole number of at least 0")
PART: Kind[Fraction] = Kind(_part, "a number of at least 0 such as 0.075")
REFRESH = Kind(_refresh, "a duration of at least 1m")
ENDPOINT = Kind(_endpoint, "a URL such as https://10.0.0.1:6443")
CA_BUNDLE = Kind(_base64, "base64 of a certificate bundle")
ADDRESS = Kind(lambda text: str(ip_address(text)) if text else text, "an IP address")
CIDR = Kind(lambda text: str(ip_network(text)) if text else text, "a range of addresses such as 10.96.0.0/12")
TEXT = Kind(str, "a text")
PATHS = Kind(_paths, "a list of paths, separated by commas")
OBJECT = Kind(_matching(_SUBDOMAIN), "the name of an object")
NAMESPACE = Kind(lambda text: _matching(_LABEL)(text) if text else text, "the name of a namespace")
PROVIDER = Kind(_one_of(*_PROVIDERS), f"a provider; choose {', '.join(_PROVIDERS)}")
LEVEL = Kind(lambda text: _one_of("debug", "info", "error")(text or "info"), "debug, info or error")
PREFERENCES = Kind(PreferencePolicy, "Respect or Ignore")
MIN_VALUES = Kind(MinValuesPolicy, "Strict or BestEffort")
AWS_GATES: Kind[AwsGates] = Kind(gates.parse_aws, "a list of gates")
GATES: Kind[FeatureGates] = Kind(gates.parse, "a list of gates")
SCHEDULER: Kind[SchedulerConfig] = Kind(scheduler_config.parse, "a scheduler configuration")
