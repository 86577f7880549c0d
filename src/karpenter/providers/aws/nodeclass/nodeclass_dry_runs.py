"""Dry runs of a launch before a node class counts as valid (AWS-115 to AWS-119, AWS-127, AWS-128, AWS-446).

One type per architecture is tried, of those the class's NodePools would buy: permissions and templates do not differ between
types, images do. Spot is tried where the NodePools allow it. Labels and taints are those of the NodePool that has most of them,
and tags are those of launches. RunInstances is tried with the data of the template, not through one, which would have to exist.
"""

from __future__ import annotations

import hashlib
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from math import inf
from typing import NamedTuple, Protocol

import msgspec
import structlog
from cachetools import TTLCache
from msgspec.structs import replace

from karpenter.api.ec2_node_class import AMI, EC2NodeClass
from karpenter.api.karpenter import NodePool
from karpenter.api.kinds import EC2_NODE_CLASS
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.model import labels
from karpenter.model.clock import Clock
from karpenter.model.requirements import Requirements, intersects, requirements_from_labels, requirements_from_wire
from karpenter.providers.aws import aws_labels
from karpenter.providers.aws.aws_apis import FleetApi, LaunchTemplateApi, RunInstancesDryRun
from karpenter.providers.aws.aws_errors import AwsError, explain_denial
from karpenter.providers.aws.aws_settings import AwsClusterInfo
from karpenter.providers.aws.aws_types import tag_list
from karpenter.providers.aws.ec2_requests import (
    FleetOverride,
    FleetRequest,
    FleetTemplate,
    LaunchTemplateData,
    OnDemandOptions,
    SpotOptions,
    TagSpecification,
    TargetCapacity,
    TemplateReference,
)
from karpenter.providers.aws.nodeclass.ami_selection import ami_for, is_standard_ami
from karpenter.providers.aws.userdata.ami_families import ami_family_of
from karpenter.providers.aws.userdata.user_data import USER_DATA_LIMIT_BYTES
from karpenter.providers.contract import LaunchFailed

_DEDICATED = "dedicated"
#: Tried where no pool says what it would buy.
_COMMON_TYPES = frozenset({"m5.large", "m6g.large"})


class DryRunCandidate(NamedTuple):
    """An instance to try: a type, its image, how it would be bought, and the NodePool it would be for (None: there is none)."""

    instance_type: InstanceType
    image: AMI
    capacity_type: str
    tenancy: str
    pool: NodePool | None = None

    @property
    def pool_name(self) -> str:
        """The name of the NodePool, empty without one."""
        return self.pool.metadata.name if self.pool is not None else ""


#: Whether instances of the class can be made of a type at all (AWS-340).
TypeFits = Callable[[EC2NodeClass, InstanceType], bool]


class _TypeAndAmi(NamedTuple):
    instance_type: InstanceType
    image: AMI


def dry_run_candidates(
    node_class: EC2NodeClass, pools: Iterable[NodePool], types: Sequence[InstanceType], fits: TypeFits
) -> tuple[DryRunCandidate, ...]:
    """What to try; empty where no type fits any of the class's images. ``types`` are all of the class."""
    own_pools = node_pools_of(node_class, pools)
    pool_requirements = [_pool_requirements(pool) for pool in own_pools]
    fitting = [instance_type for instance_type in types if fits(node_class, instance_type)]
    pairs = _types_and_amis(node_class, _types_for_pools(node_class, fitting, pool_requirements))
    pairs = (
        pairs
        or _types_and_amis(
            node_class, [instance_type for instance_type in types if instance_type.name in _COMMON_TYPES]
        )
        or _types_and_amis(node_class, types)
    )
    # Images for accelerators may need larger volumes than the class has.
    preferred = [pair for pair in pairs if is_standard_ami(pair.image)] or pairs
    chosen: dict[frozenset[str], _TypeAndAmi] = {}
    for pair in sorted(preferred, key=_preference_order):
        chosen.setdefault(pair.instance_type.requirements.requirement_for(labels.ARCH).values, pair)
    tenancy = _DEDICATED if any(_allows_dedicated(wish) for wish in pool_requirements) else aws_labels.DEFAULT
    kinds = [labels.ON_DEMAND]
    if any(wish.requirement_for(labels.CAPACITY_TYPE).allows(labels.SPOT) for wish in pool_requirements):
        kinds.append(labels.SPOT)
    # The one with the most to write into user data, whose size EC2 limits.
    largest = max(own_pools, key=_boot_data_length, default=None)
    return tuple(
        DryRunCandidate(pair.instance_type, pair.image, kind, tenancy, largest)
        for pair in chosen.values()
        for kind in kinds
    )


