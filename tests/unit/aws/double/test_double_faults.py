"""Injected faults: denials, throttling, repeated requests, lost answers; and the recorded calls."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import Any

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError

from support.aws.clients import client
from support.aws.double import Double
from support.aws.refusals import refused
from support.aws.seeds import Seeds, fleet, template


def _instance_ids(ec2: Any) -> set[str]:
    return {entry["Instances"][0]["InstanceId"] for entry in ec2.describe_instances()["Reservations"]}


# -- denials ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("none", "because no identity-based policy allows the ec2:CreateLaunchTemplate action"),
        ("boundary", "with an explicit deny in a permissions boundary"),
        ("scp", "with an explicit deny in a service control policy"),
    ],
)
def test_a_denied_action_names_the_kind_of_policy(aws: Double, ec2: Any, seeds: Seeds, reason: str, words: str) -> None:
    """AWS-972, AWS-T964, AWS-452."""
    aws.control.deny("ec2:CreateLaunchTemplate", reason)
    with refused("UnauthorizedOperation") as error:
        ec2.create_launch_template(LaunchTemplateName="new", LaunchTemplateData=template(seeds), DryRun=True)
    assert words in error["Message"]
    aws.control.allow("ec2:CreateLaunchTemplate")
    ec2.create_launch_template(LaunchTemplateName="new", LaunchTemplateData=template(seeds))


def test_a_fleet_without_permission_to_run_instances_has_an_error_in_its_answer(
    aws: Double, ec2: Any, seeds: Seeds
) -> None:
    """AWS-980, AWS-T418."""
    aws.control.deny("ec2:RunInstances")
    answer = ec2.create_fleet(**fleet(seeds, ["m5.large"]))
    assert answer["Instances"] == []
    assert {entry["ErrorCode"] for entry in answer["Errors"]} == {"UnauthorizedOperation"}
    with refused("UnauthorizedOperation"):
        ec2.run_instances(
            MinCount=1, MaxCount=1, LaunchTemplate={"LaunchTemplateName": "nodes"}, InstanceType="m5.large", DryRun=True
        )


@pytest.mark.parametrize(
    ("service", "operation", "arguments", "code"),
    [
        ("iam", "get_instance_profile", {"InstanceProfileName": "nodes"}, "AccessDenied"),
        ("ssm", "get_parameter", {"Name": "/x"}, "AccessDeniedException"),
        ("sqs", "get_queue_url", {"QueueName": "x"}, "AccessDeniedException"),
    ],
)
def test_other_services_deny_with_their_own_codes(
    aws: Double, service: str, operation: str, arguments: dict[str, str], code: str
) -> None:
    """AWS-972."""
    action = "".join(word.capitalize() for word in operation.split("_"))
    aws.control.deny(f"{service}:{action}")
    with refused(code):
        getattr(client(aws, service), operation)(**arguments)


# -- throttling and other refusals --------------------------------------------------------------------------------------------


def _outcomes(ec2: Any, seeds: Seeds, count: int) -> list[str]:
    codes = []
    for _ in range(count):
        try:
            ec2.create_fleet(**fleet(seeds, ["m5.large"]))
            codes.append("")
        except ClientError as error:
            codes.append(error.response["Error"]["Code"])
    return codes


def test_request_rate_limits_apply(running: Double, aws: Double, ec2: Any, seeds: Seeds, monkeypatch: Any) -> None:
    """AWS-756, AWS-T961: five at once, then two a second."""
    now = [running.faults.now()]
    monkeypatch.setattr(running.faults, "now", lambda: now[0])
    aws.control.limit_rates()
    assert _outcomes(ec2, seeds, 25) == [""] * 5 + ["RequestLimitExceeded"] * 20
    now[0] += 1
    assert _outcomes(ec2, seeds, 3) == ["", "", "RequestLimitExceeded"]
    assert len(_instance_ids(ec2)) == 7


def test_every_other_call_is_throttled_for_a_time(
    running: Double, aws: Double, ec2: Any, seeds: Seeds, monkeypatch: Any
) -> None:
    """AWS-756."""
    now = [running.faults.now()]
    monkeypatch.setattr(running.faults, "now", lambda: now[0])
    aws.control.throttle(10)
    assert _outcomes(ec2, seeds, 4) == ["RequestLimitExceeded", "", "RequestLimitExceeded", ""]
    now[0] += 11
    assert _outcomes(ec2, seeds, 2) == ["", ""]


def test_calls_fail_as_a_test_configures(aws: Double, ec2: Any, seeds: Seeds) -> None:
    """AWS-452."""
    aws.control.fail("CreateFleet", "InternalError", status=500, times=2, skip=1)
    assert _outcomes(ec2, seeds, 4) == ["", "InternalError", "InternalError", ""]


def test_expired_credentials_are_refused_until_they_are_renewed(aws: Double, ec2: Any) -> None:
    aws.control.expire_credentials()
    with refused("RequestExpired"):
        ec2.describe_instances()
    with refused("ExpiredToken"):
        client(aws, "sts").get_caller_identity()
    aws.control.expire_credentials(False)
    assert ec2.describe_instances()["Reservations"] == []


def test_calls_have_the_latency_that_a_test_sets(aws: Double, ec2: Any) -> None:
    aws.control.set_latency("DescribeInstances", 0.2)
    begun = time.monotonic()
    ec2.describe_instances()
    assert time.monotonic() - begun >= 0.2


# -- idempotency --------------------------------------------------------------------------------------------------------------


def test_a_repeated_request_gets_the_same_answer_and_launches_nothing(ec2: Any, seeds: Seeds) -> None:
    """Client tokens work as in EC2."""
    request = fleet(seeds, ["m5.large"], units=2, ClientToken="claim-1")
    first, second = ec2.create_fleet(**request), ec2.create_fleet(**request)
    assert (first["FleetId"], first["Instances"]) == (second["FleetId"], second["Instances"])
    assert _instance_ids(ec2) == set(first["Instances"][0]["InstanceIds"])


def test_another_request_with_the_same_token_is_refused(ec2: Any, seeds: Seeds) -> None:
    """Client tokens work as in EC2."""
    ec2.create_fleet(**fleet(seeds, ["m5.large"], ClientToken="claim-1"))
    with refused("IdempotentParameterMismatch"):
        ec2.create_fleet(**fleet(seeds, ["m5.xlarge"], ClientToken="claim-1"))
    ec2.create_fleet(**fleet(seeds, ["m5.xlarge"], ClientToken="claim-2"))
    assert len(_instance_ids(ec2)) == 2


def test_a_client_token_of_a_dry_run_can_be_used_again(ec2: Any, seeds: Seeds) -> None:
    with refused("DryRunOperation"):
        ec2.create_fleet(**fleet(seeds, ["m5.large"], ClientToken="claim-1"), DryRun=True)
    assert ec2.create_fleet(**fleet(seeds, ["m5.xlarge"], ClientToken="claim-1"))["Instances"]


def test_a_call_whose_answer_is_lost_has_launched_an_instance(aws: Double, ec2: Any, seeds: Seeds) -> None:
    """The connection breaks after the call was executed; its client token returns the same instance."""
    request = fleet(seeds, ["m5.large"], ClientToken="claim-1")
    aws.control.lose_answer("CreateFleet", 2)
    other = ec2.create_fleet(**fleet(seeds, ["m5.large"]))["Instances"][0]["InstanceIds"]
    with pytest.raises(ConnectionClosedError):
        ec2.create_fleet(**request)
    lost = _instance_ids(ec2) - set(other)
    assert len(lost) == 1
    assert set(ec2.create_fleet(**request)["Instances"][0]["InstanceIds"]) == lost
    assert [call.lost for call in aws.calls.of("CreateFleet")] == [False, True, False]


def test_a_lost_request_launches_nothing(aws: Double, ec2: Any, seeds: Seeds) -> None:
    aws.control.lose_request("CreateFleet")
    with pytest.raises(ConnectionClosedError):
        ec2.create_fleet(**fleet(seeds, ["m5.large"]))
    assert _instance_ids(ec2) == set()


# -- recorded calls -----------------------------------------------------------------------------------------------------------


def test_every_call_is_recorded_with_its_parameters_and_its_result(aws: Double, ec2: Any, seeds: Seeds) -> None:
    ec2.create_fleet(**fleet(seeds, ["m5.large"], units=3))
    with refused("InvalidLaunchTemplateName.NotFoundException"):
        ec2.describe_launch_templates(LaunchTemplateNames=["other"])
    with refused("NoSuchEntity"):
        client(aws, "iam").get_instance_profile(InstanceProfileName="other")
    (launched,) = aws.calls.carried_out("CreateFleet")
    assert launched.parameters["TargetCapacitySpecification"]["TotalTargetCapacity"] == 3
    assert [call.code for call in aws.calls.all] == [
        "",
        "InvalidLaunchTemplateName.NotFoundException",
        "NoSuchEntity",
    ]


# -- over HTTP ----------------------------------------------------------------------------------------------------------------


def _control(url: str, name: str, **arguments: object) -> Any:
    request = urllib.request.Request(f"{url}/_double/{name}", json.dumps(arguments).encode())
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)["result"]


def test_scripts_control_the_double_over_http(aws: Double, ec2: Any, seeds: Seeds) -> None:
    _control(aws.url, "set_pool", instance_type="m5.large", zone="us-west-2a", capacity_type="on-demand", free=0)
    answer = ec2.create_fleet(**fleet(seeds, ["m5.large"]))
    assert [entry["ErrorCode"] for entry in answer["Errors"]] == ["InsufficientInstanceCapacity"]
    (instance,) = _control(aws.url, "instances")
    assert instance["zone"] == "us-west-2b"
    assert [call["operation"] for call in _control(aws.url, "calls", operation="CreateFleet")] == ["CreateFleet"]
    _control(aws.url, "reset")
    assert _instance_ids(ec2) == set()


@pytest.mark.parametrize(("name", "arguments"), [("no_such_thing", {}), ("do", {}), ("set_pool", {"wrong": 1})])
def test_an_unknown_control_is_refused(aws: Double, name: str, arguments: dict[str, int]) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        _control(aws.url, name, **arguments)
    assert caught.value.code == 400
    caught.value.close()


def test_the_double_runs_as_its_own_process() -> None:
    command = [sys.executable, "-m", "support.aws.double", "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": ":".join(sys.path)}
    ) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert _control(url, "instances") == []
        finally:
            process.terminate()
