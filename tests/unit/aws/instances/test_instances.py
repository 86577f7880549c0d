"""Launched instances: reading, termination, tagging, garbage collection (AWS §11)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from karpenter.api.kinds import NODE_CLAIM
from karpenter.model import labels
from karpenter.providers.aws import aws_labels
from karpenter.providers.aws.aws_errors import AwsError
from karpenter.providers.aws.ec2_descriptions import (
    InstanceInfo,
    InstancePlacement,
    InstanceReservationSpecification,
    InstanceState,
    NetworkInterfaceInfo,
    StateChange,
)
from karpenter.providers.aws.instance import instance_info
from karpenter.providers.aws.instance.instance_provider import VISIBILITY_DELAY, InstanceTerminator, ZoneShifted
from karpenter.providers.contract import InstanceNotFound, ProviderError, RebootFailed
from support.described_instances import OURS, POOL_ONLY, info, put
from support.launch_environment import START, LaunchEnvironment, claim, ec2_type, node_class, run_scenario

# -- fields ----------------------------------------------------------------------------------------------------------------


def test_provider_ids_are_read_and_written() -> None:
    """AWS-520, AWS-465."""
    assert instance_info.parse_instance_id("aws:///us-west-2a/i-0123") == "i-0123"
    assert instance_info.provider_id_of(info("i-1")) == "aws:///a/i-1"
    for text in ("bogus", "", "aws:///i-1", "aws://x/a/i-1", "aws:///a/i-1/x"):
        with pytest.raises(instance_info.InvalidProviderId):
            instance_info.parse_instance_id(text)


BOUND = InstanceReservationSpecification(capacity_reservation_preference="capacity-reservations-only")
OPEN = InstanceReservationSpecification(capacity_reservation_preference="open")


@pytest.mark.parametrize(
    ("more", "gate", "expected"),
    [
        pytest.param({"spot_instance_request_id": "sir-1"}, True, "spot", id="AWS-523 spot"),
        pytest.param({"instance_lifecycle": "spot"}, True, "spot", id="AWS-523 Beyond"),
        pytest.param(
            {"capacity_reservation_id": "cr-1", "capacity_reservation_specification": BOUND},
            True,
            "reserved",
            id="reserved",
        ),
        pytest.param(
            {"capacity_reservation_id": "cr-1", "capacity_reservation_specification": BOUND},
            False,
            "on-demand",
            id="AWS-523 gate off",
        ),
        pytest.param(
            {"capacity_reservation_id": "cr-1", "capacity_reservation_specification": OPEN},
            True,
            "on-demand",
            id="AWS-T522",
        ),
        pytest.param({}, True, "on-demand", id="AWS-523 neither"),
    ],
)
def test_the_capacity_type_of_an_instance(more: dict[str, Any], gate: bool, expected: str) -> None:
    assert instance_info.instance_capacity_type(info(**more), gate) == expected


def test_other_fields_of_an_instance() -> None:
    """AWS-524."""
    plain = info()
    assert (instance_info.instance_tenancy(plain), instance_info.efa_interface_count(plain)) == ("default", 0)
    kinds = ("interface", "efa", "efa-only")
    rich = info(
        placement=InstancePlacement(availability_zone="a", tenancy="dedicated"),
        network_interfaces=tuple(NetworkInterfaceInfo(interface_type=kind) for kind in kinds),
    )
    assert (instance_info.instance_tenancy(rich), instance_info.efa_interface_count(rich)) == ("dedicated", 2)


def test_a_described_instance_equals_a_launched_one() -> None:
    """AWS-466 to AWS-470 from a description."""
    described = info(
        "i-7",
        instance_type="m5.large",
        instance_lifecycle="capacity-block",
        capacity_reservation_id="cr-1",
        capacity_reservation_specification=BOUND,
        state=InstanceState(name="shutting-down"),
        placement=InstancePlacement(availability_zone="b", group_id="pg-1", partition_number=2),
    )
    group = {aws_labels.PLACEMENT_GROUP_ID: ("pg-1",), aws_labels.PLACEMENT_GROUP_PARTITION: ("1", "2")}
    instance = instance_info.provider_instance(
        instance_info.instance_of_info(described, True),
        claim("one"),
        node_class(),
        ec2_type("m5.large", more=group),
        START,
    )
    assert instance.provider_id == "aws:///b/i-7"
    assert instance.terminating
    recorded = {
        key: instance.labels[key]
        for key in (aws_labels.RESERVATION_TYPE, aws_labels.PLACEMENT_GROUP_PARTITION, aws_labels.ZONE_ID)
    }
    assert recorded == {
        aws_labels.RESERVATION_TYPE: "capacity-block",
        aws_labels.PLACEMENT_GROUP_PARTITION: "2",
        aws_labels.ZONE_ID: "az2",
    }


# -- reading ---------------------------------------------------------------------------------------------------------------


def test_an_instance_is_read_once() -> None:
    """AWS-T520."""

    async def scenario(environment: LaunchEnvironment) -> None:
        put(environment, info())
        first = await environment.instances.get("i-1")
        assert await environment.instances.get("i-1") is first
        assert environment.ec2.calls["DescribeInstances"] == 1

    run_scenario(scenario)


def test_an_uncached_read_finds_that_an_instance_is_gone() -> None:
    """AWS-T521."""

    async def scenario(environment: LaunchEnvironment) -> None:
        put(environment, info())
        await environment.instances.get("i-1")
        put(environment, info(state=InstanceState(name="terminated")))
        assert (await environment.instances.get("i-1")).instance_id == "i-1"
        with pytest.raises(InstanceNotFound):
            await environment.instances.describe("i-1")
        with pytest.raises(InstanceNotFound):
            await environment.instances.get("i-1")

    run_scenario(scenario)


def test_an_unknown_id_does_not_affect_the_others() -> None:
    """AWS-T753."""

    async def scenario(environment: LaunchEnvironment) -> None:
        put(environment, *(info(f"i-{n}") for n in range(4)))
        asked = (environment.instances.describe(f"i-{n}") for n in range(5))
        gather = await asyncio.gather(*asked, return_exceptions=True)
        assert [getattr(element, "instance_id", "") for element in gather[:4]] == ["i-0", "i-1", "i-2", "i-3"]
        assert isinstance(gather[4], InstanceNotFound)
        assert [len(ids) for ids in environment.ec2.asked_ids] == [5, 1, 1, 1, 1, 1]

    run_scenario(scenario)


def test_calls_grow_with_batches_not_with_instances() -> None:
    """Issue 8: 500 ids are one call (AWS-751)."""

    async def scenario(environment: LaunchEnvironment) -> None:
        put(environment, *(info(f"i-{n}") for n in range(500)))
        await asyncio.gather(*(environment.instances.describe(f"i-{n}") for n in range(500)))
        assert environment.ec2.calls["DescribeInstances"] == 1

    run_scenario(scenario)


def test_a_new_instance_that_ec2_does_not_describe_yet_is_not_gone() -> None:
    async def scenario(environment: LaunchEnvironment) -> None:
        environment.instances.mark_launched("i-1")
        with pytest.raises(ProviderError, match="does not show it yet") as refused:
            await environment.instances.describe("i-1")
        assert not isinstance(refused.value, InstanceNotFound)
        await asyncio.sleep(VISIBILITY_DELAY.total_seconds())
        with pytest.raises(InstanceNotFound):
            await environment.instances.describe("i-1")

    run_scenario(scenario)


def test_an_error_of_ec2_does_not_mean_that_an_instance_is_gone() -> None:
    async def scenario(environment: LaunchEnvironment) -> None:
        put(environment, info())
        environment.ec2.faults["DescribeInstances"] = [AwsError("InternalError", "no", status=500)] * 2
        with pytest.raises(ProviderError, match="InternalError") as refused:
            await environment.instances.describe("i-1")
        assert not isinstance(refused.value, InstanceNotFound)

    run_scenario(scenario)


@pytest.mark.parametrize(
    ("described", "is_listed"),
    [
        pytest.param(info(), True, id="ours"),
        pytest.param(info(own=POOL_ONLY), False, id="AWS-T525"),
        pytest.param(info(own={**OURS, aws_labels.CLUSTER_TAG: "other"}), False, id="AWS-T526"),
        pytest.param(info(state=InstanceState(name="terminated")), False, id="AWS-521 terminated"),
        pytest.param(info(state=InstanceState(name="shutting-down")), True, id="AWS-521 shutting down"),
    ],
)
def test_only_our_own_instances_are_listed(described: InstanceInfo, is_listed: bool) -> None:
    """AWS-832: by the tags of NodePool, class and cluster; instances with the tags of older releases are not taken over."""

    async def scenario(environment: LaunchEnvironment) -> None:
        put(environment, described)
        assert [obj.instance_id for obj in await environment.instances.list()] == ["i-1"] * is_listed

    run_scenario(scenario)


def test_a_list_replaces_the_cache() -> None:
    """AWS-521."""

    async def scenario(environment: LaunchEnvironment) -> None:
        put(environment, info("i-1"), info("i-2"))
        await environment.instances.list()
        put(environment, info("i-1", state=InstanceState(name="terminated")))
        await environment.instances.list()
        asked = environment.ec2.calls["DescribeInstances"]
        await environment.instances.get("i-2")
        assert environment.ec2.calls["DescribeInstances"] == asked
        with pytest.raises(InstanceNotFound):
            await environment.instances.get("i-1")

    run_scenario(scenario)


# -- termination -----------------------------------------------------------------------------------------------------------


def test_an_instance_is_terminated_and_then_gone() -> None:
    """AWS-526, AWS-527."""

    async def scenario(environment: LaunchEnvironment) -> None:
        put(environment, info())
        await environment.instances.delete("aws:///a/i-1")
        assert environment.ec2.terminated == [("i-1",)]
        with pytest.raises(InstanceNotFound):
            await environment.instances.delete("aws:///a/i-1")

    run_scenario(scenario)


def test_an_instance_that_shuts_down_is_not_terminated_again() -> None:
    """AWS-T523, DIS-546: EC2 is not called."""

    async def scenario(environment: LaunchEnvironment) -> None:
        put(environment, info(state=InstanceState(name="shutting-down")))
        await environment.instances.delete("aws:///a/i-1")
        assert environment.ec2.terminated == []

    run_scenario(scenario)


def test_ids_missing_in_the_answer_are_terminated_one_by_one() -> None:
    """AWS-T754, AWS-752: one call for each ID."""

    async def scenario(environment: LaunchEnvironment) -> None:
        put(environment, *(info(f"i-{n}") for n in range(5)))
        whole = environment.ec2.terminate_instances

        async def forgetful(ids: Any) -> tuple[StateChange, ...]:
            changes = await whole(ids)
            return changes[:4] if len(changes) == 5 else changes

        environment.ec2.terminate_instances = forgetful
        await asyncio.gather(*(environment.instances.delete(f"aws:///a/i-{n}") for n in range(5)))
        assert [len(ids) for ids in environment.ec2.terminated] == [5, 1]

    run_scenario(scenario)


def test_a_failed_termination_is_counted() -> None:
    """AWS-526, AWS-784."""

    async def scenario(environment: LaunchEnvironment) -> None:
        put(environment, info())
        environment.ec2.faults["TerminateInstances"] = [AwsError("UnauthorizedOperation", "no")] * 2
        with pytest.raises(ProviderError, match="no policy allows it"):
            await environment.instances.delete("aws:///a/i-1")
        name = "karpenter_cloudprovider_instance_termination_failures_total"
        assert environment.sample(name, zone="a", zone_id="az1") == 1

    run_scenario(scenario)


def test_instances_in_a_shifted_zone_are_not_changed() -> None:
    """AWS-T608, AWS-616, AWS-522: their cached descriptions are kept and returned."""

    async def scenario(environment: LaunchEnvironment) -> None:
        put(environment, info())
        await environment.instances.list()
        environment.shifted = frozenset({"az1"})
        with pytest.raises(ZoneShifted):
            await environment.instances.delete("aws:///a/i-1")
        with pytest.raises(ZoneShifted):
            await environment.instances.tag(info(), {"a": "b"})
        environment.ec2.instances.clear()
        assert await environment.instances.list() == ()
        assert (await environment.instances.describe("i-1")).instance_id == "i-1"
        assert (environment.ec2.terminated, environment.ec2.calls["CreateTags"]) == ([], 0)
        environment.shifted = frozenset()
        with pytest.raises(InstanceNotFound):
            await environment.instances.delete("aws:///a/i-1")

    run_scenario(scenario)


def test_a_terminated_reserved_instance_returns_its_reservation_unit_once() -> None:
    """AWS-T600, AWS-526, K15-A55, K15-A142: terminated three times, counted once; the entry expires after 15 minutes."""

    async def scenario(environment: LaunchEnvironment) -> None:
        await environment.claim("one", uid="", labels={labels.RESERVATION_ID: "cr-1"})
        await environment.set_provider_id(await environment.kube.get(NODE_CLAIM, "one"), "i-1")
        ending = InstanceTerminator(environment.instances, environment.seen, environment.recorded, environment.clock)
        for units, pause in ((1, 0), (1, 0), (1, 899), (2, 2)):
            await asyncio.sleep(pause)
            with pytest.raises(InstanceNotFound):
                await ending.delete("aws:///a/i-1")
            assert environment.recorded.units == {"cr-1": units}

    run_scenario(scenario)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("UnauthorizedOperation", RebootFailed),
        ("InvalidInstanceID.NotFound", InstanceNotFound),
        ("RequestLimitExceeded", ProviderError),
    ],
)
def test_a_refused_reboot_is_final_where_a_retry_cannot_succeed(code: str, error: type[ProviderError]) -> None:
    """K15-A61, K15-A146"""

    async def scenario(environment: LaunchEnvironment) -> None:
        put(environment, info())
        environment.ec2.faults["RebootInstances"] = [AwsError(code, "no")]
        with pytest.raises(ProviderError) as raised:
            await environment.instances.reboot("aws:///a/i-1", "operation")
        assert type(raised.value) is error
        await environment.instances.reboot("aws:///a/i-1", "operation")
        assert environment.ec2.calls["RebootInstances"] == 2

    run_scenario(scenario)


def test_no_instance_of_a_shifted_zone_is_rebooted() -> None:
    """K15-A60, K15-A145: one describe call returns the zone, and RebootInstances is not called."""

    async def scenario(environment: LaunchEnvironment) -> None:
        put(environment, info())
        environment.shifted = frozenset({"az1"})
        with pytest.raises(ZoneShifted):
            await environment.instances.reboot("aws:///a/i-1", "operation")
        assert (environment.ec2.calls["DescribeInstances"], environment.ec2.calls["RebootInstances"]) == (1, 0)

    run_scenario(scenario)
