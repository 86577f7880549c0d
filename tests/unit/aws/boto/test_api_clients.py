"""Every API client over HTTP against the double of AWS: field names, pages, errors, lost answers, metrics."""

from __future__ import annotations

import asyncio
import base64
import json

import pytest

from karpenter import __version__
from karpenter.metrics import Metrics
from karpenter.providers.aws.aws_apis import ImageQuery, PlacementGroupQuery, ReservationQuery, RunInstancesDryRun
from karpenter.providers.aws.aws_errors import AwsCallError, AwsError
from karpenter.providers.aws.aws_metrics import SdkMetrics
from karpenter.providers.aws.aws_types import Ec2Filter, tag_list, tag_map
from karpenter.providers.aws.ec2_requests import (
    BlockDeviceRequest,
    EbsRequest,
    FleetOverride,
    FleetRequest,
    FleetTemplate,
    InstanceProfileRequest,
    LaunchTemplateData,
    MetadataRequest,
    MonitoringRequest,
    NetworkInterfaceRequest,
    OnDemandOptions,
    SpotOptions,
    TagSpecification,
    TargetCapacity,
    TemplateReference,
)
from karpenter.providers.aws.sdk.aws_session import AwsSession
from support.aws.clients import client
from support.aws.double import Double
from support.aws.refusals import refused_call
from support.aws.seeds import STANDARD, Seeds

DISCOVERY = Ec2Filter(name="tag:karpenter.sh/discovery", values=("test",))
POOL = {"karpenter.sh/nodepool": "default"}


def data(seeds: Seeds) -> LaunchTemplateData:
    return LaunchTemplateData(
        image_id=seeds.image,
        user_data=base64.b64encode(b"#!/bin/sh").decode(),
        iam_instance_profile=InstanceProfileRequest(name=seeds.profile),
        monitoring=MonitoringRequest(enabled=False),
        network_interfaces=(NetworkInterfaceRequest(device_index=0, groups=(seeds.group,)),),
        metadata_options=MetadataRequest(http_tokens="required", http_endpoint="enabled"),
        block_device_mappings=(
            BlockDeviceRequest(device_name="/dev/xvda", ebs=EbsRequest(volume_size=20, volume_type="gp3")),
        ),
        tag_specifications=(TagSpecification(resource_type="network-interface", tags=tag_list(POOL)),),
    )


def fleet(seeds: Seeds, token: str = "", capacity_type: str = "on-demand") -> FleetRequest:
    overrides = tuple(
        FleetOverride(instance_type=name, subnet_id=subnet, availability_zone=zone, priority=float(index))
        for index, name in enumerate(("m5.large", "c5.large"))
        for zone, subnet in seeds.subnets.items()
    )
    return FleetRequest(
        launch_template_configs=(
            FleetTemplate(
                launch_template_specification=TemplateReference(launch_template_name="nodes"), overrides=overrides
            ),
        ),
        target_capacity_specification=TargetCapacity(
            total_target_capacity=1, default_target_capacity_type=capacity_type
        ),
        tag_specifications=(TagSpecification(resource_type="instance", tags=tag_list(POOL)),),
        spot_options=SpotOptions(allocation_strategy="price-capacity-optimized") if capacity_type == "spot" else None,
        on_demand_options=OnDemandOptions(allocation_strategy="lowest-price") if capacity_type == "on-demand" else None,
        client_token=token,
    )


async def template(account: AwsSession, seeds: Seeds) -> str:
    made = await account.services.ec2.create_launch_template(
        "nodes", data(seeds), TagSpecification(resource_type="launch-template", tags=tag_list(POOL))
    )
    return made.launch_template_id


async def launched_instance(account: AwsSession, seeds: Seeds, capacity_type: str = "on-demand") -> str:
    await template(account, seeds)
    answer = await account.services.ec2.create_fleet(fleet(seeds, capacity_type=capacity_type))
    return answer.instances[0].instance_ids[0]


# -- types and prices -----------------------------------------------------------------------------------------------------------


async def test_types_are_read_page_by_page(account: AwsSession, aws: Double) -> None:
    """AWS-280, AWS-T962."""
    types = await account.services.ec2.describe_instance_types()
    by_name = {type_info.instance_type: type_info for type_info in types}
    assert len(by_name) == len(types) > 1300
    assert by_name["m5.large"].vcpu_info.default_vcpus == 2
    assert by_name["m5.large"].memory_info.size_in_mib == 8192
    assert by_name["m5.large"].processor_info.supported_architectures == ("x86_64",)
    assert len(aws.calls.of("DescribeInstanceTypes")) == 14


