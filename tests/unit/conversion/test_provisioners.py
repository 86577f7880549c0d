"""Provisioner and Machine of v1alpha5 (API §15)."""

from __future__ import annotations

import pytest

from support.older_manifests import Json, convert, machine, node_template, provisioner, with_options

_DEFAULTS = ["os", "arch", "capacity-type", "instance-category", "instance-generation"]


def requirement_names(spec: Json, ignore_defaults: bool = False) -> list[str]:
    converted = convert(provisioner(spec), options=with_options(ignore_defaults=ignore_defaults))
    requirements = converted.at("spec.template.spec.requirements")
    assert isinstance(requirements, list)
    return [requirement["key"].rpartition("/")[2] for requirement in requirements]


def test_name_labels_annotations_and_foreign_finalizers_stay() -> None:
    """API-750, API-763, API-817, API-S285, API-802, API-803: what servers and controllers wrote goes."""
    content = provisioner(
        labels={"team": "shop"},
        annotations={
            "note": "x",
            "kubectl.kubernetes.io/last-applied-configuration": "{}",
            "karpenter.sh/provisioner-hash": "1",
            "karpenter.k8s.aws/nodetemplate-hash": "2",
            "karpenter.sh/emptiness-timestamp": "2023-01-01T00:00:00Z",
        },
        finalizers=["karpenter.sh/termination", "shop.example/keep"],
        uid="u",
        resourceVersion="1",
        generation=3,
        creationTimestamp="2023-01-01T00:00:00Z",
        managedFields=[],
    )
    content["status"] = {"lastScaleTime": "2023-01-01T00:00:00Z", "resources": {"cpu": "4"}}
    converted = convert(content)
    assert converted.only["metadata"] == {
        "name": "shop",
        "labels": {"team": "shop"},
        "annotations": {"note": "x"},
        "finalizers": ["shop.example/keep"],
    }
    assert "status" not in converted.only


def test_labels_and_annotations_of_nodes_move_into_the_template() -> None:
    """API-751, API-801, API-833, API-800: restricted labels go with a warning, the Provisioner's own name without."""
    spec = {
        "labels": {"team": "shop", "karpenter.sh/provisioner-name": "shop", "karpenter.sh/strange": "x", "on": True},
        "annotations": {"karpenter.sh/do-not-evict": "true", "note": 5},
    }
    converted = convert(provisioner(spec))
    assert converted.at("spec.template.metadata") == {
        "labels": {"team": "shop", "on": "true"},
        "annotations": {"karpenter.sh/do-not-disrupt": "true", "note": "5"},
    }
    assert [warning.partition(":")[0] for warning in converted.warnings] == ["spec.labels[karpenter.sh/strange]"]


def test_the_label_of_another_provisioner_is_dropped_with_a_warning() -> None:
    """API-833."""
    converted = convert(provisioner({"labels": {"karpenter.sh/provisioner-name": "other"}}))
    assert converted.at("spec.template.metadata") is None
    assert len(converted.warnings) == 1


def test_taints_move_into_the_template_under_their_new_keys() -> None:
    """API-752, API-805, API-806."""
    spec = {
        "taints": [{"key": "a", "effect": "NoSchedule"}, {"key": "karpenter.sh/disruption", "effect": "NoSchedule"}],
        "startupTaints": [{"key": "karpenter.sh/not-ready", "effect": "NoExecute"}],
    }
    converted = convert(provisioner(spec))
    assert converted.at("spec.template.spec.taints") == [
        {"key": "a", "effect": "NoSchedule"},
        {"key": "karpenter.sh/disrupted", "effect": "NoSchedule"},
    ]
    assert converted.at("spec.template.spec.startupTaints") == [
        {"key": "karpenter.sh/unregistered", "effect": "NoExecute"}
    ]


def test_the_class_reference_is_of_v1() -> None:
    """API-754, API-S278, AWS-828: an AWSNodeTemplate is an EC2NodeClass of the same name now."""
    reference = {"name": "a", "kind": "AWSNodeTemplate", "apiVersion": "karpenter.k8s.aws/v1alpha1"}
    converted = convert(provisioner({"providerRef": reference}))
    assert converted.at("spec.template.spec.nodeClassRef") == {
        "group": "karpenter.k8s.aws",
        "kind": "EC2NodeClass",
        "name": "a",
    }