def node_pools_of(node_class: EC2NodeClass, pools: Iterable[NodePool]) -> tuple[NodePool, ...]:
    """The NodePools that use the class, by name."""
    own = (pool for pool in pools if _pool_uses_node_class(pool, node_class))
    return tuple(sorted(own, key=lambda pool: pool.metadata.name))


def _boot_data_length(pool: NodePool) -> int:
    template = pool.spec.template
    return len(msgspec.json.encode((template.metadata.labels, template.spec.taints, template.spec.startup_taints)))


def dry_run_fleet_request(
    node_class: EC2NodeClass, tags: DryRunTags, candidate: DryRunCandidate, template: str
) -> FleetRequest:
    """The CreateFleet request of a dry run: the type in every subnet (AWS-116)."""
    overrides = tuple(
        FleetOverride(
            instance_type=candidate.instance_type.name,
            subnet_id=subnet.id,
            availability_zone=subnet.zone,
            image_id=candidate.image.id,
        )
        for subnet in node_class.status.subnets
    )
    reference = TemplateReference(launch_template_name=template)
    spot = candidate.capacity_type == labels.SPOT
    return FleetRequest(
        launch_template_configs=(FleetTemplate(launch_template_specification=reference, overrides=overrides),),
        target_capacity_specification=TargetCapacity(
            total_target_capacity=1, default_target_capacity_type=candidate.capacity_type
        ),
        tag_specifications=tags.specifications(("instance", "volume", "fleet")),
        spot_options=SpotOptions(allocation_strategy="price-capacity-optimized") if spot else None,
        on_demand_options=None if spot else OnDemandOptions(allocation_strategy="lowest-price"),
        context=node_class.spec.context,
    )


def run_instances_data(tags: DryRunTags, data: LaunchTemplateData) -> LaunchTemplateData:
    """A template's data as RunInstances is tried with it: tagged as a launch would tag it (AWS-128)."""
    return replace(data, tag_specifications=tags.specifications(("instance", "volume", "network-interface")))


class DryRunTags(NamedTuple):
    """The tags of a launch, by which policies may judge it (AWS-446, AWS-721); instances have more than other resources."""

    resource: Mapping[str, str]
    instance: Mapping[str, str]

    def specifications(self, kinds: Iterable[str]) -> tuple[TagSpecification, ...]:
        """The tags of resources of these kinds."""
        return tuple(
            TagSpecification(resource_type=kind, tags=tag_list(self.instance if kind == "instance" else self.resource))
            for kind in kinds
        )


def restricted_tags(node_class: EC2NodeClass) -> tuple[str, ...]:
    """The class's tags that are ours to set (AWS-040, AWS-108)."""
    return tuple(key for key in sorted(node_class.spec.tags) if not key or aws_labels.is_restricted_tag(key))


def _pool_uses_node_class(pool: NodePool, node_class: EC2NodeClass) -> bool:
    reference = pool.spec.template.spec.node_class_ref
    kind = EC2_NODE_CLASS
    return (reference.group, reference.kind, reference.name) == (kind.group, kind.name, node_class.metadata.name)


def _pool_requirements(pool: NodePool) -> Requirements:
    template = pool.spec.template
    return requirements_from_wire(template.spec.requirements).intersect(
        requirements_from_labels(template.metadata.labels)
    )


def _types_for_pools(
    node_class: EC2NodeClass, types: Sequence[InstanceType], pool_requirements: Sequence[Requirements]
) -> list[InstanceType]:
    """Types some pool would buy. Windows needs more room than the smallest types have, so there the usual ones are tried."""
    if ami_family_of(node_class.spec).is_windows:
        return []
    return [
        instance_type
        for instance_type in types
        if any(intersects(instance_type.requirements, wish) for wish in pool_requirements)
    ]


def _types_and_amis(node_class: EC2NodeClass, types: Sequence[InstanceType]) -> list[_TypeAndAmi]:
    return list(_iterate_types_and_amis(node_class, types))


def _iterate_types_and_amis(node_class: EC2NodeClass, types: Sequence[InstanceType]) -> Iterator[_TypeAndAmi]:
    for instance_type in types:
        image = ami_for(instance_type, node_class.status.amis)
        if image is not None:
            yield _TypeAndAmi(instance_type, image)


