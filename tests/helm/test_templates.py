"""What Helm makes of the chart: the scenarios of OPS §7.7, and values that Karpenter's chart renders wrongly or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from controlplane import deployed
from controlplane.harness import Json
from helm.charts import CHARTS, HelmFailed, helm, of_kind, template, the
from helm.manifests import rendered
from helm.rendered_chart import CLUSTER, chart, environment, names, of_json, pod
from support import yaml_text

pytestmark = pytest.mark.usefixtures("helm_program")

_MONITORING = "monitoring.coreos.com/v1/ServiceMonitor"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_RULES = "monitoring.coreos.com/v1/PrometheusRule"


def test_the_name_of_the_cluster_is_all_the_chart_needs() -> None:
    """OPS-H1, OPS-600, OPS-654, OPS-661, OPS-663, OPS-666"""
    objects = chart()
    assert the(objects, "Deployment")["spec"]["replicas"] == 2
    for kind in ("Service", "PodDisruptionBudget", "ServiceAccount"):
        assert names(objects, kind) == ["karpenter"]
    assert names(objects, "ClusterRole") == ["karpenter-admin", "karpenter-aws", "karpenter-core", "karpenter-view"]
    assert names(objects, "ClusterRoleBinding") == ["karpenter-aws", "karpenter-core"]
    assert (
        names(objects, "Role") == names(objects, "RoleBinding") == ["karpenter", "karpenter-aws", "karpenter-webhook"]
    )
    assert not of_kind(objects, "ServiceMonitor") + of_kind(objects, "NetworkPolicy") + of_kind(objects, "ConfigMap")
    assert environment(objects)["CLUSTER_NAME"] == "x"


def test_without_the_name_of_the_cluster_nothing_is_rendered_for_aws() -> None:
    """OPS-640"""
    with pytest.raises(HelmFailed, match=r"settings\.clusterName is required"):
        template()
    assert "CLUSTER_NAME" not in environment(template("--set", "provider=simulated"))


@pytest.mark.parametrize(("kind", "value"), [(_MONITORING, "serviceMonitor"), (_RULES, "prometheusRule")])
def test_a_prometheus_object_is_rendered_where_the_cluster_serves_its_kind(kind: str, value: str) -> None:
    """OPS-H2, OPS-616, OPS-655"""
    flags = ("--set", f"{value}.enabled=true", "--set", f"{value}.additionalLabels.release=monitoring")
    name = kind.rpartition("/")[2]
    assert not of_kind(template(*CLUSTER, *flags), name)
    assert not of_kind(template(*CLUSTER, "--api-versions", kind), name)
    found = the(template(*CLUSTER, *flags, "--api-versions", kind), name)
    assert found["metadata"]["labels"]["release"] == "monitoring"


def test_a_service_monitor_scrapes_the_metrics_of_the_release() -> None:
    """OPS-616, OPS-655"""
    flags = (
        "serviceMonitor.enabled=true",
        "serviceMonitor.endpointConfig.interval=30s",
        "serviceMonitor.sampleLimit=5000000",
    )
    values = [word for flag in flags for word in ("--set", flag)]
    monitor = the(template(*CLUSTER, *values, "--api-versions", _MONITORING), "ServiceMonitor")
    spec: Json = monitor["spec"]
    assert spec["endpoints"] == [{"port": "http-metrics", "path": "/metrics", "interval": "30s"}]
    assert spec["namespaceSelector"] == {"matchNames": ["kube-system"]}
    assert spec["sampleLimit"] == 5_000_000


def test_alerts_and_dashboards_of_the_chart_are_rendered_when_they_are_wanted() -> None:
    flags = (
        "--set",
        "dashboards.enabled=true",
        "--set",
        "dashboards.namespace=monitoring",
        "--set",
        "prometheusRule.enabled=true",
    )
    objects = template(*CLUSTER, *flags, "--api-versions", _RULES)
    dashboards = sorted((CHARTS / "karpenter" / "dashboards").glob("*.json"))
    assert names(objects, "ConfigMap") == [f"karpenter-dashboard-{file.stem}" for file in dashboards]
    for found, file in zip(of_kind(objects, "ConfigMap"), dashboards, strict=True):
        assert json.loads(found["data"][file.name]) == json.loads(file.read_text(encoding="utf-8"))
        assert found["metadata"]["namespace"] == "monitoring"
    files = sorted(file for file in (CHARTS / "karpenter" / "alerts").glob("*") if file.suffix in (".json", ".yaml"))
    groups = [group for file in files for group in yaml_text.document(file.read_text(encoding="utf-8"))["groups"]]
    assert (the(objects, "PrometheusRule")["spec"]["groups"] or []) == groups


def test_the_rights_to_make_nodes_come_with_simulated_nodes_only() -> None:
    """OPS-602, OPS-665, OPS-671"""
    objects = template("--set", "provider=simulated")
    assert "karpenter-simulated" in names(objects, "ClusterRole")
    assert "karpenter-aws" not in names(objects, "ClusterRole")
    assert "karpenter-simulated" not in names(chart(), "ClusterRole")
    (term,) = pod(objects)["affinity"]["nodeAffinity"][_REQUIRED]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [{"key": "karpenter.sh/nodepool", "operator": "DoesNotExist"}]


def test_without_an_account_of_its_own_the_controller_uses_the_one_named_default() -> None:
    """OPS-H3, OPS-614"""
    objects = chart("serviceAccount.create=false")
    assert not of_kind(objects, "ServiceAccount")
    assert pod(objects)["serviceAccountName"] == "default"
    assert pod(chart("serviceAccount.create=false,serviceAccount.name=mine"))["serviceAccountName"] == "mine"


def test_the_role_of_irsa_is_an_annotation_of_the_account() -> None:
    """OPS-614, AWS-732"""
    account = the(
        chart(r"serviceAccount.annotations.eks\.amazonaws\.com/role-arn=arn:aws:iam::1:role/a"), "ServiceAccount"
    )
    assert account["metadata"]["annotations"] == {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/a"}


def test_a_digest_follows_the_tag() -> None:
    """OPS-H4, OPS-632"""
    digest = f"sha256:{'a' * 64}"
    assert deployed.container(the(chart(), "Deployment"))["image"] == "karpenter:0.1.0"
    image = deployed.container(
        the(chart(f"controller.image.digest={digest},controller.image.repository=r/k"), "Deployment")
    )["image"]
    assert image == f"r/k:0.1.0@{digest}"


def test_log_paths_are_joined_by_commas() -> None:
    """OPS-H5, OPS-638"""
    assert environment(chart("logOutputPaths={stdout,/var/log/k.log}"))["LOG_OUTPUT_PATHS"] == "stdout,/var/log/k.log"


def test_every_feature_gate_is_named_with_its_value() -> None:
    """OPS-H6, OPS-645, OPS-646, API-875, K15-045: in the order of release 1.15, ours last."""
    assert environment(chart())["FEATURE_GATES"].split(",") == [
        "NodeRepair=true",
        "ReservedCapacity=true",
        "SpotToSpotConsolidation=false",
        "NodeOverlay=false",
        "StaticCapacity=false",
        "CapacityBuffer=false",
        "TerminateFirstDrift=false",
        "TerminateFirstRepair=false",
        "PodDeletionCostManagement=false",
        "CapacitySchedule=false",
        "GangScheduling=false",
    ]
    changed = environment(chart("settings.featureGates.nodeRepair=false", "settings.awsFeatureGates.nodeClassCEL=true"))
    assert "NodeRepair=false" in changed["FEATURE_GATES"]
    assert changed["AWS_FEATURE_GATES"] == "NodeClassCEL=true,DRANVIDIAGPU=false,DRAEFA=false,RebootForRepair=false"


@pytest.mark.parametrize(
    "given",
    ["settings.profile=karpenter", "controller.env[0].name=KARPENTER_PROFILE,controller.env[0].value=karpenter"],
)
def test_nodes_are_repaired_unless_the_profile_is_karpenters(given: str) -> None:
    """DIS-380"""
    assert "NodeRepair=false" in environment(chart(given))["FEATURE_GATES"]
    assert "NodeRepair=true" in environment(chart(given, "settings.featureGates.nodeRepair=true"))["FEATURE_GATES"]


@pytest.mark.parametrize(("release", "name"), [("karpenter", "karpenter"), ("foo", "foo-karpenter")])
def test_objects_are_named_after_the_release(release: str, name: str) -> None:
    """OPS-H7, OPS-610"""
    objects = chart(release=release)
    assert names(objects, "Deployment") == [name]
    assert f"{name}-core" in names(objects, "ClusterRole")
    assert names(chart("fullnameOverride=bar"), "Deployment") == ["bar"]
    assert names(chart("nameOverride=auto"), "Deployment") == ["karpenter-auto"]


def test_a_share_of_the_pods_may_be_evicted() -> None:
    """OPS-H8, OPS-620"""
    budget = the(chart("podDisruptionBudget.maxUnavailable=50%,podDisruptionBudget.name=b"), "PodDisruptionBudget")
    assert budget["spec"]["maxUnavailable"] == "50%"
    assert budget["metadata"]["name"] == "b"


def test_the_chart_of_definitions_has_every_kind_with_the_annotations_that_were_given() -> None:
    """OPS-H9, OPS-601; an uninstall keeps them."""
    text = helm(
        "template",
        "karpenter-crd",
        "charts/karpenter-crd",
        "--set",
        "additionalAnnotations.a=b,webhook.serviceNamespace=kube-system",
    )
    definitions = [one for one in yaml_text.documents(text) if one]
    assert {one["kind"] for one in definitions} == {"CustomResourceDefinition"}
    plain = {one["metadata"]["name"]: one["spec"] for one in deployed.manifests("crds")}
    assert {one["metadata"]["name"]: one["spec"] for one in definitions} == plain
    karpenters = {"nodepools.karpenter.sh", "nodeclaims.karpenter.sh", "nodeoverlays.karpenter.sh"}
    karpenters |= {"capacityschedules.karpenter.sh"}
    karpenters |= {"ec2nodeclasses.karpenter.k8s.aws", "capacitybuffers.autoscaling.x-k8s.io"}
    assert plain.keys() >= karpenters
    for one in definitions:
        assert one["metadata"]["annotations"].items() >= {"a": "b", "helm.sh/resource-policy": "keep"}.items()


def test_an_old_affinity_still_keeps_the_controller_from_its_own_nodes() -> None:
    """OPS-627, OPS-673"""
    old = {"matchExpressions": [{"key": "karpenter.sh/provisioner-name", "operator": "DoesNotExist"}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [old]}}}
    found = pod(of_json("affinity", affinity))["affinity"]["nodeAffinity"]
    (term,) = found["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [one["key"] for one in term["matchExpressions"]] == [
        "karpenter.sh/provisioner-name",
        "karpenter.sh/nodepool",
    ]


@pytest.mark.parametrize(
    ("flag", "path"),
    [
        ("replicas=two", "/replicas"),
        ("provider=gcp", "/provider"),
        ("settings.batchMaxDuration=ten", "/settings/batchMaxDuration"),
        ("settings.preferencePolicy=Maybe", "/settings/preferencePolicy"),
        ("settings.reservedENIs=-1", "/settings/reservedENIs"),
        ("settings.featureGates.nodeRepair=yes", "/settings/featureGates/nodeRepair"),
        ("settings.clusterNme=x", "clusterNme"),
        ("controler.env=", "controler"),
        ("controller.metrics.port=99999", "/controller/metrics/port"),
        ("podDisruptionBudget.maxUnavailable=half", "/podDisruptionBudget/maxUnavailable"),
        ("controller.image.digest=abc", "/controller/image/digest"),
        ("logLevel=warn", "/logLevel"),
        ("controller.resources.limits.cpu=one", "/controller/resources/limits/cpu"),
        ("controller.resources.requests.cpu=-1", "/controller/resources/requests/cpu"),
        ("controller.resources.limits.memory=1GB", "/controller/resources/limits/memory"),
    ],
)
def test_helm_refuses_a_wrong_value_with_its_path(flag: str, path: str) -> None:
    with pytest.raises(HelmFailed) as failed:
        chart(flag)
    assert path in str(failed.value)


@pytest.mark.parametrize("part", ["requests", "limits"])
@pytest.mark.parametrize("value", ["1024", "512.5"])
def test_memory_without_its_unit_is_refused_as_bytes(part: str, value: str) -> None:
    with pytest.raises(HelmFailed) as failed:
        chart(f"controller.resources.{part}.memory={value}")
    assert f"controller.resources.{part}.memory is {value} bytes" in str(failed.value)
    assert f"give a unit, such as {value}Mi" in str(failed.value)


@pytest.mark.parametrize("value", ["1073741824", "1Gi", "1e9", "null", "500M"])
def test_memory_as_the_api_server_reads_it_is_taken(value: str) -> None:
    assert chart(f"controller.resources.limits.memory={value}")


@pytest.mark.parametrize("value", ["2", "0.5", ".5", "1500m", "1e1"])
def test_cpu_as_the_api_server_reads_it_is_taken(value: str) -> None:
    assert chart(f"controller.resources.limits.cpu={value}")


def test_every_value_of_the_schema_may_be_left_as_it_is() -> None:
    """Null removes a default, as Helm documents; lint checks the schema against the values."""
    for one in ("karpenter", "karpenter-crd"):
        assert "0 chart(s) failed" in helm(
            "lint", "--strict", f"charts/{one}", *(CLUSTER if one == "karpenter" else ())
        )


def test_labels_and_annotations_are_on_every_object_and_the_pods() -> None:
    """OPS-611, OPS-619"""
    objects = chart(
        "additionalLabels.team=a",
        "additionalAnnotations.note=b",
        "podLabels.l=m",
        "podAnnotations.p=z",
        "service.annotations.s=t",
    )
    for one in objects:
        assert one["metadata"]["labels"]["team"] == "a"
        assert one["metadata"]["annotations"]["note"] == "b"
        assert one["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "Helm"
    metadata = the(objects, "Deployment")["spec"]["template"]["metadata"]
    assert metadata["labels"].items() >= {"team": "a", "l": "m"}.items()
    assert metadata["annotations"] == {"note": "b", "p": "z"}
    assert the(objects, "Service")["metadata"]["annotations"] == {"note": "b", "s": "t"}


def test_sidecars_share_the_mounts_of_the_controller() -> None:
    """OPS-625, OPS-630, OPS-636"""
    values = {
        "controller": {
            "extraVolumeMounts": [{"name": "v", "mountPath": "/v"}],
            "sidecarContainer": [{"name": "side", "image": "i"}],
            "sidecarVolumeMounts": [{"name": "w", "mountPath": "/w"}],
        },
        "extraVolumes": [{"name": "v", "emptyDir": {}}, {"name": "w", "emptyDir": {}}],
        "initContainers": {"first": {"image": "i"}},
    }
    flags = [word for name, value in values.items() for word in ("--set-json", f"{name}={json.dumps(value)}")]
    spec = pod(template(*CLUSTER, *flags))
    controller, side = spec["containers"]
    assert [mount["name"] for mount in controller["volumeMounts"]] == ["v"]
    assert [mount["name"] for mount in side["volumeMounts"]] == ["v", "w"]
    assert spec["initContainers"] == [{"name": "first", "image": "i"}]
    assert len(spec["volumes"]) == 2


@pytest.mark.parametrize(
    ("flag", "read", "expected"),
    [
        ("hostNetwork=true", lambda spec: spec["hostNetwork"], True),
        ("dnsPolicy=Default", lambda spec: spec["dnsPolicy"], "Default"),
        ("priorityClassName=", lambda spec: "priorityClassName" in spec, False),
        ("terminationGracePeriodSeconds=0", lambda spec: spec["terminationGracePeriodSeconds"], 0),
        ("imagePullSecrets[0].name=s", lambda spec: spec["imagePullSecrets"], [{"name": "s"}]),
        ("controller.containerName=c", lambda spec: spec["containers"][0]["name"], "c"),
        ("controller.metrics.port=9090", lambda spec: spec["containers"][0]["ports"][0]["containerPort"], 9090),
        (
            "controller.securityContext.appArmorProfile.type=Unconfined",
            lambda spec: spec["containers"][0]["securityContext"]["appArmorProfile"],
            {"type": "Unconfined"},
        ),
        ("controller.envFrom[0].secretRef.name=s", lambda spec: spec["containers"][0]["envFrom"], [{"secretRef": {"name": "s"}}]),
    ],
)  # fmt: skip
def test_a_value_of_the_pods_has_its_effect(flag: str, read: Callable[[Json], object], expected: object) -> None:
    """OPS-612, OPS-622 to OPS-624, OPS-631 to OPS-637"""
    assert read(pod(chart(flag))) == expected


def test_the_lease_of_another_name_and_place_may_be_changed() -> None:
    """OPS-667, OPS-664"""
    objects = chart("settings.leaderElectionName=other,settings.leaderElectionNamespace=leases")
    (role,) = (one for one in of_kind(objects, "Role") if one["metadata"]["name"] == "karpenter")
    assert role["metadata"]["namespace"] == "leases"
    assert role["rules"][0]["resourceNames"] == ["other"]


def test_rules_of_the_user_are_added_to_the_role_of_the_controller() -> None:
    """OPS-615"""
    rule = {"apiGroups": ["example.com"], "resources": ["things"], "verbs": ["get"]}
    (role,) = (
        one
        for one in of_kind(of_json("additionalClusterRoleRules", [rule]), "ClusterRole")
        if one["metadata"]["name"] == "karpenter-core"
    )
    assert role["rules"][-1] == rule


def test_the_right_to_scale_workloads_is_given_only_where_asked_for() -> None:
    """Who may patch Deployments may change their pods."""
    names = [one["metadata"]["name"] for one in of_kind(chart("scaleDownWorkloads=true"), "ClusterRole")]
    assert "karpenter-scale-down" in names
    bound = of_kind(chart("scaleDownWorkloads=true"), "ClusterRoleBinding")
    assert "karpenter-scale-down" in [one["roleRef"]["name"] for one in bound]
    assert not any("patch" in rule["verbs"] and "deployments" in rule["resources"] for rule in _cluster_rules(chart()))


def _cluster_rules(objects: list[Json]) -> list[Json]:
    return [rule for role in of_kind(objects, "ClusterRole") for rule in role.get("rules") or ()]


def test_another_namespace_gets_flow_schemas_and_keeps_fixed_roles_where_they_work() -> None:
    """OPS-670"""
    objects = chart(namespace="karpenter")
    assert [one["spec"]["matchingPrecedence"] for one in of_kind(objects, "FlowSchema")] == [200, 1000]
    assert not of_kind(chart(), "FlowSchema")
    assert not of_kind(chart("flowSchemas.enabled=false", namespace="karpenter"), "FlowSchema")
    places = {one["metadata"]["name"]: one["metadata"]["namespace"] for one in of_kind(objects, "Role")}
    assert places == {"karpenter": "karpenter", "karpenter-webhook": "karpenter", "karpenter-aws": "kube-system"}
    bindings = of_kind(objects, "RoleBinding") + of_kind(objects, "ClusterRoleBinding")
    assert {one["subjects"][0]["namespace"] for one in bindings} == {"karpenter"}


def test_a_network_policy_lets_metrics_and_probes_in_and_apis_out() -> None:
    policy: Json = the(chart("networkPolicy.enabled=true"), "NetworkPolicy")["spec"]
    let_in = [port["port"] for rule in policy["ingress"] for port in rule["ports"]]
    assert let_in == ["http-metrics", "http", "https-webhook"]
    ports = {port["port"] for rule in policy["egress"] for port in rule["ports"]}
    assert ports == {53, 443, 6443, 80}


@pytest.mark.parametrize("file", ["aws", "simulated"])
def test_the_manifests_for_those_without_helm_are_what_the_chart_renders(file: str) -> None:
    """One source: the kustomize bases of `deploy/` are written by `make charts`."""
    ((path, text),) = ((path, text) for path, text in rendered().items() if path.parent.name == file)
    assert path.read_text(encoding="utf-8") == text, "run: make charts"


def test_events_may_be_read_where_pods_are_left_to_cluster_autoscaler_only() -> None:
    def may_list(*values: str) -> bool:
        rules = [rule for one in chart(*values) if one["kind"] == "ClusterRole" for rule in one["rules"]]
        return any("events" in rule["resources"] and "list" in rule["verbs"] for rule in rules)

    assert may_list("settings.deferToClusterAutoscaler=true")
    assert not may_list("settings.deferToClusterAutoscaler=false")
    assert not any(
        "events" in rule["resources"] and "list" in rule["verbs"]
        for one in of_json("settings.deferToClusterAutoscaler", "false")
        if one["kind"] == "ClusterRole"
        for rule in one["rules"]
    ), "the text false is no yes"
    assert not may_list()


def test_without_the_webhook_nothing_of_it_is_left() -> None:
    """API-872: no port, no right on Secrets or CRDs."""
    text = "".join(json.dumps(one) for one in chart("webhook.enabled=false"))
    assert "https-webhook" not in text
    assert "karpenter-cert" not in text
    assert environment(chart("webhook.enabled=false"))["DISABLE_WEBHOOK"] == "true"


def test_the_webhook_is_where_its_values_say() -> None:
    """API-872: release name and port of the controller's chart, Service name and namespace of that with the definitions."""
    found = environment(chart("webhook.port=9443", "fullnameOverride=scaler"))
    assert (found["KARPENTER_SERVICE"], found["WEBHOOK_PORT"]) == ("scaler", "9443")
    values = "webhook.serviceName=scaler,webhook.serviceNamespace=karpenter,webhook.port=9443"
    rendered = list(yaml_text.documents(helm("template", "crds", "charts/karpenter-crd", "--set", values)))
    (pools,) = (one for one in rendered if one["metadata"]["name"] == "nodepools.karpenter.sh")
    service = {"name": "scaler", "namespace": "karpenter", "path": "/conversion", "port": 9443}
    assert pools["spec"]["conversion"]["webhook"]["clientConfig"]["service"] == service


