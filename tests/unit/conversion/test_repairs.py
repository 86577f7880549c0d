"""What a reader forgives in objects of any version, and where kubelet configuration goes (API §17.2)."""

from __future__ import annotations

import json

import pytest

from support.older_manifests import Json, beta_class, beta_pool, convert, manifest, node_template, provisioner

_KUBELET = {"maxPods": 40}


def repaired(requirement: Json) -> tuple[list[Json], list[str]]:
    converted = convert(beta_pool({"requirements": [requirement]}))
    requirements = converted.at("spec.template.spec.requirements")
    assert isinstance(requirements, list)
    return requirements, converted.warnings


@pytest.mark.parametrize(
    ("given", "expected", "warnings"),
    [
        ({"key": "a", "values": ["b"]}, {"key": "a", "operator": "In", "values": ["b"]}, 1),
        ({"key": "a"}, {"key": "a", "operator": "Exists"}, 1),
        ({"key": " a ", "operator": "In ", "values": [" b"]}, {"key": "a", "operator": "In", "values": ["b"]}, 3),
        ({"key": "a", "operator": "NOTIN", "values": ["b"]}, {"key": "a", "operator": "NotIn", "values": ["b"]}, 1),
        ({"key": "a", "operator": "in", "values": ["b"]}, {"key": "a", "operator": "In", "values": ["b"]}, 1),
        (
            {"key": "a", "operator": "In", "values": [1, True]},
            {"key": "a", "operator": "In", "values": ["1", "true"]},
            0,
        ),
        (
            {"key": "beta.kubernetes.io/arch", "operator": "Exists"},
            {"key": "kubernetes.io/arch", "operator": "Exists"},
            0,
        ),
        (
            {"key": "node.k8s.aws/capacity-type", "operator": "In", "values": ["spot"]},
            {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"]},
            0,
        ),
    ],
)
def test_requirements_are_repaired(given: Json, expected: Json, warnings: int) -> None:
    """API-826, API-827, API-828, API-830, API-808."""
    requirements, said = repaired(given)
    assert (requirements, len(said)) == ([expected], warnings)


@pytest.mark.parametrize(
    "key",
    [
        "karpenter.k8s.aws/instance-pods",
        "karpenter.k8s.aws/instance-ami-id",
        "karpenter.sh/machine-name",
        "karpenter.sh/managed-by",
        "karpenter.sh/provisioner-name",
    ],
)
def test_a_requirement_without_an_equivalent_is_dropped(key: str) -> None:
    """API-807, API-832."""
    requirements, said = repaired({"key": key, "operator": "Exists"})
    assert (requirements, len(said)) == ([], 1)


def test_several_requirements_on_one_key_stay() -> None:
    """API-834: their intersection holds."""
    both: list[Json] = [
        {"key": "kubernetes.io/arch", "operator": "Exists"},
        {"key": "kubernetes.io/arch", "operator": "NotIn", "values": ["arm64"]},
    ]
    assert convert(beta_pool({"requirements": both})).at("spec.template.spec.requirements") == both


def test_a_pool_without_a_template_gets_one() -> None:
    """API-824."""
    converted = convert(manifest("karpenter.sh/v1", "NodePool", {"template": None}))
    assert converted.at("spec.template.spec.requirements") == []
    assert converted.at("spec.template.spec.nodeClassRef.name") == "default"
    assert len(converted.warnings) == 2


def test_unknown_fields_are_dropped_with_the_nearest_name() -> None:
    """API-836: at every depth, in every version."""
    for content, path in (
        (provisioner({"requirments": [], "requirements": []}), "spec.requirments"),
        (node_template({"subnetSelectors": {}}), "spec.subnetSelectors"),
        (beta_pool({"nodeClassRefs": {}}), "spec.template.spec.nodeClassRefs"),
        (beta_pool(spec={"disruption": {"expireAfterr": "1h"}}), "spec.disruption.expireAfterr"),
        (beta_class({"metadataOptions": {"httpToken": "x"}}), "spec.metadataOptions.httpToken"),
    ):
        converted = convert(content)
        (warning,) = converted.warnings
        assert warning.startswith(f"{path}: unknown field")
        assert "did you mean" in warning
        assert path.rpartition(".")[2] + '"' not in json.dumps(converted.objects)


def test_nulls_are_absent() -> None:
    """API-A01, API-823."""
    converted = convert(beta_pool({"taints": None}, {"limits": None, "weight": None}, annotations=None, labels=None))
    assert "null" not in json.dumps(converted.objects)
    assert converted.warnings == []


def test_something_else_than_an_object_or_list_is_an_error() -> None:
    """API-831: reported with its path, and other objects are converted."""
    converted = convert(
        provisioner({"labels": ["a"]}),
        beta_pool({"requirements": {"key": "a"}}),
        manifest("karpenter.sh/v1beta1", "NodePool", {"template": 5}),
        provisioner(),
    )
    assert [error.partition(":")[0] for error in converted.errors] == [
        "spec.labels",
        "spec.template.spec.requirements",
        "spec.template",
    ]
    assert len(converted.objects) == 1


def test_an_object_without_a_name_is_an_error() -> None:
    """API-820."""
    assert convert(provisioner(name=None)).errors == ["metadata.name: is missing; expected the name of the object"]


def test_what_no_plan_could_use_is_information() -> None:
    """API-835, API-831: a variable as a value is kept and reported."""
    requirement = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["${ZONE}"]}
    converted = convert(beta_pool({"requirements": [requirement]}))
    assert converted.at("spec.template.spec.requirements") == [requirement]
    assert any("${ZONE}" in line for line in converted.information)


