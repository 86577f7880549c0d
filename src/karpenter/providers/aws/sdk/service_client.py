"""One AWS service: takes a call, returns a typed answer.

A call waits on the event loop until the rate limit of its group lets it through. Then a thread sends it and decodes the answer:
botocore builds dictionaries from the XML in Python, and ``msgspec`` converts the members we use. Each page is decoded on its own,
so memory holds one page at a time.

Cost: botocore decodes DescribeInstanceTypes, the largest answer (1 400 types, 6 MB in 14 pages), in 0.7 s of CPU and a page of
spot prices in 65 ms. A whole refresh (types, offerings, spot prices) takes 1.1 s of CPU, in threads, every 12 hours; spot prices
alone take 0.3 s every 5 minutes. An XML decoder of our own halved that and was removed: 150 lines for less than 0.1 % of a core.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from functools import partial
from typing import Generic, NamedTuple, Protocol, TypeVar, cast

import msgspec
import structlog
from botocore import exceptions
from botocore.parsers import ResponseParserError

from karpenter.model.backoff import Backoff
from karpenter.model.token_bucket import TokenBucket
from karpenter.providers.aws.aws_errors import (
    CONNECTION_ERROR_CODE,
    TIMEOUT_CODE,
    AwsCallError,
    AwsError,
    error_log_fields,
)
from karpenter.providers.aws.aws_metrics import SdkMetrics

R = TypeVar("R")
S = TypeVar("S")

#: For a call with all its repetitions (AWS-017).
CALL_TIMEOUT_SECONDS = 240.0
_BACKOFF = Backoff(0.5, 20.0)
_UNREADABLE = "InvalidAnswer"
#: HTTP status of an answer, and what figures say where none came.
_OK, _NO_STATUS = 200, 0
_log = structlog.get_logger()

#: What botocore takes and returns.
RequestMembers = Mapping[str, object]
#: A client's method.
ClientMethod = Callable[..., RequestMembers]


class ResultPage(NamedTuple, Generic[R]):
    """What was wanted of an answer, and where the next page begins; empty where there is none."""

    result: R
    next_token: str


class ClientFactory(Protocol):
    """Creates botocore clients on first use; callable from any thread."""

    def method(self, service: str, operation: ApiOperation[R]) -> ClientMethod:
        """The method of a service's client for an operation. Raises what botocore raises."""


class ThreadRunner(Protocol):
    """Runs what blocks."""

    async def run(self, work: Callable[[], R]) -> R:
        """What ``work`` returns or raises."""


class ServiceTransport(NamedTuple):
    """What all services share: clients, threads, the pace of each group, figures."""

    clients: ClientFactory
    threads: ThreadRunner
    rate_limiters: Mapping[RateLimitGroup, AdaptiveRateLimiter]
    metrics: SdkMetrics


