"""One object in both versions that an API server serves (API-713, API-851)."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpenter.conversion.conversion_review import answer_review
from karpenter.conversion.json_fields import Json
from karpenter.conversion.options import ConversionOptions
from karpenter.conversion.served_versions import WARNINGS_ANNOTATION, converted
from support.older_manifests import BETA_TERMS

_OPTIONS = ConversionOptions(node_role="worker", kubernetes_version="1.33")
_REFERENCE = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "shop"}
_GROUPS = {"NodePool": "karpenter.sh", "NodeClaim": "karpenter.sh", "EC2NodeClass": "karpenter.k8s.aws"}
_V1_POOL: Json = {
    "replicas": 2,
    "limits": {"nodes": 4},
    "disruption": {
        "consolidationPolicy": "Balanced",
        "consolidateAfter": "90s",
        "budgets": [{"nodes": "2", "reasons": ["Empty"]}],
    },
    "template": {
        "metadata": {"labels": {"team": "shop"}},
        "spec": {
            "nodeClassRef": _REFERENCE,
            "expireAfter": "Never",
            "terminationGracePeriod": "30m",
            "taints": [{"key": "a", "effect": "NoSchedule"}],
            "requirements": [
                {"key": "karpenter.k8s.aws/instance-cpu", "operator": "Lte", "values": ["8"]},
                {"key": "kubernetes.io/arch", "operator": "In", "values": ["arm64"]},
            ],
        },
    },
}
_V1_CLASS: Json = {
    **BETA_TERMS,
    "amiSelectorTerms": [{"alias": "bottlerocket@v1.20.0"}],
    "kubelet": {"maxPods": 20},
    "metadataOptions": {"httpPutResponseHopLimit": 1},
}
_BETA_POOL: Json = {
    "disruption": {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "1hr", "expireAfter": "24h"},
    "template": {
        "spec": {
            "kubelet": {"maxPods": 30, "systemReserved": {}},
            "resources": {},
            "nodeClassRef": {"name": "shop", "apiVersion": "karpenter.k8s.aws/v1beta1"},
            "requirements": [
                {"key": "failure-domain.beta.kubernetes.io/zone", "operator": "In", "values": ["eu-west-1a"]}
            ],
        }
    },
}


def stored(kind: str, version: str, spec: Json, **annotations: str) -> Json:
    metadata: Json = {"name": "shop", "uid": "u", "generation": 3, "finalizers": ["karpenter.sh/termination"]}
    if annotations:
        metadata["annotations"] = annotations
    api_version = f"{_GROUPS[kind]}/{version}"
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec, "status": {"nodes": 1}}


def as_version(obj: Json, version: str) -> Json:
    return converted(obj, f"{_GROUPS[str(obj['kind'])]}/{version}", _OPTIONS)


def spec_of(obj: Json) -> Json:
    return obj["spec"]


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("NodePool", _V1_POOL),
        ("NodeClaim", {"nodeClassRef": _REFERENCE, "requirements": [], "expireAfter": "30h"}),
        ("EC2NodeClass", _V1_CLASS),
    ],
)
def test_v1_read_and_written_as_v1beta1_is_unchanged(kind: str, spec: Json) -> None:
    """API-713: what v1beta1 cannot hold comes back, and metadata and status never change."""
    first = stored(kind, "v1", spec, team="shop")
    older = as_version(first, "v1beta1")
    assert older["metadata"] != first["metadata"]
    assert as_version(older, "v1") == first


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("NodePool", _BETA_POOL),
        ("NodePool", {}),
        ("NodeClaim", {"nodeClassRef": {"name": "shop"}, "requirements": [], "kubelet": {"maxPods": 9}}),
        ("EC2NodeClass", {**BETA_TERMS, "amiFamily": "Ubuntu"}),
        ("EC2NodeClass", {**BETA_TERMS, "amiFamily": "AL2"}),
    ],
)
def test_v1beta1_reads_as_it_was_written(kind: str, spec: Json) -> None:
    """API-713: tools that compare what they applied with what the server says find no difference."""
    first = stored(kind, "v1beta1", spec)
    assert as_version(as_version(first, "v1"), "v1beta1") == first


def test_a_field_that_a_v1beta1_client_changed_stays_changed() -> None:
    """API-713: the writer wins over what was remembered."""
    older = as_version(stored("NodePool", "v1", _V1_POOL), "v1beta1")
    disruption = {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "10m", "expireAfter": "Never"}
    changed = spec_of(as_version({**older, "spec": {**spec_of(older), "disruption": disruption}}, "v1"))
    assert changed["disruption"] == {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "10m"}
    assert changed["replicas"] == 2


def test_never_stays_never_without_utilization() -> None:
    """API-707: consolidation that was off stays off."""
    disruption = {"consolidationPolicy": "WhenUnderutilized", "consolidateAfter": "Never", "expireAfter": "720h"}
    made = spec_of(as_version(stored("NodePool", "v1beta1", {"disruption": disruption}), "v1"))
    assert made["disruption"] == {"consolidationPolicy": "WhenEmptyOrUnderutilized", "consolidateAfter": "Never"}


def test_a_kubelet_configuration_is_kept_in_an_annotation_of_the_pool() -> None:
    """API-735, API-A03"""
    made = as_version(stored("NodePool", "v1beta1", _BETA_POOL), "v1")
    annotations: dict[str, str] = made["metadata"]["annotations"]
    assert json.loads(annotations["compatibility.karpenter.sh/v1beta1-kubelet-conversion"]) == {"maxPods": 30}
    assert "1hr" in annotations[WARNINGS_ANNOTATION]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["spec", "template", "disruption", "requirements", "nodeClassRef", "kubelet", "amiFamily"]),
            inner,
        )
    ),
    max_leaves=12,
)


@given(st.sampled_from(sorted(_GROUPS)), st.dictionaries(st.sampled_from(sorted(_BETA_POOL)), _JSON), st.booleans())
def test_every_object_gets_an_answer(kind: str, spec: Json, is_back: bool) -> None:
    """Issue 17 "Bad input": an object that cannot be converted is served as it is stored and does not block a list."""
    here, there = ("v1", "v1beta1") if is_back else ("v1beta1", "v1")
    made = as_version(stored(kind, here, spec), there)
    assert made["apiVersion"] == f"{_GROUPS[kind]}/{there}"
    assert made["status"] == {"nodes": 1}


def test_a_review_is_answered_in_order_under_its_uid() -> None:
    """API-851: the protocol of the API server."""
    objects = [stored("NodePool", "v1beta1", {"weight": number}) for number in (1, 2)]
    request = {"uid": "r1", "desiredAPIVersion": "karpenter.sh/v1", "objects": objects}
    answer = json.loads(answer_review(json.dumps({"request": request}).encode(), _OPTIONS))["response"]
    assert (answer["uid"], answer["result"]) == ("r1", {"status": "Success"})
    assert [one["spec"]["weight"] for one in answer["convertedObjects"]] == [1, 2]
    with pytest.raises(msgspec.ValidationError):
        answer_review(b"{}", _OPTIONS)
