"""Writes the packaged EC2 table from a directory of source tables (see the note beside the table for their origins).

    python tools/make_ec2_table.py SOURCE_DIRECTORY

Reads ``instance_types.csv`` (shapes, zones, prices) and ``spot_advisor.csv`` (savings) and keeps what the packaged table needs,
one row per type, sorted by name. Allocatable is left out, since it is computed.
"""

from __future__ import annotations

import csv
import gzip
import json
import math
import statistics
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import moto

from karpenter.instancetypes import ec2_capacity

Row = Mapping[str, str]

TABLE = Path(__file__).resolve().parents[1] / "src/karpenter/instancetypes/data/ec2_us_east_1.csv"
REGION = "us-east-1"
SNAPSHOT = "2025-06-28"
_COPIED = (
    "name",
    "arch",
    "hypervisor",
    "vcpu",
    "memory_mib",
    "cpu_manufacturer",
    "cpu_sustained_clock_mhz",
    "encryption_in_transit",
    "network_mbps",
    "ebs_mbps",
    "local_nvme_gb",
    "gpu_name",
    "gpu_manufacturer",
    "gpu_count",
    "gpu_memory_mib",
    "accelerator_name",
    "accelerator_manufacturer",
    "accelerator_count",
    "efa_count",
    "eni_default_card",
    "ipv4_per_eni",
)
_COMPUTED = (
    "neuron_cores",
    "branch_interfaces",
    "capacity_types",
    "zones",
    "on_demand_price",
    "spot_percent",
    "spot_basis",
)


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


class SpotLevels:
    """Spot price in percent of on-demand: the type's own figure, else the median of its family, category or all."""

    def __init__(self, advisor: Iterable[Row], shapes: Mapping[str, Row]) -> None:
        self._levels: dict[tuple[str, str], list[int]] = {}
        for row in advisor:
            shape = shapes.get(row["instance_type"])
            if shape is not None and row["region"] == REGION and row["snapshot"] == SNAPSHOT:
                for key in self._keys(shape):
                    self._levels.setdefault(key, []).append(100 - int(row["savings_pct"]))

    @staticmethod
    def _keys(shape: Row) -> tuple[tuple[str, str], ...]:
        named = (("name", "type"), ("family", "family"), ("category", "category"))
        return (*((basis, shape[column]) for column, basis in named), ("all", ""))

    def of(self, shape: Row) -> tuple[int, str]:
        """The percentage and what it rests on: ``type``, ``family``, ``category`` or ``all``."""
        key = next(key for key in self._keys(shape) if key in self._levels)
        return round(statistics.median(self._levels[key])), key[0]


def _capacity_types(row: Row) -> list[str]:
    return [name for name in ("on-demand", "spot") if name in row["usage_classes"].split("|")]


def _ec2_network() -> dict[str, tuple[int, int]]:
    """Per type Mbit/s as a whole, and of its cards together, as EC2 describes them (moto's copy)."""
    table = Path(moto.__file__).parent / "ec2/resources/instance_types.json.gz"
    described = json.loads(gzip.decompress(table.read_bytes()))
    return {name: _network_of(entry["NetworkInfo"]) for name, entry in described.items()}


def _network_of(network: dict[str, Any]) -> tuple[int, int]:
    card_gbps = [card.get("BaselineBandwidthInGbps", 0.0) for card in network["NetworkCards"]]
    return (
        ec2_capacity.network_mbps(network.get("NetworkPerformance", ""), card_gbps),
        ec2_capacity.network_mbps("", card_gbps),
    )


def _network_mbps(row: Row, ec2: Mapping[str, tuple[int, int]]) -> str:
    """The published figure, unless it is missing or EC2 contradicts it by more than rounding."""
    whole, cards = ec2.get(row["name"], (0, 0))
    published = int(row["network_mbps"] or 0)
    if not whole or any(math.isclose(published, figure, rel_tol=0.01) for figure in (whole, cards)):
        return row["network_mbps"]
    return str(whole if published else cards)


def _packed(row: Row, spot: SpotLevels, ec2: Mapping[str, tuple[int, int]]) -> dict[str, str]:
    neurons = int(row["alloc_neuron"] or 0)
    kinds = _capacity_types(row)
    percent, basis = spot.of(row) if "spot" in kinds else ("", "")
    short = {"true": "1", "false": "0"}
    return {name: short.get(row[name], row[name]) for name in _COPIED} | {
        "network_mbps": _network_mbps(row, ec2),
        "neuron_cores": str(int(row["alloc_neuroncore"]) // neurons) if neurons else "",
        "branch_interfaces": row["branch_interfaces"] if row["trunking"] == "true" else "",
        "capacity_types": "|".join(kinds),
        "zones": "".join(sorted(zone.removeprefix("use1-az") for zone in row["zones_us_east_1"].split("|"))),
        "on_demand_price": row["price_us_east_1"],
        "spot_percent": str(percent),
        "spot_basis": basis,
    }


def main(source: Path) -> None:
    """Write the table."""
    shapes = {row["name"]: row for row in _rows(source / "instance_types.csv")}
    spot = SpotLevels(_rows(source / "spot_advisor.csv"), shapes)
    with TABLE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*_COPIED, *_COMPUTED], lineterminator="\n")
        writer.writeheader()
        ec2 = _ec2_network()
        writer.writerows(_packed(shapes[name], spot, ec2) for name in sorted(shapes))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
