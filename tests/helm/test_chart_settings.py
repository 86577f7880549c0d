"""Settings in the chart: how values reach the controller, and the values of older charts."""

from __future__ import annotations

import json

import pytest

from controlplane import deployed
from helm.charts import HelmFailed, helm, template, the
from helm.rendered_chart import CLUSTER, chart, environment, of_json, pod
from karpenter.settings import resolve_settings

pytestmark = pytest.mark.usefixtures("helm_program")


@pytest.mark.parametrize(
    ("flag", "variable", "text"),
    [
        ("settings.ignoreDRARequests=false", "IGNORE_DRA_REQUESTS", "false"),
        ("settings.vmMemoryOverheadPercent=0", "VM_MEMORY_OVERHEAD_PERCENT", "0"),
        ("settings.nodeFee=0", "NODE_FEE", "0"),
        ("settings.nodeFee=0.00001", "NODE_FEE", "0.00001"),
        ("settings.claimsPerMinute=1000000", "CLAIMS_PER_MINUTE", "1000000"),
        ("settings.maxPodsPerNode=0", "MAX_PODS_PER_NODE", "0"),
        ("settings.nominatePods=false", "NOMINATE_PODS", "false"),
        ("settings.exposure=off", "EXPOSURE", "off"),
        ("settings.profile=karpenter", "KARPENTER_PROFILE", "karpenter"),
        ("settings.intervals.garbageCollection=1m", "KARPENTER_GARBAGE_COLLECTION_INTERVAL", "1m"),
        ("settings.interruptionQueue=q-{{ .Release.Name }}", "INTERRUPTION_QUEUE", "q-karpenter"),
    ],
)
def test_a_setting_that_is_set_reaches_the_controller_whatever_its_value(flag: str, variable: str, text: str) -> None:
    """OPS-647, OPS-648, OPS-653"""
    found = environment(chart(flag.replace("{", r"\{")))
    assert found[variable] == text
    resolve_settings({}, found)


def test_a_setting_that_is_not_set_leaves_the_default_to_the_profile() -> None:
    """OPS-653; an empty text and null mean the same."""
    plain = environment(chart())
    always = "KARPENTER_PROVIDER LOG_LEVEL LOG_OUTPUT_PATHS LOG_ERROR_OUTPUT_PATHS METRICS_PORT HEALTH_PROBE_PORT POD_NAMESPACE"
    assert plain.keys() == {
        *always.split(),
        "KARPENTER_SERVICE",
        "WEBHOOK_PORT",
        "CPU_REQUESTS",
        "MEMORY_LIMIT",
        "FEATURE_GATES",
        "AWS_FEATURE_GATES",
        "IGNORE_DRA_REQUESTS",
        "CLUSTER_NAME",
    }
    assert environment(chart("settings.interruptionQueue=", "settings.packing=null")) == plain


def test_a_scheduler_configuration_may_be_written_as_yaml() -> None:
    config = {
        "podTopologySpread": {
            "defaultConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}]
        }
    }
    found = environment(of_json("settings.schedulerConfig", config))
    assert json.loads(found["SCHEDULER_CONFIG"]) == config
    resolve_settings({}, found)


def test_a_variable_of_the_user_wins_over_that_of_the_chart() -> None:
    """OPS-633; the API server refuses a list with a name twice."""
    objects = of_json("controller.env", [{"name": "LOG_LEVEL", "value": "debug"}, {"name": "MINE", "value": "1"}])
    entries = [entry["name"] for entry in deployed.container(the(objects, "Deployment"))["env"]]
    assert len(entries) == len(set(entries))
    assert environment(objects).items() >= {"LOG_LEVEL": "debug", "MINE": "1"}.items()


def test_one_replica_needs_neither_a_second_zone_nor_a_second_host() -> None:
    """OPS-649"""
    alone, usual = pod(chart("replicas=1")), pod(chart())
    assert "podAntiAffinity" not in alone["affinity"]
    assert [term["whenUnsatisfiable"] for term in alone["topologySpreadConstraints"]] == ["ScheduleAnyway"]
    assert [term["whenUnsatisfiable"] for term in usual["topologySpreadConstraints"]] == ["DoNotSchedule"]
    assert "nodeAffinity" in alone["affinity"]


def test_terms_without_a_selector_get_that_of_the_pods() -> None:
    """OPS-627, OPS-628, API-874"""
    own = {"topologyKey": "rack", "labelSelector": {"matchLabels": {"a": "b"}}}
    preferred = [{"weight": 1, "podAffinityTerm": {"topologyKey": "rack"}}]
    affinity = {
        "requiredDuringSchedulingIgnoredDuringExecution": [own, {"topologyKey": "host"}],
        "preferredDuringSchedulingIgnoredDuringExecution": preferred,
    }
    found = pod(of_json("affinity", {"podAntiAffinity": affinity}))["affinity"]["podAntiAffinity"]
    selector = {"matchLabels": {"app.kubernetes.io/name": "karpenter", "app.kubernetes.io/instance": "karpenter"}}
    required = found["requiredDuringSchedulingIgnoredDuringExecution"]
    assert required == [own, {"topologyKey": "host", "labelSelector": selector}]
    (only,) = found["preferredDuringSchedulingIgnoredDuringExecution"]
    assert only["podAffinityTerm"]["labelSelector"] == selector


