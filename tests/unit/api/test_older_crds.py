"""The older versions and kinds that the CRDs serve, beside ``v1``: names, columns, what is stored."""

from __future__ import annotations

from typing import Any, cast

import pytest

from karpenter.api import crds

_DEFINITIONS: dict[str, Any] = {
    str(cast(Any, definition)["metadata"]["name"]): definition["spec"]
    for definition in crds.custom_resource_definitions()
}


def _version(definition: str, name: str) -> Any:
    (version,) = (each for each in _DEFINITIONS[definition]["versions"] if each["name"] == name)
    return version


def _columns(definition: str, *, wide: bool) -> list[str]:
    columns = _version(definition, "v1beta1")["additionalPrinterColumns"]
    return [column["name"] for column in columns if bool(column.get("priority", 0)) == wide]


@pytest.mark.parametrize(
    ("definition", "columns", "wide"),
    [
        ("nodepools.karpenter.sh", ["NodeClass"], ["Weight"]),
        (
            "nodeclaims.karpenter.sh",
            ["Type", "Zone", "Node", "Ready", "Age"],
            ["Capacity", "NodePool", "NodeClass"],
        ),
    ],
)
def test_v1beta1_shows_the_columns_it_had(definition: str, columns: list[str], wide: list[str]) -> None:
    """API-714: kubectl get shows the same columns of v1beta1 as the last release that had it."""
    assert _columns(definition, wide=False) == columns
    assert _columns(definition, wide=True) == wide


@pytest.mark.parametrize(
    "definition", ["nodepools.karpenter.sh", "nodeclaims.karpenter.sh", "ec2nodeclasses.karpenter.k8s.aws"]
)
def test_v1beta1_is_served_and_v1_is_stored(definition: str) -> None:
    """API-736: v1beta1 stays readable and writable, although Karpenter 1.1 removed it; only v1 is stored."""
    served = {
        version["name"]: version["storage"] for version in _DEFINITIONS[definition]["versions"] if version["served"]
    }
    assert served == {"v1": True, "v1beta1": False}


@pytest.mark.parametrize(
    ("definition", "kind", "version"),
    [
        ("provisioners.karpenter.sh", "Provisioner", "v1alpha5"),
        ("machines.karpenter.sh", "Machine", "v1alpha5"),
        ("awsnodetemplates.karpenter.k8s.aws", "AWSNodeTemplate", "v1alpha1"),
    ],
)
def test_kinds_before_v1beta1_keep_their_names(definition: str, kind: str, version: str) -> None:
    """API-007: kind, plural, scope, category and the status subresource are those of the releases that had the kinds."""
    spec = _DEFINITIONS[definition]
    assert (spec["names"]["kind"], spec["scope"], spec["names"]["categories"]) == (kind, "Cluster", ["karpenter"])
    assert f"{spec['names']['plural']}.{spec['group']}" == definition
    assert "status" in _version(definition, version)["subresources"]