def _preference_order(pair: _TypeAndAmi) -> tuple[bool, bool]:
    """Types that can be had now and are sold everywhere come first: EC2 refuses others for reasons of their own."""
    instance_type = pair.instance_type
    return not any(offering.available for offering in instance_type.offerings), instance_type.name not in _COMMON_TYPES


def _allows_dedicated(requirements: Requirements) -> bool:
    """Only where the pool speaks of tenancy: default is meant otherwise, though anything is allowed."""
    return aws_labels.TENANCY in requirements and requirements[aws_labels.TENANCY].allows(_DEDICATED)


_RESULT_TTL = timedelta(minutes=30)
_UNAUTHORIZED = "UnauthorizedOperation"
_USER_DATA_TOO_LARGE = "UserDataSizeLimitExceeded"
_USER_DATA_TEXT = "User data is limited to"
_PROFILE_TEXT = "iaminstanceprofile.name is invalid"
_log = structlog.get_logger()

#: The data of the launch template for a trial. Raises ``LaunchFailed`` for what the user should read.
DryRunTemplateData = Callable[[EC2NodeClass, DryRunCandidate], LaunchTemplateData]


class DryRunApi(LaunchTemplateApi, FleetApi, Protocol):
    """The part of EC2 that is tried."""


class DryRunResult(NamedTuple):
    """The outcome of a call: refused for a ``reason``, to be tried again (``retry``), or passed.

    One that passed may have proven nothing; ``inconclusive`` says why. ``cacheable`` outcomes hold for a while.
    """

    reason: str = ""
    message: str = ""
    retry: bool = False
    cacheable: bool = True
    inconclusive: str = ""

    @property
    def passed(self) -> bool:
        """Whether nothing speaks against a launch."""
        return not self.reason and not self.retry


DRY_RUN_PASSED = DryRunResult()
DRY_RUN_RETRY = DryRunResult(retry=True, cacheable=False)