class AwsServiceClient:
    """A service by AWS's short name (``ec2``). All methods raise ``AwsError``."""

    def __init__(self, transport: ServiceTransport, name: str) -> None:
        self._transport = transport
        self._name = name

    async def call(self, operation: ApiOperation[R], request: RequestMembers) -> R:
        """What is wanted of the answer, of its first page where it has several."""
        return (await self._call_page(operation, request)).result

    async def call_all_pages(self, operation: ApiOperation[tuple[S, ...]], request: RequestMembers) -> tuple[S, ...]:
        """What all pages have."""
        results: list[S] = []
        page_request = dict(request)
        while True:
            page = await self._call_page(operation, page_request)
            results.extend(page.result)
            if operation.pagination is None or not page.next_token:
                return tuple(results)
            page_request[operation.pagination.input_token] = page.next_token

    async def _call_page(self, operation: ApiOperation[R], request: RequestMembers) -> ResultPage[R]:
        """One page, asked for again where that is harmless."""
        now = asyncio.get_running_loop().time
        began, attempts, status = now(), 0, _NO_STATUS
        try:
            while True:
                attempts += 1
                try:
                    page = await self._attempt(operation, request, began + CALL_TIMEOUT_SECONDS - now())
                    status = _OK
                    return page
                except AwsCallError as fault:
                    status = fault.status
                    delay = _retry_delay(attempts)
                    out_of_time = now() + delay > began + CALL_TIMEOUT_SECONDS
                    if out_of_time or not should_retry(operation.retry, fault, attempts):
                        _log_failure(fault, attempts)
                        raise
                await asyncio.sleep(delay)
        finally:
            self._count_request(operation, status, attempts, now() - began)

    async def _attempt(self, operation: ApiOperation[R], request: RequestMembers, seconds: float) -> ResultPage[R]:
        """One attempt; the pace follows how it went. The time to wait for a turn is not counted as the attempt's."""
        pace = self._transport.rate_limiters[operation.rate_group]
        await pace.acquire()
        now = asyncio.get_running_loop().time
        began, status = now(), _NO_STATUS
        try:
            page = await self._send(operation, request, seconds)
        except AwsCallError as fault:
            status = fault.status
            if fault.is_throttling:
                pace.record_throttled()
            raise
        else:
            status = _OK
            pace.record_success()
            return page
        finally:
            self._count_attempt(operation, status, now() - began)

    async def _send(self, operation: ApiOperation[R], request: RequestMembers, seconds: float) -> ResultPage[R]:
        work = partial(_send_in_thread, self._transport.clients, self._name, operation, request)
        try:
            async with asyncio.timeout(max(seconds, 0.0)):
                return await self._transport.threads.run(work)
        except TimeoutError as error:
            raise timeout_error(self._name, operation.name, CALL_TIMEOUT_SECONDS) from error

    def _count_request(self, operation: ApiOperation[R], status: int, attempts: int, seconds: float) -> None:
        own = {"service": self._name, "action": operation.name, "status_code": str(status)}
        self._transport.metrics.request_total.labels(**own).inc()
        self._transport.metrics.request_retry_count.labels(**own).observe(attempts - 1)
        self._transport.metrics.request_duration_seconds.labels(**own).observe(seconds)

    def _count_attempt(self, operation: ApiOperation[R], status: int, seconds: float) -> None:
        own = {"service": self._name, "action": operation.name, "status_code": str(status)}
        self._transport.metrics.request_attempt_total.labels(**own).inc()
        self._transport.metrics.request_attempt_duration_seconds.labels(**own).observe(seconds)


def _send_in_thread(
    clients: ClientFactory, service: str, operation: ApiOperation[R], request: RequestMembers
) -> ResultPage[R]:
    """Send a call and decode its answer; runs in a thread. Raises ``AwsCallError``."""
    try:
        answer = clients.method(service, operation)(**request)
    except Exception as error:
        raise error_from_botocore(error, service, operation.name) from error
    member: object = answer
    if operation.member:
        # A list that is empty may be left out; so may a text.
        member = answer.get(operation.member) or ("" if operation.type is str else ())
    try:
        # Some services return numbers as text, such as the attributes of SQS messages.
        result = msgspec.convert(member, operation.type, strict=False)
        return ResultPage(result, _next_token(operation, answer))
    except msgspec.ValidationError as error:
        raise AwsCallError(_UNREADABLE, f"the answer is not as expected: {error}", operation.name) from error


def _next_token(operation: ApiOperation[R], answer: RequestMembers) -> str:
    pagination = operation.pagination
    return "" if pagination is None else cast(str, answer.get(pagination.output_token) or "")


def _retry_delay(attempts: int) -> float:
    """Seconds before the next attempt: growing, and drawn so that callers which failed together do not return together."""
    return random.uniform(0.5, 1.0) * _BACKOFF.delay(attempts)


def _log_failure(error: AwsError, attempts: int) -> None:
    """A debug line for each failed call. The caller decides what it means; a passed dry run is no failure."""
    if not error.is_dry_run_passed:
        _log.debug("call to aws failed", error=error.message, attempts=attempts, **error_log_fields(error))


_MAX_ATTEMPTS = 3
_MAX_ATTEMPTS_WHEN_THROTTLED = 5


class CallRetryPolicy(Enum):
    """When a failed call is made again; see the head of this module."""

    READ = auto()
    REPEATABLE = auto()
    ONCE = auto()
    DRY_RUN = auto()


@dataclass(frozen=True, slots=True)
class Pagination:
    """How a list comes in pages: under which name the next one is announced, and asked for."""

    output_token: str
    input_token: str


NEXT_TOKEN = Pagination("NextToken", "NextToken")
MARKER = Pagination("Marker", "Marker")


