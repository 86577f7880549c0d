"""Launches from NodeClaim to instance: request, answer and errors (AWS §9)."""

from __future__ import annotations

import asyncio
from collections import Counter

import msgspec
import pytest

from karpenter.api.ec2_node_class import (
    Subnet,
    SubnetSelectorTerm,
)
from karpenter.api.karpenter import NodeClaim
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.model import labels
from karpenter.providers.aws import aws_labels
from karpenter.providers.aws.aws_types import tag_map
from karpenter.providers.aws.ec2_requests import (
    FleetOverride,
    FleetRequest,
)
from karpenter.providers.aws.instance import fleet_request
from karpenter.providers.aws.instance.fleet_request import FleetBatch, SubnetAddresses, SubnetChoice
from karpenter.providers.aws.instance.launch_plan import LaunchPlan
from karpenter.providers.aws.instancetype.ec2_offerings import OfferingKey
from karpenter.providers.contract import Instance, InsufficientCapacity, LaunchFailed
from support.launch_environment import (
    CLUSTER,
    ON_DEMAND,
    OWN_LABEL,
    RESERVED_OR_ON_DEMAND,
    SPOT_OR_ON_DEMAND,
    LaunchEnvironment,
    claim,
    ec2_type,
    node_class,
    offering,
    planned,
    reserved,
    run_scenario,
)
from support.launch_helpers import LARGE, XLARGE, failures_counted, launch

PLACES = SubnetChoice({"a": "s-a", "b": "s-b"}, {}, {})


def requested(plan: LaunchPlan, count: int = 1) -> FleetRequest:
    return fleet_request.create_fleet_request(plan, PLACES, FleetBatch("b-1", count))


def overrides(request: FleetRequest) -> list[FleetOverride]:
    return [override for config in request.launch_template_configs for override in config.overrides]


def told_tags(request: FleetRequest) -> dict[str, dict[str, str]]:
    return {
        tag_specification.resource_type: tag_map(tag_specification.tags)
        for tag_specification in request.tag_specifications
    }


# -- request ---------------------------------------------------------------------------------------------------------------


def test_the_fields_of_a_spot_request() -> None:
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
    """AWS-T432, AWS-446: those of the user, overridden by ours, and the launch batch on instances."""
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
    ("asked", "types", "target", "spot", "on_demand", "kinds"),
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
            claim("one", RESERVED_OR_ON_DEMAND),
            (ec2_type("m5.large", offerings=[reserved("a", 1e-8, 2, "cr-1")]),),
            "on-demand",
            None,
            "lowest-price",
            None,
            id="AWS-T425",
        ),
        pytest.param(
            claim("one", RESERVED_OR_ON_DEMAND),
            (ec2_type("p5.48xlarge", offerings=[reserved("a", 1e-8, 2, "cr-1", kind="capacity-block")]),),
            "capacity-block",
            None,
            None,
            None,
            id="AWS-441 block",
        ),
        pytest.param(
            claim("one", RESERVED_OR_ON_DEMAND),
            (ec2_type("m5.large", offerings=[reserved("a", 1e-8, 2, "cr-1", again=True)]),),
            "reserved-capacity",
            None,
            None,
            ("interruptible-capacity-reservation",),
            id="AWS-444",
        ),
    ],
)
def test_the_request_for_each_capacity_type(
    asked: NodeClaim,
    types: tuple[InstanceType, ...],
    target: str,
    spot: str | None,
    on_demand: str | None,
    kinds: tuple[str, ...] | None,
) -> None:
    """AWS-441 to AWS-444."""
    actual = requested(planned(asked, types))
    assert actual.target_capacity_specification.default_target_capacity_type == target
    assert (actual.spot_options.allocation_strategy if actual.spot_options else None) == spot
    assert (actual.on_demand_options.allocation_strategy if actual.on_demand_options else None) == on_demand
    assert (actual.reserved_capacity_options.reservation_types if actual.reserved_capacity_options else None) == kinds


@pytest.mark.parametrize(("relaxed", "context"), [("true", None), ("false", "ctx"), ("", "ctx")])
def test_the_context_is_left_out_where_min_values_were_relaxed(relaxed: str, context: str | None) -> None:
    """AWS-T429."""
    asked = claim(annotations={labels.MIN_VALUES_RELAXED: relaxed})
    assert requested(planned(asked, (LARGE,), node_class({"context": "ctx"}))).context == context


