"""How often the controllers repeat their work, and how long they wait, in one place.

These values are part of the documented behaviour, so they are no flags. Each has an environment variable, so that tests can
shorten them and an operator can lengthen one in an emergency.
"""
# ruff: noqa: RUF009 - what `setting` returns is a dataclass field, as `field` does

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from karpenter.model import setting_kinds as kinds
from karpenter.model.setting_kinds import Profile, Setting, SettingError, declared_settings, setting


@dataclass(frozen=True)
class Intervals:
    """The intervals in force."""

    garbage_collection: timedelta = setting(
        kinds.INTERVAL,
        "2m",
        "How often NodeClaims without an instance and instances without a NodeClaim are collected.",
        "KARPENTER_GARBAGE_COLLECTION_INTERVAL",
    )
    nodepool_counter: timedelta = setting(
        kinds.INTERVAL,
        "5s",
        "How often the resources of each NodePool are counted.",
        "KARPENTER_NODEPOOL_COUNTER_INTERVAL",
    )
    provisioning_retry: timedelta = setting(
        kinds.INTERVAL,
        "10s",
        "How often pods that still wait are scheduled again.",
        "KARPENTER_PROVISIONING_RETRY_INTERVAL",
    )
    disruption_poll: timedelta = setting(
        kinds.INTERVAL, "10s", "How often disruption is considered.", "KARPENTER_DISRUPTION_POLL_INTERVAL"
    )
    disruption_validation: timedelta = setting(
        kinds.INTERVAL,
        "15s",
        "How long a consolidation command waits before it is validated.",
        "KARPENTER_DISRUPTION_VALIDATION_INTERVAL",
    )
    disruption_recheck: timedelta = setting(
        kinds.INTERVAL,
        "5m",
        "After how long an unchanged cluster is considered for disruption again.",
        "KARPENTER_DISRUPTION_RECHECK_INTERVAL",
    )
    metrics_refresh: timedelta = setting(
        kinds.INTERVAL,
        "10s",
        "How often metrics about the cluster are refreshed.",
        "KARPENTER_METRICS_REFRESH_INTERVAL",
    )
    sync_report_delay: timedelta = setting(
        kinds.INTERVAL,
        "30s",
        "How long the state may stay incomplete before that is logged as an error.",
        "KARPENTER_SYNC_REPORT_DELAY",
    )
    lease_duration: timedelta = setting(
        kinds.LEASE_DURATION, "15s", "How long a Lease lasts without renewal.", "KARPENTER_LEASE_DURATION"
    )
    lease_renew_deadline: timedelta = setting(
        kinds.INTERVAL,
        "10s",
        "How long a leader acts after its last renewal of the Lease.",
        "KARPENTER_LEASE_RENEW_DEADLINE",
    )
    lease_retry: timedelta = setting(
        kinds.INTERVAL, "2s", "How often a Lease is renewed or tried for.", "KARPENTER_LEASE_RETRY_INTERVAL"
    )


#: Every interval, by its name in ``Intervals``.
INTERVALS: Mapping[str, Setting] = declared_settings(Intervals)


def resolve_intervals(environment: Mapping[str, str]) -> Intervals:
    """The intervals of this environment. Raises ``SettingError`` that names every value that cannot be read."""
    values: dict[str, object] = {}
    errors: list[str] = []
    for name, interval in INTERVALS.items():
        given = interval.from_environment(environment)
        try:
            values[name] = interval.value_in(Profile.LEAN, given, interval.spelling.variable)
        except SettingError as error:
            errors.append(str(error))
    if errors:
        raise SettingError("; ".join(errors))
    intervals = Intervals(**values)  # type: ignore[arg-type]
    if not intervals.lease_retry < intervals.lease_renew_deadline < intervals.lease_duration:
        raise SettingError(
            "KARPENTER_LEASE_RETRY_INTERVAL must be below KARPENTER_LEASE_RENEW_DEADLINE, "
            "and that below KARPENTER_LEASE_DURATION"
        )
    return intervals
