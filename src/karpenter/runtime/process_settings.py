"""Settings of the process itself: logs, ports, leader election, resources, feature gates."""
# ruff: noqa: RUF009 - what `setting` returns is a dataclass field, as `field` does

from __future__ import annotations

from dataclasses import dataclass

from karpenter.model import setting_kinds as kinds
from karpenter.model.feature_gate_flags import FEATURE_GATES, ParsedFeatureGates
from karpenter.model.feature_gates import FeatureGates
from karpenter.model.setting_kinds import Profile, SettingKind, setting

_LEVELS = kinds.one_of("debug", "info", "error")
#: An empty level is the default one (OPS-303).
_LOG_LEVEL = SettingKind(lambda text: _LEVELS.parse(text or "info"), _LEVELS.expected, _LEVELS.metavar)


@dataclass(frozen=True, repr=False, eq=False)
class ProcessSettings:
    """Process."""

    profile: Profile = setting(
        kinds.member_of(Profile),
        "lean",
        "Which defaults apply: lean, or those of Karpenter. `karpenter profiles` prints both.",
        "KARPENTER_PROFILE",
    )
    log_level: str = setting(_LOG_LEVEL, "info", "Least severity that is logged.")
    log_format: str = setting(
        kinds.one_of("auto", "json", "console"),
        "auto",
        "Form of log lines: JSON, or text for people. auto: text where they go to a terminal only.",
    )
    log_output_paths: tuple[str, ...] = setting(
        kinds.PATHS, "stdout", "Where log lines are written: stdout, stderr or files, separated by commas."
    )
    log_error_output_paths: tuple[str, ...] = setting(
        kinds.PATHS, "stderr", "Where failures to write log lines are reported."
    )
    metrics_port: int = setting(kinds.PORT, "8080", "Port of /metrics and of profiling pages; 0 switches them off.")
    health_probe_port: int = setting(kinds.PORT, "8081", "Port of /healthz and /readyz; 0 switches them off.")
    enable_profiling: bool = setting(kinds.SWITCH, "false", "Serve /debug/pprof/ and /debug/state on the metrics port.")
    disable_leader_election: bool = setting(
        kinds.SWITCH, "false", "Run without leader election. Safe only where no second process runs."
    )
    leader_election_name: str = setting(
        kinds.OBJECT_NAME, "karpenter-leader-election", "Name of the Lease for leader election."
    )
    leader_election_namespace: str = setting(
        kinds.NAMESPACE, "", "Namespace of that Lease; empty means the namespace the process runs in."
    )
    disable_controller_warmup: bool = setting(
        kinds.SWITCH, "true", "Keep caches empty in a process that does not lead until it leads."
    )
    disable_cluster_state_observability: bool = setting(
        kinds.SWITCH,
        "false",
        "Leave out metrics about single nodes, pods and conditions, which cost memory in large clusters.",
    )
    legacy_metrics: bool = setting(
        kinds.SWITCH, "false", "Also export series under the names they had before Karpenter 1.0, for older dashboards."
    )
    notifications_file: str = setting(
        kinds.FILE, "", "Webhooks and chats that events are posted to, and which events; empty means none."
    )
    memory_limit: int = setting(
        kinds.INTEGER,
        "-1",
        "Memory the process may use; from 90 % on it frees caches and logs that. 0 or less means no limit.",
        unit="bytes",
    )
    cpu_requests: int = setting(
        kinds.INTEGER,
        "1000",
        "CPU request of the process. Its request rate to the API server grows with it. 0 or less counts as 1000.",
        unit="millicores",
    )
    feature_gates: ParsedFeatureGates = setting(
        FEATURE_GATES,
        "NodeRepair=true",
        "Feature gates, such as NodeOverlay=true,ReservedCapacity=false. Those that a list leaves out keep their default.",
        karpenter_default="NodeRepair=false",
    )

    @property
    def gates(self) -> FeatureGates:
        """The feature gates that are on."""
        return self.feature_gates.enabled
