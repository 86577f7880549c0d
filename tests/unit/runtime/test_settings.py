"""Settings: where they come from and what is refused (OPS §4.1, §4.2)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from karpenter.model.feature_gates import DEFAULT_FEATURE_GATES, FeatureGate
from karpenter.model.setting_kinds import SettingError
from karpenter.providers.aws.aws_settings import AwsSettings, aws_settings_of
from karpenter.runtime.intervals import INTERVALS, Intervals
from karpenter.scheduling.objective import NO_EXPOSURE_LIMITS, Objective
from karpenter.scheduling.scheduling_options import PreferencePolicy
from karpenter.settings import SETTINGS, Settings, ineffective_settings, resolve_settings, setting_sources

#: Variable, flag and default of every setting of the reference's core (OPS §4.2).
REFERENCE = [
    ("KARPENTER_SERVICE", "--karpenter-service", ""),
    ("METRICS_PORT", "--metrics-port", "8080"),
    ("HEALTH_PROBE_PORT", "--health-probe-port", "8081"),
    ("KUBE_CLIENT_QPS", "--kube-client-qps", "200"),
    ("KUBE_CLIENT_BURST", "--kube-client-burst", "300"),
    ("ENABLE_PROFILING", "--enable-profiling", "false"),
    ("DISABLE_CONTROLLER_WARMUP", "--disable-controller-warmup", "true"),
    ("DISABLE_LEADER_ELECTION", "--disable-leader-election", "false"),
    ("LEADER_ELECTION_NAME", "--leader-election-name", "karpenter-leader-election"),
    ("LEADER_ELECTION_NAMESPACE", "--leader-election-namespace", ""),
    ("DISABLE_CLUSTER_STATE_OBSERVABILITY", "--disable-cluster-state-observability", "false"),
    ("MEMORY_LIMIT", "--memory-limit", "-1"),
    ("CPU_REQUESTS", "--cpu-requests", "1000"),
    ("LOG_LEVEL", "--log-level", "info"),
    ("LOG_OUTPUT_PATHS", "--log-output-paths", "stdout"),
    ("LOG_ERROR_OUTPUT_PATHS", "--log-error-output-paths", "stderr"),
    ("BATCH_MAX_DURATION", "--batch-max-duration", "10s"),
    ("BATCH_IDLE_DURATION", "--batch-idle-duration", "1s"),
    ("PREFERENCE_POLICY", "--preference-policy", "Respect"),
    ("MIN_VALUES_POLICY", "--min-values-policy", "Strict"),
    ("SCHEDULER_CONFIG", "--scheduler-config", ""),
    ("IGNORE_DRA_REQUESTS", "--ignore-dra-requests", "true"),  # K15-050
    ("FEATURE_GATES", "--feature-gates", "NodeRepair=true"),
    ("CLUSTER_NAME", "--cluster-name", ""),
    ("CLUSTER_ENDPOINT", "--cluster-endpoint", ""),
    ("CLUSTER_CA_BUNDLE", "--cluster-ca-bundle", ""),
    ("ISOLATED_VPC", "--isolated-vpc", "false"),
    ("EKS_CONTROL_PLANE", "--eks-control-plane", "false"),
    ("VM_MEMORY_OVERHEAD_PERCENT", "--vm-memory-overhead-percent", "0.075"),
    ("INTERRUPTION_QUEUE", "--interruption-queue", ""),
    ("RESERVED_ENIS", "--reserved-enis", "0"),
    ("DISABLE_DRY_RUN", "--disable-dry-run", "false"),
    ("ENABLE_ZONAL_SHIFT", "--enable-zonal-shift", "false"),
    ("AMI_REFRESH_INTERVAL", "--ami-refresh-interval", "1m"),
    ("SUBNET_REFRESH_INTERVAL", "--subnet-refresh-interval", "1m"),
    ("AWS_FEATURE_GATES", "--aws-feature-gates", ""),
    ("SECURITY_GROUP_REFRESH_INTERVAL", "--security-group-refresh-interval", "1m"),
    ("LEGACY_NODE_REPAIR", "--legacy-node-repair", "false"),
]


def test_without_anything_every_setting_has_its_default() -> None:
    """OPS-O1"""
    assert resolve_settings({}, {}) == Settings()
    assert Settings().gates == DEFAULT_FEATURE_GATES | {FeatureGate.NODE_REPAIR}
    assert set(setting_sources({}, {}).values()) == {""}


@pytest.mark.parametrize(("variable", "flag", "default"), REFERENCE, ids=[row[0] for row in REFERENCE])
def test_the_settings_of_the_reference_are_all_there(variable: str, flag: str, default: str) -> None:
    """OPS-310 to OPS-332, AWS-001 to AWS-013, OPS-340 to OPS-351: names and defaults are Karpenter's, but for node repair.

    OPS-732: 200 requests per second, bursts of 300.
    """
    (setting,) = [declared for declared in SETTINGS.values() if declared.spelling.variable == variable]
    assert (setting.spelling.flag, setting.default) == (flag, default)


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_every_setting_can_be_given_as_it_is_shown(name: str) -> None:
    """OPS-300"""
    shown = Settings().as_text()[name]
    setting = SETTINGS[name]
    assert resolve_settings({name: shown}, {}) == Settings()
    assert resolve_settings({}, {setting.spelling.variable: shown}) == Settings()
    assert setting.help.endswith(".")


def test_no_two_settings_are_written_alike() -> None:
    spellings = [setting.spelling for setting in SETTINGS.values()]
    flags = [flag for spelling in spellings for flag in (spelling.flag, *spelling.aliases)]
    variables = [spelling.variable for spelling in spellings]
    assert len(set(flags)) == len(flags)
    assert len(set(variables)) == len(variables)


def test_the_file_of_instance_types_has_two_flags_and_one_variable() -> None:
    """OPS-352"""
    spelling = SETTINGS["instance_types_file_path"].spelling
    assert (spelling.flag, *spelling.aliases) == ("--instance-types", "--instance-types-file-path")
    assert spelling.variable == "INSTANCE_TYPES_FILE_PATH"


def test_a_flag_wins_over_the_environment() -> None:
    """OPS-O2, OPS-300"""
    environment = {"BATCH_MAX_DURATION": "30s"}
    flags = {"batch_max_duration": "20s"}
    assert resolve_settings({}, environment).batch_max_duration == timedelta(seconds=30)
    assert resolve_settings(flags, environment).batch_max_duration == timedelta(seconds=20)
    assert setting_sources({}, environment)["batch_max_duration"] == "BATCH_MAX_DURATION"
    assert setting_sources(flags, environment)["batch_max_duration"] == "--batch-max-duration"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("LOG_LEVEL", "trace"),
        ("LOG_LEVEL", "INFO"),
        ("PREFERENCE_POLICY", "x"),
        ("MIN_VALUES_POLICY", "x"),
        ("EXPOSURE", "half"),
        ("EXPOSURE", "0"),
        ("EXPOSURE", "1.1"),
        ("NODE_FEE", "-1"),
        ("NODE_FEE", "nan"),
        ("INTERRUPTION_COST", "1e3"),
        ("BATCH_MAX_DURATION", "soon"),
        ("BATCH_MAX_DURATION", "10"),
        ("BATCH_IDLE_DURATION", "-1s"),
        ("KUBE_CLIENT_QPS", "many"),
        ("KUBE_CLIENT_QPS", "1_000"),
        ("KUBE_CLIENT_QPS", " 200"),
        ("KUBE_CLIENT_BURST", "0"),
        ("CLAIMS_PER_MINUTE", "0"),
        ("NODE_FEE", "-0.1"),
        ("NODE_FEE", "1e-3"),
        ("NODE_FEE", "0.005 USD"),
        ("NOMINATION_QPS", "-1"),
        ("HEALTH_PROBE_PORT", "99999"),
        ("METRICS_PORT", "-1"),
        ("NOMINATE_PODS", "yes"),
        ("ENABLE_PROFILING", "on"),
        ("DISABLE_LEADER_ELECTION", "truE"),
        ("LEADER_ELECTION_NAME", "Not_A_Name"),
        ("LEADER_ELECTION_NAMESPACE", "a.b"),
        ("MEMORY_LIMIT", "1Gi"),
        ("CPU_REQUESTS", "500m"),
        ("LOG_OUTPUT_PATHS", " , "),
        ("KARPENTER_PROVIDER", "moon"),
        pytest.param("CLUSTER_ENDPOINT", "0000.gr7.us-west-2.eks.amazonaws.com", id="AWS-T002"),
        ("CLUSTER_ENDPOINT", "https://"),
        ("CLUSTER_CA_BUNDLE", "no base64!"),
        ("CLUSTER_DNS_IP", "10.96.0.300"),
        ("SERVICE_CIDR", "10.96.0.1/12"),
        pytest.param("VM_MEMORY_OVERHEAD_PERCENT", "-0.01", id="AWS-T003"),
        ("VM_MEMORY_OVERHEAD_PERCENT", "7.5%"),
        pytest.param("RESERVED_ENIS", "-1", id="AWS-T004"),
        pytest.param("AMI_REFRESH_INTERVAL", "30s", id="AWS-T006"),
        ("SUBNET_REFRESH_INTERVAL", "59s"),
        ("SECURITY_GROUP_REFRESH_INTERVAL", "30s"),
    ],
)
def test_a_value_that_cannot_be_read_is_refused_by_name(variable: str, value: str) -> None:
    """OPS-O3, OPS-304: one line that names variable and value and says what is expected.

    OPS-O6: an endpoint without scheme, an overhead, ENIs and intervals out of range.
    """
    with pytest.raises(SettingError) as refused:
        resolve_settings({}, {variable: value})
    text = str(refused.value)
    assert text.startswith(f"{variable}={value!r} is not ")
    assert "\n" not in text


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"log_level": "loud"}, "--log-level='loud' is not debug, info or error"),
        (
            {"feature_gates": "NodeRepair"},
            "--feature-gates='NodeRepair': 'NodeRepair' has no value; write NodeRepair=true or NodeRepair=false",
        ),
        (
            {"scheduler_config": "a: 1"},
            "--scheduler-config='a: 1': parsing scheduler config, decoding scheduler config, Object contains unknown field `a`",
        ),
        (
            {"instance_types_file_path": "x", "kube_client_qps": ""},
            "--kube-client-qps='' is not a positive whole number",
        ),
        (
            {"metrics_port": "8081"},
            "--metrics-port and --health-probe-port are both 8081: choose another for one of them",
        ),
        (
            {"history_interval": "30m"},
            "--history-interval=30m0s is more than 10m0s: between such samples spending would count as not known",
        ),
    ],
    ids=["level", "OPS-O5-gates", "OPS-O7-scheduler", "empty-flag", "ports", "rare-samples"],
)
def test_a_bad_flag_is_refused_by_its_own_name(flags: dict[str, str | None], says: str) -> None:
    with pytest.raises(SettingError) as refused:
        resolve_settings(flags, {"LOG_LEVEL": "debug"})
    assert str(refused.value) == says


def test_all_invalid_settings_are_reported_together() -> None:
    """AWS-014"""
    with pytest.raises(SettingError) as refused:
        resolve_settings({"provider": "aws", "reserved_enis": "-1"}, {"AMI_REFRESH_INTERVAL": "1s"})
    assert str(refused.value) == (
        "--reserved-enis='-1' is not a whole number of at least 0; "
        "AMI_REFRESH_INTERVAL='1s' is not a duration of at least 1m; "
        "missing field, cluster-name: provider aws needs --cluster-name (CLUSTER_NAME)"
    )


def aws(settings: Settings) -> AwsSettings:
    return aws_settings_of(settings, settings.gates, settings.intervals)


@pytest.mark.parametrize(
    "value", ["NAME", "<cluster>", "${CLUSTER_NAME}", "$(CLUSTER_NAME)", "YOUR_CLUSTER", "changeme", "{{ .cluster }}"]
)
def test_a_placeholder_left_in_a_manifest_stops_the_start(value: str) -> None:
    """The kustomization of deploy/aws has ``NAME`` where the cluster's name belongs."""
    with pytest.raises(SettingError, match=r"CLUSTER_NAME=.* is a placeholder"):
        resolve_settings({}, {"CLUSTER_NAME": value, "PROVIDER": "aws"})