@pytest.mark.parametrize(
    ("old", "variable"),
    [
        ("settings.aws.clusterName", "CLUSTER_NAME"),
        ("controller.clusterName", "CLUSTER_NAME"),
        ("clusterName", "CLUSTER_NAME"),
        ("settings.aws.interruptionQueueName", "INTERRUPTION_QUEUE"),
        ("settings.aws.isolatedVPC", "ISOLATED_VPC"),
    ],
)
def test_a_value_of_an_older_chart_is_taken_where_the_new_one_is_not_set(old: str, variable: str) -> None:
    """OPS-673, OPS-674"""
    name = () if variable == "CLUSTER_NAME" else CLUSTER
    assert environment(template(*name, "--set", f"{old}=true"))[variable] == "true"


def test_the_new_name_of_a_value_wins_over_the_old() -> None:
    assert environment(chart("settings.aws.clusterName=old"))["CLUSTER_NAME"] == "x"


def notes(*flags: str) -> str:
    """The notes after an installation."""
    return helm(
        "install", "karpenter", "charts/karpenter", "--namespace", "kube-system", "--dry-run=client", *CLUSTER, *flags
    )


def test_values_of_older_charts_are_named_in_the_notes() -> None:
    """OPS-674"""
    old = {"matchExpressions": [{"key": "karpenter.sh/provisioner-name", "operator": "DoesNotExist"}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [old]}}}
    flags = ("--set", "settings.aws.clusterName=a,settings.aws.defaultInstanceProfile=b,webhook.metrics.port=8001")
    said = notes(*flags, "--set-json", f"affinity={json.dumps(affinity)}")
    assert "`settings.aws.clusterName` is deprecated: use `settings.clusterName`." in said
    assert "`settings.aws.defaultInstanceProfile` is deprecated: use `settings.defaultInstanceProfile`." in said
    assert "`webhook.metrics` has no effect" in said
    assert "`affinity` names `karpenter.sh/provisioner-name`" in said
    assert "NOTICE" not in notes()


def devices(*values: str) -> tuple[str, str]:
    """Whether device claims are ignored, and the gates of AWS."""
    found = environment(chart(*values))
    return found["IGNORE_DRA_REQUESTS"], found["AWS_FEATURE_GATES"]


@pytest.mark.parametrize(
    ("values", "ignored", "gates"),
    [
        ((), "true", "DRANVIDIAGPU=false,DRAEFA=false"),
        (("settings.ignoreDRARequests=false",), "false", "DRANVIDIAGPU=false,DRAEFA=false"),
        (("settings.ignoreDRARequests=true",), "true", "DRANVIDIAGPU=false,DRAEFA=false"),
        (("settings.enableDRA=true",), "false", "DRANVIDIAGPU=true,DRAEFA=true"),
        (("settings.awsFeatureGates.draNVIDIAGPU=true",), "false", "DRANVIDIAGPU=true,DRAEFA=false"),
        (
            ("settings.awsFeatureGates.draEFA=true", "settings.ignoreDRARequests=true"),
            "false",
            "DRANVIDIAGPU=false,DRAEFA=true",
        ),
    ],
)
def test_device_claims_count_where_a_value_about_devices_says_so(
    values: tuple[str, ...], ignored: str, gates: str
) -> None:
    """K15-A105, K15-A106, K15-A107, K15-A112"""
    expected = f"NodeClassCEL=false,{gates},RebootForRepair=false"
    assert devices(*values) == (ignored, expected)


@pytest.mark.parametrize(
    "other",
    [
        "settings.ignoreDRARequests=false",
        "settings.ignoreDRARequests=true",
        "settings.awsFeatureGates.draNVIDIAGPU=true",
        "settings.awsFeatureGates.draEFA=false",
    ],
)
def test_the_switch_for_devices_excludes_what_it_stands_for(other: str) -> None:
    """K15-A106, K15-A150"""
    with pytest.raises(HelmFailed, match=f"settings.enableDRA is mutually exclusive with {other}"):
        chart("settings.enableDRA=true", other)


def test_reboots_for_repair_have_a_value() -> None:
    """K15-A108"""
    assert devices("settings.awsFeatureGates.rebootForRepair=true")[1].endswith("RebootForRepair=true")


def test_repair_of_the_older_release_excludes_terminate_first() -> None:
    """K15-A109"""
    assert "LEGACY_NODE_REPAIR" not in environment(chart())
    assert environment(chart("settings.legacyNodeRepair=true"))["LEGACY_NODE_REPAIR"] == "true"
    with pytest.raises(HelmFailed, match="can't be combined"):
        chart("settings.legacyNodeRepair=true", "settings.featureGates.terminateFirstRepair=true")


def test_the_refresh_interval_of_security_groups_has_a_value() -> None:
    """K15-A110, K15-A111, K15-543"""
    found = environment(chart("settings.securityGroupRefreshInterval=2m", "settings.schedulerConfig=a: b"))
    assert (found["SECURITY_GROUP_REFRESH_INTERVAL"], found["SCHEDULER_CONFIG"]) == ("2m", "a: b")
