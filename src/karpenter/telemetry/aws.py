"""What calls to AWS and interruptions count, under the reference's names (AWS-786, AWS-788).

The series of the SDK keep the names they had where the SDK was another: dashboards ask for them.
"""

from __future__ import annotations

from prometheus_client import Counter, Histogram

from karpenter.telemetry.metrics import DURATION_BUCKETS_SECONDS, STANDARD_BUCKETS_SECONDS, Metrics

_CALLED = ("service", "action", "status_code")
#: Which attempt was the last, from the first one on.
_RETRIES = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0)
_KINDS = ("message_type",)


class SdkMetrics:
    """Requests to AWS. A request is what the product asks for; each time it goes over the wire is an attempt."""

    def __init__(self, metrics: Metrics) -> None:
        registry = metrics.registry
        self.request_total = Counter("aws_sdk_go_request_total", "Requests to AWS.", _CALLED, registry=registry)
        self.request_retry_count = Histogram(
            "aws_sdk_go_request_retry_count",
            "How often a request was repeated.",
            _CALLED,
            buckets=_RETRIES,
            registry=registry,
        )
        self.request_duration_seconds = Histogram(
            "aws_sdk_go_request_duration_seconds",
            "How long a request took, repetitions and waiting included.",
            _CALLED,
            buckets=STANDARD_BUCKETS_SECONDS,
            registry=registry,
        )
        self.request_attempt_total = Counter(
            "aws_sdk_go_request_attempt_total", "Attempts at requests to AWS.", _CALLED, registry=registry
        )
        self.request_attempt_duration_seconds = Histogram(
            "aws_sdk_go_request_attempt_duration_seconds",
            "How long one attempt took.",
            _CALLED,
            buckets=STANDARD_BUCKETS_SECONDS,
            registry=registry,
        )


class InterruptionMetrics:
    """What AWS tells about machines it takes away, or that are ill."""

    def __init__(self, metrics: Metrics) -> None:
        registry = metrics.registry
        self.received_messages_total = Counter(
            "karpenter_interruption_received_messages_total",
            "Messages of the interruption queue.",
            _KINDS,
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
            "Machines found unhealthy, each once until it has recovered.",
            ("category",),
            registry=registry,
        )
