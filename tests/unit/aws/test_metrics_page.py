"""The page about metrics names what the provider exports, with its type and labels, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from karpenter.instancetypes import ec2_packaged_types
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.metrics import Metrics
from karpenter.metrics.exposition import render_sync
from karpenter.model.clock import SystemClock
from karpenter.providers.aws.aws_metrics import SdkMetrics
from karpenter.providers.aws.aws_operator import AwsOperator
from karpenter.providers.aws.aws_settings import AwsClusterInfo, AwsSettings
from karpenter.providers.aws.cluster_discovery import DiscoveredCluster
from karpenter.providers.aws.instancetype.ec2_offerings import OfferingKey
from karpenter.providers.aws.instancetype.offering_metrics import OfferingMetrics, offered_to_pool, offering_samples
from karpenter.providers.aws.sdk.aws_session import AwsSession
from karpenter.simulation.apiserver import MemoryKube, MemoryServer
from support.aws.provider_process import context
from support.builders import node_pool
from support.metrics_scrape import Scrape

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"
STABILITY = {"stable", "beta", "alpha"}


class Row(NamedTuple):
    """A row of the metrics page."""

    type: str
    labels: frozenset[str]
    stability: str


def _rows() -> Mapping[str, Row]:
    _, chapter = PAGE.read_text().split("## EC2 instances")
    lines = [line for line in chapter.split("\n## ")[0].splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {
        name.strip("`"): Row(kind, frozenset(re.findall(r"`(\w+)`", labels)), s) for name, kind, labels, s, _ in cells
    }


ROWS = _rows()


def _process() -> Metrics:
    """The metrics of a new process with the whole provider."""
    metrics, clock = Metrics(), SystemClock()
    facts = DiscoveredCluster(AwsClusterInfo("shop", "us-west-2", "https://shop", "Q0E=", "1.35"), cast(Any, None))
    settings = AwsSettings(cluster_name="shop", interruption_queue="shop")
    services = AwsSession(SdkMetrics(metrics)).services
    AwsOperator(context(services, facts, settings, MemoryKube(MemoryServer(clock)), clock, metrics)).controllers()
    return metrics


def _series_about_types() -> Scrape:
    """The series about instance types, which are computed at a scrape."""
    metrics = Metrics()
    types: tuple[InstanceType, ...] = ec2_packaged_types.packaged_instance_types()[:2]
    offering_metrics = OfferingMetrics(metrics.registry, lambda: (OfferingKey("spot", "m5.large", "us-west-2a"),))
    offering_metrics.publish(lambda: offering_samples([offered_to_pool(node_pool(), types)], reserved=False))
    return Scrape(render_sync(metrics.registry))


def test_every_controller_has_the_reconcile_metrics() -> None:
    """OPS-490: the series of controller-runtime exist from the start, by the names of OPS-723."""
    totals = Scrape(render_sync(_process().registry)).values("controller_runtime_reconcile_total", "controller").keys()
    assert {
        "nodeclass",
        "nodeclaim.tagging",
        "instance.garbagecollection",
        "interruption",
        "providers.pricing",
    } <= totals


def test_the_page_names_every_series_and_its_type() -> None:
    own = (
        Scrape(render_sync(_process().registry)).types().items()
        - Scrape(render_sync(Metrics().registry)).types().items()
    )
    assert {name: row.type for name, row in ROWS.items()} == dict(own)


def test_every_row_has_the_stability_of_its_series() -> None:
    assert {row.stability for row in ROWS.values()} == STABILITY


def test_series_of_karpenter_have_the_same_stability() -> None:
    """K15-A101: metrics of interruptions are stable, those of offerings and launches are beta."""
    stability = {name: row.stability for name, row in ROWS.items() if name.startswith("karpenter_")}
    interruptions = ("received_messages_total", "deleted_messages_total", "message_queue_duration_seconds")
    assert {stability[f"karpenter_interruption_{name}"] for name in interruptions} == {"stable"}
    ours = ("unavailable_offerings", "instance_types_skipped", "launch_templates")
    cloud = {
        name.removeprefix("karpenter_cloudprovider_"): level for name, level in stability.items() if "cloudprov" in name
    }
    assert {level for name, level in cloud.items() if name not in ours} == {"beta"}
    assert stability["karpenter_ec2nodeclasses_userdata_bytes"] == "alpha"


def test_the_page_gives_the_labels_of_counted_series() -> None:
    counted = {
        name: frozenset(cast(Any, series)._labelnames)
        for series, names in _process().registry._collector_to_names.items()
        for name in names
        if name in ROWS
    }
    assert counted == {name: ROWS[name].labels for name in counted}
    assert len(counted) > 10


def test_the_page_gives_the_labels_of_series_about_types() -> None:
    seen = {name: frozenset(labels) for name, labels, _ in _series_about_types() if name in ROWS}
    assert seen == {name: ROWS[name].labels for name in seen}
    assert len(seen) == 6
