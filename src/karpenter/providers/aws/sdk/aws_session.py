"""An AWS session: the credentials, the region, and the clients.

Credentials are found and renewed by botocore, in its standard order: environment variables; a role to assume from a profile; a
web identity token (IRSA: AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN); shared files; the container's endpoint (pod identity:
AWS_CONTAINER_CREDENTIALS_FULL_URI and its token file); the instance's role. Renewal happens in the thread that needs it, under
botocore's own lock. AWS_ENDPOINT_URL and its variants per service are obeyed.

Making a client is slow: 0.07 s of CPU for EC2 (`lazy_models`), 0.05 s for all others together, and 0.4 s before that to import
the library. So clients share one session, only the services in use are loaded, and ``open`` creates the EC2 client before the
first call needs it. Making one is not safe in two threads at once; using it is.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar, cast

from botocore import xform_name
from botocore.config import Config
from botocore.exceptions import BotoCoreError
from botocore.session import Session, get_session
from botocore.utils import InstanceMetadataRegionFetcher

from karpenter.providers.aws import aws_partitions
from karpenter.providers.aws.aws_apis import AwsApis
from karpenter.providers.aws.aws_errors import AwsError
from karpenter.providers.aws.aws_metrics import SdkMetrics
from karpenter.providers.aws.aws_types import AwsStruct
from karpenter.providers.aws.sdk.api_clients import (
    Ec2Client,
    EksClient,
    IamClient,
    PricingClient,
    SqsClient,
    SsmClient,
    StsClient,
    ZonalShiftClient,
)
from karpenter.providers.aws.sdk.lazy_models import decode_models_lazily, find_error_shapes
from karpenter.providers.aws.sdk.narrow_answers import narrow_answer, restore_answer
from karpenter.providers.aws.sdk.service_client import (
    RATE_LIMITS,
    AdaptiveRateLimiter,
    ApiOperation,
    AwsServiceClient,
    ClientMethod,
    RateLimitGroup,
    ServiceTransport,
    error_from_botocore,
)
from karpenter.version import __version__

R = TypeVar("R")

#: The region is named as other SDKs do first: the webhooks that hand roles to pods set both.
_REGION_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")
_CONNECT_SECONDS = 5.0
#: For the next piece of an answer. Longer than the queue's long poll and than EC2 takes for a fleet.
_READ_SECONDS = 60.0
_REGION = re.compile(r"[a-z]+(?:-[a-z]+)+?-\d+")
_PRICING_SERVICE = "pricing"
_EC2_SERVICE = "ec2"
_PROBE = ApiOperation("DescribeInstanceTypes", "", AwsStruct, RateLimitGroup.EC2_READ)


@dataclass(frozen=True)
class AwsSessionOptions:
    """``region`` is found where it is not given. ``threads``: calls under way at once."""

    region: str = ""
    threads: int = 32


class AwsSession:
    """One account and region, and all ports to it. Making it does no I/O; ``open`` does, and is asked first."""

    def __init__(self, metrics: SdkMetrics, options: AwsSessionOptions = AwsSessionOptions()) -> None:
        self._client_factory = _ClientFactory(options)
        self._threads = DaemonThreadPool(options.threads, "aws")
        self._transport = wire = ServiceTransport(
            self._client_factory,
            self._threads,
            {group: AdaptiveRateLimiter(budget) for group, budget in RATE_LIMITS.items()},
            metrics,
        )
        self.services = AwsApis(
            ec2=Ec2Client(AwsServiceClient(wire, _EC2_SERVICE)),
            iam=IamClient(AwsServiceClient(wire, "iam")),
            ssm=SsmClient(AwsServiceClient(wire, "ssm")),
            pricing=PricingClient(AwsServiceClient(wire, _PRICING_SERVICE)),
            sqs=SqsClient(AwsServiceClient(wire, "sqs")),
            eks=EksClient(AwsServiceClient(wire, "eks")),
            zonal_shift=ZonalShiftClient(AwsServiceClient(wire, "arc-zonal-shift")),
            sts=StsClient(AwsServiceClient(wire, "sts")),
        )

    async def open(self) -> str:
        """Find the region and make the client of EC2; the region. Raises ``AwsError``, also where there is no region."""
        return await self._threads.run(self._client_factory.open)

    def service(self, name: str) -> AwsServiceClient:
        """Any service, by the name botocore has for it."""
        return AwsServiceClient(self._transport, name)

    async def probe(self) -> None:
        """Return if EC2 answers: to a dry run, that it would have done it (AWS-018). Raises ``AwsError``."""
        try:
            await self.service(_EC2_SERVICE).call(_PROBE, {"DryRun": True, "MaxResults": 5})
        except AwsError as error:
            if not error.is_dry_run_passed:
                raise

    def close(self) -> None:
        """Take no more calls; those under way are left to themselves."""
        self._threads.close()


class _ClientFactory:
    """Clients by service, made when first asked for."""

    def __init__(self, options: AwsSessionOptions) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._region = ""
        self._clients: dict[str, Any] = {}
        #: What is decoded of answers, by service and operation; empty: all.
        self._used_members: dict[tuple[str, str], Mapping[str, object]] = {}

    def open(self) -> str:
        """See ``AwsSession.open``."""
        try:
            with self._lock:
                self._client(_EC2_SERVICE)
        except BotoCoreError as error:
            raise error_from_botocore(error, _EC2_SERVICE, "") from error
        return self._region

    def method(self, service: str, operation: ApiOperation[R]) -> ClientMethod:
        """The method of a service's client for an operation."""
        with self._lock:
            client = self._client(service)
            self._narrow_answer(client, service, operation)
        return cast(ClientMethod, getattr(client, xform_name(operation.name)))

    def _client(self, service: str) -> Any:
        if service not in self._clients:
            self._clients[service] = self._create_client(service)
        return self._clients[service]

    def _narrow_answer(self, client: Any, service: str, operation: ApiOperation[R]) -> None:
        """Have only what is read of the answer decoded. Where two callers read different parts, all of it is."""
        members, known = operation.used_members, self._used_members.get((service, operation.name))
        if known == members:
            return
        self._used_members[service, operation.name] = members if known is None else {}
        if known is None and members:
            narrow_answer(client.meta.service_model, operation.name, members)
        elif known:
            restore_answer(client.meta.service_model, operation.name)

    def _create_client(self, service: str) -> Any:
        if self._session is None:
            self._session = get_session()
            decode_models_lazily(self._session)
            self._region = _region(self._session, self._options.region)
        region = self._service_region(service)
        client = self._session.create_client(service, region_name=region, config=self._config())
        find_error_shapes(client.meta.service_model)
        return client

    def _service_region(self, service: str) -> str:
        if service != _PRICING_SERVICE:
            return self._region
        return aws_partitions.pricing_region(self._region) or self._region

    def _config(self) -> Config:
        return Config(
            user_agent_extra=f"karpenter.sh-{__version__}",
            connect_timeout=_CONNECT_SECONDS,
            read_timeout=_READ_SECONDS,
            tcp_keepalive=True,
            max_pool_connections=self._options.threads,
            # Retries are in ``service_client``.
            retries={"mode": "standard", "total_max_attempts": 1},
        )