class LaunchDryRuns:
    """Tries trials. ``cluster`` tells the cluster as it is now."""

    def __init__(
        self,
        ec2: DryRunApi,
        clock: Clock,
        cluster: Callable[[], AwsClusterInfo],
        template_data: DryRunTemplateData,
        launch_batch_tag: bool = True,
    ) -> None:
        self._ec2 = ec2
        self._launch_batch_tag = launch_batch_tag
        self._cluster = cluster
        self._template_data = template_data
        self._cache: TTLCache[tuple[str, str], DryRunResult, datetime] = TTLCache(inf, _RESULT_TTL, clock.now)
        self._calls: tuple[tuple[str, Callable[[EC2NodeClass, DryRunCandidate], Awaitable[DryRunResult]]], ...] = (
            ("CreateLaunchTemplate", self._dry_run_template),
            ("CreateFleet", self._dry_run_fleet),
            ("RunInstances", self._dry_run_instances),
        )

    def cached_results(self, key: str) -> tuple[DryRunResult, ...] | None:
        """The verdicts on everything ``key`` stands for; None while one is missing (AWS-109)."""
        cached = tuple(self._cache.get((key, name)) for name, _ in self._calls)
        results = tuple(dry_run_result for dry_run_result in cached if dry_run_result is not None)
        return results if len(results) == len(self._calls) else None

    async def run(
        self, node_class: EC2NodeClass, key: str, candidates: Sequence[DryRunCandidate]
    ) -> tuple[DryRunResult, ...]:
        """Make the calls whose verdict is not known; what came of each, in order. Ends at one that has to be made later.

        Raises ``AwsError`` for what says nothing about permissions.
        """
        results: list[DryRunResult] = []
        for name, call in self._calls:
            outcome = self._cache.get((key, name)) or await _first_problem(node_class, candidates, call)
            if outcome.cacheable:
                self._cache[(key, name)] = outcome
            results.append(outcome)
            if outcome.retry:
                break
        return tuple(results)

    async def _dry_run_template(self, node_class: EC2NodeClass, candidate: DryRunCandidate) -> DryRunResult:
        try:
            data = self._template_data(node_class, candidate)
        except LaunchFailed as error:
            return DryRunResult(error.reason, error.message)
        size = len(b64decode(data.user_data))
        if size > USER_DATA_LIMIT_BYTES:
            return DryRunResult(
                _USER_DATA_TOO_LARGE, f"User data has {size} bytes, EC2 takes at most {USER_DATA_LIMIT_BYTES}"
            )
        try:
            (tags,) = self._tags(node_class, candidate).specifications(("launch-template",))
            await self._ec2.create_launch_template(_template_name(node_class), data, tags, dry_run=True)
        except AwsError as error:
            if _USER_DATA_TEXT in error.message:
                return DryRunResult(_USER_DATA_TOO_LARGE, error.message)
            return _result_of(error, "CreateLaunchTemplate")
        return DRY_RUN_PASSED

    async def _dry_run_fleet(self, node_class: EC2NodeClass, candidate: DryRunCandidate) -> DryRunResult:
        """A refusal for other reasons than permissions proves nothing: the template, for one, does not exist."""
        try:
            name = _template_name(node_class)
            tags = self._tags(node_class, candidate)
            await self._ec2.dry_run_fleet(dry_run_fleet_request(node_class, tags, candidate, name))
        except AwsError as error:
            if _is_conclusive(error):
                return _result_of(error, "CreateFleet")
            _log.debug("create fleet dry run is not conclusive", error=str(error))
            return DryRunResult(inconclusive=f"ec2:CreateFleet ({error.code})")
        return DRY_RUN_PASSED

    def _tags(self, node_class: EC2NodeClass, candidate: DryRunCandidate) -> DryRunTags:
        tags = aws_labels.resource_tags_for(node_class, self._cluster(), candidate.pool_name)
        batch = {aws_labels.LAUNCH_BATCH: "dry-run"} if self._launch_batch_tag else {}
        return DryRunTags(tags, {**tags, **batch})

    async def _dry_run_instances(self, node_class: EC2NodeClass, candidate: DryRunCandidate) -> DryRunResult:
        """Until one subnet works; if none does the first one's answer counts (AWS-117)."""
        try:
            data = run_instances_data(self._tags(node_class, candidate), self._template_data(node_class, candidate))
        except LaunchFailed:
            return DRY_RUN_PASSED  # which the trial of the template has told
        first: AwsError | None = None
        for subnet in node_class.status.subnets:
            name = _template_name(node_class)
            tried = RunInstancesDryRun(name, candidate.instance_type.name, data, subnet.id)
            try:
                await self._ec2.dry_run_instances(tried)
                return DRY_RUN_PASSED
            except AwsError as error:
                if error.is_dry_run_passed:
                    return DRY_RUN_PASSED
                first = first or error
        return DRY_RUN_PASSED if first is None else _run_instances_result(node_class, first)


async def _first_problem(
    node_class: EC2NodeClass,
    candidates: Sequence[DryRunCandidate],
    call: Callable[[EC2NodeClass, DryRunCandidate], Awaitable[DryRunResult]],
) -> DryRunResult:
    """The first outcome that speaks against a launch, else the first that proves nothing."""
    passed = DRY_RUN_PASSED
    for candidate in candidates:
        outcome = await call(node_class, candidate)
        if not outcome.passed:
            return outcome
        passed = passed if passed.inconclusive else outcome
    return passed


def _is_conclusive(error: AwsError) -> bool:
    return error.is_dry_run_passed or error.code == _UNAUTHORIZED or _is_transient(error)


def _is_transient(error: AwsError) -> bool:
    """Whether it will be over by itself."""
    return error.is_throttling or error.has_no_answer


def _result_of(error: AwsError, call: str) -> DryRunResult:
    if error.is_dry_run_passed:
        return DRY_RUN_PASSED
    if error.code == _UNAUTHORIZED:
        return DryRunResult(
            f"{call}AuthCheckFailed", f"Controller isn't authorized to call ec2:{call}: {explain_denial(str(error))}"
        )
    if _is_transient(error):
        return DRY_RUN_RETRY
    raise error


def _run_instances_result(node_class: EC2NodeClass, error: AwsError) -> DryRunResult:
    if _PROFILE_TEXT not in error.message.lower():
        return _result_of(error, "RunInstances")
    if not node_class.spec.instance_profile:
        return DRY_RUN_RETRY  # IAM tells EC2 of a new profile within seconds
    message = f"instance profile {node_class.spec.instance_profile} does not exist"
    return DryRunResult("InstanceProfileNotFound", message, cacheable=False)


def _template_name(node_class: EC2NodeClass) -> str:
    digest = hashlib.sha256(node_class.metadata.name.encode()).hexdigest()[:16]
    return f"karpenter.k8s.aws/trial-{digest}"
