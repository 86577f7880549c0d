"""All settings of the controller: flag, then environment variable, then default (OPS-300 ff.).

Each package declares the settings it uses; this module joins them and resolves their values. A value that cannot be parsed
stops the start with one line. Every setting of Karpenter's core exists, so that its charts and scripts keep working;
settings that have no effect here are parsed, and ``ineffective_settings`` names them at the start.

An empty variable counts as not set, because charts leave settings out that way. Switches in variables may be spelt in all ways
that Karpenter parses (``1``, ``True``); flags are ``true`` or ``false`` (OPS-301).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from fractions import Fraction

from karpenter.console.console_settings import ConsoleSettings
from karpenter.disruption.disruption_settings import DisruptionSettings
from karpenter.history.history_settings import LONGEST_HISTORY_INTERVAL, HistorySettings
from karpenter.instancetypes.instance_type_settings import InstanceTypeSettings
from karpenter.kube.client_settings import KubeClientSettings
from karpenter.model import durations
from karpenter.model import setting_kinds as kinds
from karpenter.model.setting_kinds import Profile, Setting, SettingError, declared_settings, setting
from karpenter.model.shares import share_text
from karpenter.olderversions.older_version_settings import OlderVersionSettings
from karpenter.providers.aws.aws_settings import AwsProviderSettings, DeclaredAwsSettings
from karpenter.providers.aws.bootstrap.bootstrap_settings import BootstrapMode, SelfManagedSettings
from karpenter.provisioning.provisioning_settings import ProvisioningSettings
from karpenter.runtime.intervals import Intervals, resolve_intervals
from karpenter.runtime.process_settings import ProcessSettings
from karpenter.scheduling.scheduling_settings import SchedulingSettings

#: Karpenter's chart sets it, nothing reads it (OPS §4.3).
_IGNORED_VARIABLES = ("KUBERNETES_MIN_VERSION",)
_PROVIDERS = ("simulated", "aws", "machines")
_FACTORY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def _parse_provider(text: str) -> str:
    """A provider of this package, or where one of another package is made. Raises ``ValueError``."""
    if text not in _PROVIDERS and not _FACTORY.fullmatch(text):
        raise ValueError(text)
    return text


_PROVIDER: kinds.SettingKind[str] = kinds.SettingKind(
    _parse_provider,
    f"a provider; choose {', '.join(_PROVIDERS)} or MODULE:CLASS of your own",
    "|".join((*_PROVIDERS, "MODULE:CLASS")),
)


@dataclass(frozen=True, repr=False, eq=False)
class CloudSettings:
    """Cloud provider."""

    provider: str = setting(
        _PROVIDER,
        "simulated",
        "Cloud provider: simulated, aws, machines, or MODULE:CLASS of another package.",
        "KARPENTER_PROVIDER",
    )
    simulated_faults_file: str = setting(
        kinds.FILE, "", "Faults that the simulated provider injects; empty means none."
    )
    machine_power_directory: str = setting(
        kinds.DIRECTORY,
        "",
        "Directory with the power drivers of provider machines: programs called as DRIVER on|off|status HOST.",
    )


@dataclass(frozen=True)
class Settings(
    DeclaredAwsSettings,
    InstanceTypeSettings,
    CloudSettings,
    DisruptionSettings,
    ProvisioningSettings,
    SchedulingSettings,
    OlderVersionSettings,
    KubeClientSettings,
    HistorySettings,
    ConsoleSettings,
    ProcessSettings,
):
    """The settings in force."""

    #: No settings of their own: how often work is repeated, from the environment only.
    intervals: Intervals = field(default_factory=Intervals)

    def as_text(self) -> dict[str, str]:
        """Every setting as text. None of them is a secret."""
        return {name: _value_text(getattr(self, name)) for name in SETTINGS}


#: The settings of each package, by the heading of their group, in the order in which help and documents show them.
SETTING_GROUPS: Mapping[str, Mapping[str, Setting]] = {
    (group.__doc__ or "").rstrip("."): declared_settings(group)
    for group in (
        CloudSettings,
        InstanceTypeSettings,
        ProcessSettings,
        KubeClientSettings,
        SchedulingSettings,
        ProvisioningSettings,
        DisruptionSettings,
        AwsProviderSettings,
        SelfManagedSettings,
        OlderVersionSettings,
        HistorySettings,
        ConsoleSettings,
    )
}
#: Every setting by its name in ``Settings``.
SETTINGS: Mapping[str, Setting] = {
    name: declared for group in SETTING_GROUPS.values() for name, declared in group.items()
}


def _value_text(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case timedelta():
            return durations.duration_text(value)
        case Fraction():
            return share_text(value)
        case StrEnum():
            return value.value
        case tuple():
            return ",".join(value)
    return str(value)


def resolve_settings(
    flags: Mapping[str, str | None], environment: Mapping[str, str], names: Collection[str] = tuple(SETTINGS)
) -> Settings:
    """Settings from flags (by name; None where not given) and environment; those not in ``names`` have their defaults.

    Raises ``SettingError`` that names everything that is wrong (AWS-014).
    """
    profile = _profile(flags, environment)
    values: dict[str, object] = {}
    wrong: list[str] = []
    for name, declared in SETTINGS.items():
        source, text = _setting_text(name, flags, environment) if name in names else ("", None)
        try:
            values[name] = declared.value_in(profile, text, source)
        except SettingError as error:
            wrong.append(str(error))
    try:
        values["intervals"] = resolve_intervals(environment)
    except SettingError as error:
        wrong.append(str(error))
    settings = Settings(**values)  # type: ignore[arg-type]
    wrong += _conflicts(settings)
    if wrong:
        raise SettingError("; ".join(wrong))
    return settings


def _profile(flags: Mapping[str, str | None], environment: Mapping[str, str]) -> Profile:
    """The profile that was chosen; the usual one where the choice is invalid, which is reported with the other settings."""
    _, text = _setting_text("profile", flags, environment)
    return Profile(text) if text in list(Profile) else Profile.LEAN


def setting_sources(flags: Mapping[str, str | None], environment: Mapping[str, str]) -> dict[str, str]:
    """Where each setting comes from: a flag, a variable, or empty for the default."""
    texts = {name: _setting_text(name, flags, environment) for name in SETTINGS}
    return {name: source if text is not None else "" for name, (source, text) in texts.items()}


def _setting_text(name: str, flags: Mapping[str, str | None], environment: Mapping[str, str]) -> tuple[str, str | None]:
    declared = SETTINGS[name]
    flag = flags.get(name)
    if flag is not None:
        return declared.spelling.flag, flag
    return declared.spelling.variable, declared.from_environment(environment)


def _conflicts(settings: Settings) -> Iterator[str]:
    """Settings that are valid alone and wrong together."""
    if settings.metrics_port and settings.metrics_port == settings.health_probe_port:
        yield f"--metrics-port and --health-probe-port are both {settings.metrics_port}: choose another for one of them"
    if settings.history_interval > LONGEST_HISTORY_INTERVAL:
        given, longest = map(durations.duration_text, (settings.history_interval, LONGEST_HISTORY_INTERVAL))
        yield f"--history-interval={given} is more than {longest}: between such samples spending would count as not known"
    if settings.provider == "machines" and not settings.machine_power_directory:
        yield "missing field, machine-power-directory: provider machines needs --machine-power-directory"
    if settings.provider == "aws" and not settings.cluster_name:
        yield "missing field, cluster-name: provider aws needs --cluster-name (CLUSTER_NAME)"
    if settings.provider == "aws" and settings.bootstrap_mode is BootstrapMode.KUBEADM:
        yield from _kubeadm_conflicts(settings)


def _kubeadm_conflicts(settings: Settings) -> Iterator[str]:
    """What mode kubeadm cannot do without EKS (AWS-900)."""
    if not settings.cluster_endpoint:
        yield "--bootstrap-mode=kubeadm needs --cluster-endpoint (CLUSTER_ENDPOINT), because EKS is not asked for it"
    if settings.eks_control_plane:
        yield "--bootstrap-mode=kubeadm and --eks-control-plane=true exclude each other: leave one of them out"
    if settings.enable_zonal_shift:
        yield "--bootstrap-mode=kubeadm and --enable-zonal-shift=true exclude each other: only EKS has zonal shifts"


def ineffective_settings(settings: Settings, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Settings that were given and have no effect (yet), each with the consequence."""
    return tuple(_ineffective_settings(settings, environment))


def risky_settings(settings: Settings, registration_timeout: timedelta) -> tuple[str, ...]:
    """Settings that work in most cases only, each with the consequence (AWS-938)."""
    ttl = settings.bootstrap_token_ttl
    if settings.provider != "aws" or ttl >= registration_timeout:
        return ()
    times = f"{durations.duration_text(ttl)}, and a NodeClaim may take {durations.duration_text(registration_timeout)}"
    return (f"--bootstrap-token-ttl is {times} to register: instances that boot slowly cannot join",)


def _ineffective_settings(settings: Settings, environment: Mapping[str, str]) -> Iterator[str]:
    yield from settings.feature_gates.warnings()
    aws_gates = settings.aws_feature_gates
    for gate, is_on in (("DRANVIDIAGPU", aws_gates.dra_nvidia_gpu), ("DRAEFA", aws_gates.dra_efa)):
        if is_on and settings.ignore_dra_requests:
            yield f"AWS feature gate {gate}: device claims are ignored; it needs --ignore-dra-requests=false"
    for name in _IGNORED_VARIABLES:
        if environment.get(name):
            yield f"{name}: nothing reads it"
