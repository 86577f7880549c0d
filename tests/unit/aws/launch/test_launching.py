"""Launches from claim to machine: the request, the answer, and what refusals teach (AWS §9)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from karpenter.api.ec2_node_class import (
    AMISelectorTerm,
    EC2NodeClass,
    EC2NodeClassSpec,
    SecurityGroupSelectorTerm,
    Subnet,
    SubnetSelectorTerm,
)
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import EC2_NODE_CLASS, NODE_CLAIM
from karpenter.api.meta import Condition, ObjectMeta
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.model import labels
from karpenter.providers.aws import aws_errors, aws_labels
from karpenter.providers.aws.aws_errors import AwsError
from karpenter.providers.aws.aws_provider import AwsProvider, check_node_class_ready, ready_node_class
from karpenter.providers.aws.aws_types import tag_map
from karpenter.providers.aws.ec2_requests import (
    FleetAnswer,
    FleetError,
    FleetOverride,
    FleetRequest,
    TemplateAndOverrides,
)
from karpenter.providers.aws.instance import fleet_request
from karpenter.providers.aws.instance.fleet_request import FleetBatch, SubnetAddresses, SubnetChoice
from karpenter.providers.aws.instance.launch_plan import LaunchPlan
from karpenter.providers.aws.instancetype.ec2_offerings import OfferingKey
from karpenter.providers.contract import Instance, InsufficientCapacity, LaunchFailed, NodeClassNotReady, ProviderError
from support.launch_cases import (
    CLUSTER,
    ON_DEMAND,
    OWN_LABEL,
    RESERVED_OR_NOT,
    SPOT_OR_NOT,
    World,
    claim,
    machine,
    node_class,
    offering,
    planned,
    play,
    reserved,
)

LARGE, XLARGE = machine("m5.large", 0.1), machine("m5.xlarge", 0.2)
PLACES = SubnetChoice({"a": "s-a", "b": "s-b"}, {}, {})


def requested(plan: LaunchPlan, count: int = 1) -> FleetRequest:
    return fleet_request.create_fleet_request(plan, PLACES, FleetBatch("b-1", count))


def overrides(request: FleetRequest) -> list[FleetOverride]:
    return [way for config in request.launch_template_configs for way in config.overrides]


def told_tags(request: FleetRequest) -> dict[str, dict[str, str]]:
    return {
        tag_specification.resource_type: tag_map(tag_specification.tags)
        for tag_specification in request.tag_specifications
    }


# -- the request -----------------------------------------------------------------------------------------------------------


def test_a_spot_request_in_awss_words() -> None:
    """AWS-440 to AWS-448, AWS-T410."""
    plan = planned(claim(), (LARGE,))
    decode = msgspec.json.decode(msgspec.json.encode(requested(plan, 3)))
    specifications = decode.pop("TagSpecifications")
    assert decode == {
        "Type": "instant",
        "TargetCapacitySpecification": {"TotalTargetCapacity": 3, "DefaultTargetCapacityType": "spot"},
        "SpotOptions": {"AllocationStrategy": "price-capacity-optimized"},
        "LaunchTemplateConfigs": [
            {
                "LaunchTemplateSpecification": {
                    "LaunchTemplateName": plan.templates[0].content.name,
                    "Version": "$Latest",
                },
                "Overrides": [
                    {
                        "InstanceType": "m5.large",
                        "SubnetId": subnet,
                        "AvailabilityZone": zone,
                        "ImageId": "ami-x86",
                        "Priority": pytest.approx(0.04),
                    }
                    for zone, subnet in (("a", "s-a"), ("b", "s-b"))
                ],
            }
        ],
        "ClientToken": "b-1",
    }
    assert [specification["ResourceType"] for specification in specifications] == ["instance", "volume", "fleet"]


def test_the_tags_of_a_launch() -> None:
    """AWS-T432, AWS-446: the user's, ours above them, and the purchase on the instances."""
    spec = {"tags": {"team": "x", "Name": "y", labels.NODE_POOL: "mine"}}
    actual = told_tags(requested(planned(claim(), (LARGE,), node_class(spec))))
    everywhere = {
        "team": "x",
        "Name": "y",
        "kubernetes.io/cluster/c": "owned",
        "karpenter.sh/nodepool": "default",
        "eks:eks-cluster-name": "c",
        "karpenter.k8s.aws/ec2nodeclass": "default",
    }
    assert actual == {
        "instance": {**everywhere, "karpenter.k8s.aws/launch-batch": "b-1"},
        "volume": everywhere,
        "fleet": everywhere,
    }


