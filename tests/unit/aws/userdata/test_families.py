"""Properties of AMI families."""

from __future__ import annotations

from typing import get_args

import pytest

from karpenter.api.ec2_node_class import AMIFamily, AMISelectorTerm, EC2NodeClassSpec, MetadataOptions
from karpenter.providers.aws.aws_settings import AwsClusterInfo
from karpenter.providers.aws.userdata.ami_families import (
    AMI_FAMILIES,
    alias_version,
    ami_family_of,
    effective_ami_family,
    metadata_options,
)

CLUSTER = AwsClusterInfo("c", "eu-west-1", "https://x", "", "1.33", dns_ip="10.0.0.10")


def spec(alias: str | None = None, family: AMIFamily | None = None) -> EC2NodeClassSpec:
    return EC2NodeClassSpec(ami_family=family, ami_selector_terms=(AMISelectorTerm(alias=alias, id="ami-1"),))


@pytest.mark.parametrize(
    ("given", "family"),
    [
        pytest.param(spec(family="AL2023"), "AL2023", id="named"),
        pytest.param(spec("al2@latest"), "AL2", id="of the alias"),
        pytest.param(spec("windows2022@latest"), "Windows2022", id="of a Windows alias"),
        pytest.param(spec("bottlerocket@v1.20.0", "Custom"), "Custom", id="the name wins over the alias"),
        pytest.param(spec(), "Custom", id="neither"),
        pytest.param(EC2NodeClassSpec(ami_family="Ubuntu"), "Ubuntu", id="Ubuntu without images"),
        pytest.param(spec("plan9@latest"), "Custom", id="unknown alias"),
    ],
)
def test_the_effective_ami_family(given: EC2NodeClassSpec, family: str) -> None:
    """AWS-055."""
    assert effective_ami_family(given) == family
    assert ami_family_of(given).name == family


@pytest.mark.parametrize(
    ("name", "devices", "ephemeral", "facts"),
    [
        pytest.param("AL2", {"/dev/xvda": "20Gi"}, "/dev/xvda", (True, True, True), id="AWS-265 AL2"),
        pytest.param("AL2023", {"/dev/xvda": "20Gi"}, "/dev/xvda", (True, True, True), id="AWS-265 AL2023"),
        pytest.param(
            "Bottlerocket",
            {"/dev/xvda": "6Gi", "/dev/xvdb": "20Gi"},
            "/dev/xvdb",
            (False, False, True),
            id="K15-A37, AWS-266",
        ),
        pytest.param("Windows2019", {"/dev/sda1": "50Gi"}, "/dev/sda1", (False, True, False), id="AWS-267 2019"),
        pytest.param("Windows2022", {"/dev/sda1": "50Gi"}, "/dev/sda1", (False, True, False), id="AWS-267 2022"),
        pytest.param("Windows2025", {"/dev/sda1": "50Gi"}, "/dev/sda1", (False, True, False), id="AWS-267 2025"),
        pytest.param("Ubuntu", {"/dev/sda1": "20Gi"}, "/dev/sda1", (True, True, True), id="API-860"),
        pytest.param("Custom", {}, "", (True, True, True), id="AWS-268"),
    ],
)
def test_the_properties_of_an_ami_family(
    name: str, devices: dict[str, str], ephemeral: str, facts: tuple[bool, ...]
) -> None:
    family = AMI_FAMILIES[name]
    volumes = {mapping.device_name: mapping.ebs for mapping in family.block_devices}
    assert {device: ebs.volume_size for device, ebs in volumes.items() if ebs} == devices
    assert all(ebs and ebs.volume_type == "gp3" and ebs.encrypted for ebs in volumes.values())
    assert family.ephemeral_device == ephemeral
    assert (family.reserves_for_interfaces, family.applies_pods_per_core, family.is_limited_by_interfaces) == facts
    assert family.is_windows == name.startswith("Windows")


def test_every_ami_family_of_the_api_has_an_entry() -> None:
    assert set(AMI_FAMILIES) == set(get_args(AMIFamily))


def test_the_version_of_an_alias() -> None:
    assert alias_version(spec("al2023@v20250501")) == "v20250501"
    assert alias_version(spec(family="Custom")) == ""


def test_objects_stored_without_metadata_options_get_secure_defaults() -> None:
    """AWS-269."""
    options = metadata_options(spec(), CLUSTER)
    assert (options.http_endpoint, options.http_tokens) == ("disabled", "required")
    assert (options.http_put_response_hop_limit, options.http_protocol_ipv6) == (2, "disabled")
    ipv6 = AwsClusterInfo("c", "eu-west-1", "https://x", "", "1.33", dns_ip="fd00::a")
    assert metadata_options(spec(), ipv6).http_protocol_ipv6 == "enabled"
    own = MetadataOptions(http_tokens="optional")
    assert metadata_options(EC2NodeClassSpec(metadata_options=own), CLUSTER) is own
