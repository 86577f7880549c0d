"""Settings: flag, then environment, then default (OPS-300 ff.). A value that cannot be read stops the start with one line.

Each setting exists as ``--lower-kebab`` flag and ``UPPER_SNAKE`` variable. A field of ``Settings`` says everything about it:
name, type, default, how it is read and what help says; flags and variables follow from that.

Every setting of the reference's core is here, so that its charts and scripts keep working. Some control what is not built yet, or
what is no more: they are read and checked, and ``without_effect`` says so at the start.

A variable that is empty counts as not set, since that is how charts leave things out. Switches in variables may be spelt in all
ways the reference reads (``1``, ``True``); flags are ``true`` or ``false`` (OPS-301).
"""
# ruff: noqa: RUF009 - what `setting` returns is a dataclass field, as `field` does

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from enum import StrEnum
from fractions import Fraction

from karpenter.model import durations
from karpenter.model.feature_gates import FeatureGates
from karpenter.model.shares import share_text
from karpenter.runtime import setting_kinds as kinds
from karpenter.runtime.feature_gate_flags import AwsFeatureGates, ParsedFeatureGates
from karpenter.runtime.intervals import Intervals, resolve_intervals
from karpenter.runtime.scheduler_config import SchedulerConfig
from karpenter.runtime.setting_kinds import SETTING_METADATA, Setting, SettingError, setting, setting_of_field
from karpenter.scheduling.objective import (
    COST_PER_INTERRUPTION,
    DEFAULT_EXPOSURE,
    NODE_FEE_PER_HOUR,
    ExposureLimits,
    Objective,
)
from karpenter.scheduling.scheduling_options import MinValuesPolicy, PreferencePolicy

__all__ = [
    "SETTINGS",
    "Setting",
    "SettingError",
    "Settings",
    "resolve_settings",
    "setting_sources",
    "ineffective_settings",
]

#: Set by the reference's chart, read by nobody (OPS §4.3).
_IGNORED_VARIABLES = ("KUBERNETES_MIN_VERSION",)