@pytest.mark.parametrize(
    ("asked", "sold", "target", "spot", "on_demand", "kinds"),
    [
        pytest.param(claim(), (LARGE,), "spot", "price-capacity-optimized", None, None, id="AWS-T410"),
        pytest.param(claim("one", ON_DEMAND), (LARGE,), "on-demand", None, "lowest-price", None, id="AWS-T411"),
        pytest.param(
            claim(annotations={labels.PRICE_OVERLAY: "true"}),
            (LARGE,),
            "spot",
            "capacity-optimized-prioritized",
            None,
            None,
            id="AWS-T430 spot",
        ),
        pytest.param(
            claim("one", ON_DEMAND, annotations={labels.PRICE_OVERLAY: "true"}),
            (LARGE,),
            "on-demand",
            None,
            "prioritized",
            None,
            id="AWS-T430 on-demand",
        ),
        pytest.param(
            claim("one", RESERVED_OR_NOT),
            (machine("m5.large", offerings=[reserved("a", 1e-8, 2, "cr-1")]),),
            "on-demand",
            None,
            "lowest-price",
            None,
            id="AWS-T425",
        ),
        pytest.param(
            claim("one", RESERVED_OR_NOT),
            (machine("p5.48xlarge", offerings=[reserved("a", 1e-8, 2, "cr-1", kind="capacity-block")]),),
            "capacity-block",
            None,
            None,
            None,
            id="AWS-441 block",
        ),
        pytest.param(
            claim("one", RESERVED_OR_NOT),
            (machine("m5.large", offerings=[reserved("a", 1e-8, 2, "cr-1", again=True)]),),
            "reserved-capacity",
            None,
            None,
            ("interruptible-capacity-reservation",),
            id="AWS-444",
        ),
    ],
)
def test_how_each_capacity_type_is_bought(
    asked: NodeClaim,
    sold: tuple[InstanceType, ...],
    target: str,
    spot: str | None,
    on_demand: str | None,
    kinds: tuple[str, ...] | None,
) -> None:
    """AWS-441 to AWS-444."""
    actual = requested(planned(asked, sold))
    assert actual.target_capacity_specification.default_target_capacity_type == target
    assert (actual.spot_options.allocation_strategy if actual.spot_options else None) == spot
    assert (actual.on_demand_options.allocation_strategy if actual.on_demand_options else None) == on_demand
    assert (actual.reserved_capacity_options.reservation_types if actual.reserved_capacity_options else None) == kinds


@pytest.mark.parametrize(("relaxed", "context"), [("true", None), ("false", "ctx"), ("", "ctx")])
def test_the_context_is_left_out_where_min_values_gave_way(relaxed: str, context: str | None) -> None:
    """AWS-T429."""
    asked = claim(annotations={labels.MIN_VALUES_RELAXED: relaxed})
    assert requested(planned(asked, (LARGE,), node_class({"context": "ctx"}))).context == context


def test_the_limit_on_overrides_costs_dear_zones_not_types() -> None:
    """Beyond AWS-448: 60 types in six zones are 360 ways, EC2 takes 300."""
    zones = "abcdef"
    types = tuple(
        machine(
            f"t{number}.large",
            offerings=[offering(labels.ON_DEMAND, zone, 1.0 + number + index / 10) for index, zone in enumerate(zones)],
        )
        for number in range(60)
    )
    plan = planned(claim("one", ON_DEMAND), types)
    places = SubnetChoice({zone: f"s-{zone}" for zone in zones}, {}, {})
    fleet_overrides = overrides(fleet_request.create_fleet_request(plan, places, FleetBatch("b", 1)))
    assert len(fleet_overrides) == 300
    assert {way.instance_type for way in fleet_overrides} == {instance_type.name for instance_type in types}
    assert "f" not in {way.availability_zone for way in fleet_overrides}