def test_the_limit_on_overrides_drops_expensive_zones_not_types() -> None:
    """Beyond AWS-448: 60 types in six zones are 360 overrides; EC2 accepts 300."""
    zones = "abcdef"
    types = tuple(
        ec2_type(
            f"t{number}.large",
            offerings=[offering(labels.ON_DEMAND, zone, 1.0 + number + index / 10) for index, zone in enumerate(zones)],
        )
        for number in range(60)
    )
    plan = planned(claim("one", ON_DEMAND), types)
    places = SubnetChoice({zone: f"s-{zone}" for zone in zones}, {}, {})
    fleet_overrides = overrides(fleet_request.create_fleet_request(plan, places, FleetBatch("b", 1)))
    assert len(fleet_overrides) == 300
    assert {override.instance_type for override in fleet_overrides} == {instance_type.name for instance_type in types}
    assert "f" not in {override.availability_zone for override in fleet_overrides}


@pytest.mark.parametrize("count", [60, 400])
def test_the_limit_on_overrides_treats_zones_of_equal_price_alike(count: int) -> None:
    """Beyond AWS-448: on-demand prices are equal in all zones, and zones other than the first by name must remain."""
    zones = "abcdef"
    types = tuple(
        ec2_type(f"t{number}.large", offerings=[offering(labels.ON_DEMAND, zone, 1.0 + number / 100) for zone in zones])
        for number in range(count)
    )
    places = SubnetChoice({zone: f"s-{zone}" for zone in zones}, {}, {})
    request = fleet_request.create_fleet_request(planned(claim("one", ON_DEMAND), types), places, FleetBatch("b", 1))
    chosen = Counter(override.availability_zone for override in overrides(request))
    assert chosen.keys() == set(zones)
    assert max(chosen.values()) - min(chosen.values()) <= len(zones)


def test_instances_name_their_batch_unless_that_is_switched_off() -> None:
    """AWS-446, E25: the tag finds instances of a lost answer."""
    plan = planned(claim(), (LARGE,))
    for is_tagged in (True, False):
        request = fleet_request.create_fleet_request(plan, PLACES, FleetBatch("b-1", 1, is_tagged))
        keys = {key for specification in request.tag_specifications for key in tag_map(specification.tags)}
        assert (aws_labels.LAUNCH_BATCH in keys) is is_tagged


def test_without_an_offering_in_a_zone_with_a_subnet_the_launch_is_refused() -> None:
    """AWS-449."""
    with pytest.raises(LaunchFailed, match="no capacity offerings are currently available"):
        fleet_request.create_fleet_request(planned(claim(), (LARGE,)), SubnetChoice({}, {}, {}), FleetBatch("b", 1))


def test_equal_claims_share_a_plan_key_and_others_do_not() -> None:
    """AWS-T751."""
    first = planned(claim("one"), (LARGE,)).key
    assert first == planned(claim("two"), (LARGE,)).key
    assert first != planned(claim("one", ON_DEMAND), (LARGE,)).key
    assert first != planned(claim("one", labels={labels.NODE_POOL: "other"}), (LARGE,)).key


def test_claims_that_differ_in_a_label_share_launch_templates_and_a_fleet() -> None:
    """E24, E26: otherwise 200 NodeClaims with different label values need 200 launch templates and 200 rate-limited calls."""

    async def scenario(environment: LaunchEnvironment) -> None:
        claims = [
            await environment.claim(str(number), labels={labels.NODE_POOL: "default", OWN_LABEL: str(number)})
            for number in range(200)
        ]
        instances = await asyncio.gather(
            *(environment.launcher.launch(nodeclaim, node_class(), (LARGE, XLARGE)) for nodeclaim in claims)
        )
        assert len({instance.provider_id for instance in instances}) == 200
        assert environment.ec2.calls["CreateFleet"] == 1
        assert len(environment.ec2.templates) == len(planned(claim("one"), (LARGE, XLARGE)).templates)

    run_scenario(scenario)


# -- subnets ---------------------------------------------------------------------------------------------------------------

TWO = (Subnet(id="s-1", zone="a"), Subnet(id="s-2", zone="a"))


def test_the_subnet_with_most_free_addresses_is_used_and_a_burst_is_spread_by_estimates() -> None:
    """AWS-T420: 10 and 100 addresses, instances with 29 pods."""
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


def test_unused_addresses_of_a_launch_are_returned_unless_they_were_counted_again() -> None:
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