@dataclass(frozen=True)
class ApiOperation(Generic[R]):
    """A call: AWS's name of it, the member of its answer that is wanted (empty: the whole) and the type that is decoded into.

    Without ``pagination`` an answer has one page.
    """

    name: str
    member: str
    type: type[R]
    rate_group: RateLimitGroup
    retry: CallRetryPolicy = CallRetryPolicy.READ
    pagination: Pagination | None = None

    @property
    def used_members(self) -> Mapping[str, object]:
        """The members of an answer that are read, by their types; empty where all are."""
        if not self.member:
            return {}
        token = {} if self.pagination is None else {self.pagination.output_token: str}
        return {self.member: self.type, **token}


def should_retry(policy: CallRetryPolicy, error: AwsError, attempts: int) -> bool:
    """Whether a call that failed so after this many attempts is made again."""
    if policy is CallRetryPolicy.DRY_RUN:
        return False
    if error.is_throttling:
        return attempts < _MAX_ATTEMPTS_WHEN_THROTTLED
    return attempts < _MAX_ATTEMPTS and _is_safe_to_retry(policy, error)


def _is_safe_to_retry(policy: CallRetryPolicy, error: AwsError) -> bool:
    if error.code == NOT_CONNECTED:
        return True
    if policy is CallRetryPolicy.READ:
        return error.has_no_answer
    return policy is CallRetryPolicy.REPEATABLE and error.status >= 500


#: How much of what AWS grants we take.
_USED_SHARE = 0.9
_BACKOFF_FACTOR = 2 / 3
_MIN_FACTOR = 0.1
_RECOVERY_STEP = 0.01


class RateLimit(NamedTuple):
    """What AWS grants: calls per second in the long run, and at once."""

    per_second: float
    burst: int


class RateLimitGroup(StrEnum):
    """Calls that AWS counts together."""

    EC2_READ = "ec2 read"
    EC2_WRITE = "ec2 write"
    EC2_LAUNCH = "ec2 launch"
    EC2_TERMINATE = "ec2 terminate"
    EC2_TAG = "ec2 tag"
    IAM = "iam"
    SSM = "ssm"
    PRICING = "pricing"
    QUEUE = "queue"
    EKS = "eks"
    ZONAL_SHIFT = "zonal shift"
    IDENTITY = "identity"


#: EC2's are AWS's figures; those of the other services are ours, and cautious.
RATE_LIMITS: Mapping[RateLimitGroup, RateLimit] = {
    RateLimitGroup.EC2_READ: RateLimit(20.0, 100),
    RateLimitGroup.EC2_WRITE: RateLimit(5.0, 50),
    RateLimitGroup.EC2_LAUNCH: RateLimit(2.0, 5),
    RateLimitGroup.EC2_TERMINATE: RateLimit(5.0, 100),
    RateLimitGroup.EC2_TAG: RateLimit(10.0, 100),
    RateLimitGroup.IAM: RateLimit(10.0, 20),
    RateLimitGroup.SSM: RateLimit(20.0, 40),
    RateLimitGroup.PRICING: RateLimit(10.0, 20),
    RateLimitGroup.QUEUE: RateLimit(50.0, 100),
    RateLimitGroup.EKS: RateLimit(5.0, 10),
    RateLimitGroup.ZONAL_SHIFT: RateLimit(2.0, 4),
    RateLimitGroup.IDENTITY: RateLimit(5.0, 10),
}


class AdaptiveRateLimiter:
    """The request rate of one group. Waiting costs no thread; a caller that is cancelled while waiting gives its turn back."""

    def __init__(self, limit: RateLimit) -> None:
        self._base_rate = limit.per_second * _USED_SHARE
        self._bucket = TokenBucket(self._base_rate, max(1.0, limit.burst * _USED_SHARE))

    @property
    def per_second(self) -> float:
        """Calls per second at the moment."""
        return self._bucket.per_second

    async def acquire(self) -> None:
        """Wait until another call may go."""
        await self._bucket.take()

    def record_throttled(self) -> None:
        """AWS asks for fewer calls: what was saved up is spent, too."""
        self._bucket.spend_saved()
        self._bucket.set_rate(max(self._base_rate * _MIN_FACTOR, self.per_second * _BACKOFF_FACTOR))

    def record_success(self) -> None:
        """AWS took a call."""
        if self.per_second < self._base_rate:
            self._bucket.set_rate(min(self._base_rate, self.per_second + self._base_rate * _RECOVERY_STEP))


NO_CREDENTIALS = "NoCredentials"
NOT_CONNECTED = "NotConnected"
INVALID_REQUEST = "InvalidRequest"

