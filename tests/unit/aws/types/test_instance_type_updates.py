"""Updates of the instance types of a class: identity of the list, changes, and failed calls."""

from __future__ import annotations

import msgspec
import pytest
from structlog.testing import capture_logs

from karpenter.api.ec2_node_class import (
    ConnectionTracking,
    CpuOptions,
    EC2NodeClass,
)
from karpenter.model import labels
from karpenter.providers.aws.ec2_descriptions import InstanceTypeInfo, PlacementGroupInfoEntry
from karpenter.providers.aws.userdata.kubelet_settings import KubeletTypeFacts
from karpenter.providers.contract import ProviderError
from support.ec2_instance_types import (
    IDS,
    PLAIN,
    ZONES,
    A,
    B,
    FakeRegion,
    InstanceTypeFixture,
    instance_type_fixture,
    of_spec,
    of_status,
    raw,
    spot,
    subnets,
)
from support.instance_type_queries import PARTITION, REFUSED, reservation, values

GROUP = PlacementGroupInfoEntry(group_id="pg-1", strategy="partition", partition_count=3)


async def test_without_changes_the_list_is_the_identical_object() -> None:
    """AWS-284, AWS-353: for every class and caller."""
    fixture = await instance_type_fixture(FakeRegion(names=["m5.large", "c5.large"], spot=[spot("m5.large", A, 0.03)]))
    await fixture.provider.refresh_spot()
    before = fixture.provider.types_for(PLAIN)
    await fixture.provider.refresh_types()
    await fixture.provider.refresh_spot()
    assert fixture.provider.types_for(PLAIN) is before
    assert fixture.provider.types_for(of_spec(tags={"team": "a"}, user_data="#!/bin/sh")) is before


@pytest.mark.parametrize(
    "node_class",
    [
        of_spec(ami_family="AL2"),
        of_spec(kubelet={"maxPods": 10}),
        of_spec(instance_store_policy="RAID0"),
        of_spec(cpu_options=CpuOptions(nested_virtualization="enabled")),
        of_spec(connection_tracking=ConnectionTracking(udp_timeout=60)),
        of_status(subnets=subnets(A)),
        of_status(capacity_reservations=(reservation(),)),
    ],
    ids=["family", "kubelet", "store", "cpu", "tracking", "subnets", "reservations"],
)
async def test_classes_that_differ_do_not_share_a_list(node_class: EC2NodeClass) -> None:
    """AWS-353 Beyond: Karpenter confuses some of them."""
    fixture = await instance_type_fixture(FakeRegion(names=["m5.large", "a1.large"]))
    plain = fixture.provider.types_for(PLAIN)
    other = fixture.provider.types_for(node_class)
    assert other is not plain
    assert fixture.provider.types_for(PLAIN) is plain
    assert fixture.provider.types_for(node_class) is other


async def test_a_changed_price_updates_one_type() -> None:
    """AWS-353 Beyond: at once. AWS-285: only its offerings are rebuilt, not the type."""
    region = FakeRegion(names=["m5.large", "c5.large"], spot=[spot("m5.large", A, 0.03), spot("c5.large", A, 0.02)])
    fixture = await instance_type_fixture(region)
    await fixture.provider.refresh_spot()
    before = fixture.types()
    region.spot[0] = spot("m5.large", A, 0.04)
    await fixture.provider.refresh_spot()
    assert fixture.offering("m5.large", "spot").price_per_hour == 0.04
    assert fixture.types()["c5.large"] is before["c5.large"]
    assert fixture.types()["m5.large"].requirements is before["m5.large"].requirements


async def test_a_type_with_changed_zones_is_rebuilt() -> None:
    """AWS-281."""
    region = FakeRegion(names=["m5.large", "c5.large"])
    fixture = await instance_type_fixture(region)
    before = fixture.types()
    region.offered_in = {"m5.large": (B,)}
    await fixture.provider.refresh_types()
    assert values(fixture.types()["m5.large"], labels.ZONE) == {B}
    assert fixture.types()["c5.large"] is before["c5.large"]


async def test_changed_types_and_offerings_are_logged() -> None:
    """AWS-792."""
    region = FakeRegion(names=["m5.large", "c5.large"], offered_in={"m5.large": (A, B), "c5.large": (A,)})
    provider = InstanceTypeFixture(region).provider
    with capture_logs() as logs:
        await provider.refresh_types()
        await provider.refresh_types()
        region.offered_in = {"m5.large": (A, B), "c5.large": (B,)}
        await provider.refresh_types()
    discovered = {"event": "discovered offerings for instance types", "instance-type-count": 2, "log_level": "debug"}
    assert logs == [
        {"event": "discovered instance types", "count": 2, "log_level": "debug"},
        {"event": "discovered zones", "zones": [A, B], "log_level": "debug"},
        discovered,
        discovered,
    ]


async def test_a_removed_type_leaves_the_list() -> None:
    region = FakeRegion(names=["m5.large", "c5.large"])
    fixture = await instance_type_fixture(region)
    fixture.types()
    region.names = ["c5.large"]
    await fixture.provider.refresh_types()
    assert fixture.types().keys() == {"c5.large"}
    assert fixture.provider.type_info("m5.large") is None


