"""NodePool, NodeClaim and EC2NodeClass of v1beta1 (API §14)."""

from __future__ import annotations

import pytest

from support.older_manifests import Json, beta_class, beta_pool, convert, manifest

_REFERENCE = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "shop"}


def test_template_limits_and_weight_stay() -> None:
    """API-700 to API-703, API-710, API-711."""
    template = {
        "taints": [{"key": "a", "effect": "NoSchedule"}],
        "startupTaints": [{"key": "b", "effect": "NoExecute"}],
        "requirements": [{"key": "kubernetes.io/arch", "operator": "In", "values": ["arm64"], "minValues": 1}],
        "resources": {},
    }
    content = beta_pool(template, {"limits": {"cpu": 10}, "weight": 7})
    content["spec"]["template"]["metadata"] = {"labels": {"team": "shop"}, "annotations": {"a": "b"}}
    content["status"] = {"resources": {}}
    converted = convert(content)
    assert converted.only["spec"] == {
        "template": {
            "metadata": {"labels": {"team": "shop"}, "annotations": {"a": "b"}},
            "spec": {
                **{name: template[name] for name in ("taints", "startupTaints", "requirements")},
                "nodeClassRef": _REFERENCE,
                "expireAfter": "720h",
            },
        },
        "disruption": {"consolidationPolicy": "WhenEmptyOrUnderutilized", "consolidateAfter": "0s"},
        "limits": {"cpu": 10},
        "weight": 7,
    }
    assert converted.warnings == []


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ({"name": "shop"}, _REFERENCE),
        ({"name": "shop", "apiVersion": "karpenter.k8s.aws/v1beta1", "kind": "EC2NodeClass"}, _REFERENCE),
        (
            {"name": "a", "apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass"},
            {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "a"},
        ),
    ],
)
def test_the_group_of_the_class_comes_from_its_api_version(reference: Json, expected: Json) -> None:
    """API-705, API-S288, API-S289."""
    assert convert(beta_pool({"nodeClassRef": reference})).at("spec.template.spec.nodeClassRef") == expected


@pytest.mark.parametrize(
    ("disruption", "policy", "after", "expiry"),
    [
        (None, "WhenEmptyOrUnderutilized", "0s", "720h"),
        ({}, "WhenEmptyOrUnderutilized", "0s", "720h"),
        ({"consolidationPolicy": "WhenUnderutilized"}, "WhenEmptyOrUnderutilized", "0s", "720h"),
        (
            {"consolidationPolicy": "WhenUnderutilized", "consolidateAfter": "Never"},
            "WhenEmptyOrUnderutilized",
            "Never",
            "720h",
        ),
        (
            {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "30s", "expireAfter": "24h"},
            "WhenEmpty",
            "30s",
            "24h",
        ),
    ],
)
def test_disruption(disruption: Json | None, policy: str, after: str, expiry: str) -> None:
    """API-706 to API-708, API-712, API-S287: Never stays Never, where Karpenter's conversion switches consolidation on."""
    converted = convert(beta_pool(spec={"disruption": disruption}))
    assert converted.at("spec.disruption") == {"consolidationPolicy": policy, "consolidateAfter": after}
    assert converted.at("spec.template.spec.expireAfter") == expiry


@pytest.mark.parametrize("after", ["1hr", "FooNever", "1d"])
def test_a_time_that_old_patterns_let_in_is_an_error(after: str) -> None:
    """API-707."""
    converted = convert(beta_pool(spec={"disruption": {"consolidationPolicy": "WhenEmpty", "consolidateAfter": after}}))
    assert converted.objects == ()
    assert converted.errors[0].startswith("spec.disruption.consolidateAfter: ")


def test_budgets_stay_and_have_text() -> None:
    """API-709, API-830."""
    budgets = [{"nodes": "20%"}, {"nodes": 0, "schedule": "@daily", "duration": "1h"}]
    assert convert(beta_pool(spec={"disruption": {"budgets": budgets}})).at("spec.disruption.budgets") == [
        {"nodes": "20%"},
        {"nodes": "0", "schedule": "@daily", "duration": "1h"},
    ]


def beta_claim(pool: str) -> Json:
    spec = {
        "nodeClassRef": {"name": "shop"},
        "requirements": [],
        "resources": {"requests": {"cpu": "1"}},
        "kubelet": {"maxPods": 5},
    }
    content = manifest("karpenter.sh/v1beta1", "NodeClaim", spec, labels={"karpenter.sh/nodepool": pool})
    content["status"] = {"conditions": [{"type": "Empty", "status": "True"}, {"type": "Expired", "status": "True"}]}
    return content


