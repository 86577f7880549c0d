"""Settings of provisioning: batches, nomination, the rate of new NodeClaims."""
# ruff: noqa: RUF009 - what `setting` returns is a dataclass field, as `field` does

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from karpenter.model import setting_kinds as kinds
from karpenter.model.setting_kinds import setting


@dataclass(frozen=True, repr=False, eq=False)
class ProvisioningSettings:
    """Provisioning."""

    batch_max_duration: timedelta = setting(kinds.DURATION, "10s", "Longest time a batch of pending pods stays open.")
    batch_idle_duration: timedelta = setting(
        kinds.DURATION, "1s", "A batch closes after this long without a new pending pod."
    )
    include_untried_pods: bool = setting(
        kinds.SWITCH,
        "true",
        "Plan also for pods that the scheduler has not tried yet, once it found no place for another pod of the same workload; "
        "never with defer-to-cluster-autoscaler.",
        karpenter_default="false",
    )
    nominate_pods: bool = setting(
        kinds.SWITCH,
        "true",
        "Write status.nominatedNodeName on the pods planned for a new node.",
        karpenter_default="false",
    )
    nomination_qps: int = setting(
        kinds.POSITIVE,
        "1000",
        "Rate of nominations, which come in one burst per batch of nodes.",
        unit="requests per second",
    )
    claims_per_minute: int = setting(
        kinds.POSITIVE, "1000", "Most NodeClaims created per minute.", unit="NodeClaims per minute"
    )
    defer_to_cluster_autoscaler: bool = setting(
        kinds.SWITCH,
        "false",
        "Leave a pod to Cluster Autoscaler, for at most 15 minutes, after it said in an event that it scales up for the pod.",
    )
    record_problems: str = setting(
        kinds.DIRECTORY,
        "",
        "Directory for the latest problems, at most 100 files and 256 MiB of each kind, for karpenter replay; empty means none.",
    )
    record_trace: str = setting(
        kinds.TEXT,
        "",
        "File for a trace of the cluster's pods (arrivals, lifetimes, requests; names hashed; at most 200000 pods) that "
        "karpenter simulate replays; empty means none.",
    )

    @property
    def plans_for_untried_pods(self) -> bool:
        """Whether untried siblings of marked pods are pending. Cluster Autoscaler says only of marked pods what it does."""
        return self.include_untried_pods and not self.defer_to_cluster_autoscaler

    @property
    def nomination_window(self) -> timedelta:
        """How long a planned pod is expected on its node (SCH-640)."""
        return max(2 * self.batch_max_duration, timedelta(seconds=10))
