"""An AWS account and region to talk to: who we are, where, and the clients for it.

Credentials are found and renewed by botocore, in its standard order: environment variables; a role to assume from a profile; a
web identity token (IRSA: AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN); shared files; the container's endpoint (pod identity:
AWS_CONTAINER_CREDENTIALS_FULL_URI and its token file); the machine's role. Renewal happens in the thread that needs it, under
botocore's own lock. AWS_ENDPOINT_URL and its kin per service are obeyed.

Making a client is slow, since its service's model is read: 0.25 s of CPU for EC2, 0.1 s for all others together, and 0.5 s before
that to import the library. So clients share one session, only those services are loaded that are used, and ``open`` makes the
one everything needs before anything waits for it. Making one is not safe in two threads at once; using it is.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from botocore.config import Config
from botocore.exceptions import BotoCoreError
from botocore.session import Session, get_session
from botocore.utils import InstanceMetadataRegionFetcher

from karpenter import __version__
from karpenter.providers.aws.boto.ec2 import LONG_LISTS, Ec2
from karpenter.providers.aws.boto.faults import failed
from karpenter.providers.aws.boto.operations import Operation
from karpenter.providers.aws.boto.pacing import BUDGETS, Group, Pace
from karpenter.providers.aws.boto.service import Methods, Service, Wire
from karpenter.providers.aws.boto.services import Eks, Iam, Pricing, Queue, Ssm, Sts, ZonalShifts
from karpenter.providers.aws.boto.threads import Threads
from karpenter.providers.aws.errors import AwsError
from karpenter.providers.aws.ports import Services
from karpenter.providers.aws.shapes import Shape
from karpenter.telemetry.aws import SdkMetrics

#: The region is named as other SDKs do first: the webhooks that hand roles to pods set both.
_REGION_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")
_CONNECT_SECONDS = 5.0
#: For the next piece of an answer. Longer than the queue's long poll and than EC2 takes for a fleet.
_READ_SECONDS = 60.0
_REGION = re.compile(r"[a-z]+(?:-[a-z]+)+?-\d+")
#: The price list is served in few regions; by the beginning of ours, the one to ask.
_PRICED_IN: Mapping[str, str] = {"ap-": "ap-south-1", "cn-": "cn-northwest-1", "eu-": "eu-central-1"}
_PRICED_IN_ELSE = "us-east-1"
_PRICING = "pricing"
_FIRST = "ec2"
_PROBE = Operation("DescribeInstanceTypes", "", Shape, Group.EC2_READ)


@dataclass(frozen=True)
class Options:
    """``region`` is found where it is not given. ``threads``: calls under way at once."""

    region: str = ""
    threads: int = 32


class Account:
    """One account and region, and all ports to it. Making it does no I/O; ``open`` does, and is asked first."""

    def __init__(self, metrics: SdkMetrics, options: Options = Options()) -> None:
        self._clients = _Clients(options)
        self._threads = Threads(options.threads, "aws")
        self._wire = wire = Wire(
            self._clients, self._threads, {group: Pace(budget) for group, budget in BUDGETS.items()}, metrics
        )
        self.services = Services(
            ec2=Ec2(Service(wire, _FIRST)),
            iam=Iam(Service(wire, "iam")),
            ssm=Ssm(Service(wire, "ssm")),
            pricing=Pricing(Service(wire, _PRICING)),
            queue=Queue(Service(wire, "sqs")),
            eks=Eks(Service(wire, "eks")),
            zonal_shift=ZonalShifts(Service(wire, "arc-zonal-shift")),
            sts=Sts(Service(wire, "sts")),
        )

    async def open(self) -> str:
        """Find the region and make the client of EC2; the region. Raises ``AwsError``, also where there is no region."""
        return await self._threads.run(self._clients.open)

    def service(self, name: str) -> Service:
        """Any service, by the name botocore has for it."""
        return Service(self._wire, name)

    async def probe(self) -> None:
        """Return if EC2 answers: to a dry run, that it would have done it (AWS-018). Raises ``AwsError``."""
        try:
            await self.service(_FIRST).call(_PROBE, {"DryRun": True, "MaxResults": 5})
        except AwsError as error:
            if not error.is_dry_run_passed:
                raise

    def close(self) -> None:
        """Take no more calls; those under way are left to themselves."""
        self._threads.close()


class _Clients:
    """Clients by service, made when first asked for."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._region = ""
        self._made: dict[str, Any] = {}

    def open(self) -> str:
        """See ``Account.open``."""
        try:
            self.methods(_FIRST)
        except BotoCoreError as error:
            raise failed(error, _FIRST, "") from error
        return self._region

    def methods(self, service: str) -> Methods:
        """The methods of a service's client by their names."""
        with self._lock:
            if service not in self._made:
                self._made[service] = self._make(service)
            client = self._made[service]

        def method(name: str) -> Any:
            return getattr(client, name)

        return method

    def _make(self, service: str) -> Any:
        if self._session is None:
            self._session = get_session()
            self._region = _region(self._session, self._options.region)
        region = _priced_in(self._region) if service == _PRICING else self._region
        client = self._session.create_client(service, region_name=region, config=self._config())
        if service == _FIRST:
            client.meta.events.register(f"before-parse.{_FIRST}", LONG_LISTS.before_parse)
        return client

    def _config(self) -> Config:
        return Config(
            user_agent_extra=f"karpenter.sh-{__version__}",
            connect_timeout=_CONNECT_SECONDS,
            read_timeout=_READ_SECONDS,
            tcp_keepalive=True,
            max_pool_connections=self._options.threads,
            # What is made again, and when, is written in ``operations``.
            retries={"mode": "standard", "total_max_attempts": 1},
        )


def _region(session: Session, given: str) -> str:
    """The region: given, from the environment, from the profile, or where the machine is. Raises ``AwsError``."""
    named = (given, *(os.environ.get(name, "") for name in _REGION_VARIABLES), session.get_config_variable("region"))
    region = next((name for name in named if name), "") or _machine_region(session)
    if not region:
        raise AwsError(
            "NoRegion",
            "no AWS region: AWS_REGION is not set, the profile has none and no instance metadata is to be had; set AWS_REGION",
        )
    return region


def _machine_region(session: Session) -> str:
    """The region of the machine we run on, from its zone; a local zone's name (us-west-2-lax-1a) begins with its region's."""
    fetcher = InstanceMetadataRegionFetcher(
        timeout=session.get_config_variable("metadata_service_timeout"),
        num_attempts=session.get_config_variable("metadata_service_num_attempts"),
        user_agent=session.user_agent(),
    )
    found = _REGION.match(fetcher.retrieve_region() or "")
    return found.group() if found is not None else ""


def _priced_in(region: str) -> str:
    return next((where for start, where in _PRICED_IN.items() if region.startswith(start)), _PRICED_IN_ELSE)