@pytest.mark.parametrize("count", [60, 400])
def test_the_limit_on_overrides_leaves_zones_of_equal_price_alike(count: int) -> None:
    """Beyond AWS-448: on demand all zones cost the same, and the first by name must not be the only one left."""
    zones = "abcdef"
    types = tuple(
        machine(f"t{number}.large", offerings=[offering(labels.ON_DEMAND, zone, 1.0 + number / 100) for zone in zones])
        for number in range(count)
    )
    places = SubnetChoice({zone: f"s-{zone}" for zone in zones}, {}, {})
    request = fleet_request.create_fleet_request(planned(claim("one", ON_DEMAND), types), places, FleetBatch("b", 1))
    chosen = Counter(override.availability_zone for override in overrides(request))
    assert chosen.keys() == set(zones)
    assert max(chosen.values()) - min(chosen.values()) <= len(zones)


def test_instances_name_their_batch_unless_that_is_switched_off() -> None:
    """AWS-446, E25: with it, instances of a lost answer are found again."""
    plan = planned(claim(), (LARGE,))
    for is_tagged in (True, False):
        request = fleet_request.create_fleet_request(plan, PLACES, FleetBatch("b-1", 1, is_tagged))
        keys = {key for specification in request.tag_specifications for key in tag_map(specification.tags)}
        assert (aws_labels.LAUNCH_BATCH in keys) is is_tagged


def test_no_way_in_a_zone_with_a_subnet_is_a_clear_refusal() -> None:
    """AWS-449."""
    with pytest.raises(LaunchFailed, match="no capacity offerings are currently available"):
        fleet_request.create_fleet_request(planned(claim(), (LARGE,)), SubnetChoice({}, {}, {}), FleetBatch("b", 1))


def test_claims_alike_share_a_plan_key_and_others_do_not() -> None:
    """AWS-T751."""
    first = planned(claim("one"), (LARGE,)).key
    assert first == planned(claim("two"), (LARGE,)).key
    assert first != planned(claim("one", ON_DEMAND), (LARGE,)).key
    assert first != planned(claim("one", labels={labels.NODE_POOL: "other"}), (LARGE,)).key


def test_claims_that_differ_in_a_label_of_their_own_share_templates_and_a_fleet() -> None:
    """E24, E26: fifty claims with a label each were fifty times as many templates, and fifty paced calls."""

    async def scene(world: World) -> None:
        claims = [
            await world.claim(str(number), labels={labels.NODE_POOL: "default", OWN_LABEL: str(number)})
            for number in range(50)
        ]
        instances = await asyncio.gather(
            *(world.launcher.launch(nodeclaim, node_class(), (LARGE, XLARGE)) for nodeclaim in claims)
        )
        assert len({instance.provider_id for instance in instances}) == 50
        assert world.ec2.calls["CreateFleet"] == 1
        assert len(world.ec2.templates) == len(planned(claim("one"), (LARGE, XLARGE)).templates)

    play(scene)


# -- subnets ---------------------------------------------------------------------------------------------------------------

TWO = (Subnet(id="s-1", zone="a"), Subnet(id="s-2", zone="a"))


def test_the_roomiest_subnet_is_taken_and_a_burst_is_spread_by_estimates() -> None:
    """AWS-T420: 10 and 100 addresses, machines of 29 pods."""
    addresses = SubnetAddresses()
    addresses.set_free({"s-1": 10, "s-2": 100})
    seen = [(addresses.free_in("s-2"), addresses.choose(TWO, {"a": 29}).by_zone["a"]) for _ in range(4)]
    assert seen == [(100, "s-2"), (71, "s-2"), (42, "s-2"), (13, "s-2")]
    assert addresses.choose(TWO, {"a": 29}).by_zone["a"] == "s-1"


def test_of_equal_subnets_the_earlier_is_taken_and_unknown_ones_count_as_full() -> None:
    """AWS-432."""
    addresses = SubnetAddresses()
    assert addresses.choose(TWO, {"a": 1}).by_zone == {"a": "s-1"}
    addresses.set_free({"s-2": 5})
    assert addresses.choose(TWO, {"a": 1, "b": 1}).by_zone == {"a": "s-2"}


def test_what_a_launch_did_not_use_comes_back_unless_it_was_counted_anew() -> None:
    """AWS-434."""
    addresses = SubnetAddresses()
    addresses.set_free({"s-1": 50, "s-2": 40})
    places = addresses.choose(TWO, {"a": 29})
    addresses.release(places, ())
    assert addresses.free_in("s-1") == 50
    addresses.release(addresses.choose(TWO, {"a": 29}), ("s-1",))
    assert addresses.free_in("s-1") == 21
    old = addresses.choose(TWO, {"a": 29})
    addresses.set_free({"s-2": 30})
    addresses.release(old, ())
    assert (addresses.free_in("s-2"), addresses.free_in("s-1")) == (30, 21)