@pytest.mark.parametrize("value", ["shop", "name", "text-2", "Your", "todo-app", "MyNAME", "a$b"])
def test_names_that_only_resemble_placeholders_are_taken(value: str) -> None:
    """``NAME`` in small letters is a name."""
    assert aws(resolve_settings({}, {"CLUSTER_NAME": value})).cluster_name == value


def test_aws_needs_the_name_of_the_cluster() -> None:
    """AWS-T001"""
    with pytest.raises(SettingError, match="cluster-name"):
        resolve_settings({"provider": "aws"}, {})
    assert aws(resolve_settings({"provider": "aws", "cluster_name": "c"}, {})).cluster_name == "c"


def test_a_flag_of_aws_wins_over_the_environment() -> None:
    """AWS-T005"""
    assert aws(resolve_settings({"reserved_enis": "1"}, {"RESERVED_ENIS": "2"})).reserved_enis == 1


def test_unknown_feature_gates_of_aws_are_ignored() -> None:
    """AWS-T007"""
    assert aws(resolve_settings({}, {"AWS_FEATURE_GATES": "NodeClassCEL=true,Foo=true"})).kubelet_expressions


def test_each_gate_of_aws_switches_itself_only() -> None:
    """K15-A06, K15-A131; K15-A09: a reboot instead of a replacement. K15-A130 is among the values that are refused."""
    gates = resolve_settings({}, {"AWS_FEATURE_GATES": "DRAEFA=true"}).aws_feature_gates
    assert str(gates) == "NodeClassCEL=false,DRANVIDIAGPU=false,DRAEFA=true,RebootForRepair=false"
    assert aws(resolve_settings({}, {"AWS_FEATURE_GATES": "RebootForRepair=true"})).reboot_for_repair
    assert not aws(resolve_settings({}, {})).reboot_for_repair


