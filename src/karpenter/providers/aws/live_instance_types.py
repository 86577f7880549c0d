"""Instance types and prices as EC2 has them now, for commands that plan outside the controller, with a cache on disk.

The controller refreshes instance types and prices while it runs (``instance_type_provider``). A command runs for a second, so it
keeps EC2's answers in a file for half an hour: as long as the controller keeps a spot price. The cache is per account, because
accounts have their own names of zones. The same provider makes the types of a class from the answers, so a plan and the
controller choose from the same types. Not known here: offerings EC2 refused lately, learned memory, zonal shifts, placement
groups, and how many instances of a capacity reservation are left (a reservation counts as full).
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from karpenter.api.ec2_node_class import EC2NodeClass, EC2NodeClassSpec, Subnet
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.model.clock import Clock
from karpenter.providers.aws.aws_apis import AwsApis, InstanceTypeApi, PricingApi
from karpenter.providers.aws.aws_errors import AwsError
from karpenter.providers.aws.aws_partitions import partition_of
from karpenter.providers.aws.aws_settings import AwsSettings
from karpenter.providers.aws.ec2_descriptions import InstanceTypeInfo, InstanceTypeOffering, SpotPrice
from karpenter.providers.aws.instancetype import ec2_pricing
from karpenter.providers.aws.instancetype.instance_type_provider import InstanceTypeCaches, InstanceTypeProvider
from karpenter.providers.contract import ProviderError

#: How long answers are used without asking again.
DEFAULT_MAX_AGE = timedelta(minutes=30)
_FORMAT_VERSION = 1


class LiveConnection(Protocol):
    """The part of ``AwsSession`` that is needed."""

    @property
    def services(self) -> AwsApis:
        """All APIs."""

    async def open(self) -> str:
        """Find the region. Raises ``AwsError``."""


class Ec2Answers(msgspec.Struct, frozen=True, kw_only=True):
    """What EC2 and the price list say of a region. Prices are by type, spot prices as EC2 lists them."""

    read_at: datetime
    types: tuple[InstanceTypeInfo, ...]
    offerings: tuple[InstanceTypeOffering, ...]
    on_demand_prices: dict[str, float]
    spot_prices: tuple[SpotPrice, ...]
    format_version: int = _FORMAT_VERSION

    async def describe_instance_types(self) -> tuple[InstanceTypeInfo, ...]:
        """See ``InstanceTypeApi``: the types as they were read."""
        return self.types

    async def describe_instance_type_offerings(self) -> tuple[InstanceTypeOffering, ...]:
        """See ``InstanceTypeApi``: the offerings as they were read."""
        return self.offerings

    async def describe_spot_price_history(self) -> tuple[SpotPrice, ...]:
        """See ``InstanceTypeApi``: the spot prices as they were read."""
        return self.spot_prices


class AnswerCache(NamedTuple):
    """Answers as files of a directory. Answers older than ``max_age`` are read again; zero reads always."""

    directory: Path
    max_age: timedelta = DEFAULT_MAX_AGE

    def load(self, account: str, region: str, now: datetime) -> Ec2Answers | None:
        """Answers that are young enough; None without any. A file of another version or a damaged one counts as none."""
        try:
            answers = msgspec.json.decode(self._path(account, region).read_bytes(), type=Ec2Answers)
        except (OSError, msgspec.DecodeError):
            return None
        is_young = timedelta(0) <= now - answers.read_at < self.max_age
        return answers if is_young and answers.format_version == _FORMAT_VERSION else None

    def store(self, account: str, region: str, answers: Ec2Answers) -> None:
        """Keep answers. Another process sees the old file or the new one, never a part. Raises ``OSError``."""
        path = self._path(account, region)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_bytes(msgspec.json.encode(answers))
        partial.replace(path)

    def _path(self, account: str, region: str) -> Path:
        return self.directory / f"ec2-{account}-{region}.json"


def default_cache_directory() -> Path:
    """Where commands keep answers: ``$XDG_CACHE_HOME/karpenter``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "karpenter"