@dataclass(frozen=True)
class Settings:
    """The settings in force."""

    provider: str = setting(
        kinds.PROVIDER, "simulated", "Where machines come from: simulated or aws.", "KARPENTER_PROVIDER"
    )
    log_level: str = setting(kinds.LOG_LEVEL, "info", "Least severity that is logged.")
    log_output_paths: tuple[str, ...] = setting(
        kinds.LOG_PATHS, "stdout", "Where log lines go: stdout, stderr or files, separated by commas."
    )
    log_error_output_paths: tuple[str, ...] = setting(
        kinds.LOG_PATHS, "stderr", "Where is told that a log line could not be written."
    )
    metrics_port: int = setting(kinds.PORT, "8080", "Port of /metrics and of profiling pages; 0 switches them off.")
    health_probe_port: int = setting(kinds.PORT, "8081", "Port of /healthz and /readyz; 0 switches them off.")
    enable_profiling: bool = setting(kinds.SWITCH, "false", "Serve /debug/pprof/ and /debug/state on the metrics port.")
    kube_client_qps: int = setting(kinds.POSITIVE, "200", "Requests per second to the API server.")
    kube_client_burst: int = setting(kinds.POSITIVE, "300", "Burst of requests to the API server.")
    disable_leader_election: bool = setting(
        kinds.SWITCH, "false", "Act without being elected: safe only where no second process runs."
    )
    leader_election_name: str = setting(
        kinds.OBJECT_NAME, "karpenter-leader-election", "Name of the Lease that says who leads."
    )
    leader_election_namespace: str = setting(
        kinds.NAMESPACE, "", "Namespace of that Lease; empty means the one the process runs in."
    )
    disable_controller_warmup: bool = setting(
        kinds.SWITCH, "true", "Whether a process that does not lead keeps its caches empty until it does."
    )
    disable_cluster_state_observability: bool = setting(
        kinds.SWITCH,
        "false",
        "Leave out figures about single nodes, pods and conditions, which cost memory in large clusters.",
    )
    memory_limit: int = setting(
        kinds.INTEGER,
        "-1",
        "Memory the process may use, in bytes; from 90 % on it cleans up and says so. 0 or less means no limit.",
    )
    cpu_requests: int = setting(
        kinds.INTEGER,
        "1000",
        "Processor time the process asked for, in thousandths of a core: its pace towards the API server grows with it. "
        "0 or less counts as 1000.",
    )
    batch_max_duration: timedelta = setting(kinds.DURATION, "10s", "Longest time a batch stays open.")
    batch_idle_duration: timedelta = setting(kinds.DURATION, "1s", "A batch closes after this long without news.")
    preference_policy: PreferencePolicy = setting(
        kinds.PREFERENCE_POLICY, "Respect", "Whether preferred affinities count while they can be met."
    )
    min_values_policy: MinValuesPolicy = setting(
        kinds.MIN_VALUES_POLICY, "Strict", "Whether minValues may be lowered to what is available."
    )
    node_fee: float = setting(
        kinds.USD,
        f"{NODE_FEE_PER_HOUR:g}",
        "What a machine counts beside its price when plans are compared, in USD per hour.",
    )
    exposure: Fraction = setting(
        kinds.SHARE,
        DEFAULT_EXPOSURE,
        "How much of a workload may be on one new machine, and of a NodePool's spot machines in one type and zone, "
        "unless pods would wait for it.",
    )
    interruption_cost: float = setting(
        kinds.USD,
        f"{COST_PER_INTERRUPTION:g}",
        "What one interruption of a spot machine costs in USD, where the provider says how often they come.",
    )
    ignore_dra_requests: bool = setting(kinds.SWITCH, "true", "Whether pods that claim devices are left alone.")
    scheduler_config: SchedulerConfig = setting(
        kinds.SCHEDULER_CONFIG,
        "",
        "Spread constraints that the cluster's scheduler gives pods without any, as YAML or JSON.",
    )
    record_problems: str = setting(
        kinds.TEXT,
        "",
        "Directory for the latest scheduling problems, at most 100 files and 256 MiB, for karpenter replay; empty means none.",
    )
    feature_gates: ParsedFeatureGates = setting(
        kinds.FEATURE_GATES, "", "Functions to switch, such as NodeRepair=true,ReservedCapacity=false."
    )
    nominate_pods: bool = setting(kinds.SWITCH, "true", "Tell the scheduler which pods a new node was bought for.")
    nomination_qps: int = setting(
        kinds.POSITIVE, "1000", "Nominations per second, which come in one burst per batch of nodes."
    )
    claims_per_minute: int = setting(
        kinds.POSITIVE, "1000", "NodeClaims created per minute at most, whatever seems to be needed."
    )
    instance_types_file_path: str = setting(
        kinds.TEXT,
        "",
        "Instance types of the simulated provider; empty means the packaged EC2 catalogue.",
        "--instance-types",
        "--instance-types-file-path",
    )
    simulated_faults_file: str = setting(kinds.TEXT, "", "What goes wrong on purpose in the simulated provider.")
    cluster_name: str = setting(
        kinds.TEXT, "", "Name of the cluster, which marks everything of it on AWS. Needed with provider aws."
    )
    cluster_endpoint: str = setting(
        kinds.ENDPOINT, "", "URL under which machines reach the API server; empty means what EKS says."
    )
    cluster_ca_bundle: str = setting(
        kinds.CA_BUNDLE,
        "",
        "Certificates of the API server, base64; empty means those of the controller's own connection.",
    )
    cluster_dns_ip: str = setting(
        kinds.IP_ADDRESS, "", "Address of the cluster's DNS; empty means that of the Service kube-dns."
    )
    service_cidr: str = setting(
        kinds.CIDR, "", "Addresses of Services, which images of AL2023 ask for; empty means what EKS says."
    )
    isolated_vpc: bool = setting(
        kinds.SWITCH,
        "false",
        "Never call services of AWS that have no endpoint inside a VPC: prices, instance profiles.",
    )
    eks_control_plane: bool = setting(kinds.SWITCH, "false", "Ask EKS, not the API server, for the Kubernetes version.")
    vm_memory_overhead_percent: Fraction = setting(
        kinds.FRACTION, "0.075", "Share of a machine's memory that does not reach its operating system: 0.075 is 7.5 %."
    )
    interruption_queue: str = setting(
        kinds.TEXT, "", "Name of the queue that tells of interruptions; empty means nobody listens."
    )
    reserved_enis: int = setting(kinds.COUNT, "0", "Network interfaces of every machine that pods cannot use.")
    disable_dry_run: bool = setting(
        kinds.SWITCH, "false", "Do not try out whether machines of a class may be launched."
    )
    enable_zonal_shift: bool = setting(kinds.SWITCH, "false", "Keep away from zones that EKS shifts away from.")
    ami_refresh_interval: timedelta = setting(
        kinds.REFRESH_INTERVAL, "1m", "How long what image selectors found is remembered."
    )
    subnet_refresh_interval: timedelta = setting(
        kinds.REFRESH_INTERVAL, "1m", "How long what subnet selectors found is remembered."
    )
    aws_feature_gates: AwsFeatureGates = setting(
        kinds.AWS_FEATURE_GATES, "NodeClassCEL=false", "Functions of the AWS provider to switch: NodeClassCEL."
    )
    karpenter_service: str = setting(kinds.TEXT, "", "Without effect: the service of a webhook there is no more.")
    #: Not settings of their own: how often work is repeated, from the environment only.
    intervals: Intervals = field(default_factory=Intervals)

    @property
    def gates(self) -> FeatureGates:
        """The feature gates that are on."""
        return self.feature_gates.enabled

    @property
    def worth(self) -> Objective:
        """How plans are valued."""
        return Objective(self.node_fee, self.interruption_cost, ExposureLimits.uniform(self.exposure))

    @property
    def nomination_window(self) -> timedelta:
        """How long a planned pod is expected on its machine (SCH-640)."""
        return max(2 * self.batch_max_duration, timedelta(seconds=10))

    def as_text(self) -> dict[str, str]:
        """Every setting as text. None of them is a secret."""
        return {name: _value_text(getattr(self, name)) for name in SETTINGS}


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