def test_a_long_value_is_not_repeated_in_full() -> None:
    with pytest.raises(SettingError) as refused:
        resolve_settings({"scheduler_config": "x" * 10_000}, {})
    assert len(str(refused.value)) < 200


def test_both_ports_may_be_off() -> None:
    assert resolve_settings({"metrics_port": "0", "health_probe_port": "0"}, {}).metrics_port == 0


@pytest.mark.parametrize(("text", "seconds"), [("1m30s", 90), ("500ms", 0.5), ("0s", 0)])
def test_durations_are_numbers_with_units(text: str, seconds: float) -> None:
    """OPS-302"""
    assert resolve_settings({}, {"BATCH_IDLE_DURATION": text}).batch_idle_duration == timedelta(seconds=seconds)


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_an_empty_variable_is_as_good_as_none(name: str) -> None:
    """As charts leave things out."""
    variable = SETTINGS[name].spelling.variable
    assert resolve_settings({}, {variable: ""}) == Settings()
    assert setting_sources({}, {variable: ""})[name] == ""


@pytest.mark.parametrize(
    ("text", "expected"), [("1", True), ("t", True), ("TRUE", True), ("True", True), ("0", False), ("False", False)]
)
def test_switches_in_variables_may_be_spelt_as_the_reference_reads_them(text: str, expected: bool) -> None:
    """OPS-301; a flag may not."""
    assert resolve_settings({}, {"ENABLE_PROFILING": text}).enable_profiling == expected
    with pytest.raises(SettingError, match=r"^--enable-profiling='.+' is not true or false$"):
        resolve_settings({"enable_profiling": text}, {})