def class_of(converted: object, index: int) -> object:
    return converted.at("spec.template.spec.nodeClassRef.name", index)  # type: ignore[attr-defined]


def test_pools_that_agree_give_their_kubelet_to_the_class() -> None:
    """API-704, API-735, API-822."""
    converted = convert(beta_pool({"kubelet": _KUBELET}), beta_pool({"kubelet": _KUBELET}, name="b"), beta_class())
    assert converted.at("spec.kubelet", 2) == _KUBELET
    assert len(converted.objects) == 3


def test_pools_that_differ_get_copies_of_the_class() -> None:
    """API-822, API-817: right after the class; a pool without kubelet keeps the class."""
    converted = convert(
        beta_class(),
        beta_pool({"kubelet": _KUBELET}, name="a"),
        beta_pool({"kubelet": {"maxPods": 5}}, name="b"),
        beta_pool(name="c"),
    )
    names = [converted.at("metadata.name", index) for index in range(len(converted.objects))]
    assert names == ["shop", "shop-a", "shop-b", "a", "b", "c"]
    assert [converted.at("spec.kubelet", index) for index in range(3)] == [None, _KUBELET, {"maxPods": 5}]
    assert [class_of(converted, index) for index in (3, 4, 5)] == ["shop-a", "shop-b", "shop"]


def test_kubelet_values_that_are_null_or_empty_count_as_none() -> None:
    """API-823."""
    converted = convert(
        beta_class(), beta_pool({"kubelet": {"maxPods": None, "evictionHard": {}}}), beta_pool(name="b")
    )
    assert len(converted.objects) == 3
    assert converted.at("spec.kubelet") is None


def test_without_the_class_the_kubelet_stays_in_an_annotation() -> None:
    """API-822, API-735."""
    converted = convert(beta_pool({"kubelet": _KUBELET}))
    annotation = "compatibility.karpenter.sh/v1beta1-kubelet-conversion"
    assert converted.at("metadata.annotations") == {annotation: '{"maxPods":40}'}
    assert len(converted.warnings) == 1


def test_a_kind_of_the_same_name_in_another_group_is_foreign() -> None:
    """API-816."""
    converted = convert(manifest("container.example/v1", "NodePool", {}))
    assert (converted.objects, converted.converted.nothing_to_convert, converted.converted.failed) == ((), True, False)