@pytest.mark.parametrize("reference", [None, {}, {"name": ""}])
def test_a_provisioner_without_a_reference_gets_the_default_class(reference: object) -> None:
    """API-825, API-824: --default-nodeclass."""
    converted = convert(provisioner({"providerRef": reference}), options=with_options(default_node_class="plain"))
    assert converted.at("spec.template.spec.nodeClassRef.name") == "plain"
    assert len(converted.warnings) == 1


@pytest.mark.parametrize(
    ("spec", "disruption", "warnings"),
    [
        ({"ttlSecondsAfterEmpty": 30}, ("WhenEmpty", "30s"), 0),
        ({"ttlSecondsAfterEmpty": 0}, ("WhenEmpty", "0s"), 0),
        ({"consolidation": {"enabled": True}}, ("WhenEmptyOrUnderutilized", "0s"), 0),
        ({"consolidation": {"enabled": False}}, ("WhenEmpty", "Never"), 0),
        ({}, ("WhenEmpty", "Never"), 0),
        ({"consolidation": {"enabled": True}, "ttlSecondsAfterEmpty": 30}, ("WhenEmptyOrUnderutilized", "0s"), 1),
    ],
)
def test_emptiness_and_consolidation(spec: Json, disruption: tuple[str, str], warnings: int) -> None:
    """API-756 to API-759, API-S270, API-S272, API-S273."""
    converted = convert(provisioner(spec))
    policy, after = disruption
    assert converted.at("spec.disruption") == {"consolidationPolicy": policy, "consolidateAfter": after}
    assert len(converted.warnings) == warnings


def test_what_changes_without_a_field_of_its_own_is_information() -> None:
    """API-837, API-758, API-764: neither counts for --strict."""
    converted = convert(provisioner())
    assert [line.partition(":")[0] for line in converted.information] == ["spec.disruption", "spec.disruption.budgets"]
    assert converted.warnings == []


@pytest.mark.parametrize(
    ("seconds", "expiry"), [(None, "Never"), (2592000, "720h"), (90, "90s"), (3600, "1h"), (3601, "3601s"), (0, "0s")]
)
def test_the_age_limit(seconds: int | None, expiry: str) -> None:
    """API-760, API-S271."""
    assert convert(provisioner({"ttlSecondsUntilExpired": seconds})).at("spec.template.spec.expireAfter") == expiry


@pytest.mark.parametrize("seconds", [-1, "30", 1.5, True])
def test_a_time_that_is_no_whole_number_is_an_error(seconds: object) -> None:
    """API-760, API-831: typed fields are reported."""
    converted = convert(provisioner({"ttlSecondsUntilExpired": seconds}))
    assert (converted.objects, converted.converted.failed) == ((), True)
    assert converted.errors[0].startswith("spec.ttlSecondsUntilExpired: ")


def test_limits_and_weight_stay() -> None:
    """API-761, API-762, API-830, API-S277: limits keep whole numbers."""
    converted = convert(provisioner({"limits": {"resources": {"cpu": 1000, "memory": "1000Gi"}}, "weight": 10}))
    assert converted.at("spec.limits") == {"cpu": 1000, "memory": "1000Gi"}
    assert converted.at("spec.weight") == 10


def test_the_defaults_of_the_old_webhook_are_added_in_its_order() -> None:
    """API-753, API-765, API-S274, AWS-827: Linux, amd64, on demand, and families of which the webhook thought."""
    assert requirement_names({}) == _DEFAULTS


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        (
            {
                "requirements": [
                    {"key": "beta.kubernetes.io/arch", "operator": "Exists"},
                    {"key": "karpenter.k8s.aws/instance-family", "operator": "In", "values": ["m5"]},
                ]
            },
            ["arch", "instance-family", "os", "capacity-type"],
        ),
        ({"labels": {"kubernetes.io/os": "linux", "karpenter.sh/capacity-type": "spot"}}, ["arch", *_DEFAULTS[3:]]),
    ],
)
def test_a_key_that_is_given_gets_no_default(spec: Json, names: list[str]) -> None:
    """API-765, API-S275: whatever its operator or spelling, and labels count."""
    assert requirement_names(spec) == names


