"""Dry runs of a launch before a node class counts as valid (AWS-115 to AWS-119, AWS-127, AWS-128, AWS-446).

One type per architecture is tried, of those the class's NodePools would launch: permissions and templates do not differ between
types, images do. Spot is tried where the NodePools allow it. Labels and taints are those of the NodePool that has most of them,
and tags are those of launches.

CreateFleet and RunInstances go through a launch template, as launches do: EC2 judges the permission to use the template, and what
the template refers to, only then. So each run makes the templates and deletes them at the end. Templates that a stopped process
left behind have the cluster's tags, and the hourly collection of launch templates deletes them. Where no template can be made,
RunInstances is tried with its data alone, so one missing permission does not hide another.
"""

from __future__ import annotations

import hashlib
import random
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
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
from karpenter.providers.aws.aws_errors import TEMPLATE_EXISTS, TEMPLATE_NOT_FOUND_CODES, AwsError, explain_denial
from karpenter.providers.aws.aws_settings import AwsClusterInfo
from karpenter.providers.aws.aws_types import tag_list
from karpenter.providers.aws.ec2_requests import (
    FleetOverride,
    FleetRequest,
    FleetTemplate,
    InstanceMarketOptionsRequest,
    LaunchTemplate,
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
_TEMPLATE_PREFIX = "karpenter.k8s.aws/dry-run-"
#: Tried where no pool says what it would launch.
_COMMON_TYPES = frozenset({"m5.large", "m6g.large"})


class DryRunCandidate(NamedTuple):
    """An instance to try: a type, its image, its capacity type, and the NodePool it would be for (None: there is none)."""

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
    tenancy = _DEDICATED if any(map(_allows_dedicated, pool_requirements)) else aws_labels.DEFAULT
    kinds = [labels.ON_DEMAND]
    if any(own.requirement_for(labels.CAPACITY_TYPE).allows(labels.SPOT) for own in pool_requirements):
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


class DryRunTrial(NamedTuple):
    """A candidate with what its launch would send. ``template`` is None where it could not be made."""

    candidate: DryRunCandidate
    data: LaunchTemplateData
    tags: DryRunTags
    template: LaunchTemplate | None = None

    @property
    def template_name(self) -> str:
        """The name of the template; equal content has an equal name, so a template that was left behind is found again."""
        digest = hashlib.sha256(msgspec.json.encode((self.data, self.tags), order="sorted")).hexdigest()
        return f"{_TEMPLATE_PREFIX}{digest[:16]}"


def dry_run_fleet_request(node_class: EC2NodeClass, trial: DryRunTrial) -> FleetRequest:
    """The CreateFleet request of a dry run: the type in every subnet (AWS-116)."""
    candidate = trial.candidate
    overrides = tuple(
        FleetOverride(
            instance_type=candidate.instance_type.name,
            subnet_id=subnet.id,
            availability_zone=subnet.zone,
            image_id=candidate.image.id,
        )
        for subnet in node_class.status.subnets
    )
    reference = TemplateReference(launch_template_name=trial.template_name)
    spot = candidate.capacity_type == labels.SPOT
    return FleetRequest(
        launch_template_configs=(FleetTemplate(launch_template_specification=reference, overrides=overrides),),
        target_capacity_specification=TargetCapacity(
            total_target_capacity=1, default_target_capacity_type=candidate.capacity_type
        ),
        tag_specifications=trial.tags.specifications(("instance", "volume", "fleet")),
        spot_options=SpotOptions(allocation_strategy="price-capacity-optimized") if spot else None,
        on_demand_options=None if spot else OnDemandOptions(allocation_strategy="lowest-price"),
        context=node_class.spec.context,
    )


def run_instances_dry_run(trial: DryRunTrial, subnet_id: str) -> RunInstancesDryRun:
    """RunInstances through the template, tagged as a launch would tag (AWS-128); with the template's data where there is none.

    EC2 takes tags of spot requests only in a request for a spot instance.
    """
    kinds, market_options = ["instance", "volume", "network-interface"], None
    if trial.candidate.capacity_type == labels.SPOT:
        kinds.append("spot-instances-request")
        market_options = InstanceMarketOptionsRequest(market_type=labels.SPOT)
    instance_type, tags = trial.candidate.instance_type.name, trial.tags.specifications(kinds)
    if trial.template is None:
        data = replace(trial.data, tag_specifications=tags, instance_market_options=market_options)
        return RunInstancesDryRun(instance_type, data, subnet_id)
    data = LaunchTemplateData(
        image_id=trial.data.image_id,
        network_interfaces=trial.data.network_interfaces,
        tag_specifications=tags,
        instance_market_options=market_options,
    )
    reference = TemplateReference(launch_template_name=trial.template_name)
    return RunInstancesDryRun(instance_type, data, subnet_id, reference)


def restricted_tags(node_class: EC2NodeClass) -> tuple[str, ...]:
    """The class's tags that are ours to set (AWS-040, AWS-108)."""
    return tuple(key for key in sorted(node_class.spec.tags) if not key or aws_labels.is_restricted_tag(key))


def _pool_uses_node_class(pool: NodePool, node_class: EC2NodeClass) -> bool:
    reference = pool.spec.template.spec.node_class_ref
    return EC2_NODE_CLASS.is_kind_of(reference) and reference.name == node_class.metadata.name


def _pool_requirements(pool: NodePool) -> Requirements:
    template = pool.spec.template
    return requirements_from_wire(template.spec.requirements).intersect(
        requirements_from_labels(template.metadata.labels)
    )


def _types_for_pools(
    node_class: EC2NodeClass, types: Sequence[InstanceType], pool_requirements: Sequence[Requirements]
) -> list[InstanceType]:
    """Types some pool would launch. Windows needs more room than the smallest types have, so there the usual ones are tried."""
    if ami_family_of(node_class.spec).is_windows:
        return []
    return [
        instance_type
        for instance_type in types
        if any(intersects(instance_type.requirements, own) for own in pool_requirements)
    ]


def _types_and_amis(node_class: EC2NodeClass, types: Sequence[InstanceType]) -> list[_TypeAndAmi]:
    return list(_iterate_types_and_amis(node_class, types))


def _iterate_types_and_amis(node_class: EC2NodeClass, types: Sequence[InstanceType]) -> Iterator[_TypeAndAmi]:
    for instance_type in types:
        image = ami_for(instance_type, node_class.status.amis)
        if image is not None:
            yield _TypeAndAmi(instance_type, image)


def _preference_order(pair: _TypeAndAmi) -> tuple[bool, bool]:
    """Types that are available now and sold everywhere come first: EC2 may refuse others for unrelated reasons."""
    instance_type = pair.instance_type
    return not any(offering.available for offering in instance_type.offerings), instance_type.name not in _COMMON_TYPES


def _allows_dedicated(requirements: Requirements) -> bool:
    """Only where the pool speaks of tenancy: default is meant otherwise, though anything is allowed."""
    return aws_labels.TENANCY in requirements and requirements[aws_labels.TENANCY].allows(_DEDICATED)


#: How long a verdict holds: drawn once per process, so that replicas and clusters that started together do not try calls of
#: launches in step (K15-A14).
_SHORTEST_RESULT_TTL, _LONGEST_RESULT_TTL = timedelta(minutes=25), timedelta(minutes=35)
_CREATE_TEMPLATE, _CREATE_FLEET, _RUN_INSTANCES = "CreateLaunchTemplate", "CreateFleet", "RunInstances"
_CALLS = (_CREATE_TEMPLATE, _CREATE_FLEET, _RUN_INSTANCES)
_UNAUTHORIZED = "UnauthorizedOperation"
_USER_DATA_TOO_LARGE = "UserDataSizeLimitExceeded"
_USER_DATA_TEXT = "User data is limited to"
_PROFILE_TEXT = "iaminstanceprofile.name is invalid"
_log = structlog.get_logger()

#: The data of the launch template of a candidate. Raises ``LaunchFailed`` for what the user should read.
DryRunTemplateData = Callable[[EC2NodeClass, DryRunCandidate], LaunchTemplateData]


class DryRunApi(LaunchTemplateApi, FleetApi, Protocol):
    """The part of EC2 that dry runs need."""


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


def result_ttl(share: float) -> timedelta:
    """How long verdicts hold in a process that drew this share, of 0 to 1 (K15-A14)."""
    return _SHORTEST_RESULT_TTL + share * (_LONGEST_RESULT_TTL - _SHORTEST_RESULT_TTL)


class LaunchDryRuns:
    """Tries the calls of a launch. ``cluster`` is the cluster as it is now; ``draw`` gives a share of 0 to 1."""

    def __init__(
        self,
        ec2: DryRunApi,
        clock: Clock,
        cluster: Callable[[], AwsClusterInfo],
        template_data: DryRunTemplateData,
        launch_batch_tag: bool = True,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._ec2 = ec2
        self._launch_batch_tag = launch_batch_tag
        self._cluster = cluster
        self._template_data = template_data
        self._cache: TTLCache[tuple[str, str], DryRunResult, datetime] = TTLCache(inf, result_ttl(draw()), clock.now)

    def cached_results(self, key: str) -> tuple[DryRunResult, ...] | None:
        """The verdicts on everything ``key`` stands for; None while one is missing (AWS-109)."""
        cached = tuple(self._cache.get((key, call)) for call in _CALLS)
        results = tuple(dry_run_result for dry_run_result in cached if dry_run_result is not None)
        return results if len(results) == len(_CALLS) else None

    async def run(
        self, node_class: EC2NodeClass, key: str, candidates: Sequence[DryRunCandidate]
    ) -> tuple[DryRunResult, ...]:
        """Make the calls whose verdict is not known; what came of each, in order. Ends at one that has to be made later.

        Raises ``AwsError`` for what says nothing about permissions.
        """
        async with AsyncExitStack() as templates:
            trials, result = await self._make_templates(node_class, candidates, templates)
            results = [self._cached(key, _CREATE_TEMPLATE, result)]
            for call, dry_run in ((_CREATE_FLEET, self._dry_run_fleet), (_RUN_INSTANCES, self._dry_run_instances)):
                if results[-1].retry:
                    break
                result = self._cache.get((key, call)) or await _first_problem(node_class, trials, dry_run)
                results.append(self._cached(key, call, result))
            return tuple(results)

    def _cached(self, key: str, call: str, result: DryRunResult) -> DryRunResult:
        if result.cacheable:
            self._cache[(key, call)] = result
        return result

    async def _make_templates(
        self, node_class: EC2NodeClass, candidates: Sequence[DryRunCandidate], cleanup: AsyncExitStack
    ) -> tuple[list[DryRunTrial], DryRunResult]:
        """Trials with their templates, which ``cleanup`` deletes, and the first problem. No template is made after it."""
        trials: list[DryRunTrial] = []
        result = DRY_RUN_PASSED
        for candidate in candidates:
            try:
                data = self._template_data(node_class, candidate)
            except LaunchFailed as error:
                result = DryRunResult(error.reason, error.message) if result.passed else result
                continue
            trial = DryRunTrial(candidate, data, self._tags(node_class, candidate))
            if result.passed:
                result = _user_data_problem(data) or result
            if result.passed:
                trial, result = await self._make_template(trial, cleanup)
            trials.append(trial)
        return trials, result

    async def _make_template(self, trial: DryRunTrial, cleanup: AsyncExitStack) -> tuple[DryRunTrial, DryRunResult]:
        try:
            template = await self._ensure_template(trial)
        except AwsError as error:
            if _USER_DATA_TEXT in error.message:
                return trial, DryRunResult(_USER_DATA_TOO_LARGE, error.message)
            return trial, _result_of(error, _CREATE_TEMPLATE)
        cleanup.push_async_callback(self._delete_template, template)
        return trial._replace(template=template), DRY_RUN_PASSED

    async def _ensure_template(self, trial: DryRunTrial) -> LaunchTemplate:
        name = trial.template_name
        try:
            (tags,) = trial.tags.specifications(("launch-template",))
            return await self._ec2.create_launch_template(name, trial.data, tags)
        except AwsError as error:
            if error.code != TEMPLATE_EXISTS:
                raise
            (template,) = await self._ec2.describe_launch_templates(names=(name,))
            return template

    async def _delete_template(self, template: LaunchTemplate) -> None:
        try:
            await self._ec2.delete_launch_template(template.launch_template_id)
        except AwsError as error:
            if error.code not in TEMPLATE_NOT_FOUND_CODES:
                name = template.launch_template_name
                _log.warning("deleting the launch template of a dry run failed", name=name, error=str(error))

    def _tags(self, node_class: EC2NodeClass, candidate: DryRunCandidate) -> DryRunTags:
        tags = aws_labels.resource_tags_for(node_class, self._cluster(), candidate.pool_name)
        batch = {aws_labels.LAUNCH_BATCH: "dry-run"} if self._launch_batch_tag else {}
        return DryRunTags(tags, {**tags, **batch})

    async def _dry_run_fleet(self, node_class: EC2NodeClass, trial: DryRunTrial) -> DryRunResult:
        """A refusal for other reasons than permissions proves nothing about them."""
        try:
            await self._ec2.dry_run_fleet(dry_run_fleet_request(node_class, trial))
        except AwsError as error:
            if _is_conclusive(error):
                return _result_of(error, _CREATE_FLEET)
            _log.debug("create fleet dry run is not conclusive", error=str(error))
            # EC2 may not know a template yet that it has just made.
            is_too_early = trial.template is not None and error.code in TEMPLATE_NOT_FOUND_CODES
            return DryRunResult(inconclusive=f"ec2:{_CREATE_FLEET} ({error.code})", cacheable=not is_too_early)
        return DRY_RUN_PASSED

    async def _dry_run_instances(self, node_class: EC2NodeClass, trial: DryRunTrial) -> DryRunResult:
        """Until one subnet works; if none does the first one's answer counts (AWS-117)."""
        first: AwsError | None = None
        for subnet in node_class.status.subnets:
            try:
                await self._ec2.dry_run_instances(run_instances_dry_run(trial, subnet.id))
                return DRY_RUN_PASSED
            except AwsError as error:
                if error.is_dry_run_passed:
                    return DRY_RUN_PASSED
                first = first or error
        return DRY_RUN_PASSED if first is None else _run_instances_result(node_class, first)


async def _first_problem(
    node_class: EC2NodeClass,
    trials: Sequence[DryRunTrial],
    dry_run: Callable[[EC2NodeClass, DryRunTrial], Awaitable[DryRunResult]],
) -> DryRunResult:
    """The first outcome that speaks against a launch, else the first that proves nothing."""
    passed = DRY_RUN_PASSED
    for trial in trials:
        outcome = await dry_run(node_class, trial)
        if not outcome.passed:
            return outcome
        passed = passed if passed.inconclusive else outcome
    return passed


def _user_data_problem(data: LaunchTemplateData) -> DryRunResult | None:
    size = len(b64decode(data.user_data))
    if size <= USER_DATA_LIMIT_BYTES:
        return None
    return DryRunResult(_USER_DATA_TOO_LARGE, f"User data has {size} bytes, EC2 takes at most {USER_DATA_LIMIT_BYTES}")


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
        return _result_of(error, _RUN_INSTANCES)
    if not node_class.spec.instance_profile:
        return DRY_RUN_RETRY  # EC2 knows a new profile of IAM within seconds
    message = f"instance profile {node_class.spec.instance_profile} does not exist"
    return DryRunResult("InstanceProfileNotFound", message, cacheable=False)
