"""Where the prices of a plan come from: lines for people, data for programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from karpenter.cli.plan_catalogs import PriceSource
from karpenter.cli.region_inference import PlanRegion
from karpenter.cli.render_common import Json, names_text
from karpenter.instancetypes import ec2_catalog, ec2_regions
from karpenter.scheduling.solution import Solution

_SHOWN_TYPES = 3


def price_lines(source: PriceSource, plan: Solution) -> Iterator[str]:
    """Region, source and date of prices, and which prices of the plan are estimated."""
    region = source.region
    if region is None:
        yield f"prices: of the instance type file {source.file.rpartition('/')[2]}"
        return
    basis = f"from {region.basis}" if region.basis else "assumed: nothing names a region, set --region or AWS_REGION"
    yield f"prices: packaged for {region.name} ({basis})"
    yield f"  {_dates_text(region)}"
    if not ec2_regions.ec2_regions()[region.name].offerings_listed:
        yield "  which zones offer which types is assumed"
    estimated = estimated_types(source, plan)
    if estimated:
        yield f"  estimated with the region's median ratio: {names_text(estimated, _SHOWN_TYPES)}"


def _dates_text(region: PlanRegion) -> str:
    on_demand, spot = f"on-demand {ec2_catalog.ON_DEMAND_DATE}", f"spot savings {ec2_catalog.SPOT_DATE}"
    if region.name == ec2_regions.BASE_REGION:
        return f"{on_demand}, {spot}"
    base = ec2_regions.BASE_REGION
    return f"{on_demand} in {base} x ratios {ec2_regions.PRICE_RATIO_DATE}, {spot}"


def estimated_types(source: PriceSource, plan: Solution) -> list[str]:
    """Types that the plan buys at an estimated price."""
    return sorted(filter(source.is_estimate, _bought_types(plan)))


def _bought_types(plan: Solution) -> Iterable[str]:
    return {claim.instance_types[0] for claim in plan.new_claims}


def price_data(source: PriceSource, plan: Solution) -> Json:
    """The same as data; dates are those of the packaged prices."""
    region = source.region
    if region is None:
        return {"source": source.file, "region": None}
    ratio_date = None if region.name == ec2_regions.BASE_REGION else ec2_regions.PRICE_RATIO_DATE
    listed = ec2_regions.ec2_regions()[region.name].offerings_listed
    return {
        "source": "packaged",
        "region": region.name,
        "regionBasis": region.basis or "assumed",
        "onDemandDate": ec2_catalog.ON_DEMAND_DATE,
        "regionRatioDate": ratio_date,
        "spotSavingsDate": ec2_catalog.SPOT_DATE,
        "offerings": "listed" if listed else "assumed",
        "estimatedTypes": estimated_types(source, plan),
    }