# -- launches --------------------------------------------------------------------------------------------------------------


async def launch(world: World, *types: InstanceType, name: str = "one", **more: Any) -> Instance:
    asked = await world.claim(name, uid="", **more)
    return await world.launcher.launch(asked, node_class(), types)


def test_what_the_claim_is_told() -> None:
    """AWS-465 to AWS-468."""

    async def scene(world: World) -> None:
        rich = machine("m5.large", 0.1, capacity={aws_labels.EFA_RESOURCE: "2", "nvidia.com/gpu": "0"})
        instance = await launch(world, rich)
        assert instance.provider_id == "aws:///a/i-0001"
        assert instance.image_id == "ami-x86"
        assert instance.created_at == world.clock.now()
        assert instance.annotations == {
            "karpenter.k8s.aws/ec2nodeclass-hash": "h",
            "karpenter.k8s.aws/ec2nodeclass-hash-version": "v",
            "karpenter.k8s.aws/instance-profile-name": "profile",
        }
        assert set(instance.capacity) == set(instance.allocatable) == {"cpu", "memory", "pods"}
        assert instance.labels == {
            labels.INSTANCE_TYPE: "m5.large",
            labels.ARCH: "amd64",
            labels.OS: "linux",
            labels.ZONE: "a",
            aws_labels.ZONE_ID: "az1",
            labels.CAPACITY_TYPE: "spot",
            aws_labels.TENANCY: "default",
            labels.NODE_POOL: "default",
        }

    play(scene)


def test_a_reserved_instance_carries_its_reservation_and_is_counted() -> None:
    """AWS-T425, AWS-466, AWS-469."""

    async def scene(world: World) -> None:
        world.told.units = {"cr-1": 2}
        sold = machine("m5.large", offerings=[reserved("a", 1e-8, 2, "cr-1"), offering(labels.ON_DEMAND, "b", 0.1)])
        instance = await launch(world, sold, wishes=RESERVED_OR_NOT)
        assert instance.labels[labels.CAPACITY_TYPE] == "reserved"
        assert instance.labels[labels.RESERVATION_ID] == "cr-1"
        assert instance.labels[aws_labels.RESERVATION_TYPE] == "default"
        assert instance.labels[aws_labels.RESERVATION_INTERRUPTIBLE] == "false"
        assert [way.availability_zone for way in overrides(world.ec2.fleets[0])] == ["a"]
        assert world.told.units == {"cr-1": 1}

    play(scene)


def test_claims_alike_are_one_call() -> None:
    """AWS-T750, AWS-751. OPS-475: the size of the batch is observed."""

    async def scene(world: World) -> None:
        instances = await asyncio.gather(*(launch(world, LARGE, name=f"c{n}") for n in range(5)))
        assert [request.target_capacity_specification.total_target_capacity for request in world.ec2.fleets] == [5]
        assert len({instance.provider_id for instance in instances}) == 5
        assert world.sample("karpenter_cloudprovider_batcher_batch_size_sum", batcher="create_fleet") == 5

    play(scene)


def test_a_partial_fleet_serves_as_many_as_it_can() -> None:
    """AWS-T752, AWS-T416."""

    async def scene(world: World) -> None:
        world.ec2.free = {("m5.large", "a", "spot"): 2, ("m5.large", "b", "spot"): 0}
        asked = (launch(world, LARGE, name=f"c{n}") for n in range(3))
        gather = await asyncio.gather(*asked, return_exceptions=True)
        assert [isinstance(element, Instance) for element in gather] == [True, True, False]
        assert isinstance(gather[2], InsufficientCapacity)
        assert world.told.lacking == [OfferingKey("spot", "m5.large", "a"), OfferingKey("spot", "m5.large", "b")]

    play(scene)


def test_refusals_beside_an_instance_are_remembered_and_counted_once_per_answer() -> None:
    """AWS-T416, AWS-453 with its Beyond. OPS-474: launch failures are counted by offering and reason."""

    async def scene(world: World) -> None:
        world.ec2.free = {("m5.large", "a", "spot"): 0}
        instances = await asyncio.gather(*(launch(world, LARGE, name=f"c{n}") for n in range(4)))
        assert {instance.labels[labels.ZONE] for instance in instances} == {"b"}
        assert world.told.lacking == [OfferingKey("spot", "m5.large", "a")]
        assert failures_counted(world, "a", "LaunchFailed") == 1

    play(scene)


