"""Settings: flag, then environment, then default (OPS-300 ff.). A value that cannot be read stops the start with one line.

Each setting exists as ``--lower-kebab`` flag and ``UPPER_SNAKE`` variable. Only settings that have an effect are listed; the
others of the reference follow with what they control.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta

from karpenter.decide.provision import MinValuesPolicy, PreferencePolicy
from karpenter.model import durations


class SettingError(Exception):
    """A setting cannot be read; the message names it, its value and what is expected."""


def _duration(text: str) -> timedelta:
    value = durations.parse(text)
    if value < timedelta(0):
        raise ValueError(text)
    return value


def _boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(text)
    return text == "true"


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value <= 65535:
        raise ValueError(text)
    return value


def _positive(text: str) -> int:
    value = int(text)
    if value <= 0:
        raise ValueError(text)
    return value


def _level(text: str) -> str:
    value = text or "info"
    if value not in ("debug", "info", "error"):
        raise ValueError(text)
    return value


@dataclass(frozen=True)
class Setting:
    """How one setting is read: its default as text, the reader, and what to say a value must be."""

    default: str
    read: Callable[[str], object]
    expected: str
    help: str

    def value(self, text: str, source: str) -> object:
        """The value of a text. Raises ``SettingError``."""
        try:
            return self.read(text)
        except ValueError as error:
            raise SettingError(f"{source}={text!r} is not {self.expected}") from error


#: Every setting, by its name in ``Settings``.
SETTINGS: Mapping[str, Setting] = {
    "log_level": Setting("info", _level, "debug, info or error", "Least severity that is logged."),
    "health_probe_port": Setting("8081", _port, "a port number", "Port of /healthz and /readyz; 0 switches them off."),
    "kube_client_qps": Setting("200", _positive, "a positive number", "Requests per second to the API server."),
    "kube_client_burst": Setting("300", _positive, "a positive number", "Burst of requests to the API server."),
    "batch_max_duration": Setting("10s", _duration, "a duration such as 10s", "Longest time a batch stays open."),
    "batch_idle_duration": Setting(
        "1s", _duration, "a duration such as 1s", "A batch closes after this long without news."
    ),
    "preference_policy": Setting(
        "Respect", PreferencePolicy, "Respect or Ignore", "Whether preferred affinities count while they can be met."
    ),
    "min_values_policy": Setting(
        "Strict", MinValuesPolicy, "Strict or BestEffort", "Whether minValues may be lowered to what is available."
    ),
    "nominate_pods": Setting(
        "true", _boolean, "true or false", "Tell the scheduler which pods a new node was bought for."
    ),
    "nomination_qps": Setting(
        "1000", _positive, "a positive number", "Nominations per second, which come in one burst per batch of nodes."
    ),
    "instance_types_file_path": Setting(
        "", str, "a path", "Instance types of the simulated provider; empty means the packaged EC2 catalogue."
    ),
    "simulated_faults_file": Setting("", str, "a path", "What goes wrong on purpose in the simulated provider."),
}


def environment_name(name: str) -> str:
    """The environment variable of a setting."""
    return name.upper()


def flag_name(name: str) -> str:
    """The flag of a setting."""
    return "--" + name.replace("_", "-")


@dataclass(frozen=True)
class Settings:
    """The settings in force."""

    log_level: str = "info"
    health_probe_port: int = 8081
    kube_client_qps: int = 200
    kube_client_burst: int = 300
    batch_max_duration: timedelta = timedelta(seconds=10)
    batch_idle_duration: timedelta = timedelta(seconds=1)
    preference_policy: PreferencePolicy = PreferencePolicy.RESPECT
    min_values_policy: MinValuesPolicy = MinValuesPolicy.STRICT
    nominate_pods: bool = True
    nomination_qps: int = 1000
    instance_types_file_path: str = ""
    simulated_faults_file: str = ""

    @property
    def nomination_window(self) -> timedelta:
        """How long a planned pod is expected on its machine (SCH-640)."""
        return max(2 * self.batch_max_duration, timedelta(seconds=10))

    def described(self) -> dict[str, str]:
        """Every setting as text, for the log."""
        return {item.name: str(getattr(self, item.name)) for item in fields(self)}


def resolve(flags: Mapping[str, str | None], environment: Mapping[str, str]) -> Settings:
    """Settings from flags (by name; None where not given) and environment. Raises ``SettingError`` for the first bad value."""
    values: dict[str, object] = {}
    for name, setting in SETTINGS.items():
        given = flags.get(name)
        if given is not None:
            values[name] = setting.value(given, flag_name(name))
        elif environment_name(name) in environment:
            values[name] = setting.value(environment[environment_name(name)], environment_name(name))
        else:
            values[name] = setting.value(setting.default, environment_name(name))
    return Settings(**values)  # type: ignore[arg-type]
