"""The CreateFleet request of a plan (AWS §9.4). Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from karpenter.model import labels
from karpenter.providers.aws import names
from karpenter.providers.aws.launch.addresses import Places
from karpenter.providers.aws.launch.plan import LaunchPlan, Offer, TemplatePlan
from karpenter.providers.aws.shapes import (
    FleetOverride,
    FleetRequest,
    FleetTemplate,
    OnDemandOptions,
    ReservedCapacityOptions,
    SpotOptions,
    TagSpecification,
    TargetCapacity,
    TemplateReference,
    tags,
)
from karpenter.providers.contract import LaunchFailed

#: EC2 refuses requests with more (Beyond AWS-448).
MOST_OVERRIDES = 300


@dataclass(frozen=True)
class Purchase:
    """So many machines at once, under an identity that makes asking twice the same as asking once."""

    batch: str
    count: int


def request(plan: LaunchPlan, places: Places, purchase: Purchase) -> FleetRequest:
    """The request. Raises ``LaunchFailed`` where no offer is in a zone with a subnet (AWS-449)."""
    configs = tuple(_configs(plan, places))
    if not configs:
        raise LaunchFailed("LaunchFailed", "no capacity offerings are currently available")
    spot = _spot_strategy(plan)
    on_demand = _on_demand_strategy(plan)
    is_interruptible = plan.reservation_kind == names.INTERRUPTIBLE
    return FleetRequest(
        launch_template_configs=configs,
        target_capacity_specification=TargetCapacity(
            total_target_capacity=purchase.count, default_target_capacity_type=_target_type(plan)
        ),
        tag_specifications=tuple(_tag_specifications(plan, purchase.batch)),
        spot_options=SpotOptions(allocation_strategy=spot) if spot else None,
        on_demand_options=OnDemandOptions(allocation_strategy=on_demand) if on_demand else None,
        reserved_capacity_options=ReservedCapacityOptions(reservation_types=(names.INTERRUPTIBLE,))
        if is_interruptible
        else None,
        context=plan.context or None,
        client_token=purchase.batch,
    )


def _target_type(plan: LaunchPlan) -> str:
    """AWS-441."""
    if plan.capacity_type == labels.SPOT:
        return "spot"
    special = {names.CAPACITY_BLOCK: names.CAPACITY_BLOCK, names.INTERRUPTIBLE: "reserved-capacity"}
    return special.get(plan.reservation_kind, "on-demand")


def _spot_strategy(plan: LaunchPlan) -> str:
    """AWS-442; empty for what is not spot."""
    if plan.capacity_type != labels.SPOT:
        return ""
    return "capacity-optimized-prioritized" if plan.is_prioritized else "price-capacity-optimized"


def _on_demand_strategy(plan: LaunchPlan) -> str:
    """AWS-443; empty for spot, blocks and interruptible reservations."""
    if _target_type(plan) != "on-demand":
        return ""
    return "prioritized" if plan.is_prioritized else "lowest-price"


def _tag_specifications(plan: LaunchPlan, batch: str) -> Iterator[TagSpecification]:
    """AWS-446; instances also say which purchase they came from."""
    yield TagSpecification(resource_type="instance", tags=tags({**plan.tags, names.BATCH: batch}))
    for kind in ("volume", "fleet"):
        yield TagSpecification(resource_type=kind, tags=tags(plan.tags))


def _configs(plan: LaunchPlan, places: Places) -> Iterator[FleetTemplate]:
    kept = _kept(plan, places)
    for item in plan.templates:
        overrides = tuple(_override(offer, places) for offer in item.offers if (item.content.name, offer) in kept)
        if overrides:
            name = TemplateReference(launch_template_name=item.content.name)
            yield FleetTemplate(launch_template_specification=name, overrides=overrides)


def _kept(plan: LaunchPlan, places: Places) -> frozenset[tuple[str, Offer]]:
    """The offers a request has room for: every type's cheapest zone before any type's second, and so on.

    So the limit costs the dear zones of types that are there anyway, not the choice between types.
    """
    ranked: list[tuple[int, float, str, str, TemplatePlan, Offer]] = []
    seen: dict[str, int] = {}
    for item in plan.templates:
        for offer in item.offers:
            if offer.zone in places.by_zone:
                rank = seen.get(offer.instance_type, 0)
                seen[offer.instance_type] = rank + 1
                ranked.append((rank, offer.price_per_hour, offer.instance_type, offer.zone, item, offer))
    ranked.sort(key=lambda entry: entry[:4])
    return frozenset((item.content.name, offer) for *_, item, offer in ranked[:MOST_OVERRIDES])


def _override(offer: Offer, places: Places) -> FleetOverride:
    """AWS-448."""
    return FleetOverride(
        instance_type=offer.instance_type,
        subnet_id=places.by_zone[offer.zone],
        availability_zone=offer.zone,
        image_id=offer.image_id,
        priority=offer.price_per_hour,
    )
