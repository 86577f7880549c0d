"""Where the prices of a plan come from: lines for people, data for programs."""

from __future__ import annotations

from collections.abc import Iterator

from karpenter.cli.instance_type_sources import FilePrices, HostPrices, LivePrices, PackagedPrices, PriceSource
from karpenter.cli.render_common import Json
from karpenter.scheduling.solution import Solution


def price_lines(prices: PriceSource, plan: Solution) -> Iterator[str]:
    """Region, source and date of prices, and which prices of the plan are estimated."""
    match prices:
        case FilePrices(file):
            yield f"prices: of the instance type file {file.rpartition('/')[2]}"
        case HostPrices():
            yield "prices: costPerHour of the hosts of MachineNodeClasses"
        case LivePrices():
            yield f"prices: of EC2 in {prices.region_name}, read {prices.read_at:%Y-%m-%d %H:%M} UTC, {prices.currency}"
            if not prices.has_price_list:
                yield "  on-demand prices are packaged ones: no price list can be reached"
        case PackagedPrices():
            from karpenter.cli.render_packaged_prices import packaged_lines

            yield from packaged_lines(prices, plan)


def _live_data(prices: LivePrices) -> Json:
    return {
        "source": "EC2",
        "region": prices.region_name,
        "currency": prices.currency,
        "readAt": prices.read_at.isoformat(),
        "onDemand": "price list" if prices.has_price_list else "packaged",
    }


def price_data(prices: PriceSource, plan: Solution) -> Json:
    """The same as data; dates are those of the prices."""
    match prices:
        case FilePrices(file):
            return {"source": file, "region": None}
        case HostPrices():
            return {"source": "MachineNodeClasses", "region": None}
        case LivePrices():
            return _live_data(prices)
        case PackagedPrices():
            from karpenter.cli.render_packaged_prices import packaged_data

            return packaged_data(prices, plan)
