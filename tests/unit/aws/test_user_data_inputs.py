"""User data inputs of launches and dry runs: instance types, settings of the class, current cluster settings."""

from __future__ import annotations

from base64 import b64decode
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from karpenter.api.ec2_node_class import EC2NodeClass
from karpenter.api.karpenter import NodeClaim, NodeClaimSpec, NodePool
from karpenter.api.meta import ObjectMeta
from karpenter.api.scheduling_constraints import Taint
from karpenter.model import labels
from karpenter.providers.aws.aws_settings import AwsClusterInfo, AwsSettings
from karpenter.providers.aws.instance.bootstrap_resolver import BootstrapResolver
from karpenter.providers.aws.instance.launch_plan import UserDataInputs
from karpenter.providers.aws.nodeclass.nodeclass_dry_runs import DryRunCandidate
from karpenter.providers.aws.userdata.kubelet_settings import KubeletSettings
from karpenter.providers.contract import LaunchFailed, NodeClassNotReady
from support.builders import node_pool, pool_taint, wanted
from support.ec2_instance_types import (
    PLAIN,
    FakeRegion,
    InstanceTypeFixture,
    instance_type_fixture,
    of_kubelet,
    of_spec,
)
from support.launch_environment import CLASS_REF

CLUSTER = AwsClusterInfo("c", "us-east-1", "https://c.example", "Y2E=", "1.33", "10.100.0.10", "10.100.0.0/16")


class BootstrapFixture:
    """A ``BootstrapResolver`` over a few instance types, and what it told."""

    def __init__(self, fixture: InstanceTypeFixture, **settings: Any) -> None:
        self.instance_type_fixture = fixture
        self.cluster = CLUSTER
        self.user_data_sizes: dict[str, int] = {}
        self.pools: list[NodePool] = []
        own = AwsSettings("c", **settings)
        self.resolver = BootstrapResolver(
            fixture.provider, lambda: self.cluster, own, lambda: self.pools, self.user_data_sizes.__setitem__
        )

    def text(self, node_class: EC2NodeClass, **more: Any) -> str:
        defaults: dict[str, Any] = {"labels": {"team": "a"}, "taints": (), "max_pods": 29, "kubelet": KubeletSettings()}
        return self.resolver.user_data(UserDataInputs(node_class, **{**defaults, **more})).decode()


async def bootstrap_fixture(**settings: Any) -> BootstrapFixture:
    fixture = await instance_type_fixture(FakeRegion(names=["m5.large", "p4d.24xlarge", "c5.xlarge"]))
    return BootstrapFixture(fixture, **settings)


async def test_the_number_of_efa_interfaces_comes_from_ec2() -> None:
    """AWS-298, AWS-496"""
    resolver = (await bootstrap_fixture()).resolver
    actual = {name: resolver.efa_interfaces(name) for name in ("p4d.24xlarge", "m5.large", "never.heard")}
    assert actual == {"p4d.24xlarge": 4, "m5.large": 0, "never.heard": 0}


@pytest.mark.parametrize(("gate", "expected"), [(True, {"cpu": "40m"}), (False, {})])
async def test_expressions_apply_only_with_their_gate(gate: bool, expected: dict[str, str]) -> None:
    """AWS-T101, AWS-129"""
    fixture = await bootstrap_fixture(kubelet_expressions=gate)
    node_class = of_kubelet(kubeReserved={"cpu": "vcpus * 10"})
    (instance_type,) = (
        given_type
        for given_type in fixture.instance_type_fixture.provider.types_for(PLAIN)
        if given_type.name == "c5.xlarge"
    )
    assert dict(fixture.resolver.kubelet(node_class, instance_type).kube_reserved) == expected


async def test_kubelet_settings_of_a_removed_type_are_not_resolved() -> None:
    fixture = await bootstrap_fixture()
    (instance_type,) = (
        given_type
        for given_type in fixture.instance_type_fixture.provider.types_for(PLAIN)
        if given_type.name == "c5.xlarge"
    )
    gone = replace(instance_type, name="c1.gone")
    assert fixture.resolver.kubelet(of_kubelet(kubeReserved={"cpu": "1"}), gone) == KubeletSettings()


async def test_dns_servers_of_the_class_override_those_of_the_cluster() -> None:
    """AWS-222"""
    fixture = await bootstrap_fixture()
    assert "10.100.0.10" in fixture.text(PLAIN)
    own = fixture.text(of_kubelet(clusterDNS=["10.0.0.7"]))
    assert "10.0.0.7" in own
    assert "10.100.0.10" not in own