def test_an_empty_log_level_means_the_default() -> None:
    """OPS-303"""
    assert resolve_settings({"log_level": ""}, {"LOG_LEVEL": "debug"}).log_level == "info"


def test_values_have_their_types() -> None:
    settings = resolve_settings(
        {},
        {
            "LOG_OUTPUT_PATHS": "stdout, /tmp/log",
            "MEMORY_LIMIT": "1073741824",
            "CPU_REQUESTS": "-5",
            "PREFERENCE_POLICY": "Ignore",
            "FEATURE_GATES": "NodeOverlay=true",
        },
    )
    assert settings.log_output_paths == ("stdout", "/tmp/log")
    assert (settings.memory_limit, settings.cpu_requests) == (2**30, -5)
    assert settings.preference_policy is PreferencePolicy.IGNORE
    assert settings.gates == Settings().gates | {FeatureGate.NODE_OVERLAY}


@pytest.mark.parametrize(
    ("profile", "given", "is_on"),
    [
        ("lean", None, True),
        ("lean", "ReservedCapacity=false", True),
        ("lean", "NodeRepair=false", False),
        ("lean", "NodeRepair=true,NodeRepair=false", False),
        ("karpenter", None, False),
        ("karpenter", "ReservedCapacity=false", False),
        ("karpenter", "NodeRepair=true", True),
    ],
)
def test_node_repair_is_on_by_default_but_not_in_the_profile_karpenter(
    profile: str, given: str | None, is_on: bool
) -> None:
    """K15-043, OPS-355: a list of gates replaces only what it names, in both profiles and in both ways of writing it."""
    by_flag = resolve_settings({"profile": profile, "feature_gates": given}, {})
    by_variable = resolve_settings({}, {"KARPENTER_PROFILE": profile, "FEATURE_GATES": given or ""})
    for settings in (by_flag, by_variable):
        assert (FeatureGate.NODE_REPAIR in settings.gates) == is_on
        assert settings.uses_repair(settings.gates) == is_on
        assert (FeatureGate.RESERVED_CAPACITY in settings.gates) == (given != "ReservedCapacity=false")