async def test_offerings_and_prices_are_read(account: AwsSession, aws: Double) -> None:
    """AWS-280, AWS-365."""
    ec2 = account.services.ec2
    offerings = await ec2.describe_instance_type_offerings()
    assert ("m5.large", "us-west-2a") in {
        (type_offering.instance_type, type_offering.location) for type_offering in offerings
    }
    aws.control.set_spot_price("m5.large", "us-west-2a", 0.0123)
    prices = {
        (spot_price.instance_type, spot_price.availability_zone): spot_price
        for spot_price in await ec2.describe_spot_price_history()
    }
    assert float(prices["m5.large", "us-west-2a"].spot_price) == 0.0123
    assert prices["m5.large", "us-west-2a"].timestamp is not None


async def test_products_of_the_price_list_are_texts_of_all_pages(account: AwsSession) -> None:
    """AWS-360."""
    filters = {
        "regionCode": "us-west-2",
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "productFamily": "Compute Instance",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
        "marketoption": "OnDemand",
    }
    products = await account.services.pricing.get_products(filters)
    assert len(products) > 100
    assert json.loads(products[0])["product"]["attributes"]["instanceType"]


# -- selectors ------------------------------------------------------------------------------------------------------------------


async def test_subnets_groups_and_images_are_found(account: AwsSession, seeds: Seeds) -> None:
    """AWS-143, AWS-144, AWS-195."""
    ec2 = account.services.ec2
    subnets = await ec2.describe_subnets((DISCOVERY,))
    assert {subnet_info.availability_zone: subnet_info.subnet_id for subnet_info in subnets} == seeds.subnets
    assert all(
        subnet_info.available_ip_address_count > 200 and subnet_info.availability_zone_id for subnet_info in subnets
    )
    (group,) = await ec2.describe_security_groups((DISCOVERY,))
    assert group.group_id == seeds.group
    by_id = Ec2Filter(name="image-id", values=(seeds.image,))
    (image,) = await ec2.describe_images(ImageQuery((by_id,), ("amazon",)))
    assert (image.image_id, image.architecture) == (seeds.image, "x86_64")


async def test_a_parameter_is_read_and_a_missing_one_is_an_error(account: AwsSession, seeds: Seeds) -> None:
    ssm = account.services.ssm
    assert await ssm.get_parameter(STANDARD) == seeds.image
    assert (await refused_call(ssm.get_parameter("/none"), "ParameterNotFound")).is_not_found


async def test_reservations_and_placement_groups_are_read(account: AwsSession, aws: Double) -> None:
    """AWS-148, AWS-153."""
    ec2 = account.services.ec2
    end = "2030-01-01T00:00:00Z"
    made = aws.control.reserve("m5.large", "us-west-2a", 3, kind="capacity-block", end=end)
    (reservation_info,) = await ec2.describe_capacity_reservations(ReservationQuery(ids=(made,)))
    assert reservation_info.available_instance_count == 3
    assert reservation_info.reservation_type == "capacity-block"
    assert reservation_info.end_date is not None
    assert reservation_info.end_date.year == 2030
    assert await ec2.describe_capacity_reservations(ReservationQuery()) == (reservation_info,)
    group = aws.control.add_group("spread", "partition", 3)
    (by_name,) = await ec2.describe_placement_groups(PlacementGroupQuery(names=("spread",)))
    (by_id,) = await ec2.describe_placement_groups(PlacementGroupQuery(ids=(group,)))
    assert by_name == by_id
    assert (by_id.strategy, by_id.partition_count) == ("partition", 3)


# -- launching ------------------------------------------------------------------------------------------------------------------


async def test_a_launch_template_is_created_and_deleted(account: AwsSession, aws: Double, seeds: Seeds) -> None:
    ec2 = account.services.ec2
    made = await template(account, seeds)
    (by_name,) = await ec2.describe_launch_templates(names=("nodes",))
    assert (by_name.launch_template_id, tag_map(by_name.tags)) == (made, POOL)
    pool = Ec2Filter(name="tag:karpenter.sh/nodepool", values=("default",))
    assert await ec2.describe_launch_templates(filters=(pool,)) == (by_name,)
    await ec2.delete_launch_template(made)
    error = await refused_call(
        ec2.describe_launch_templates(names=("nodes",)), "InvalidLaunchTemplateName.NotFoundException"
    )
    assert error.is_not_found