async def test_current_cluster_settings_are_used() -> None:
    """AWS-026, AWS-248, AWS-T228: settings unknown at startup can be discovered later."""
    fixture = await bootstrap_fixture()
    fixture.cluster = replace(CLUSTER, service_cidr="")
    with pytest.raises(NodeClassNotReady, match="service CIDR"):
        fixture.text(PLAIN)
    fixture.cluster = CLUSTER
    assert "cidr: 10.100.0.0/16" in fixture.text(PLAIN)


async def test_invalid_user_data_names_the_class() -> None:
    """AWS-250, AWS-T232"""
    fixture = await bootstrap_fixture()
    with pytest.raises(LaunchFailed, match=r"spec\.userData of EC2NodeClass default: ") as caught:
        fixture.text(of_spec(ami_family="Bottlerocket", user_data="not toml {"))
    assert caught.value.reason == "LaunchFailed"
    assert fixture.user_data_sizes == {}


async def test_the_size_of_user_data_is_reported_per_class() -> None:
    """AWS-225"""
    fixture = await bootstrap_fixture()
    text = fixture.text(PLAIN)
    assert fixture.user_data_sizes == {"default": len(text.encode())}


async def test_a_dry_run_has_the_user_data_of_a_launch() -> None:
    """AWS-115, AWS-221, AWS-490"""
    fixture = await bootstrap_fixture()
    (instance_type,) = (
        given_type
        for given_type in fixture.instance_type_fixture.provider.types_for(PLAIN)
        if given_type.name == "m5.large"
    )
    data = fixture.resolver.dry_run_template_data(
        PLAIN, DryRunCandidate(instance_type, PLAIN.status.amis[0], labels.SPOT, "dedicated")
    )
    launched = fixture.text(PLAIN, labels={labels.CAPACITY_TYPE: labels.SPOT})
    assert b64decode(data.user_data).decode() == launched
    assert data.image_id == "ami-1"
    assert data.placement is not None
    assert data.placement.tenancy == "dedicated"
    assert "karpenter.sh/unregistered" in launched


async def test_a_dry_run_has_the_labels_and_taints_of_its_node_pool() -> None:
    """E25: user data of a dry run has the size of that of a launch."""
    fixture = await bootstrap_fixture()
    (instance_type,) = (
        given_type
        for given_type in fixture.instance_type_fixture.provider.types_for(PLAIN)
        if given_type.name == "m5.large"
    )
    own = node_pool(
        "default", (wanted("tier", "In", "gold"),), labels={"team": "a"}, template={"taints": (pool_taint("gpu"),)}
    )
    data = fixture.resolver.dry_run_template_data(
        PLAIN, DryRunCandidate(instance_type, PLAIN.status.amis[0], labels.SPOT, "default", own)
    )
    text = b64decode(data.user_data).decode()
    assert all(f"{key}={value}" in text for key, value in (("team", "a"), ("tier", "gold")))
    assert "key: gpu" in text
    assert {tag.value for tag in data.tag_specifications[0].tags if tag.key == labels.NODE_POOL} == {"default"}


async def test_taints_and_max_pods_are_those_of_the_launch() -> None:
    """AWS-221, AWS-223"""
    fixture = await bootstrap_fixture()
    tainted = fixture.text(PLAIN, taints=(Taint(key="gpu", value="yes", effect="NoSchedule"),), max_pods=17)
    assert "gpu" in tainted
    assert "maxPods: 17" in tainted
    own = msgspec.structs.replace(PLAIN, spec=msgspec.structs.replace(PLAIN.spec, kubelet={"maxPods": 10}))
    assert "maxPods: 10" in fixture.text(own, max_pods=17)


async def test_user_data_has_the_labels_that_all_claims_of_a_pool_share() -> None:
    """AWS-220, AWS-226: labels with a value per NodeClaim are added at registration, so they need no separate launch template."""
    fixture = await bootstrap_fixture()
    own = {labels.NODE_POOL: "default", "team": "a", "tier": "gold", "tenant": "t17", "drawn": "claim-1"}
    nodeclaim = NodeClaim(
        metadata=ObjectMeta(name="claim-1", labels=own), spec=NodeClaimSpec(node_class_ref=CLASS_REF, requirements=())
    )
    assert fixture.resolver.boot_labels(nodeclaim) == own
    fixture.pools.append(
        node_pool(
            "default",
            labels={"team": "a"},
            requirements=(
                wanted("tier", "In", "gold"),
                wanted("tenant", "In", "t17", "t18"),
                wanted("drawn", "Exists"),
            ),
        )
    )
    assert fixture.resolver.boot_labels(nodeclaim) == {labels.NODE_POOL: "default", "team": "a", "tier": "gold"}