#: Every setting, by its name in ``Settings``.
SETTINGS: Mapping[str, Setting] = {
    item.name: setting_of_field(item.name, item.metadata)
    for item in fields(Settings)
    if SETTING_METADATA in item.metadata
}


def resolve_settings(flags: Mapping[str, str | None], environment: Mapping[str, str]) -> Settings:
    """Settings from flags (by name; None where not given) and environment.

    Raises ``SettingError`` that tells everything that is wrong (AWS-014).
    """
    values: dict[str, object] = {}
    wrong: list[str] = []
    for name, item in SETTINGS.items():
        source, text = _setting_text(name, flags, environment)
        try:
            values[name] = item.parse(item.default if text is None else text, source)
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


def setting_sources(flags: Mapping[str, str | None], environment: Mapping[str, str]) -> dict[str, str]:
    """Where each setting comes from: a flag, a variable, or empty for the default."""
    found = {name: _setting_text(name, flags, environment) for name in SETTINGS}
    return {name: source if text is not None else "" for name, (source, text) in found.items()}


def _setting_text(name: str, flags: Mapping[str, str | None], environment: Mapping[str, str]) -> tuple[str, str | None]:
    item = SETTINGS[name]
    flag = flags.get(name)
    if flag is not None:
        return item.spelling.flag, flag
    return item.spelling.variable, item.from_environment(environment)


def _conflicts(settings: Settings) -> Iterator[str]:
    """What is right by itself and wrong together."""
    if settings.metrics_port and settings.metrics_port == settings.health_probe_port:
        yield f"--metrics-port and --health-probe-port are both {settings.metrics_port}: choose another for one of them"
    if settings.provider == "aws" and not settings.cluster_name:
        yield "missing field, cluster-name: provider aws needs --cluster-name (CLUSTER_NAME)"


def ineffective_settings(settings: Settings, environment: Mapping[str, str]) -> tuple[str, ...]:
    """What was set and changes nothing (yet), each with the consequence."""
    return tuple(_ineffective_settings(settings, environment))


def _ineffective_settings(settings: Settings, environment: Mapping[str, str]) -> Iterator[str]:
    if settings.karpenter_service:
        yield "--karpenter-service: there is no webhook any more"
    if not settings.ignore_dra_requests:
        yield "--ignore-dra-requests: devices are not allocated yet, so pods that claim them are left alone all the same"
    yield from settings.feature_gates.warnings()
    for name in _IGNORED_VARIABLES:
        if environment.get(name):
            yield f"{name}: nothing reads it"