async def test_launch_template_data_is_sent_unchanged(account: AwsSession, aws: Double, seeds: Seeds) -> None:
    await template(account, seeds)
    (call,) = aws.calls.of("CreateLaunchTemplate")
    sent = call.parameters["LaunchTemplateData"]
    assert sent["Monitoring"] == {"Enabled": False}
    assert base64.b64decode(sent["UserData"]) == b"#!/bin/sh"
    assert "Placement" not in sent


async def test_dry_runs_pass_or_are_refused(account: AwsSession, aws: Double, seeds: Seeds) -> None:
    """AWS-115 to AWS-117, AWS-126."""
    ec2 = account.services.ec2
    await template(account, seeds)
    trial = RunInstancesDryRun("m5.large", data(seeds), seeds.subnets["us-west-2a"])
    through = trial._replace(template=TemplateReference(launch_template_name="nodes"))
    for attempt in (
        ec2.dry_run_fleet(fleet(seeds)),
        ec2.dry_run_instances(trial),
        ec2.dry_run_instances(through),
    ):
        assert (await refused_call(attempt, "DryRunOperation")).is_dry_run_passed
    (alone, through_template) = aws.calls.of("RunInstances")
    assert base64.b64decode(alone.parameters["UserData"]) == b"#!/bin/sh"
    assert "LaunchTemplate" not in alone.parameters
    assert through_template.parameters["LaunchTemplate"] == {"LaunchTemplateName": "nodes", "Version": "$Latest"}
    assert aws.control.instances() == []
    aws.control.deny("ec2:CreateFleet")
    assert (await refused_call(ec2.dry_run_fleet(fleet(seeds)), "UnauthorizedOperation")).is_unauthorized


async def test_a_reboot_keeps_the_instance(account: AwsSession, seeds: Seeds) -> None:
    """K15-A62, K15-A124: it has the same id and runs; an unknown id is refused."""
    ec2 = account.services.ec2
    await template(account, seeds)
    ((instance_id,),) = [launched.instance_ids for launched in (await ec2.create_fleet(fleet(seeds))).instances]
    (before,) = await ec2.describe_instances((instance_id,))
    await ec2.reboot_instances((instance_id,))
    (after,) = await ec2.describe_instances((instance_id,))
    assert after == before
    assert after.state.name == "running"
    assert (
        await refused_call(ec2.reboot_instances(("i-0123456789abcdef0",)), "InvalidInstanceID.NotFound")
    ).is_not_found


async def test_instances_are_launched_read_tagged_and_terminated(account: AwsSession, seeds: Seeds) -> None:
    ec2 = account.services.ec2
    await template(account, seeds)
    answer = await ec2.create_fleet(fleet(seeds))
    assert answer.fleet_id
    (launched,) = answer.instances
    (instance_id,) = launched.instance_ids
    chosen = launched.launch_template_and_overrides
    assert chosen is not None
    assert chosen.overrides is not None
    assert chosen.overrides.subnet_id in seeds.subnets.values()
    await ec2.create_tags((instance_id,), {"Name": "node-1"})
    (instance_info,) = await ec2.describe_instances((instance_id,))
    assert instance_info.instance_type == launched.instance_type
    assert tag_map(instance_info.tags).items() >= {**POOL, "Name": "node-1"}.items()
    assert instance_info.launch_time is not None
    assert await ec2.describe_instances(filters=(Ec2Filter(name="tag-key", values=("karpenter.sh/nodepool",)),)) == (
        instance_info,
    )
    (change,) = await ec2.terminate_instances((instance_id,))
    assert change.instance_id == instance_id
    assert change.current_state.name in ("shutting-down", "terminated")


async def test_unavailable_capacity_is_in_the_answer(account: AwsSession, aws: Double, seeds: Seeds) -> None:
    """AWS-T960."""
    await template(account, seeds)
    aws.control.fail_launches("InsufficientInstanceCapacity", capacity_type="spot")
    answer = await account.services.ec2.create_fleet(fleet(seeds, capacity_type="spot"))
    assert answer.instances == ()
    assert {error.error_code for error in answer.errors} >= {"InsufficientInstanceCapacity"}