async def test_before_the_first_refresh_listing_fails() -> None:
    """AWS-283."""
    with pytest.raises(ProviderError, match="no instance types found"):
        InstanceTypeFixture().provider.types_for(PLAIN)


async def test_a_class_without_subnets_has_no_types() -> None:
    """AWS-283."""
    fixture = await instance_type_fixture()
    with pytest.raises(ProviderError, match="no subnets found"):
        fixture.provider.types_for(of_status(subnets=()))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"names": []}, "no instance types found"),
        ({"offered_in": {"m5.large": ()}}, "no instance types offerings found"),
        ({"failing": {"types": REFUSED}}, "InternalError"),
        ({"failing": {"offerings": REFUSED}}, "InternalError"),
    ],
    ids=["no types", "no offerings", "refused", "offerings refused"],
)
async def test_a_failed_refresh_changes_nothing(changes: dict[str, object], said: str) -> None:
    """AWS-283."""
    fixture = await instance_type_fixture()
    before = fixture.provider.types_for(PLAIN)
    for name, value in changes.items():
        setattr(fixture.region, name, value)
    with pytest.raises(ProviderError, match=said):
        await fixture.provider.refresh_types()
    assert fixture.provider.types_for(PLAIN) is before


async def test_an_invalid_type_is_left_out_and_logged() -> None:
    """AWS-283 Beyond."""
    broken = InstanceTypeInfo(instance_type="x9.large")
    with capture_logs() as logs:
        fixture = await instance_type_fixture(FakeRegion(names=["m5.large", "x9.large"], infos={"x9.large": broken}))
    assert fixture.types().keys() == {"m5.large"}
    assert fixture.skipped == [1]
    assert [(entry["instance-type"], entry["log_level"]) for entry in logs if "error" in entry] == [
        ("x9.large", "warning")
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {
            "processor_info": msgspec.structs.replace(
                raw()["m5.large"].processor_info, supported_architectures=("mips",)
            )
        },
        {"vcpu_info": msgspec.structs.replace(raw()["m5.large"].vcpu_info, default_vcpus=0)},
        {"network_info": msgspec.structs.replace(raw()["m5.large"].network_info, default_network_card_index=7)},
        {"network_info": msgspec.structs.replace(raw()["m5.large"].network_info, ipv4_addresses_per_interface=0)},
    ],
    ids=["architecture", "vcpus", "card", "addresses"],
)
async def test_a_type_with_an_incomplete_description_is_left_out(changes: dict[str, object]) -> None:
    own = msgspec.structs.replace(raw()["m5.large"], **changes)
    fixture = await instance_type_fixture(FakeRegion(names=["m5.large", "c5.large"], infos={"m5.large": own}))
    assert fixture.types().keys() == {"c5.large"}


async def test_a_type_without_network_cards_has_its_maximum_of_interfaces() -> None:
    network = msgspec.structs.replace(raw()["m5.large"].network_info, network_cards=())
    own = msgspec.structs.replace(raw()["m5.large"], network_info=network)
    fixture = await instance_type_fixture(FakeRegion(infos={"m5.large": own}))
    assert fixture.types()["m5.large"].capacity["pods"] == 29_000


async def test_a_changed_class_is_read_again() -> None:
    """A class with the same name can have other settings."""
    fixture = await instance_type_fixture()
    assert values(fixture.types()["m5.large"], labels.ZONE) == {A, B}
    assert values(fixture.types(of_status(subnets=subnets(B)))["m5.large"], labels.ZONE) == {B}
    fixture.group = GROUP
    assert values(fixture.types()["m5.large"], PARTITION) == {"1", "2", "3"}


async def test_kubelet_expressions_have_the_variables_of_each_type() -> None:
    """AWS-111: the pods of a type are those it runs by default."""
    fixture = await instance_type_fixture(FakeRegion(names=["m5.large", "m5.xlarge"]), reserved_enis=1)
    facts = fixture.provider.kubelet_facts(PLAIN)["m5.large"]
    assert facts == KubeletTypeFacts(
        "m5.large", vcpus=2, memory_mib=8192, default_enis=3, ips_per_eni=10, default_pods=20
    )


async def test_a_type_is_compatible_with_a_class_that_can_use_it() -> None:
    """AWS-340."""
    fixture = await instance_type_fixture(FakeRegion(names=["m5.large", "a1.large"]))
    types = fixture.types()
    assert [name for name, instance_type in types.items() if fixture.provider.is_compatible(PLAIN, instance_type)] == [
        "m5.large"
    ]


async def test_type_descriptions_and_zone_ids_can_be_queried() -> None:
    fixture = await instance_type_fixture()
    assert fixture.provider.type_info("m5.large") == raw()["m5.large"]
    fixture.types()
    assert [fixture.provider.zone_id(zone) for zone in ZONES] == [IDS[A], IDS[B], ""]


async def test_a_class_with_reordered_subnets_keeps_its_list() -> None:
    """AWS-089, AWS-284: they are sorted by free addresses, which change often."""
    fixture = await instance_type_fixture(FakeRegion(names=["m5.large"]))
    there = fixture.provider.types_for(of_status(subnets=subnets(A, B)))
    assert fixture.provider.types_for(of_status(subnets=subnets(B, A))) is there
    assert fixture.provider.types_for(of_status(subnets=subnets(B))) is not there