def failures_counted(world: World, zone: str, reason: str, capacity_type: str = "spot") -> float:
    return world.sample(
        "karpenter_cloudprovider_instance_launch_failures_total",
        zone=zone,
        zone_id=world.told.zone_id(zone),
        capacity_type=capacity_type,
        reason=reason,
    )


def refusal(code: str, message: str = "no", zone: str = "a", subnet: str = "s-a", name: str = "m5.large") -> FleetError:
    override = FleetOverride(instance_type=name, subnet_id=subnet, availability_zone=zone)
    return FleetError(
        error_code=code, error_message=message, launch_template_and_overrides=TemplateAndOverrides(overrides=override)
    )


def empty(world: World, *errors: FleetError, types: tuple[InstanceType, ...] = (LARGE,)) -> None:
    """Every fleet comes back with these refusals and no machine."""
    kinds = ("spot", "on-demand")
    world.ec2.free = {(instance_type.name, zone, kind): 0 for instance_type in types for zone in "ab" for kind in kinds}
    world.ec2.extra_errors = errors


@pytest.mark.parametrize(
    ("errors", "expected", "reason"),
    [
        pytest.param((), InsufficientCapacity, "", id="AWS-T417"),
        pytest.param((refusal("UnauthorizedOperation"),), LaunchFailed, "Unauthorized", id="AWS-T418"),
        pytest.param((refusal("InvalidAMIID.NotFound"),), LaunchFailed, "AMINotFound", id="AWS-452 row 8"),
    ],
)
def test_what_a_claim_without_an_instance_is_told(
    errors: tuple[FleetError, ...], expected: type[ProviderError], reason: str
) -> None:
    async def scene(world: World) -> None:
        empty(world, *errors)
        with pytest.raises(expected) as refused:
            await launch(world, LARGE)
        assert getattr(refused.value, "reason", "") == reason

    play(scene)


def test_two_refusals_in_one_answer_count_twice() -> None:
    """AWS-T781."""

    async def scene(world: World) -> None:
        empty(world, refusal("VcpuLimitExceeded", zone="b"))
        with pytest.raises(InsufficientCapacity):
            await launch(world, machine("m5.large", offerings=[offering(labels.SPOT, "a", 0.04)]))
        assert failures_counted(world, "a", "LaunchFailed") == 1
        assert failures_counted(world, "b", "VCPULimitExceeded") == 1
        assert ("one", "QuotaExceeded") in world.told.warnings

    play(scene)


@pytest.mark.parametrize(
    "code",
    [
        "InsufficientInstanceCapacity",
        "MaxSpotInstanceCountExceeded",
        "VcpuLimitExceeded",
        "UnfulfillableCapacity",
        "Unsupported",
        "InsufficientFreeAddressesInSubnet",
        "MaxFleetCountExceeded",
        "ReservationCapacityExceeded",
    ],
)
def test_a_lack_of_capacity_closes_the_offering_and_no_other(code: str) -> None:
    """AWS-450, AWS-453: the next pass buys another offering instead of the same one again."""

    async def scene(world: World) -> None:
        empty(world, refusal(code))
        with pytest.raises(InsufficientCapacity):
            await launch(world, machine("m5.large", offerings=[offering(labels.SPOT, "a", 0.04)]))
        assert set(world.told.lacking) == {OfferingKey("spot", "m5.large", "a")}

    play(scene)


@pytest.mark.parametrize(
    "code", ["InvalidParameterValue", "UnauthorizedOperation", "InvalidAMIID.NotFound", "InternalError"]
)
def test_other_refusals_close_nothing(code: str) -> None:
    """AWS-450: a mistake in the class would otherwise mark all offerings unavailable, one after the other."""
    refused = aws_errors.LaunchRefusal(code, "no", "m5.large", "a", "s-a")
    assert not any(aws_errors.marks_offering_unavailable(refused, kind) for kind in ("spot", "on-demand", "reserved"))


def test_a_full_reservation_closes_no_offering_of_the_market() -> None:
    """AWS-455: the reservation is counted down instead."""
    refused = aws_errors.LaunchRefusal("ReservationCapacityExceeded", "no", "m5.large", "a", "s-a")
    assert not aws_errors.marks_offering_unavailable(refused, "reserved")
    assert aws_errors.marks_offering_unavailable(refused, "on-demand")