async def test_an_unknown_instance_fails_the_whole_call(account: AwsSession, seeds: Seeds) -> None:
    """AWS-973."""
    known = await launched_instance(account, seeds)
    error = await refused_call(
        account.services.ec2.describe_instances((known, "i-0123456789abcdef0")), "InvalidInstanceID.NotFound"
    )
    assert error.is_not_found


async def test_the_status_of_instances_is_read(account: AwsSession, aws: Double, seeds: Seeds) -> None:
    """AWS-665."""
    ill = await launched_instance(account, seeds)
    impaired = Ec2Filter(name="instance-status.status", values=("impaired",))
    ec2 = account.services.ec2
    assert await ec2.describe_instance_status((impaired,)) == ()
    aws.control.set_health(ill, instance="impaired", since="2026-01-01T00:00:00Z")
    (status,) = await ec2.describe_instance_status((impaired,))
    assert status.instance_id == ill
    (detail,) = status.instance_status.details
    assert detail.status == "failed"
    assert detail.impaired_since is not None


async def test_console_output_is_the_latest_while_an_instance_runs_and_the_stored_one_afterwards(
    account: AwsSession, aws: Double, seeds: Seeds
) -> None:
    """AWS-932."""
    name = await launched_instance(account, seeds)
    aws.control.print_on_console(name, "no route to host")
    ec2 = account.services.ec2
    assert await ec2.get_latest_console_output(name) == "no route to host"
    assert await ec2.get_console_output(name) == ""
    await ec2.terminate_instances((name,))
    await refused_call(ec2.get_latest_console_output(name), "UnsupportedOperation")
    assert await ec2.get_console_output(name) == "no route to host"
    aws.control.deny("ec2:GetConsoleOutput")
    assert (await refused_call(ec2.get_console_output(name), "UnauthorizedOperation")).is_unauthorized


# -- other services -------------------------------------------------------------------------------------------------------------


async def test_an_instance_profile_is_created_and_deleted(account: AwsSession, seeds: Seeds) -> None:
    iam = account.services.iam
    made = await iam.create_instance_profile("own", "/karpenter/", {"a": "b"})
    assert (made.path, tag_map(made.tags)) == ("/karpenter/", {"a": "b"})
    await iam.add_role_to_instance_profile("own", "node")
    assert [role.role_name for role in (await iam.get_instance_profile("own")).roles] == ["node"]
    assert [
        instance_profile.instance_profile_name for instance_profile in await iam.list_instance_profiles("/karpenter/")
    ] == ["own"]
    await refused_call(iam.delete_instance_profile("own"), "DeleteConflict")
    await iam.remove_role_from_instance_profile("own", "node")
    await iam.delete_instance_profile("own")
    assert (await refused_call(iam.get_instance_profile("own"), "NoSuchEntity")).is_not_found


async def test_messages_are_received_and_deleted(account: AwsSession, aws: Double) -> None:
    """AWS-640, K15-A59."""
    sqs = client(aws, "sqs")
    sqs.create_queue(QueueName="interruptions")
    queue = account.services.sqs
    assert (await refused_call(queue.get_queue_url("none"), "AWS.SimpleQueueService.NonExistentQueue")).is_not_found
    url = await queue.get_queue_url("interruptions")
    sqs.send_message(QueueUrl=url, MessageBody="hello")
    (message,) = await queue.receive_messages(url)
    assert message.body == "hello"
    assert int(message.attributes["SentTimestamp"]) > 1_600_000_000_000
    await queue.delete_message(url, message.receipt_handle)


async def test_waiting_for_messages_does_not_block_other_calls(account: AwsSession, aws: Double) -> None:
    sqs = client(aws, "sqs")
    url = sqs.create_queue(QueueName="empty")["QueueUrl"]
    waiting = asyncio.create_task(account.services.sqs.receive_messages(url))
    assert await account.services.sts.get_caller_identity()
    assert not waiting.done()
    sqs.send_message(QueueUrl=url, MessageBody="now")
    assert len(await asyncio.wait_for(waiting, 20)) == 1