class LiveInstanceTypes:
    """The instance types of a region with live offerings and prices. Make one with ``load_live_instance_types``.

    ``read_at`` is when EC2 gave the answers; prices are in ``currency``. Without a price list that can be reached,
    ``has_price_list`` is False and on-demand prices are the packaged ones, as in the controller.
    """

    def __init__(self, region: str, answers: Ec2Answers, provider: InstanceTypeProvider) -> None:
        self.region = region
        self.read_at = answers.read_at
        self.currency = partition_of(region).currency
        self.has_price_list = bool(answers.on_demand_prices)
        self._provider = provider
        self._zones = sorted({offering.location for offering in answers.offerings})

    def class_types(self, node_class: EC2NodeClass) -> tuple[InstanceType, ...]:
        """The types as instances of the class. Raises ``ProviderError`` for a class nothing can be made of.

        A class whose status names no subnet, as one read from a file, counts as having one in every zone.
        """
        if not node_class.status.subnets:
            subnets = tuple(Subnet(id=f"subnet-assumed-in-{zone}", zone=zone) for zone in self._zones)
            node_class = replace(node_class, status=replace(node_class.status, subnets=subnets))
        return self._provider.types_for(node_class)

    def types(self) -> tuple[InstanceType, ...]:
        """The types for a NodePool without an EC2NodeClass: those of a class without settings."""
        return self.class_types(EC2NodeClass(spec=EC2NodeClassSpec(ami_family="AL2023")))


async def load_live_instance_types(
    connection: LiveConnection, settings: AwsSettings, cache: AnswerCache, clock: Clock
) -> LiveInstanceTypes:
    """The instance types of the region of the connection, from the cache or from EC2.

    Raises ``ProviderError`` with one line where AWS cannot be asked. A cache that cannot be written is no error.
    """
    try:
        region = await connection.open()
        account = _account_of(await connection.services.sts.get_caller_identity())
    except AwsError as error:
        raise ProviderError(f"live prices: {error}; set AWS_REGION, and AWS_PROFILE or other credentials") from error
    answers = await cached_answers(connection.services, cache, account, region, clock.now())
    return await live_instance_types(answers, region, settings, clock)


async def cached_answers(services: AwsApis, cache: AnswerCache, account: str, region: str, now: datetime) -> Ec2Answers:
    """The answers of the cache, or else of EC2 and the price list. Raises ``ProviderError``."""
    answers = cache.load(account, region, now)
    if answers is None:
        answers = await read_answers(services.ec2, services.pricing, region, now)
        with suppress(OSError):  # the next command asks again
            cache.store(account, region, answers)
    return answers


async def read_answers(ec2: InstanceTypeApi, pricing: PricingApi, region: str, now: datetime) -> Ec2Answers:
    """Ask EC2 and the price list. Raises ``ProviderError``."""
    try:
        types, offerings, spot_prices, on_demand_prices = await asyncio.gather(
            ec2.describe_instance_types(),
            ec2.describe_instance_type_offerings(),
            ec2.describe_spot_price_history(),
            ec2_pricing.read_price_list(pricing, region),
        )
    except AwsError as error:
        raise ProviderError(f"live prices: {error}") from error
    return Ec2Answers(
        read_at=now, types=types, offerings=offerings, on_demand_prices=on_demand_prices, spot_prices=spot_prices
    )


async def live_instance_types(
    answers: Ec2Answers, region: str, settings: AwsSettings, clock: Clock
) -> LiveInstanceTypes:
    """The types that answers describe. Raises ``ProviderError`` where there are none."""
    caches = InstanceTypeCaches.empty(clock)
    provider = InstanceTypeProvider(answers, _NoPriceList(), settings, region, clock, caches)
    await provider.refresh_types()
    provider.prices.set_on_demand(answers.on_demand_prices)
    provider.prices.set_spot(ec2_pricing.parse_spot_prices(answers.spot_prices), answers.read_at)
    return LiveInstanceTypes(region, answers, provider)


class _NoPriceList:
    """Implements ``PricingApi`` and is never called: ``Ec2Answers`` has the prices already."""

    async def get_products(self, filters: object) -> tuple[str, ...]:
        """See ``PricingApi``."""
        return ()


def _account_of(arn: str) -> str:
    """The account of a caller's ARN."""
    return arn.split(":")[4] if arn.count(":") > 4 else ""