def test_a_burst_reserves_as_many_addresses_as_the_smallest_type_has_pods() -> None:
    """AWS-433: of the types with an offering in the zone."""
    small = machine("m5.large", capacity={"pods": "29"}, offerings=[offering(labels.SPOT, "a", 0.04)])
    large = machine(
        "m5.4xlarge", capacity={"pods": "234"}, offerings=[offering(labels.SPOT, zone, 0.3) for zone in "ab"]
    )
    assert planned(claim("one"), (small, large)).address_needs == {"a": 29, "b": 234}


def test_a_subnet_without_addresses_is_avoided() -> None:
    """AWS-T419, AWS-435."""

    async def scene(world: World) -> None:
        world.addresses.set_free({"s-a": 100, "s-b": 100})
        empty(world, refusal("InsufficientFreeAddressesInSubnet"))
        with pytest.raises(InsufficientCapacity):
            await launch(world, LARGE)
        assert world.told.full_subnets == ["s-a"]
        assert (world.addresses.free_in("s-a"), world.addresses.free_in("s-b")) == (0, 100)

    play(scene)


def test_a_missing_spot_role_closes_spot_and_is_told_on_the_claim() -> None:
    """AWS-T422, AWS-456. AWS-720, OPS-542, OPS-545: the event has a reason."""

    async def scene(world: World) -> None:
        empty(world, refusal("AuthFailure.ServiceLinkedRoleCreationNotPermitted"))
        with pytest.raises(InsufficientCapacity):
            await launch(world, LARGE)
        assert world.told.lacking_all == ["spot"]
        assert world.told.warnings == [("one", "SpotServiceLinkedRoleMissing")]
        assert failures_counted(world, "a", "SpotSLRCreationFailed") == 1

    play(scene)


def test_a_full_reservation_is_counted_down_and_the_market_left_alone() -> None:
    """AWS-T428, AWS-455."""

    async def scene(world: World) -> None:
        sold = machine("m5.large", offerings=[reserved("a", 1e-8, 2, "cr-1")])
        empty(world, refusal("ReservationCapacityExceeded"))
        with pytest.raises(InsufficientCapacity):
            await launch(world, sold, wishes=RESERVED_OR_NOT)
        assert world.told.units == {"cr-1": 0}
        assert world.told.lacking == []

    play(scene)


def test_a_full_spread_group_takes_no_type_in_that_zone() -> None:
    """AWS-454, AWS-376."""

    async def scene(world: World) -> None:
        group = {aws_labels.PLACEMENT_GROUP_ID: ("pg-1",)}
        types = (machine("m5.large", more=group), machine("c5.large", more=group))
        empty(
            world,
            refusal("UnfulfillableCapacity", "the limit of instances in this spread placement group"),
            types=types,
        )
        with pytest.raises(InsufficientCapacity):
            await launch(world, *types)
        assert {pool.instance_type for pool in world.told.lacking if pool.zone == "a"} == {"m5.large", "c5.large"}
        assert {pool.placement_group for pool in world.told.lacking} == {"pg-1"}

    play(scene)


def test_an_answer_with_neither_instances_nor_refusals_is_a_lack_of_capacity() -> None:
    """Beyond AWS-453."""
    said = aws_errors.fleet_refusals(FleetAnswer(fleet_id="fleet-1"))
    assert isinstance(aws_errors.no_instance_error(said), InsufficientCapacity)
    assert said[0].instance_type == ""


@pytest.mark.parametrize("gone", [1, 2], ids=["AWS-T421 once", "AWS-T421 twice"])
def test_a_template_deleted_under_our_feet_is_made_again_once(gone: int) -> None:
    async def scene(world: World) -> None:
        await launch(world, LARGE, name="first")
        world.ec2.templates.clear()
        fault = AwsError("InvalidLaunchTemplateName.NotFoundException", "no such template")
        world.ec2.faults["CreateFleet"] = [fault] * (gone - 1)
        world.ec2.faults["CreateFleet"] = [fault] * gone
        if gone == 1:
            await launch(world, LARGE)
            assert len(world.ec2.templates) == 1
        else:
            with pytest.raises(LaunchFailed, match="no such template"):
                await launch(world, LARGE)

    play(scene)


