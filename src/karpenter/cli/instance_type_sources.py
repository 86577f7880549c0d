"""Where the instance types and prices of a plan come from: a file, packaged data of a region, or EC2 as it is now."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from karpenter.cli.host_types import uses_hosts
from karpenter.cli.terminal import CommandError, WrongInput, print_error
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.instancetypes.well_known_labels import INSTANCE_LABELS, well_known_labels_of
from karpenter.model import labels

if TYPE_CHECKING:
    from karpenter.api.ec2_node_class import EC2NodeClass
    from karpenter.cli.cluster_objects import ClusterObjects
    from karpenter.cli.planning_options import InputOptions
    from karpenter.cli.region_inference import PlanRegion
    from karpenter.providers.aws.live_instance_types import LiveInstanceTypes
    from karpenter.settings import Settings

_InstanceTypes = tuple[InstanceType, ...]
#: The label keys that NodePools may select without defining them, of EC2's types.
EC2_WELL_KNOWN_LABELS = labels.WELL_KNOWN | INSTANCE_LABELS


@dataclass(frozen=True, slots=True)
class FilePrices:
    """Prices of an instance type file."""

    file: str


@dataclass(frozen=True, slots=True)
class PackagedPrices:
    """Packaged prices of a region."""

    region: PlanRegion

    @property
    def region_name(self) -> str:
        """The region."""
        return self.region.name

    def is_estimate(self, instance_type: str) -> bool:
        """Whether the price rests on the median of its region only."""
        from karpenter.instancetypes import ec2_regions

        return ec2_regions.price_ratios(self.region.name).is_estimate(instance_type)


@dataclass(frozen=True, slots=True)
class LivePrices:
    """Prices of EC2, as read at a time. Without a price list, on-demand prices are the packaged ones."""

    region_name: str
    currency: str
    read_at: datetime
    has_price_list: bool


@dataclass(frozen=True, slots=True)
class HostPrices:
    """What hosts cost by their MachineNodeClasses."""


PriceSource = FilePrices | PackagedPrices | LivePrices | HostPrices


class TypeSource(Protocol):
    """Instance types before overlays have changed them. ``load_seconds``: how long it took to read them."""

    prices: PriceSource
    load_seconds: float

    def types(self) -> _InstanceTypes:
        """The types as they are."""

    def class_types(self, node_class: EC2NodeClass) -> _InstanceTypes:
        """The types as instances of the class. Raises ``CommandError``."""


class FileTypes:
    """The types of a file. Node classes do not change them: their capacity is what the file says."""

    def __init__(self, path: str) -> None:
        from karpenter.instancetypes import instance_type_file

        begun = time.perf_counter()
        self.prices: PriceSource = FilePrices(path)
        try:
            self._types = instance_type_file.load_instance_types(path)
        except instance_type_file.InstanceTypeFileError as error:
            raise WrongInput(str(error)) from None
        self.load_seconds = time.perf_counter() - begun

    @property
    def well_known_labels(self) -> frozenset[str]:
        """The label keys that NodePools may select without defining them."""
        return well_known_labels_of(self._types) | labels.WELL_KNOWN

    def types(self) -> _InstanceTypes:
        """The types of the file."""
        return self._types

    def class_types(self, node_class: EC2NodeClass) -> _InstanceTypes:
        """The types of the file."""
        return self._types


class HostTypes:
    """Nothing is for sale but the hosts of MachineNodeClasses."""

    prices: PriceSource = HostPrices()
    load_seconds = 0.0

    def types(self) -> _InstanceTypes:
        """None."""
        return ()

    def class_types(self, node_class: EC2NodeClass) -> _InstanceTypes:
        """None."""
        return ()


class PackagedTypes:
    """The packaged types of a region."""

    def __init__(self, region: PlanRegion, settings: Settings) -> None:
        self.prices: PriceSource = PackagedPrices(region)
        self.load_seconds = 0.0  # read on first use
        self._region = region.name
        self._settings = settings

    def types(self) -> _InstanceTypes:
        """The types of the region."""
        from karpenter.instancetypes import ec2_packaged_types

        return ec2_packaged_types.packaged_instance_types(self._region)

    def class_types(self, node_class: EC2NodeClass) -> _InstanceTypes:
        """The types with the capacity that the class gives them. Reports settings without effect. Raises ``WrongInput``."""
        from karpenter.providers.aws.instancetype.nodeclass_terms import CapacitySettings, NodeClassTermsError
        from karpenter.providers.aws.instancetype.packaged_class_types import packaged_class_types
        from karpenter.providers.aws.nodeclass.nodeclass_validation import kubelet_problem

        _log_errors_only()
        expressions = self._settings.aws_feature_gates.node_class_cel
        problem = kubelet_problem(node_class.spec, expressions)
        if problem is not None:
            print_error(f"EC2NodeClass {node_class.metadata.name}: {problem.message}")
        capacity_settings = CapacitySettings(
            self._settings.vm_memory_overhead_percent, self._settings.reserved_enis, expressions
        )
        try:
            return packaged_class_types(node_class, self._region, capacity_settings)
        except NodeClassTermsError as error:
            raise WrongInput(f"EC2NodeClass {node_class.metadata.name}: {error}") from None


class LiveTypes:
    """What EC2 sells to the account of the credentials."""

    def __init__(self, live: LiveInstanceTypes, load_seconds: float) -> None:
        self.load_seconds = load_seconds
        self.prices: PriceSource = LivePrices(live.region, live.currency, live.read_at, live.has_price_list)
        self._live = live

    def types(self) -> _InstanceTypes:
        """The types of a class without settings."""
        return self._live.types()

    def class_types(self, node_class: EC2NodeClass) -> _InstanceTypes:
        """The types as the controller would see them. Raises ``WrongInput``."""
        from karpenter.providers.contract import ProviderError

        try:
            return self._live.class_types(node_class)
        except ProviderError as error:
            raise WrongInput(str(error)) from None


def choose_source(
    objects: ClusterObjects, options: InputOptions, settings: Settings, environment: Mapping[str, str]
) -> TypeSource:
    """EC2 or the packaged types, in the region of the objects, unless all NodePools use hosts. Raises ``CommandError``."""
    if objects.pools and all(map(uses_hosts, objects.pools)):
        return HostTypes()
    from karpenter.cli.region_inference import find_region, region_of_objects

    if not options.live_prices:
        return PackagedTypes(find_region(objects, options.region, environment), settings)
    named = region_of_objects(objects)
    begun = time.perf_counter()
    live = _load_live_types(options.region or (named.name if named is not None else ""), settings)
    return LiveTypes(live, time.perf_counter() - begun)


def _load_live_types(region: str, settings: Settings) -> LiveInstanceTypes:
    """The types of EC2, from the cache or from AWS; an empty region is found as the SDK finds it. Raises ``CommandError``."""
    import asyncio

    from karpenter.metrics import BuildInfo, Metrics
    from karpenter.model.clock import SystemClock
    from karpenter.providers.aws import live_instance_types as live
    from karpenter.providers.aws.aws_metrics import SdkMetrics
    from karpenter.providers.aws.aws_settings import aws_settings_of
    from karpenter.providers.aws.sdk.aws_session import AwsSession, AwsSessionOptions
    from karpenter.providers.contract import ProviderError

    _log_errors_only()
    session = AwsSession(SdkMetrics(Metrics(BuildInfo())), AwsSessionOptions(region))
    aws_settings = aws_settings_of(settings, settings.gates, settings.intervals)
    cache = live.AnswerCache(live.default_cache_directory())
    try:
        return asyncio.run(live.load_live_instance_types(session, aws_settings, cache, SystemClock()))
    except ProviderError as error:
        raise CommandError(f"{error}; or leave out --live-prices") from None
    finally:
        session.close()


def _log_errors_only() -> None:
    """The provider logs what it learns; the output of a command says what matters of it."""
    from karpenter.runtime import logging

    logging.configure("error", sys.stderr)
