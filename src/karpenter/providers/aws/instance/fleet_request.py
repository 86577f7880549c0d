"""The CreateFleet request of a plan (AWS §9.4). Pure."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import structlog

from karpenter.api.ec2_node_class import Subnet
from karpenter.model import labels
from karpenter.providers.aws import aws_errors, aws_labels
from karpenter.providers.aws.aws_apis import FleetApi
from karpenter.providers.aws.aws_errors import AwsError
from karpenter.providers.aws.aws_types import tag_list
from karpenter.providers.aws.ec2_requests import (
    FleetAnswer,
    FleetOverride,
    FleetRequest,
    FleetTemplate,
    OnDemandOptions,
    ReservedCapacityOptions,
    SpotOptions,
    TagSpecification,
    TargetCapacity,
    TemplateReference,
)
from karpenter.providers.aws.instance.launch_plan import LaunchOffering, LaunchPlan
from karpenter.providers.aws.instance.launch_templates import LaunchTemplateProvider
from karpenter.providers.contract import LaunchFailed, ProviderError

#: EC2 refuses requests with more (Beyond AWS-448).
MAX_OVERRIDES = 300


@dataclass(frozen=True)
class FleetBatch:
    """So many instances at once, under an identity that makes asking twice the same as asking once."""

    batch_id: str
    count: int
    is_tagged: bool = True


def create_fleet_request(plan: LaunchPlan, subnets: SubnetChoice, batch: FleetBatch) -> FleetRequest:
    """The request. Raises ``LaunchFailed`` where no offer is in a zone with a subnet (AWS-449)."""
    configs = tuple(_configs(plan, subnets))
    if not configs:
        raise LaunchFailed("LaunchFailed", "no capacity offerings are currently available")
    spot = _spot_strategy(plan)
    on_demand = _on_demand_strategy(plan)
    is_interruptible = plan.reservation_kind == aws_labels.INTERRUPTIBLE
    return FleetRequest(
        launch_template_configs=configs,
        target_capacity_specification=TargetCapacity(
            total_target_capacity=batch.count, default_target_capacity_type=_target_capacity_type(plan)
        ),
        tag_specifications=tuple(_tag_specifications(plan, batch)),
        spot_options=SpotOptions(allocation_strategy=spot) if spot else None,
        on_demand_options=OnDemandOptions(allocation_strategy=on_demand) if on_demand else None,
        reserved_capacity_options=ReservedCapacityOptions(reservation_types=(aws_labels.INTERRUPTIBLE,))
        if is_interruptible
        else None,
        context=plan.context or None,
        client_token=batch.batch_id,
    )


def _target_capacity_type(plan: LaunchPlan) -> str:
    """The target capacity type as CreateFleet names it (AWS-441)."""
    if plan.capacity_type == labels.SPOT:
        return "spot"
    special = {aws_labels.CAPACITY_BLOCK: aws_labels.CAPACITY_BLOCK, aws_labels.INTERRUPTIBLE: "reserved-capacity"}
    return special.get(plan.reservation_kind, "on-demand")


def _spot_strategy(plan: LaunchPlan) -> str:
    """AWS-442; empty for what is not spot."""
    if plan.capacity_type != labels.SPOT:
        return ""
    return "capacity-optimized-prioritized" if plan.is_prioritized else "price-capacity-optimized"


def _on_demand_strategy(plan: LaunchPlan) -> str:
    """AWS-443; empty for spot, blocks and interruptible reservations."""
    if _target_capacity_type(plan) != "on-demand":
        return ""
    return "prioritized" if plan.is_prioritized else "lowest-price"


def _tag_specifications(plan: LaunchPlan, batch: FleetBatch) -> Iterator[TagSpecification]:
    """The tags of AWS-446. Instances also name their batch, unless that is switched off."""
    own = {aws_labels.LAUNCH_BATCH: batch.batch_id} if batch.is_tagged else {}
    yield TagSpecification(resource_type="instance", tags=tag_list({**plan.tags, **own}))
    for kind in ("volume", "fleet"):
        yield TagSpecification(resource_type=kind, tags=tag_list(plan.tags))


def _configs(plan: LaunchPlan, subnets: SubnetChoice) -> Iterator[FleetTemplate]:
    kept = _offerings_within_limit(plan, subnets)
    for template_plan in plan.templates:
        overrides = tuple(
            _override(offer, subnets)
            for offer in template_plan.offerings
            if (template_plan.content.name, offer) in kept
        )
        if overrides:
            name = TemplateReference(launch_template_name=template_plan.content.name)
            yield FleetTemplate(launch_template_specification=name, overrides=overrides)


def _offerings_within_limit(plan: LaunchPlan, subnets: SubnetChoice) -> frozenset[tuple[str, LaunchOffering]]:
    """The offerings a request has room for: every type's cheapest zone before any type's second, and so on.

    So the limit drops the expensive zones of types that are included anyway, and keeps the choice between types. Where zones cost
    the same, types begin with different ones; else the limit would leave one zone, the first by name.
    """
    by_type: dict[str, list[tuple[str, LaunchOffering]]] = {}
    for template_plan in plan.templates:
        for offer in template_plan.offerings:
            if offer.zone in subnets.by_zone:
                by_type.setdefault(offer.instance_type, []).append((template_plan.content.name, offer))
    zones = sorted(subnets.by_zone)
    ranked: list[tuple[int, float, str, tuple[str, LaunchOffering]]] = []
    for turn, (instance_type, candidates) in enumerate(sorted(by_type.items())):
        rotated = {zone: (position + turn) % len(zones) for position, zone in enumerate(zones)}
        candidates.sort(key=lambda candidate: (candidate[1].price_per_hour, rotated[candidate[1].zone]))
        ranked += (
            (rank, candidate[1].price_per_hour, instance_type, candidate) for rank, candidate in enumerate(candidates)
        )
    ranked.sort(key=lambda entry: entry[:3])
    return frozenset(candidate for *_, candidate in ranked[:MAX_OVERRIDES])


def _override(offering: LaunchOffering, subnets: SubnetChoice) -> FleetOverride:
    """The override of one offering; its price is its priority (AWS-448)."""
    return FleetOverride(
        instance_type=offering.instance_type,
        subnet_id=subnets.by_zone[offering.zone],
        availability_zone=offering.zone,
        image_id=offering.image_id,
        priority=offering.price_per_hour,
    )


@dataclass(frozen=True)
class SubnetChoice:
    """Chosen subnets by zone; by subnet what was taken off its estimate, and how often it had been counted by then."""

    by_zone: Mapping[str, str]
    reserved: Mapping[str, int]
    counts: Mapping[str, int]


class SubnetAddresses:
    """Free addresses per subnet, as last counted less what launches in flight may take."""

    def __init__(self) -> None:
        self._free: dict[str, int] = {}
        self._estimates: dict[str, int] = {}
        self._counts: dict[str, int] = {}

    def set_free(self, free: Mapping[str, int]) -> None:
        """Record what EC2 says now. It replaces the estimates of these subnets (AWS-434)."""
        self._free.update(free)
        for subnet in free:
            self._counts[subnet] = self._counts.get(subnet, 0) + 1
            self._estimates.pop(subnet, None)

    def mark_exhausted(self, subnet: str) -> None:
        """EC2 said that there is none left (AWS-435)."""
        self._free[subnet] = 0
        self._estimates.pop(subnet, None)

    def free_in(self, subnet: str) -> int:
        """How many addresses a subnet will have; 0 where unknown."""
        return self._estimates.get(subnet, self._free.get(subnet, 0))

    def choose(self, subnets: Iterable[Subnet], needs: Mapping[str, int]) -> SubnetChoice:
        """Per zone that is needed the subnet with most addresses, the earlier of equals; ``needs`` are taken off it."""
        chosen: dict[str, str] = {}
        for subnet in subnets:
            current = chosen.get(subnet.zone)
            if subnet.zone in needs and (current is None or self.free_in(subnet.id) > self.free_in(current)):
                chosen[subnet.zone] = subnet.id
        reserved = {chosen_id: needs[zone] for zone, chosen_id in chosen.items()}
        for chosen_id, need in reserved.items():
            self._estimates[chosen_id] = self.free_in(chosen_id) - need
        return SubnetChoice(chosen, reserved, {chosen_id: self._counts.get(chosen_id, 0) for chosen_id in reserved})

    def release(self, choice: SubnetChoice, used: Iterable[str]) -> None:
        """The launch is answered: what was not used is free again, unless it was counted meanwhile (AWS-434)."""
        kept = frozenset(used)
        for subnet, need in choice.reserved.items():
            is_counted_since = choice.counts[subnet] != self._counts.get(subnet, 0)
            if subnet not in kept and not is_counted_since and subnet in self._estimates:
                self._estimates[subnet] += need


#: Pauses between attempts, in seconds: together less than what a caller waits.
RETRY_PAUSES_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
_log = structlog.get_logger()


class FleetRefused(Exception):
    """EC2 refused the call, so nothing was launched. ``error`` goes to the claims."""

    def __init__(self, error: LaunchFailed) -> None:
        super().__init__(str(error))
        self.error = error


class FleetOutcomeUnknown(Exception):
    """EC2 does not say what became of the request. ``error`` goes to the claims."""

    def __init__(self, error: ProviderError) -> None:
        super().__init__(str(error))
        self.error = error


class FleetAlreadyCreated(Exception):
    """EC2 has carried out another request of this identity: what it launched carries its tag."""


class FleetSender:
    """Sends CreateFleet."""

    def __init__(self, ec2: FleetApi, templates: LaunchTemplateProvider) -> None:
        self._ec2 = ec2
        self._templates = templates

    async def ensure_templates(self, plan: LaunchPlan) -> None:
        """Have the plan's templates made. Raises ``LaunchFailed`` (AWS-458)."""
        try:
            await asyncio.gather(*(self._templates.ensure(template_plan.content) for template_plan in plan.templates))
        except AwsError as error:
            raise aws_errors.launch_error(error, "preparing the launch template") from error

    async def delete_templates(self, plan: LaunchPlan) -> None:
        """Delete templates that no other plan shares. An error is only logged: unused templates are collected later."""
        names = {template_plan.content.name for template_plan in plan.templates}
        await asyncio.gather(*(self._templates.delete(name) for name in sorted(names)))

    def forget_templates(self, plan: LaunchPlan) -> None:
        """Its templates may be gone: look again before they are used (AWS-457)."""
        self._templates.forget(template_plan.content.name for template_plan in plan.templates)

    async def create_fleet(self, plan: LaunchPlan, request: FleetRequest) -> FleetAnswer:
        """EC2's answer. Raises ``FleetRefused``, ``FleetOutcomeUnknown`` or ``FleetAlreadyCreated``."""
        is_uncertain = has_new_templates = False
        pauses = iter(RETRY_PAUSES_SECONDS)
        while True:
            try:
                return await self._ec2.create_fleet(request)
            except AwsError as error:
                refused = error
            if refused.code == aws_errors.IDEMPOTENT_PARAMETER_MISMATCH:
                raise FleetAlreadyCreated
            is_uncertain = is_uncertain or refused.has_no_answer
            if refused.code == aws_errors.TEMPLATE_NOT_FOUND and not has_new_templates:
                has_new_templates = True
                await self._renew_templates(plan, is_uncertain)
                continue
            pause = next(pauses, None)
            if pause is None or not (refused.has_no_answer or refused.is_throttling):
                raise _final_error(aws_errors.launch_error(refused, "creating the fleet"), is_uncertain)
            _log.debug("asking for the fleet again", error=str(refused), **{"client-token": request.client_token})
            await asyncio.sleep(pause)

    async def _renew_templates(self, plan: LaunchPlan, is_uncertain: bool) -> None:
        """Create the launch templates again after EC2 reported that one no longer exists."""
        self.forget_templates(plan)
        try:
            await self.ensure_templates(plan)
        except LaunchFailed as error:
            raise _final_error(error, is_uncertain) from error


def _final_error(error: LaunchFailed, is_uncertain: bool) -> FleetRefused | FleetOutcomeUnknown:
    return FleetOutcomeUnknown(error) if is_uncertain else FleetRefused(error)
