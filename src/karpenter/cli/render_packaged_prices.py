"""The packaged prices of a plan as lines and as data. Plans with a file of types do not load the tables of EC2 for it."""

from __future__ import annotations

from collections.abc import Iterator

from karpenter.cli.instance_type_sources import PackagedPrices
from karpenter.cli.region_inference import PlanRegion
from karpenter.cli.render_common import Json, names_text
from karpenter.instancetypes import ec2_packaged_types, ec2_regions
from karpenter.scheduling.solution import Solution

_SHOWN_TYPES = 3


def packaged_lines(prices: PackagedPrices, plan: Solution) -> Iterator[str]:
    """Region and dates of the prices, and which prices of the plan are estimated."""
    region = prices.region
    yield f"prices: packaged for {region.name} ({f'from {region.basis}' if region.basis else 'assumed'})"
    if not region.basis:
        yield "  nothing names a region: set --region or AWS_REGION"
    yield f"  on-demand: {_on_demand_text(region)}"
    yield f"  spot: savings of {ec2_packaged_types.SPOT_DATE} in {_spot_region(region)}"
    if not ec2_regions.ec2_regions()[region.name].offerings_listed:
        yield "  which zones offer which types is assumed"
    estimated = estimated_types(prices, plan)
    if estimated:
        yield f"  estimated with the region's median ratio: {names_text(estimated, _SHOWN_TYPES)}"


def _on_demand_text(region: PlanRegion) -> str:
    base, date = ec2_regions.BASE_REGION, ec2_packaged_types.ON_DEMAND_DATE
    return date if region.name == base else f"{date} in {base}, times ratios of {ec2_regions.PRICE_RATIO_DATE}"


def _spot_region(region: PlanRegion) -> str:
    """The region whose spot savings count; single types may still have those of the base region."""
    return region.name if ec2_regions.spot_percents(region.name) else ec2_regions.BASE_REGION


def estimated_types(prices: PackagedPrices, plan: Solution) -> list[str]:
    """Instance types of new nodes whose price is estimated."""
    return sorted(filter(prices.is_estimate, {claim.instance_types[0] for claim in plan.new_claims}))


def packaged_data(prices: PackagedPrices, plan: Solution) -> Json:
    """The same as data."""
    region = prices.region
    listed = ec2_regions.ec2_regions()[region.name].offerings_listed
    return {
        "source": "packaged",
        "region": region.name,
        "regionBasis": region.basis or "assumed",
        "onDemandDate": ec2_packaged_types.ON_DEMAND_DATE,
        "regionRatioDate": None if region.name == ec2_regions.BASE_REGION else ec2_regions.PRICE_RATIO_DATE,
        "spotSavingsDate": ec2_packaged_types.SPOT_DATE,
        "spotSavingsRegion": _spot_region(region),
        "offerings": "listed" if listed else "assumed",
        "estimatedTypes": estimated_types(prices, plan),
    }