def test_defaults_are_left_out_on_request() -> None:
    """API-S276: with --ignore-defaults."""
    assert requirement_names({}, ignore_defaults=True) == []


def test_a_runtime_other_than_containerd_is_dropped_with_a_warning() -> None:
    """API-755: v1 has no field for it."""
    for runtime, warnings in (("dockerd", 1), ("containerd", 0)):
        content = provisioner({"kubeletConfiguration": {"containerRuntime": runtime, "maxPods": 40}})
        converted = convert(content, node_template())
        assert converted.at("spec.kubelet", 1) == {"maxPods": 40}
        assert len(converted.warnings) == warnings


def test_an_inline_provider_becomes_a_class_of_the_same_name_behind_the_pool() -> None:
    """API-754, API-817, API-S279, AWS-826: its fields are those of an AWSNodeTemplate."""
    provider = {
        "instanceProfile": "p",
        "subnetSelector": {"a": "b"},
        "securityGroupSelector": {"a": "b"},
        "tags": {"x": "y"},
    }
    other = provisioner(name="other")
    converted = convert(provisioner({"providerRef": None, "provider": provider}), other)
    assert [content["kind"] for content in converted.objects] == ["NodePool", "EC2NodeClass", "NodePool"]
    assert converted.at("spec.template.spec.nodeClassRef.name") == converted.at("metadata.name", 1) == "shop"
    assert converted.at("spec.instanceProfile", 1) == "p"
    assert converted.at("spec.tags", 1) == {"x": "y"}
    assert converted.at("spec.amiSelectorTerms", 1) == [{"alias": "al2@latest"}]


@pytest.mark.parametrize(("cluster", "tag", "warnings"), [("main", "main", 0), ("", "${CLUSTER_NAME}", 2)])
def test_an_inline_provider_without_selectors_takes_those_of_the_cluster(cluster: str, tag: str, warnings: int) -> None:
    """API-789."""
    content = provisioner({"providerRef": None, "provider": {"instanceProfile": "p"}})
    converted = convert(content, options=with_options(cluster_name=cluster))
    for field in ("subnet", "securityGroup"):
        assert converted.at(f"spec.{field}SelectorTerms", 1) == [{"tags": {f"kubernetes.io/cluster/{tag}": "*"}}]
    assert len(converted.warnings) == warnings


def test_a_provider_with_a_launch_template_cannot_be_converted() -> None:
    """API-787, AWS-824, AWS-T824: a launch template of the user is refused with its field."""
    converted = convert(provisioner({"providerRef": None, "provider": {"launchTemplate": "old"}}))
    assert converted.errors == ['spec.provider.launchTemplate: cannot convert with "spec.launchTemplate"']
    assert converted.objects == ()


def test_a_machine_becomes_a_nodeclaim() -> None:
    """API-770 to API-775."""
    spec = {
        "taints": [{"key": "a", "effect": "NoSchedule"}],
        "requirements": [{"key": "kubernetes.io/arch", "operator": "In", "values": ["arm64"]}],
        "resources": {"requests": {"cpu": "1"}},
        "kubelet": {"maxPods": 20},
    }
    content = machine(spec, labels={"karpenter.sh/provisioner-name": "shop"})
    content["status"] = {"conditions": [{"type": "MachineLaunched", "status": "True"}]}
    converted = convert(content)
    assert converted.at("metadata.labels") == {"karpenter.sh/nodepool": "shop"}
    assert converted.only["spec"] == {
        **{name: spec[name] for name in ("taints", "requirements", "resources")},
        "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "shop"},
        "expireAfter": "Never",
    }
    assert [warning.partition(":")[0] for warning in converted.warnings] == ["spec.kubelet"]