def test_the_fields_that_a_launch_returns() -> None:
    """AWS-465 to AWS-468."""

    async def scenario(environment: LaunchEnvironment) -> None:
        rich = ec2_type("m5.large", 0.1, capacity={aws_labels.EFA_RESOURCE: "2", "nvidia.com/gpu": "0"})
        instance = await launch(environment, rich)
        assert instance.provider_id == "aws:///a/i-0001"
        assert instance.image_id == "ami-x86"
        assert instance.created_at == environment.clock.now()
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

    run_scenario(scenario)


def test_a_reserved_instance_carries_its_reservation_and_is_counted() -> None:
    """AWS-T425, AWS-466, AWS-469."""

    async def scenario(environment: LaunchEnvironment) -> None:
        environment.recorded.units = {"cr-1": 2}
        instance_type = ec2_type(
            "m5.large", offerings=[reserved("a", 1e-8, 2, "cr-1"), offering(labels.ON_DEMAND, "b", 0.1)]
        )
        instance = await launch(environment, instance_type, requirements=RESERVED_OR_ON_DEMAND)
        assert instance.labels[labels.CAPACITY_TYPE] == "reserved"
        assert instance.labels[labels.RESERVATION_ID] == "cr-1"
        assert instance.labels[aws_labels.RESERVATION_TYPE] == "default"
        assert instance.labels[aws_labels.RESERVATION_INTERRUPTIBLE] == "false"
        assert [override.availability_zone for override in overrides(environment.ec2.fleets[0])] == ["a"]
        assert environment.recorded.units == {"cr-1": 1}

    run_scenario(scenario)


def test_a_launch_uses_the_subnets_in_the_status_of_the_class() -> None:
    """AWS-147: the selectors are not evaluated again."""

    async def scenario(environment: LaunchEnvironment) -> None:
        elsewhere = {"subnet_selector_terms": (SubnetSelectorTerm(id="s-new"),)}
        asked = await environment.claim("one", uid="")
        await environment.launcher.launch(asked, node_class(elsewhere), (LARGE,))
        assert {override.subnet_id for override in overrides(environment.ec2.fleets[0])} == {"s-a", "s-b"}

    run_scenario(scenario)


def test_equal_claims_are_one_call() -> None:
    """AWS-T750, AWS-751. OPS-475: the size of the batch is observed."""

    async def scenario(environment: LaunchEnvironment) -> None:
        instances = await asyncio.gather(*(launch(environment, LARGE, name=f"c{n}") for n in range(5)))
        assert [request.target_capacity_specification.total_target_capacity for request in environment.ec2.fleets] == [
            5
        ]
        assert len({instance.provider_id for instance in instances}) == 5
        assert environment.sample("karpenter_cloudprovider_batcher_batch_size_sum", batcher="create_fleet") == 5

    run_scenario(scenario)


def test_a_partial_fleet_serves_as_many_claims_as_it_can() -> None:
    """AWS-T752, AWS-T416."""

    async def scenario(environment: LaunchEnvironment) -> None:
        environment.ec2.free = {("m5.large", "a", "spot"): 2, ("m5.large", "b", "spot"): 0}
        asked = (launch(environment, LARGE, name=f"c{n}") for n in range(3))
        gather = await asyncio.gather(*asked, return_exceptions=True)
        assert [isinstance(element, Instance) for element in gather] == [True, True, False]
        assert isinstance(gather[2], InsufficientCapacity)
        assert environment.recorded.unavailable == [
            OfferingKey("spot", "m5.large", "a"),
            OfferingKey("spot", "m5.large", "b"),
        ]

    run_scenario(scenario)


def test_errors_beside_an_instance_are_recorded_and_counted_once_per_answer() -> None:
    """AWS-T416, AWS-453 with its Beyond. OPS-474: launch failures are counted by offering and reason."""

    async def scenario(environment: LaunchEnvironment) -> None:
        environment.ec2.free = {("m5.large", "a", "spot"): 0}
        instances = await asyncio.gather(*(launch(environment, LARGE, name=f"c{n}") for n in range(4)))
        assert {instance.labels[labels.ZONE] for instance in instances} == {"b"}
        assert environment.recorded.unavailable == [OfferingKey("spot", "m5.large", "a")]
        assert failures_counted(environment, "a", "LaunchFailed") == 1

    run_scenario(scenario)


def test_the_cluster_is_in_every_request() -> None:
    assert (
        told_tags(requested(planned(claim("one", SPOT_OR_ON_DEMAND), (XLARGE,))))["fleet"]["eks:eks-cluster-name"]
        == CLUSTER.name
    )