@pytest.mark.parametrize("code", ["InvalidLaunchTemplateName.NotFoundException", "InvalidLaunchTemplateId.NotFound"])
def test_a_template_the_fleet_does_not_find_is_looked_for_before_the_next_launch(code: str) -> None:
    """AWS-457: else every launch of its sort would fail until a restart."""

    async def scene(world: World) -> None:
        empty(world, refusal(code))
        with pytest.raises(LaunchFailed, match=code):
            await launch(world, LARGE)
        world.ec2.templates.clear()
        world.ec2.free, world.ec2.extra_errors = {}, ()
        await launch(world, LARGE, name="second")
        assert world.ec2.calls["CreateFleet"] == 2
        assert len(world.ec2.templates) == 1

    play(scene)


@pytest.mark.parametrize(
    ("call", "error", "reason"),
    [
        pytest.param("CreateFleet", AwsError("UnauthorizedOperation", "no"), "Unauthorized", id="AWS-457"),
        pytest.param("CreateLaunchTemplate", AwsError("AccessDenied", "no"), "Unauthorized", id="AWS-458"),
        pytest.param(
            "CreateLaunchTemplate",
            AwsError("InvalidUserData.Malformed", "User data is limited to 16384 bytes"),
            "UserDataSizeLimitExceeded",
            id="AWS-T237",
        ),
    ],
)
def test_a_refused_call_is_a_create_error_with_its_reason(call: str, error: AwsError, reason: str) -> None:
    async def scene(world: World) -> None:
        world.ec2.faults[call] = [error]
        with pytest.raises(LaunchFailed) as refused:
            await launch(world, LARGE)
        assert refused.value.reason == reason
        assert await launch(world, LARGE, name="two")

    play(scene)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("AuthFailure.ServiceLinkedRoleCreationNotPermitted: UnauthorizedOperation", "SpotSLRCreationFailed"),
        ("UnauthorizedOperation: with an explicit deny in a permissions boundary", "Unauthorized"),
        ("AuthFailure: Not authorized for images: [ami-1]", "AMIAuthorizationFailure"),
        ("InvalidParameter: sg-1 and subnet s-1 belong to different networks", "SecurityGroupSubnetVPCMismatch"),
        (
            "InvalidParameterValue: Value (x) for parameter iamInstanceProfile.name is invalid",
            "InstanceProfileNameInvalid",
        ),
        ("InvalidLaunchTemplateId.NotFound: x", "LaunchTemplateNotFound"),
        ("InvalidUserData: User data is limited to 16384 bytes", "UserDataSizeLimitExceeded"),
        ("InvalidAMIID.Malformed: x", "InvalidAMIID"),
        ("InvalidAMIID.NotFound: x", "AMINotFound"),
        ("RequestLimitExceeded: x", "RequestLimitExceeded"),
        ("InternalError: x", "InternalError"),
        ("x: The specified instance type is not eligible for Free Tier", "FreeTierIneligible"),
        ("MaxFleetCountExceeded: x", "FleetQuotaExceeded"),
        ("PendingVerification: x", "AccountPendingVerification"),
        ("MaxSpotInstanceCountExceeded: x", "SpotQuotaExceeded"),
        ("VcpuLimitExceeded: x", "VCPULimitExceeded"),
        ("InsufficientFreeAddressesInSubnet: x", "InsufficientFreeAddressesInSubnet"),
        ("SomethingElse: x", "LaunchFailed"),
    ],
)
def test_the_reason_table(text: str, reason: str) -> None:
    """AWS-452: the first row that fits."""
    assert aws_errors.launch_failure_reason(text) == reason


@pytest.mark.parametrize(
    ("text", "lead"),
    [
        ("AccessDenied: with an explicit deny in a permissions boundary", "a permissions boundary denies it: "),
        ("AccessDenied: with an explicit deny in a service control policy", "a service control policy denies it: "),
        ("AuthFailure: Not authorized for images", "the image is not shared with this account: "),
        ("UnauthorizedOperation: you are not", "no policy allows it: "),
        ("InternalError: x", ""),
    ],
)
def test_who_denies_it_is_said_first(text: str, lead: str) -> None:
    """AWS-126."""
    assert aws_errors.explain_denial(text) == lead + text


# -- the class -------------------------------------------------------------------------------------------------------------


def ready(status: str, message: str = "", generation: int = 1) -> Mapping[str, Any]:
    return {"conditions": (Condition(type="Ready", status=status, message=message, observed_generation=generation),)}