def test_definitions_without_the_webhook_serve_v1_only() -> None:
    """API-850, API-872: v1beta1 stays known for objects stored in it; the oldest kinds can be left out."""
    flags = ("--set", "webhook.enabled=false,olderKinds=false")
    rendered = list(yaml_text.documents(helm("template", "crds", "charts/karpenter-crd", *flags)))
    assert {one["spec"]["names"]["kind"] for one in rendered}.isdisjoint({"Provisioner", "Machine", "AWSNodeTemplate"})
    assert not any("conversion" in one["spec"] for one in rendered)
    (pools,) = (one for one in rendered if one["metadata"]["name"] == "nodepools.karpenter.sh")
    assert {one["name"]: one["served"] for one in pools["spec"]["versions"]} == {"v1": True, "v1beta1": False}


def test_pods_may_be_patched_only_to_write_deletion_costs() -> None:
    """K15-541, K15-A114"""
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]}
    gate = ("--set", "settings.featureGates.podDeletionCostManagement=true")
    assert rule not in _cluster_rules(chart())
    assert rule in _cluster_rules(template(*CLUSTER, *gate))


def test_device_claims_may_be_read_whatever_the_settings_are() -> None:
    """K15-A113"""
    rules = [rule for rule in _cluster_rules(chart()) if rule["apiGroups"] == ["resource.k8s.io"]]
    (readable,) = rules
    assert {"deviceclasses", "resourceclaims", "resourceslices"} <= set(readable["resources"])
    assert readable["verbs"] == ["get", "list", "watch"]


def test_services_may_be_read_for_default_spread_and_predictions_of_autoscalers_may_not() -> None:
    """K15-540: nothing uses the predictions, so the right to read them is left out."""
    core = [rule for rule in _cluster_rules(chart()) if "services" in rule["resources"]]
    assert [rule["verbs"] for rule in core] == [["get", "list", "watch"]]
    assert not any("verticalpodautoscalers" in rule["resources"] for rule in _cluster_rules(chart()))


def test_only_the_simulated_provider_may_write_the_status_of_nodes() -> None:
    """K15-542: it reboots a Node by its boot ID; on EC2 the kubelet does that."""
    simulated = _cluster_rules(template(*CLUSTER, "--set", "provider=simulated"))
    assert any("nodes/status" in rule["resources"] and "patch" in rule["verbs"] for rule in simulated)
    assert not any("nodes/status" in rule["resources"] for rule in _cluster_rules(chart()))
