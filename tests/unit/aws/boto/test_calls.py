"""Retries, rate limits and errors of AWS calls, in virtual time with a scripted client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TypeVar

import pytest
from botocore import exceptions, xform_name
from botocore.parsers import ResponseParserError

from karpenter.metrics import Metrics
from karpenter.providers.aws.aws_apis import ReservationQuery
from karpenter.providers.aws.aws_errors import AwsError, error_log_fields
from karpenter.providers.aws.aws_metrics import SdkMetrics
from karpenter.providers.aws.ec2_requests import FleetRequest, TargetCapacity
from karpenter.providers.aws.sdk.api_clients import Ec2Client
from karpenter.providers.aws.sdk.service_client import (
    RATE_LIMITS,
    AdaptiveRateLimiter,
    ApiOperation,
    AwsServiceClient,
    ClientMethod,
    RateLimit,
    RateLimitGroup,
    ServiceTransport,
)
from karpenter.simulation import virtual_time as sim_time

R = TypeVar("R")

URL = "https://somewhere"
FLEET = FleetRequest(
    launch_template_configs=(),
    target_capacity_specification=TargetCapacity(total_target_capacity=1, default_target_capacity_type="spot"),
)
FLEET_WITH_TOKEN = FleetRequest(
    launch_template_configs=(),
    target_capacity_specification=TargetCapacity(total_target_capacity=1, default_target_capacity_type="spot"),
    client_token="token",
)


def refusal(code: str, status: int = 400, operation: str = "CreateFleet") -> exceptions.ClientError:
    return exceptions.ClientError(
        {
            "Error": {"Code": code, "Message": "told so"},
            "ResponseMetadata": {"RequestId": "request-1", "HTTPStatusCode": status, "HostId": "", "RetryAttempts": 0},
        },
        operation,
    )


THROTTLED = refusal("RequestLimitExceeded", 503)
BROKEN = refusal("InternalError", 500)
LATE = exceptions.ReadTimeoutError(endpoint_url=URL)
CUT = exceptions.ConnectionClosedError(endpoint_url=URL)
UNREACHED = exceptions.EndpointConnectionError(endpoint_url=URL)


class ScriptedClient:
    """Answers calls from a script and repeats its last answer; records calls and their times."""

    def __init__(self) -> None:
        self.script: list[Exception | dict[str, object]] = []
        self.asked: list[tuple[str, dict[str, object]]] = []
        self.at: list[float] = []
        self.metrics = Metrics()
        paces = {group: AdaptiveRateLimiter(budget) for group, budget in RATE_LIMITS.items()}
        self.paces = paces
        self.ec2 = Ec2Client(AwsServiceClient(ServiceTransport(self, self, paces, SdkMetrics(self.metrics)), "ec2"))

    async def run(self, work: Callable[[], R]) -> R:
        await asyncio.sleep(0)
        return work()

    def method(self, service: str, operation: ApiOperation[R]) -> ClientMethod:
        def call(**request: object) -> dict[str, object]:
            self.asked.append((xform_name(operation.name), request))
            self.at.append(asyncio.get_running_loop().time())
            answer = self.script.pop(0) if len(self.script) > 1 else self.script[0]
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call

    def count(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


Scenario = Callable[[ScriptedClient], Awaitable[None]]


def in_virtual_time(scenario: Scenario) -> Callable[[], None]:
    """Run a scenario in virtual time."""

    def test() -> None:
        async def main(clock: object) -> None:
            await scenario(ScriptedClient())

        sim_time.run_virtual(main, datetime(2026, 1, 1, tzinfo=UTC))

    test.__doc__ = scenario.__doc__
    return test


async def fault(call: Awaitable[object]) -> AwsError:
    with pytest.raises(AwsError) as caught:
        await call
    return caught.value


@in_virtual_time
async def test_a_read_is_retried_until_it_succeeds(client: ScriptedClient) -> None:
    """AWS-755."""
    client.script = [BROKEN, LATE, {"Subnets": [{"SubnetId": "subnet-1"}]}]
    subnet_infos = await client.ec2.describe_subnets(())
    assert [subnet_info.subnet_id for subnet_info in subnet_infos] == ["subnet-1"]
    assert len(client.asked) == 3
    assert client.at[1] - client.at[0] >= 0.25
    assert client.at[2] - client.at[1] >= 0.5


@in_virtual_time
async def test_a_read_fails_after_three_attempts_with_the_error_of_aws(client: ScriptedClient) -> None:
    """AWS-017, AWS-755."""
    client.script = [BROKEN]
    error = await fault(client.ec2.describe_subnets(()))
    assert len(client.asked) == 3
    assert error_log_fields(error) == {
        "aws-error-code": "InternalError",
        "aws-request-id": "request-1",
        "aws-service-name": "ec2",
        "aws-operation-name": "DescribeSubnets",
        "aws-status-code": 500,
    }


@in_virtual_time
async def test_throttling_reduces_the_call_rate_which_recovers_later(client: ScriptedClient) -> None:
    """AWS-756."""
    pace = client.paces[RateLimitGroup.EC2_READ]
    usual = pace.per_second
    client.script = [THROTTLED, THROTTLED, THROTTLED, THROTTLED, {"Subnets": []}]
    await client.ec2.describe_subnets(())
    assert pace.per_second < usual / 4
    for _ in range(200):
        await client.ec2.describe_subnets(())
    assert pace.per_second == usual


@pytest.mark.parametrize(
    ("request_", "answer", "times"),
    [
        pytest.param(FLEET_WITH_TOKEN, THROTTLED, 5, id="throttled, with token"),
        pytest.param(FLEET, THROTTLED, 5, id="throttled"),
        pytest.param(FLEET_WITH_TOKEN, UNREACHED, 3, id="never sent, with token"),
        pytest.param(FLEET, UNREACHED, 3, id="never sent"),
        pytest.param(FLEET_WITH_TOKEN, BROKEN, 3, id="5xx, with token"),
        pytest.param(FLEET, BROKEN, 1, id="5xx"),
        pytest.param(FLEET_WITH_TOKEN, LATE, 1, id="answer lost, with token"),
        pytest.param(FLEET, LATE, 1, id="answer lost"),
        pytest.param(FLEET_WITH_TOKEN, CUT, 1, id="connection cut, with token"),
        pytest.param(FLEET, CUT, 1, id="connection cut"),
        pytest.param(FLEET_WITH_TOKEN, refusal("InvalidParameterValue"), 1, id="refused"),
    ],
)
def test_a_launch_is_retried_only_where_it_cannot_launch_twice(
    request_: FleetRequest, answer: Exception, times: int
) -> None:
    @in_virtual_time
    async def scenario(client: ScriptedClient) -> None:
        client.script = [answer]
        await fault(client.ec2.create_fleet(request_))
        assert len(client.asked) == times
        assert all(asked == client.asked[0] for asked in client.asked)

    scenario()


@in_virtual_time
async def test_a_lost_answer_is_marked_as_such(client: ScriptedClient) -> None:
    for answer in (LATE, CUT):
        client.script = [answer]
        assert (await fault(client.ec2.create_fleet(FLEET_WITH_TOKEN))).has_no_answer
    for answer in (UNREACHED, exceptions.NoCredentialsError(), refusal("InvalidParameterValue")):
        client.script = [answer]
        assert not (await fault(client.ec2.create_fleet(FLEET_WITH_TOKEN))).has_no_answer


@pytest.mark.parametrize("answer", [THROTTLED, BROKEN, LATE, UNREACHED], ids=lambda obj: type(obj).__name__)
def test_a_dry_run_is_tried_once(answer: Exception) -> None:
    """AWS-116."""

    @in_virtual_time
    async def scenario(client: ScriptedClient) -> None:
        client.script = [answer]
        await fault(client.ec2.dry_run_fleet(FLEET))
        assert len(client.asked) == 1
        assert client.asked[0][1]["DryRun"] is True

    scenario()


@in_virtual_time
async def test_a_passed_dry_run_is_recognised(client: ScriptedClient) -> None:
    """AWS-126."""
    client.script = [refusal("DryRunOperation", 412)]
    assert (await fault(client.ec2.dry_run_fleet(FLEET))).is_dry_run_passed


@in_virtual_time
async def test_a_call_times_out_after_four_minutes(client: ScriptedClient) -> None:
    """AWS-017, OPS-353."""

    async def never(work: Callable[[], R]) -> R:
        await asyncio.Event().wait()
        return work()

    client.run = never
    began = asyncio.get_running_loop().time()
    error = await fault(client.ec2.create_fleet(FLEET_WITH_TOKEN))
    assert error.has_no_answer
    assert asyncio.get_running_loop().time() - began == 240.0
    assert str(error) == "Timeout: ec2 did not answer within 240 s"


@in_virtual_time
async def test_calls_are_rate_limited_by_group(client: ScriptedClient) -> None:
    """AWS-756: 2 fleets a second, 5 at once; reads are not delayed by them."""
    client.script = [{}]
    began = asyncio.get_running_loop().time()
    await asyncio.gather(*(client.ec2.create_fleet(FLEET) for _ in range(40)))
    assert 19.0 < asyncio.get_running_loop().time() - began < 21.0
    began = asyncio.get_running_loop().time()
    client.script = [{"Subnets": []}]
    await asyncio.gather(*(client.ec2.describe_subnets(()) for _ in range(90)))
    assert asyncio.get_running_loop().time() == began


@in_virtual_time
async def test_a_cancelled_call_returns_its_rate_limit_token(client: ScriptedClient) -> None:
    pace = AdaptiveRateLimiter(RateLimit(1.0, 1))
    await pace.acquire()
    waiting = asyncio.create_task(pace.acquire())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.sleep(0)
    began = asyncio.get_running_loop().time()
    await pace.acquire()
    assert asyncio.get_running_loop().time() - began == pytest.approx(1 / 0.9)


@in_virtual_time
async def test_all_pages_are_read(client: ScriptedClient) -> None:
    client.script = [
        {"CapacityReservations": [{"CapacityReservationId": "cr-1"}], "NextToken": "more"},
        {"CapacityReservations": [{"CapacityReservationId": "cr-2"}], "NextToken": ""},
    ]
    reservation_infos = await client.ec2.describe_capacity_reservations(ReservationQuery())
    assert [reservation_info.capacity_reservation_id for reservation_info in reservation_infos] == ["cr-1", "cr-2"]
    assert [request.get("NextToken") for _, request in client.asked] == [None, "more"]


@in_virtual_time
async def test_an_answer_of_another_form_is_an_error_with_its_path(client: ScriptedClient) -> None:
    client.script = [{"Subnets": [{"SubnetId": 1}]}]
    error = await fault(client.ec2.describe_subnets(()))
    assert error.code == "InvalidAnswer"
    assert "$[0].SubnetId" in error.message


@pytest.mark.parametrize(
    ("raised", "code", "part"),
    [
        pytest.param(exceptions.NoCredentialsError(), "NoCredentials", "give the service account a role", id="none"),
        pytest.param(
            refusal("AccessDenied", 403, "AssumeRoleWithWebIdentity"),
            "NoCredentials",
            "check the role's trust policy",
            id="role refused",
        ),
        pytest.param(refusal("RequestExpired"), "RequestExpired", "renew them", id="expired"),
        pytest.param(refusal("AuthFailure", 401), "AuthFailure", "does not accept the credentials", id="wrong"),
        pytest.param(UNREACHED, "NotConnected", "check the region", id="unreached"),
        pytest.param(
            exceptions.ParamValidationError(report="Unknown parameter\nin input"), "InvalidRequest", "Unknown", id="bad"
        ),
    ],
)
def test_an_error_that_a_user_can_fix_is_one_line(raised: Exception, code: str, part: str) -> None:
    @in_virtual_time
    async def scenario(client: ScriptedClient) -> None:
        client.script = [raised]
        error = await fault(client.ec2.describe_subnets(()))
        assert error.code == code
        assert part in str(error)
        assert "\n" not in str(error)

    scenario()


@in_virtual_time
async def test_an_unparseable_answer_may_mean_an_executed_call(client: ScriptedClient) -> None:
    """The page of a proxy instead of an answer of AWS."""
    client.script = [ResponseParserError("Unable to parse response, invalid XML received:\nb'<html>'")]
    error = await fault(client.ec2.create_fleet(FLEET_WITH_TOKEN))
    assert error.has_no_answer
    assert "\n" not in str(error)


@in_virtual_time
async def test_a_programming_error_is_raised_unchanged(client: ScriptedClient) -> None:
    client.script = [KeyError("oops")]
    with pytest.raises(KeyError):
        await client.ec2.describe_subnets(())


@in_virtual_time
async def test_requests_and_attempts_are_counted(client: ScriptedClient) -> None:
    """AWS-788. OPS-478: under the names of the Go SDK."""
    client.script = [BROKEN, {"Subnets": []}]
    await client.ec2.describe_subnets(())
    own = {"service": "ec2", "action": "DescribeSubnets"}
    assert client.count("aws_sdk_go_request_total", **own, status_code="200") == 1
    assert client.count("aws_sdk_go_request_attempt_total", **own, status_code="500") == 1
    assert client.count("aws_sdk_go_request_attempt_total", **own, status_code="200") == 1
    assert client.count("aws_sdk_go_request_retry_count_sum", **own, status_code="200") == 1
    assert client.count("aws_sdk_go_request_duration_seconds_sum", **own, status_code="200") >= 0.25