async def test_a_cluster_and_its_shifts_are_read(account: AwsSession, aws: Double) -> None:
    """AWS-019, AWS-615."""
    arn = aws.control.add_cluster("prod", "https://x", "Q0E=", "1.35")
    cluster = await account.services.eks.describe_cluster("prod")
    assert (cluster.arn, cluster.version, cluster.endpoint) == (arn, "1.35", "https://x")
    assert cluster.certificate_authority is not None
    assert cluster.kubernetes_network_config is not None
    assert cluster.kubernetes_network_config.service_ipv4_cidr == "172.20.0.0/16"
    await refused_call(account.services.eks.describe_cluster("none"), "ResourceNotFoundException")
    aws.control.set_shifts(arn, [{"zone_id": "usw2-az1", "expires": "2030-01-01T00:00:00Z"}])
    (shift,) = await account.services.zonal_shift.get_managed_resource(arn)
    assert (shift.away_from, shift.applied_status) == ("usw2-az1", "APPLIED")
    assert shift.expiry_time is not None


async def test_the_caller_identity_is_read(account: AwsSession) -> None:
    assert (await account.services.sts.get_caller_identity()).startswith("arn:aws")


# -- errors --------------------------------------------------------------------------------------------------------------------


async def test_the_connectivity_probe_passes_and_reports_a_refusal(account: AwsSession, aws: Double) -> None:
    """AWS-018."""
    await account.probe()
    aws.control.deny("ec2:DescribeInstanceTypes")
    await refused_call(account.probe(), "UnauthorizedOperation")


async def test_expired_credentials_are_reported_with_the_fix(account: AwsSession, aws: Double) -> None:
    aws.control.expire_credentials()
    assert "renew them" in str(await refused_call(account.services.ec2.describe_subnets(()), "RequestExpired"))
    assert "renew them" in str(await refused_call(account.services.ssm.get_parameter("/x"), "ExpiredTokenException"))


async def test_a_read_with_a_lost_answer_is_retried(account: AwsSession, aws: Double, seeds: Seeds) -> None:
    aws.control.lose_answer("DescribeSubnets")
    assert len(await account.services.ec2.describe_subnets((DISCOVERY,))) == 3
    assert len(aws.calls.of("DescribeSubnets")) == 2


@pytest.mark.parametrize("token", ["", "token-1"], ids=["without token", "with token"])
async def test_a_lost_answer_to_a_fleet_is_reported_and_nothing_is_launched_twice(
    account: AwsSession, aws: Double, seeds: Seeds, token: str
) -> None:
    await template(account, seeds)
    aws.control.lose_answer("CreateFleet")
    with pytest.raises(AwsCallError) as caught:
        await account.services.ec2.create_fleet(fleet(seeds, token))
    assert caught.value.has_no_answer
    assert len(aws.calls.of("CreateFleet")) == 1
    assert len(aws.control.instances()) == 1
    if token:
        again = await account.services.ec2.create_fleet(fleet(seeds, token))
        assert [launched_instance["instance_id"] for launched_instance in aws.control.instances()] == [
            *again.instances[0].instance_ids
        ]


async def test_a_throttled_fleet_is_retried(account: AwsSession, aws: Double, seeds: Seeds) -> None:
    """AWS-T961."""
    await template(account, seeds)
    aws.control.fail("CreateFleet", "RequestLimitExceeded", status=503, times=2)
    assert (await account.services.ec2.create_fleet(fleet(seeds))).instances
    assert len(aws.control.instances()) == 1


async def test_our_rate_limits_stay_below_those_of_ec2(account: AwsSession, aws: Double, seeds: Seeds) -> None:
    """AWS-756."""
    aws.control.limit_rates()
    await asyncio.gather(*(account.services.ec2.describe_subnets((DISCOVERY,)) for _ in range(120)))
    assert {call.code for call in aws.calls.of("DescribeSubnets")} == {""}


async def test_calls_have_our_user_agent(aws: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    """AWS-017."""
    heard: list[str] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 11\r\nconnection: close\r\n\r\n<Response/>")
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1")
    port = server.sockets[0].getsockname()[1]
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    asking = AwsSession(SdkMetrics(Metrics()))
    with pytest.raises(AwsError) as caught:
        await asking.services.ec2.describe_subnets(())
    assert caught.value.status == 403
    assert f"karpenter.sh-{__version__}" in heard[0]
    asking.close()
    server.close()
    await server.wait_closed()


async def test_calls_are_counted(account: AwsSession, metrics: Metrics, seeds: Seeds) -> None:
    """AWS-788."""
    await account.services.ec2.describe_subnets((DISCOVERY,))
    own = {"service": "ec2", "action": "DescribeSubnets", "status_code": "200"}
    assert metrics.registry.get_sample_value("aws_sdk_go_request_total", own) == 1
