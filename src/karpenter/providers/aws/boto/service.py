"""One service of AWS: calls in, typed answers out.

A call waits for its group's turn on the event loop, then takes a thread, in which it is sent and its answer decoded: botocore
makes dictionaries of XML in Python, and what it makes of a large answer is many times the size of what anybody reads of it; so
long lists of EC2 are decoded by ``lists`` instead. Pages are decoded one by one, so no more than one of them is ever held whole.
DescribeInstanceTypes, the largest answer there is (1 400 types, 6 MB), costs 0.25 s of CPU in fourteen pages of 18 ms.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Generic, NamedTuple, Protocol, TypeVar, cast

import msgspec
import structlog
from botocore import xform_name

from karpenter.providers.aws.boto.faults import CallFailed, failed, late, log_keys
from karpenter.providers.aws.boto.operations import Operation, is_repeated
from karpenter.providers.aws.boto.pacing import Group, Pace
from karpenter.providers.aws.errors import AwsError
from karpenter.telemetry.aws import SdkMetrics

R = TypeVar("R")
S = TypeVar("S")

#: For a call with all its repetitions (AWS-017).
WHOLE_CALL_SECONDS = 240.0
_FIRST_DELAY_SECONDS = 0.5
_LONGEST_DELAY_SECONDS = 20.0
_UNREADABLE = "InvalidAnswer"
#: HTTP status of an answer, and what figures say where none came.
_OK, _NO_STATUS = 200, 0
_log = structlog.get_logger()

#: What boto3 takes and gives.
Members = Mapping[str, object]
#: A client's method by the name it has in Python.
Methods = Callable[[str], Callable[..., Members]]


class Page(NamedTuple, Generic[R]):
    """What was wanted of an answer, and where the next page begins; empty where there is none."""

    wanted: R
    token: str


class Clients(Protocol):
    """Gives clients of boto3, made when first asked for; from any thread."""

    def methods(self, service: str) -> Methods:
        """The methods of a service's client. Raises what botocore raises."""


class Workers(Protocol):
    """Runs what blocks."""

    async def run(self, work: Callable[[], R]) -> R:
        """What ``work`` returns or raises."""


class Wire(NamedTuple):
    """What all services share: clients, threads, the pace of each group, figures."""

    clients: Clients
    threads: Workers
    paces: Mapping[Group, Pace]
    metrics: SdkMetrics


class Service:
    """A service by AWS's short name (``ec2``). All methods raise ``AwsError``."""

    def __init__(self, wire: Wire, name: str) -> None:
        self._wire = wire
        self._name = name

    async def call(self, operation: Operation[R], request: Members) -> R:
        """What is wanted of the answer, of its first page where it has several."""
        return (await self._page(operation, request)).wanted

    async def all(self, operation: Operation[tuple[S, ...]], request: Members) -> tuple[S, ...]:
        """What all pages have."""
        found: list[S] = []
        asked = dict(request)
        while True:
            page = await self._page(operation, asked)
            found.extend(page.wanted)
            if not page.token:
                return tuple(found)
            asked[operation.pages.asked] = page.token

    async def _page(self, operation: Operation[R], request: Members) -> Page[R]:
        """One page, asked for again where that is harmless."""
        now = asyncio.get_running_loop().time
        began, attempts, status = now(), 0, _NO_STATUS
        try:
            while True:
                attempts += 1
                try:
                    page = await self._attempt(operation, request, began + WHOLE_CALL_SECONDS - now())
                    status = _OK
                    return page
                except CallFailed as fault:
                    status = fault.status
                    delay = _delay(attempts)
                    out_of_time = now() + delay > began + WHOLE_CALL_SECONDS
                    if out_of_time or not is_repeated(operation.repetition, fault, attempts):
                        _tell(fault, attempts)
                        raise
                await asyncio.sleep(delay)
        finally:
            self._count_request(operation, status, attempts, now() - began)

    async def _attempt(self, operation: Operation[R], request: Members, seconds: float) -> Page[R]:
        """One attempt; the pace follows how it went. The time to wait for a turn is not counted as the attempt's."""
        pace = self._wire.paces[operation.group]
        await pace.take()
        now = asyncio.get_running_loop().time
        began, status = now(), _NO_STATUS
        try:
            page = await self._sent(operation, request, seconds)
        except CallFailed as fault:
            status = fault.status
            if fault.is_throttling:
                pace.throttled()
            raise
        else:
            status = _OK
            pace.passed()
            return page
        finally:
            self._count_attempt(operation, status, now() - began)

    async def _sent(self, operation: Operation[R], request: Members, seconds: float) -> Page[R]:
        work = partial(_asked, self._wire.clients, self._name, operation, request)
        try:
            async with asyncio.timeout(max(seconds, 0.0)):
                return await self._wire.threads.run(work)
        except TimeoutError as error:
            raise late(self._name, operation.name, WHOLE_CALL_SECONDS) from error

    def _count_request(self, operation: Operation[R], status: int, attempts: int, seconds: float) -> None:
        own = {"service": self._name, "action": operation.name, "status_code": str(status)}
        self._wire.metrics.request_total.labels(**own).inc()
        self._wire.metrics.request_retry_count.labels(**own).observe(attempts - 1)
        self._wire.metrics.request_duration_seconds.labels(**own).observe(seconds)

    def _count_attempt(self, operation: Operation[R], status: int, seconds: float) -> None:
        own = {"service": self._name, "action": operation.name, "status_code": str(status)}
        self._wire.metrics.request_attempt_total.labels(**own).inc()
        self._wire.metrics.request_attempt_duration_seconds.labels(**own).observe(seconds)


def _asked(clients: Clients, service: str, operation: Operation[R], request: Members) -> Page[R]:
    """Send a call and decode its answer; runs in a thread. Raises ``CallFailed``."""
    try:
        answer = clients.methods(service)(xform_name(operation.name))(**request)
    except Exception as error:
        raise failed(error, service, operation.name) from error
    wanted: object = answer
    if operation.member:
        # A list that is empty may be left out; so may a text.
        wanted = answer.get(operation.member) or ("" if operation.type is str else ())
    try:
        # Lists decoded by ``lists`` are texts throughout.
        found = msgspec.convert(wanted, operation.type, strict=False)
        return Page(found, cast(str, answer.get(operation.pages.announced) or ""))
    except msgspec.ValidationError as error:
        raise CallFailed(_UNREADABLE, f"the answer is not as expected: {error}", operation.name) from error


def _delay(attempts: int) -> float:
    """Seconds before the next attempt: growing, and drawn so that callers which failed together do not return together."""
    return random.uniform(0.5, 1.0) * min(_LONGEST_DELAY_SECONDS, _FIRST_DELAY_SECONDS * 2.0 ** (attempts - 1))


def _tell(fault: AwsError, attempts: int) -> None:
    """A line for whoever follows calls. What it means is for the caller to say; a passed dry run is no failure."""
    if not fault.is_dry_run_passed:
        _log.debug("call to aws failed", error=fault.message, attempts=attempts, **log_keys(fault))
