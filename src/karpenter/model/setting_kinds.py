"""How a setting is declared, written, parsed and explained.

Each package declares the settings it uses, as fields of a frozen dataclass (``*_settings`` modules). ``karpenter.settings`` joins
them. Flags, environment variables, help texts and ``docs/settings.md`` are generated from the declarations.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from enum import StrEnum
from fractions import Fraction
from ipaddress import ip_address, ip_network
from typing import Generic, TypeVar
from urllib.parse import urlsplit

from karpenter.model import durations
from karpenter.model.shares import parse_share
from karpenter.model.texts import shorten

V = TypeVar("V")
E = TypeVar("E", bound=StrEnum)

#: Where a field of a settings class keeps its declaration.
SETTING_METADATA = "setting"
#: Values that Karpenter's parsers take for true and false in environment variables and lists of feature gates.
BOOLEAN_SPELLINGS = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), "true"),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), "false"),
}
_MAX_SHOWN_CHARACTERS = 60
_SUBDOMAIN = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_AMOUNT = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_SHORTEST_REFRESH = timedelta(minutes=1)
_PLACEHOLDER = re.compile(
    r"NAME|TEXT|TODO|X{3,}|YOUR[-_].*|(?i:(?:change|replace)[-_]?(?:me|this))"
    r"|.*<[^<>]+>.*|.*\$\{\w+\}.*|.*\$\(\w+\).*|\$\w+|.*\{\{.*\}\}.*"
)


class Profile(StrEnum):
    """A set of defaults: the ones of this project, or Karpenter's."""

    LEAN = "lean"
    KARPENTER = "karpenter"


class SettingError(Exception):
    """A setting cannot be parsed; the message names it, its value and what is expected."""


class SettingValueError(ValueError):
    """A value cannot be parsed; the message says what is wrong in it."""


@dataclass(frozen=True)
class SettingKind(Generic[V]):
    """A kind of value: its parser, which raises ``ValueError``; what a value must be; the placeholder that help shows.

    ``parse_over``: for lists of which a given one replaces only those entries of the default (the first argument) that it names.
    """

    parse: Callable[[str], V]
    expected: str
    metavar: str
    parse_over: Callable[[str, str], V] | None = None

    def value(self, default: str, given: str | None) -> V:
        """The value of a text, or of the default. Raises ``ValueError``."""
        if self.parse_over is not None:
            return self.parse_over(default, given or "")
        return self.parse(default if given is None else given)


@dataclass(frozen=True)
class Spelling:
    """How a setting is written: its flag, further flags of the same meaning, its environment variable."""

    flag: str
    aliases: tuple[str, ...]
    variable: str


@dataclass(frozen=True)
class Declaration(Generic[V]):
    """What a field says about its setting. ``karpenter_default``: the default in the profile karpenter, where it differs."""

    kind: SettingKind[V]
    default: str
    help: str
    spellings: tuple[str, ...] = ()
    unit: str = ""
    karpenter_default: str | None = None


@dataclass(frozen=True)
class Setting:
    """A declared setting and how it is written."""

    name: str
    declaration: Declaration[object]
    spelling: Spelling

    @property
    def is_switch(self) -> bool:
        """Whether it is either on or off."""
        return self.declaration.kind is SWITCH

    @property
    def default(self) -> str:
        """The default of the profile lean, as text."""
        return self.default_in(Profile.LEAN)

    def default_in(self, profile: Profile) -> str:
        """The default of a profile, as text."""
        other = self.declaration.karpenter_default
        return self.declaration.default if other is None or profile is Profile.LEAN else other

    @property
    def help(self) -> str:
        """What help and the documents say of it."""
        return self.declaration.help

    @property
    def expected(self) -> str:
        """What a value must be, with its unit."""
        unit = self.declaration.unit
        return f"{self.declaration.kind.expected} ({unit})" if unit else self.declaration.kind.expected

    def value_in(self, profile: Profile, given: str | None, source: str) -> object:
        """The value of a text that was given, or of the default.

        Raises ``SettingError``, also for a placeholder that was left in a manifest.
        """
        default = self.default_in(profile)
        text = default if given is None else given
        if is_placeholder(text):
            raise SettingError(f"{source}={_shown(text)} is a placeholder; expected {self.expected}")
        try:
            return self.declaration.kind.value(default, given)
        except SettingValueError as error:
            raise SettingError(f"{source}={_shown(text)}: {error}") from error
        except ValueError as error:
            raise SettingError(f"{source}={_shown(text)} is not {self.declaration.kind.expected}") from error

    def from_environment(self, environment: Mapping[str, str]) -> str | None:
        """The value of the environment variable, None where it is not set or empty."""
        text = environment.get(self.spelling.variable, "")
        return (BOOLEAN_SPELLINGS.get(text, text) if self.is_switch else text) or None


