"""Metrics of calls to AWS and of interruptions, with the names Karpenter gives them (AWS-786, AWS-788).

The series of SDK calls keep the names of Karpenter's SDK, because dashboards query them.
"""

from __future__ import annotations

from typing import Protocol

from prometheus_client import Counter, Histogram

from karpenter.metrics.registry import DURATION_BUCKETS_SECONDS, STANDARD_BUCKETS_SECONDS, Metrics

_CALL_LABELS = ("service", "action", "status_code")
#: Which attempt was the last, from the first one on.
_RETRIES = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0)
_MESSAGE_LABELS = ("message_type",)


class SdkMetrics:
    """Requests to AWS. One request may take several attempts; each HTTP call is an attempt."""

    def __init__(self, metrics: Metrics) -> None:
        registry = metrics.registry
        self.request_total = Counter("aws_sdk_go_request_total", "Requests to AWS.", _CALL_LABELS, registry=registry)
        self.request_retry_count = Histogram(
            "aws_sdk_go_request_retry_count",
            "How often a request was repeated.",
            _CALL_LABELS,
            buckets=_RETRIES,
            registry=registry,
        )
        self.request_duration_seconds = Histogram(
            "aws_sdk_go_request_duration_seconds",
            "How long a request took, repetitions and waiting included.",
            _CALL_LABELS,
            buckets=STANDARD_BUCKETS_SECONDS,
            registry=registry,
        )
        self.request_attempt_total = Counter(
            "aws_sdk_go_request_attempt_total", "Attempts at requests to AWS.", _CALL_LABELS, registry=registry
        )
        self.request_attempt_duration_seconds = Histogram(
            "aws_sdk_go_request_attempt_duration_seconds",
            "How long one attempt took.",
            _CALL_LABELS,
            buckets=STANDARD_BUCKETS_SECONDS,
            registry=registry,
        )


class InterruptionMetrics:
    """Metrics of interruptions and failed status checks."""

    def __init__(self, metrics: Metrics) -> None:
        registry = metrics.registry
        self.received_messages_total = Counter(
            "karpenter_interruption_received_messages_total",
            "Messages of the interruption queue.",
            _MESSAGE_LABELS,
            registry=registry,
        )
        self.deleted_messages_total = Counter(
            "karpenter_interruption_deleted_messages_total",
            "Messages of the interruption queue that were dealt with.",
            registry=registry,
        )
        self.message_queue_duration_seconds = Histogram(
            "karpenter_interruption_message_queue_duration_seconds",
            "From an event to its message being dealt with.",
            buckets=DURATION_BUCKETS_SECONDS,
            registry=registry,
        )
        self.instance_status_unhealthy_total = Counter(
            "karpenter_interruption_instance_status_unhealthy_total",
            "Instances found unhealthy, each once until it has recovered.",
            ("category",),
            registry=registry,
        )


CREATE_FLEET_BATCHER = "create_fleet"
DESCRIBE_INSTANCES_BATCHER = "describe_instances"
TERMINATE_INSTANCES_BATCHER = "terminate_instances"
_SIZE_BUCKETS = (1, 2, 4, 5, 10, 15, 20, 25, 30, 40, 50, 75, 100, 125, 150, 175, 200, 300, 400, 500, 750, 1000)


class ZoneIdLookup(Protocol):
    """Which zone of AWS's a zone of ours is."""

    def zone_id(self, zone: str) -> str:
        """The id, empty where it is not known."""


class InstanceMetrics:
    """The counters and histograms of one process, in its registry."""

    def __init__(self, metrics: Metrics, zones: ZoneIdLookup) -> None:
        self._zones = zones
        self._launch_failures = Counter(
            "karpenter_cloudprovider_instance_launch_failures_total",
            "Ways to make an instance that EC2 refused.",
            ("zone", "zone_id", "capacity_type", "reason"),
            registry=metrics.registry,
        )
        self._termination_failures = Counter(
            "karpenter_cloudprovider_instance_termination_failures_total",
            "Instances that EC2 refused to end.",
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
        """One way to make an instance was refused."""
        self._launch_failures.labels(
            zone=zone, zone_id=self._zone_id(zone), capacity_type=capacity_type, reason=reason
        ).inc()

    def termination_failed(self, zone: str) -> None:
        """An instance could not be ended."""
        self._termination_failures.labels(zone=zone, zone_id=self._zone_id(zone)).inc()

    def batcher(self, name: str) -> BatcherMetrics:
        """The metrics of one batcher."""
        return BatcherMetrics(self._batch_seconds.labels(batcher=name), self._batch_size.labels(batcher=name))

    def _zone_id(self, zone: str) -> str:
        return self._zones.zone_id(zone) if zone else ""


class BatcherMetrics:
    """The windows of one batcher (AWS-785)."""

    def __init__(self, seconds: Histogram, size: Histogram) -> None:
        self._seconds = seconds
        self._size = size

    def window_closed(self, size: int, open_seconds: float) -> None:
        """A window closed."""
        self._size.observe(size)
        self._seconds.observe(open_seconds)
