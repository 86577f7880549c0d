"""What launches and terminations count (AWS-783 to AWS-785, OPS-474, OPS-475)."""

from __future__ import annotations

from typing import Protocol

from prometheus_client import Counter, Histogram

from karpenter.telemetry import Metrics
from karpenter.telemetry.metrics import DURATION_BUCKETS_SECONDS

CREATE_FLEET = "create_fleet"
DESCRIBE_INSTANCES = "describe_instances"
TERMINATE_INSTANCES = "terminate_instances"
_SIZE_BUCKETS = (1, 2, 4, 5, 10, 15, 20, 25, 30, 40, 50, 75, 100, 125, 150, 175, 200, 300, 400, 500, 750, 1000)


class ZoneIds(Protocol):
    """Which zone of AWS's a zone of ours is."""

    def zone_id(self, zone: str) -> str:
        """The id, empty where it is not known."""


class InstanceSeries:
    """The counters and histograms of one process, in its registry."""

    def __init__(self, metrics: Metrics, zones: ZoneIds) -> None:
        self._zones = zones
        self._launch_failures = Counter(
            "karpenter_cloudprovider_instance_launch_failures_total",
            "Ways to make a machine that EC2 refused.",
            ("zone", "zone_id", "capacity_type", "reason"),
            registry=metrics.registry,
        )
        self._termination_failures = Counter(
            "karpenter_cloudprovider_instance_termination_failures_total",
            "Machines that EC2 refused to end.",
            ("zone", "zone_id"),
            registry=metrics.registry,
        )
        self._batch_seconds = Histogram(
            "karpenter_cloudprovider_batcher_batch_time_seconds",
            "How long a batch waited for more.",
            ("batcher",),
            buckets=DURATION_BUCKETS_SECONDS,
            registry=metrics.registry,
        )
        self._batch_size = Histogram(
            "karpenter_cloudprovider_batcher_batch_size",
            "How many requests became one call.",
            ("batcher",),
            buckets=_SIZE_BUCKETS,
            registry=metrics.registry,
        )

    def launch_failed(self, zone: str, capacity_type: str, reason: str) -> None:
        """One way to make a machine was refused."""
        self._launch_failures.labels(
            zone=zone, zone_id=self._zone_id(zone), capacity_type=capacity_type, reason=reason
        ).inc()

    def termination_failed(self, zone: str) -> None:
        """A machine could not be ended."""
        self._termination_failures.labels(zone=zone, zone_id=self._zone_id(zone)).inc()

    def batcher(self, name: str) -> BatcherSeries:
        """What one batcher tells."""
        return BatcherSeries(self._batch_seconds.labels(batcher=name), self._batch_size.labels(batcher=name))

    def _zone_id(self, zone: str) -> str:
        return self._zones.zone_id(zone) if zone else ""


class BatcherSeries:
    """The windows of one batcher (AWS-785)."""

    def __init__(self, seconds: Histogram, size: Histogram) -> None:
        self._seconds = seconds
        self._size = size

    def closed(self, size: int, open_seconds: float) -> None:
        """A window closed."""
        self._size.observe(size)
        self._seconds.observe(open_seconds)