def setting(
    kind: SettingKind[V],
    default: str,
    help: str,  # noqa: A002 - the word of command lines
    *spellings: str,
    unit: str = "",
    karpenter_default: str | None = None,
) -> V:
    """A field of a settings class. ``spellings``: flags and a variable where they do not follow from the field's name."""
    declaration = Declaration(kind, default, help, spellings, unit, karpenter_default)
    declared: V = field(default=kind.value(default, None), metadata={SETTING_METADATA: declaration})
    return declared


def declared_settings(settings_class: type) -> Mapping[str, Setting]:
    """The settings that are fields of a class, by name."""
    return {
        declared.name: _setting_of(declared.name, declared.metadata[SETTING_METADATA])
        for declared in fields(settings_class)
        if SETTING_METADATA in declared.metadata
    }


def _setting_of(name: str, declaration: Declaration[object]) -> Setting:
    flags = [word for word in declaration.spellings if word.startswith("--")] or ["--" + name.replace("_", "-")]
    variables = [word for word in declaration.spellings if not word.startswith("--")] or [name.upper()]
    return Setting(name, declaration, Spelling(flags[0], tuple(flags[1:]), variables[0]))


def is_placeholder(text: str) -> bool:
    """Whether a text is a placeholder that was never replaced, such as ``NAME``, ``<cluster>`` or ``${CLUSTER_NAME}``."""
    return _PLACEHOLDER.fullmatch(text) is not None


def _shown(text: str) -> str:
    return repr(shorten(text, _MAX_SHOWN_CHARACTERS + 1))


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


def _amount(text: str) -> float:
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


SWITCH = SettingKind(_switch, "true or false", "true|false")
PORT = SettingKind(_port, "a port number", "PORT")
INTEGER = SettingKind(_integer, "a whole number", "NUMBER")
POSITIVE = SettingKind(_positive, "a positive whole number", "NUMBER")
USD = SettingKind(_amount, "an amount of USD such as 0.005", "USD")
SHARE: SettingKind[Fraction] = SettingKind(parse_share, "off or a number above 0 and up to 1, such as 0.5", "SHARE")
RATIO = SettingKind(_amount, "a ratio such as 0.1", "RATIO")
DURATION = SettingKind(_duration, "a duration such as 10s", "DURATION")
COUNT = SettingKind(_count, "a whole number of at least 0", "NUMBER")
FRACTION: SettingKind[Fraction] = SettingKind(_fraction, "a number of at least 0 such as 0.075", "NUMBER")
INTERVAL = SettingKind(_interval, "a duration above 0 such as 10s", "DURATION")
LEASE_DURATION = SettingKind(_lease_duration, "a duration of whole seconds such as 15s", "DURATION")
REFRESH_INTERVAL = SettingKind(_refresh, "a duration of at least 1m", "DURATION")
ENDPOINT = SettingKind(_endpoint, "a URL such as https://10.0.0.1:6443", "URL")
CA_BUNDLE = SettingKind(_base64, "base64 of a certificate bundle", "BASE64")
IP_ADDRESS = SettingKind(lambda text: str(ip_address(text)) if text else text, "an IP address", "ADDRESS")
CIDR = SettingKind(
    lambda text: str(ip_network(text)) if text else text, "a range of addresses such as 10.96.0.0/12", "CIDR"
)
TEXT = SettingKind(str, "a name", "NAME")
FILE = SettingKind(str, "a file", "FILE")
DIRECTORY = SettingKind(str, "a directory", "DIRECTORY")
PATHS = SettingKind(_paths, "a list of paths, separated by commas", "PATH,...")
OBJECT_NAME = SettingKind(_matching(_SUBDOMAIN), "the name of an object", "NAME")
NAMESPACE = SettingKind(lambda text: _matching(_LABEL)(text) if text else text, "the name of a namespace", "NAMESPACE")


def one_of(*choices: str) -> SettingKind[str]:
    """One of several words."""
    shown = f"{', '.join(choices[:-1])} or {choices[-1]}"
    return SettingKind(_one_of(*choices), shown, "|".join(choices))


def member_of(members: type[E]) -> SettingKind[E]:
    """One of the values of an enumeration."""
    choices = [member.value for member in members]
    return SettingKind(members, f"{', '.join(choices[:-1])} or {choices[-1]}", "|".join(choices))