_NO_CREDENTIALS = (
    exceptions.NoCredentialsError,
    exceptions.PartialCredentialsError,
    exceptions.CredentialRetrievalError,
    exceptions.TokenRetrievalError,
    exceptions.UnauthorizedSSOTokenError,
    exceptions.NoAuthTokenError,
    exceptions.ProfileNotFound,
)
#: Nothing was sent: there was no connection to send it over.
_NOT_CONNECTED = (exceptions.EndpointConnectionError, exceptions.ConnectTimeoutError, exceptions.ProxyConnectionError)
_NOT_SENT = (
    exceptions.ParamValidationError,
    exceptions.NoRegionError,
    exceptions.BaseEndpointResolverError,
    exceptions.EndpointProviderError,
    exceptions.InvalidRegionError,
)
_CREDENTIAL_CALLS = frozenset({"AssumeRole", "AssumeRoleWithWebIdentity", "GetRoleCredentials", "AssumeRoleWithSAML"})
#: Codes that mean that the credentials are the trouble, and what can be done.
_HINTS: Mapping[str, str] = {
    **dict.fromkeys(
        ("ExpiredToken", "ExpiredTokenException", "RequestExpired"),
        "the credentials have expired: renew them, and check the clock of this host",
    ),
    **dict.fromkeys(
        ("InvalidClientTokenId", "UnrecognizedClientException", "AuthFailure", "SignatureDoesNotMatch"),
        "AWS does not accept the credentials: check that they are of this account and partition, and the clock of this host",
    ),
    "OptInRequired": "the account is not subscribed to this service, or the region is not enabled",
}
_NO_CREDENTIALS_HINT = (
    "give the service account a role (IRSA or a pod identity association), or set AWS_PROFILE or AWS_ACCESS_KEY_ID"
)
_NOT_CONNECTED_HINT = "check the region, the network's way there, proxies and AWS_ENDPOINT_URL"


def error_from_botocore(error: Exception, service: str, operation: str) -> AwsCallError:
    """The error for what botocore raised. Anything it does not document is a bug of ours and raised again."""
    if isinstance(error, exceptions.ClientError):
        fault = _service_error(error, operation)
    elif isinstance(error, exceptions.BotoCoreError | ResponseParserError):
        fault = AwsCallError(*_code_and_message(error, service), operation=operation)
    else:
        raise error
    fault.service = service
    return fault


def timeout_error(service: str, operation: str, seconds: float) -> AwsCallError:
    """The error for a call whose time is over."""
    fault = AwsCallError(TIMEOUT_CODE, f"{service} did not answer within {seconds:g} s", operation=operation)
    fault.service = service
    return fault


def _service_error(error: exceptions.ClientError, operation: str) -> AwsCallError:
    answer = cast(Mapping[str, Mapping[str, object]], error.response)
    error_fields, about = answer.get("Error", {}), answer.get("ResponseMetadata", {})
    code, message = str(error_fields.get("Code", "Unknown")), str(error_fields.get("Message", ""))
    if error.operation_name in _CREDENTIAL_CALLS:
        text = f"{error.operation_name} was refused ({code}: {_single_line(message)}); check the role's trust policy"
        return AwsCallError(NO_CREDENTIALS, text, operation=operation)
    hint = _HINTS.get(code)
    return AwsCallError(
        code,
        f"{message} ({hint})" if hint else message,
        operation=operation,
        request_id=str(about.get("RequestId", "")),
        status=int(cast(int, about.get("HTTPStatusCode", 0))),
    )


def _code_and_message(error: Exception, service: str) -> tuple[str, str]:
    """Code and message of a call that got no answer from the service."""
    text = _single_line(str(error))
    if isinstance(error, _NO_CREDENTIALS):
        return NO_CREDENTIALS, f"{text}; {_NO_CREDENTIALS_HINT}"
    if isinstance(error, _NOT_CONNECTED):
        return NOT_CONNECTED, f"{text}; {_NOT_CONNECTED_HINT}"
    if isinstance(error, _NOT_SENT):
        return INVALID_REQUEST, text
    if isinstance(error, exceptions.ReadTimeoutError):
        return TIMEOUT_CODE, f"{service} did not answer in time: {text}"
    return CONNECTION_ERROR_CODE, text


def _single_line(text: str) -> str:
    return " ".join(text.split())