def _region(session: Session, configured: str) -> str:
    """The region: given, from the environment, from the profile, or where the instance is. Raises ``AwsError``."""
    candidates = (
        configured,
        *(os.environ.get(name, "") for name in _REGION_VARIABLES),
        session.get_config_variable("region"),
    )
    region = next((name for name in candidates if name), "") or _instance_region(session)
    if not region:
        raise AwsError(
            "NoRegion",
            "no AWS region: AWS_REGION is not set, the profile has none and no instance metadata is to be had; set AWS_REGION",
        )
    return region


def _instance_region(session: Session) -> str:
    """The region of the instance we run on, from its zone; a local zone's name (us-west-2-lax-1a) begins with its region's."""
    fetcher = InstanceMetadataRegionFetcher(
        timeout=session.get_config_variable("metadata_service_timeout"),
        num_attempts=session.get_config_variable("metadata_service_num_attempts"),
        user_agent=session.user_agent(),
    )
    match = _REGION.match(fetcher.retrieve_region() or "")
    return match.group() if match is not None else ""


_Job = tuple[Callable[[], object], "Future[object]"]


class DaemonThreadPool:
    """Runs blocking functions, ``max_threads`` at a time, in the order they came. Threads are created when needed, and kept."""

    def __init__(self, max_threads: int, name: str) -> None:
        self._max_threads = max_threads
        self._name = name
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread_count = 0
        #: Work accepted and not done yet. Decremented before the caller gets the result, so its next work finds a thread.
        self._unfinished = 0
        self._closed = False

    async def run(self, work: Callable[[], R]) -> R:
        """What ``work`` returns or raises. When the caller is cancelled, work already begun goes on and its end is dropped."""
        future: Future[object] = Future()
        self._submit((work, future))
        return cast(R, await asyncio.wrap_future(future))

    def close(self) -> None:
        """Take no more work. What runs is left to itself."""
        with self._lock:
            self._closed = True
            for _ in range(self._thread_count):
                self._jobs.put(None)

    def _submit(self, job: _Job) -> None:
        with self._lock:
            if self._closed:
                raise RuntimeError("the connection to AWS is closed")
            self._unfinished += 1
            self._jobs.put(job)
            if self._unfinished <= self._thread_count or self._thread_count == self._max_threads:
                return
            self._thread_count += 1
            name = f"{self._name}-{self._thread_count}"
        threading.Thread(target=self._worker, name=name, daemon=True).start()

    def _worker(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._run_job(*job)
            # Nothing may be held while waiting: answers are large.
            del job

    def _run_job(self, work: Callable[[], object], future: Future[object]) -> None:
        if not future.set_running_or_notify_cancel():
            self._job_finished()
            return
        try:
            result = work()
        except BaseException as error:
            self._job_finished()
            future.set_exception(error)
        else:
            self._job_finished()
            future.set_result(result)

    def _job_finished(self) -> None:
        with self._lock:
            self._unfinished -= 1