@pytest.mark.parametrize(
    ("status", "spec", "expected", "text"),
    [
        pytest.param(ready("False", "no images"), {}, NodeClassNotReady, "no images", id="AWS-T423"),
        pytest.param(ready("True", generation=0), {}, NodeClassNotReady, "changed", id="AWS-T424"),
        pytest.param(ready("Unknown", "wait"), {}, LaunchFailed, "wait", id="AWS-413"),
        pytest.param({"conditions": ()}, {}, LaunchFailed, "not known to be ready", id="AWS-413 absent"),
        pytest.param(
            ready("True"),
            {"tags": {"karpenter.sh/nodepool": "x"}},
            NodeClassNotReady,
            "karpenter.sh/nodepool",
            id="AWS-415",
        ),
    ],
)
def test_a_class_that_is_not_ready_launches_nothing(
    status: Mapping[str, Any], spec: Mapping[str, Any], expected: type[ProviderError], text: str
) -> None:
    """AWS-412, AWS-414, API-377, API-S177: an old generation counts as not ready."""
    with pytest.raises(expected, match=text):
        check_node_class_ready(node_class(spec, **status))


def _provider_without_types(world: World) -> AwsProvider:
    def types_for(node_class: EC2NodeClass) -> tuple[InstanceType, ...]:
        raise ProviderError("no instance types found")

    dependencies: Any = SimpleNamespace(
        cluster_view=SimpleNamespace(node_class_named=lambda name: node_class()),
        instance_types=SimpleNamespace(types_for=types_for),
    )
    return AwsProvider(dependencies, world.clock, reserved_capacity=True)


def test_without_instance_types_a_launch_fails_with_its_reason() -> None:
    """AWS-416: nothing is bought, and the claim says that EC2's instance types are the cause."""

    async def scene(world: World) -> None:
        with pytest.raises(LaunchFailed, match="no instance types found") as caught:
            await _provider_without_types(world).create(claim("one"))
        assert caught.value.reason == "InstanceTypeResolutionFailed"
        assert world.ec2.calls["CreateFleet"] == 0

    play(scene)


def test_the_provider_is_called_aws_and_knows_its_kind_of_class() -> None:
    """AWS-691"""

    async def scene(world: World) -> None:
        provider = _provider_without_types(world)
        assert (provider.name, provider.node_class_kinds) == ("aws", (EC2_NODE_CLASS,))

    play(scene)


def test_a_class_that_is_missing_or_going_is_told_on_the_claim() -> None:
    """AWS-410."""

    async def scene(world: World) -> None:
        with pytest.raises(InsufficientCapacity, match="does not exist"):
            await ready_node_class(world.kube, claim(), world.told)
        own = ObjectMeta(name="default", finalizers=("karpenter.k8s.aws/termination",))
        spec = EC2NodeClassSpec(
            subnet_selector_terms=(SubnetSelectorTerm(id="subnet-1"),),
            security_group_selector_terms=(SecurityGroupSelectorTerm(id="sg-1"),),
            ami_selector_terms=(AMISelectorTerm(alias="al2023@latest"),),
            role="nodes",
        )
        await world.kube.create(EC2_NODE_CLASS, EC2NodeClass(metadata=own, spec=spec))
        await world.kube.delete(EC2_NODE_CLASS, "default")
        with pytest.raises(InsufficientCapacity, match="being deleted"):
            await ready_node_class(world.kube, claim(), world.told)
        assert [name for name, _ in world.told.warnings] == ["one", "one"]

    play(scene)


def test_the_batch_is_on_the_claim_before_the_instance_is() -> None:
    """Issue 8: the identity of a purchase is written down before the call."""

    async def scene(world: World) -> None:
        seen: list[str] = []

        async def gate(call: str, moment: str) -> None:
            if (call, moment) == ("CreateFleet", "before"):
                stored = await world.kube.get(NODE_CLAIM, "one")
                seen.append(stored.metadata.annotations[aws_labels.LAUNCH_BATCH])

        world.ec2.gate = gate
        await launch(world, LARGE)
        assert seen == [world.ec2.fleets[0].client_token]
        assert tag_map(world.ec2.alive[0].tags)[aws_labels.LAUNCH_BATCH] == seen[0]

    play(scene)


def test_the_cluster_is_in_every_request() -> None:
    assert (
        told_tags(requested(planned(claim("one", SPOT_OR_NOT), (XLARGE,))))["fleet"]["eks:eks-cluster-name"]
        == CLUSTER.name
    )