def test_settings_are_shown_as_they_are_written() -> None:
    """OPS-305"""
    shown = resolve_settings({"batch_max_duration": "90s", "nominate_pods": "false"}, {}).as_text()
    assert shown["batch_max_duration"] == "1m30s"
    assert shown["nominate_pods"] == "false"
    assert shown["min_values_policy"] == "Strict"
    assert (shown["exposure"], shown["node_fee"], shown["interruption_cost"]) == ("0.5", "0.005", "1.0")
    assert shown["feature_gates"].startswith("NodeRepair=true,")


def test_how_plans_are_valued_is_a_setting() -> None:
    settings = resolve_settings(
        {"exposure": "off", "max_pods_per_node": "0"}, {"NODE_FEE": "0", "INTERRUPTION_COST": "2.5"}
    )
    assert settings.objective == Objective(0.0, 2.5, NO_EXPOSURE_LIMITS)
    assert settings.as_text()["exposure"] == "off"
    assert resolve_settings({}, {}).objective == Objective()


def test_settings_without_effect_are_reported_with_the_consequence() -> None:
    environment = {
        "FEATURE_GATES": "NodeRepair=true,NodeRepiar=true",
        "KUBERNETES_MIN_VERSION": "1.19.0-0",
    }
    said = ineffective_settings(resolve_settings({}, environment), environment)
    assert [line.partition(":")[0] for line in said] == [
        "feature gate NodeRepiar",
        "KUBERNETES_MIN_VERSION",
    ]


def test_nothing_is_reported_where_all_settings_have_effect() -> None:
    environment = {"FEATURE_GATES": "ReservedCapacity=true,Drift=true", "SYSTEM_NAMESPACE": "x", "CLUSTER_NAME": "c"}
    assert ineffective_settings(resolve_settings({}, environment), environment) == ()


@pytest.mark.parametrize("gate", ["DRANVIDIAGPU", "DRAEFA"])
def test_an_aws_gate_without_effect_says_so(gate: str) -> None:
    """K15-A07, K15-A08: no effect while device claims are ignored."""
    environment = {"AWS_FEATURE_GATES": f"{gate}=true"}
    said = ineffective_settings(resolve_settings({}, environment), environment)
    assert said == (f"AWS feature gate {gate}: device claims are ignored; it needs --ignore-dra-requests=false",)
    heeded = environment | {"IGNORE_DRA_REQUESTS": "false"}
    assert ineffective_settings(resolve_settings({}, heeded), heeded) == ()


@pytest.mark.parametrize(("ignored", "brought"), [(True, False), (False, True)])
def test_types_of_ec2_bring_devices_only_where_claims_count(ignored: bool, brought: bool) -> None:
    """K15-A07, K15-A08, K15-A80; validation asks the gate itself (K15-A26)."""
    settings = resolve_settings({}, {"AWS_FEATURE_GATES": "DRANVIDIAGPU=true,DRAEFA=true"})
    found = aws_settings_of(settings, settings.gates, settings.intervals, ignore_dra_requests=ignored)
    assert (found.dra_nvidia_gpu, found.dra_efa, found.dra_nvidia_gpu_gate) == (brought, brought, True)


def test_intervals_come_from_the_environment_only() -> None:
    assert resolve_settings({}, {}).intervals == Intervals()
    intervals = resolve_settings({}, {"KARPENTER_DISRUPTION_POLL_INTERVAL": "500ms"}).intervals
    assert intervals == Intervals(disruption_poll=timedelta(milliseconds=500))
    assert not set(INTERVALS) & set(SETTINGS)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("KARPENTER_DISRUPTION_POLL_INTERVAL", "0s"),
        ("KARPENTER_GARBAGE_COLLECTION_INTERVAL", "often"),
        ("KARPENTER_LEASE_DURATION", "1500ms"),
        ("KARPENTER_LEASE_DURATION", "10s"),
        ("KARPENTER_LEASE_RETRY_INTERVAL", "10s"),
    ],
)
def test_an_interval_that_cannot_work_stops_the_start(variable: str, value: str) -> None:
    with pytest.raises(SettingError, match=variable):
        resolve_settings({}, {variable: value})
