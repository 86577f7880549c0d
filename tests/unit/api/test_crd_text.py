"""The CRDs as data; what an API server makes of them is tested with a real one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from karpenter.api import crds, field_descriptions
from support import yaml_text


def test_the_yaml_says_the_same_without_anchors() -> None:
    text = crds.to_yaml()
    assert tuple(yaml_text.documents(text)) == crds.custom_resource_definitions()
    assert "&id" not in text


def test_changing_a_result_does_not_change_the_next() -> None:
    first = crds.custom_resource_definitions()
    first[0]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"].clear()
    assert "spec" in crds.to_yaml().split("---")[0]
    assert crds.custom_resource_definitions() != first


def test_descriptions_use_the_names_users_write_and_no_private_references() -> None:
    text = " ".join(crds.to_yaml().split())
    assert "asking for minValues different values among the types." in text
    assert "API-" not in text
    assert "``" not in text


#: `metadata` of the objects themselves: the API server refuses a definition that describes it.
_OBJECT_METADATA = frozenset(f"{crd['metadata']['name']}.metadata" for crd in crds.custom_resource_definitions())


def test_a_definition_says_no_more_of_metadata_than_its_type() -> None:
    for definition in yaml_text.documents(crds.to_yaml()):
        for version in definition["spec"]["versions"]:
            assert version["schema"]["openAPIV3Schema"]["properties"]["metadata"] == {"type": "object"}


def fields_without_description(path: str, schema: dict[str, Any]) -> Iterator[str]:
    for name, field in (schema.get("properties") or {}).items():
        place = f"{path}.{name}"
        if not field.get("description") and place not in _OBJECT_METADATA:
            yield place
        yield from fields_without_description(place, field)
        for below in ("items", "additionalProperties"):
            if isinstance(field.get(below), dict):
                yield from fields_without_description(f"{place}[]", field[below])


def test_kubectl_explain_has_a_description_for_every_field() -> None:
    missing = [
        place
        for definition in yaml_text.documents(crds.to_yaml())
        for version in definition["spec"]["versions"]
        for place in fields_without_description(definition["metadata"]["name"], version["schema"]["openAPIV3Schema"])
    ]
    assert missing == []


def test_every_description_is_of_a_field_that_exists_and_is_a_sentence() -> None:
    for (owner, name), text in field_descriptions.FIELD_DESCRIPTIONS.items():
        assert name in {field.encode_name for field in msgspec.structs.fields(owner)}, (owner, name)
        assert text[-1] == ".", text


def test_pools_and_claims_are_cluster_wide_in_one_category() -> None:
    """API-001 to API-006, API-850, API-A13: `kubectl api-resources --categories karpenter` lists the older kinds, too."""
    names = {crd["metadata"]["name"]: crd["spec"] for crd in crds.custom_resource_definitions()}
    own = {f"{kind}.karpenter.sh" for kind in ("nodepools", "nodeclaims", "nodeoverlays", "capacityschedules")}
    buffers = names.pop("capacitybuffers.autoscaling.x-k8s.io")
    assert (buffers["scope"], buffers["names"]["categories"]) == ("Namespaced", ["autoscaling"])
    older = {"provisioners.karpenter.sh", "machines.karpenter.sh", "awsnodetemplates.karpenter.k8s.aws"}
    classes = {"kwoknodeclasses.karpenter.kwok.sh", "ec2nodeclasses.karpenter.k8s.aws"}
    classes |= {"machinenodeclasses.karpenter.machines"}
    assert set(names) == own | older | classes
    assert {spec["scope"] for spec in names.values()} == {"Cluster"}
    assert all(spec["names"]["categories"] == ["karpenter"] for spec in names.values())


def test_buffers_are_served_in_the_version_of_published_manifests_too() -> None:
    """API §6 Beyond: an API server that stored that version once takes no definition without it."""
    (actual,) = (
        crd["spec"] for crd in crds.custom_resource_definitions() if crd["spec"]["group"] == "autoscaling.x-k8s.io"
    )
    stored, older = actual["versions"]
    assert [(obj["name"], obj["served"], obj["storage"]) for obj in (stored, older)] == [
        ("v1beta1", True, True),
        ("v1alpha1", True, False),
    ]
    assert older["schema"] == stored["schema"]