def test_a_claim_takes_its_age_limit_from_its_pool() -> None:
    """API-715 to API-718: from a pool in the input, wherever it stands."""
    pool = beta_pool(spec={"disruption": {"expireAfter": "24h"}})
    converted = convert(beta_claim("shop"), pool)
    assert converted.objects[0]["spec"] == {
        "expireAfter": "24h",
        "resources": {"requests": {"cpu": "1"}},
        "requirements": [],
        "nodeClassRef": _REFERENCE,
    }
    assert [warning.partition(":")[0] for warning in converted.warnings] == ["spec.kubelet"]
    assert convert(beta_claim("other")).at("spec.expireAfter") == "720h"


@pytest.mark.parametrize("family", ["AL2", "AL2023", "Bottlerocket", "Windows2019", "Windows2022"])
def test_a_family_without_terms_becomes_an_alias(family: str) -> None:
    """API-725, API-730, API-S290: the annotation fixes the version."""
    converted = convert(beta_class({"amiFamily": family}))
    assert converted.at("spec.amiSelectorTerms") == [{"alias": f"{family.lower()}@latest"}]
    assert converted.at("spec.amiFamily") is None
    fixed = {"compatibility.karpenter.k8s.aws/v1-alias-version": "v1"}
    if not family.startswith("Windows"):
        assert convert(beta_class({"amiFamily": family}, annotations=fixed)).at("spec.amiSelectorTerms") == [
            {"alias": f"{family.lower()}@v1"}
        ]


@pytest.mark.parametrize("family", ["AL2", "Custom", "Bottlerocket"])
def test_a_class_with_terms_keeps_them_and_its_family(family: str) -> None:
    """API-726, API-731, API-734, API-S291."""
    images = [{"id": "ami-1"}]
    converted = convert(beta_class({"amiFamily": family, "amiSelectorTerms": images}))
    assert (converted.at("spec.amiFamily"), converted.at("spec.amiSelectorTerms")) == (family, images)


def test_other_fields_of_a_class_stay() -> None:
    """API-727, API-728, API-728a."""
    same = {
        "userData": "x",
        "context": "c",
        "tags": {"karpenter.sh/managed-by": "a"},
        "blockDeviceMappings": [{"deviceName": "/dev/xvda", "rootVolume": True, "ebs": {"volumeSize": "20Gi"}}],
        "detailedMonitoring": True,
        "associatePublicIPAddress": False,
        "instanceStorePolicy": "RAID0",
    }
    converted = convert(beta_class(same))
    assert {name: converted.at(f"spec.{name}") for name in same} == same
    assert converted.at("spec.role") == "worker"
    assert converted.warnings == []


@pytest.mark.parametrize(
    ("given", "written"),
    [
        (None, {"httpPutResponseHopLimit": 2}),
        ({"httpTokens": "optional"}, {"httpPutResponseHopLimit": 2, "httpTokens": "optional"}),
        ({"httpPutResponseHopLimit": 1}, {"httpPutResponseHopLimit": 1}),
    ],
)
def test_the_old_default_of_the_hop_limit_is_written(given: Json | None, written: Json) -> None:
    """API-729, AWS-830: two hops, where v1 allows one."""
    assert convert(beta_class({"metadataOptions": given})).at("spec.metadataOptions") == written


@pytest.mark.parametrize(
    ("devices", "changed"),
    [
        (None, "amiFamily,blockDeviceMappings"),
        ([{"deviceName": "/dev/sda1", "ebs": {"volumeSize": "8Gi"}}], "amiFamily"),
    ],
)
def test_ubuntu_with_terms_becomes_al2(devices: object, changed: str) -> None:
    """API-732, AWS-823: what was changed is written into an annotation."""
    converted = convert(
        beta_class({"amiFamily": "Ubuntu", "amiSelectorTerms": [{"id": "ami-1"}], "blockDeviceMappings": devices})
    )
    assert converted.at("spec.amiFamily") == "AL2"
    assert converted.at("metadata.annotations") == {"compatibility.karpenter.k8s.aws/v1beta1-ubuntu": changed}
    expected = {"encrypted": True, "volumeType": "gp3", "volumeSize": "20Gi"}
    root = [{"deviceName": "/dev/sda1", "rootVolume": True, "ebs": expected}]
    assert converted.at("spec.blockDeviceMappings") == (devices or root)


def test_a_class_without_a_family_is_taken_for_al2() -> None:
    """API-725, API-730."""
    converted = convert(beta_class({"amiFamily": None}))
    assert converted.at("spec.amiSelectorTerms") == [{"alias": "al2@latest"}]
    assert len(converted.warnings) == 1
