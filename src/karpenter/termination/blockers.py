"""Termination blockers: what delays a termination, as texts for conditions, events and the log.

A condition's message names the current blockers; it is rewritten only when the text changes, at most every ten seconds. After
five minutes a Warning event on Node and NodeClaim and a log line report them, again at intervals that double up to one hour.
Intervals are counted from the deletion timestamp, so a restart does not reset them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from karpenter.api.core import Node, Pod, PodDisruptionBudget
from karpenter.api.karpenter import NodeClaim
from karpenter.api.meta import ObjectMeta
from karpenter.api.storage import VolumeAttachment
from karpenter.controller_context import ControllerContext
from karpenter.kube.errors import KubeError
from karpenter.model import labels, pod_disruption
from karpenter.model.clock import rfc3339
from karpenter.model.texts import abbreviated, shorten
from karpenter.runtime.backoff_schedules import ReportSchedule
from karpenter.runtime.events import WARNING, InvolvedObject, ObjectEvent, involved_claim, involved_node
from karpenter.termination.pod_eviction import is_budget_refusal

_log = structlog.get_logger()


class BlockerReporter:
    """Reports lasting blockers, at growing intervals."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._schedules: dict[str, ReportSchedule] = {}

    def report(self, node: Node | None, claim: NodeClaim | None, blockers: Sequence[str]) -> float:
        """Report the blockers if a report is due; returns seconds until the next one. At least one object must be given."""
        metadata = [deleting.metadata for deleting in (node, claim) if deleting is not None]
        now = self._context.clock.now()
        since = metadata[0].deletion_timestamp or now
        schedule = self._schedules.get(metadata[0].uid) or ReportSchedule.first(since)
        if now >= schedule.next_report_at:
            self._publish(_involved_objects(node, claim), since, blockers)
            schedule = schedule.after_report(now)
        self._schedules[metadata[0].uid] = schedule
        return (schedule.next_report_at - now).total_seconds()

    def forget(self, uid: str) -> None:
        """The object is gone."""
        self._schedules.pop(uid, None)

    def _publish(self, involved_objects: Sequence[InvolvedObject], since: datetime, blockers: Sequence[str]) -> None:
        _log.error("termination is held up", since=rfc3339(since), blockers=list(blockers))
        text = f"Termination, wanted since {rfc3339(since)}, is held up: {join_blockers(blockers)}"
        self._context.events.publish(
            *(ObjectEvent(subject, WARNING, "FailedTermination", text, (text,)) for subject in involved_objects)
        )


def _involved_objects(node: Node | None, claim: NodeClaim | None) -> list[InvolvedObject]:
    involved = [involved_node(node.metadata)] if node is not None else []
    return involved + ([involved_claim(claim.metadata)] if claim is not None else [])


#: A pod whose graceful termination takes no longer than this is not reported as a blocker.
_ORDINARY_TERMINATION = timedelta(seconds=30)
_MAX_ERROR_LENGTH = 300


@dataclass(frozen=True)
class DrainState:
    """Input of ``pod_blockers``: the pods a drain waits for, all budgets, and the last eviction error of each pod (by uid)."""

    waiting_pods: Sequence[Pod]
    budgets: Iterable[PodDisruptionBudget]
    eviction_errors: Mapping[str, KubeError]
    now: datetime


def pod_blockers(drain: DrainState) -> tuple[str, ...]:
    """One text per cause that keeps pods on the node."""
    pods_by_cause: dict[str, list[str]] = {}
    for pod in drain.waiting_pods:
        cause = _blocking_cause(pod, drain)
        if cause:
            pods_by_cause.setdefault(cause, []).append(f"{pod.metadata.namespace}/{pod.metadata.name}")
    return tuple(f"{cause}: {_pods(names)}" for cause, names in sorted(pods_by_cause.items()))


def _blocking_cause(pod: Pod, drain: DrainState) -> str:
    if pod.metadata.deletion_timestamp is not None:
        return _slow_termination(pod, pod.metadata.deletion_timestamp, drain.now)
    protection = pod_disruption.disruption_protection(pod, drain.now)
    if protection is not None and protection.active:
        until = f" until {rfc3339(protection.until)}" if protection.until is not None else ""
        return f"protected by the annotation {labels.DO_NOT_DISRUPT}{until}"
    error = drain.eviction_errors.get(pod.metadata.uid)
    if error is None:
        return ""
    budget_cause = _blocking_budgets(pod, drain) if is_budget_refusal(error) else ""
    return budget_cause or f"eviction fails ({_truncated(str(error))})"


def _slow_termination(pod: Pod, deletion_time: datetime, now: datetime) -> str:
    """Why a deleted pod is still there; empty while it terminates in ordinary time."""
    if now > deletion_time:
        if pod.metadata.finalizers:
            return f"past their grace period, held by {_finalizers(pod.metadata.finalizers)}"
        return "past their grace period, their end is not reported by the kubelet"
    grace = pod.metadata.deletion_grace_period_seconds or 0
    if (deletion_time - now).total_seconds() > grace - _ORDINARY_TERMINATION.total_seconds():
        return ""
    return f"still within their grace period of {grace} s"


def _blocking_budgets(pod: Pod, drain: DrainState) -> str:
    blocking = pod_disruption.blocking_pdbs(pod, drain.budgets)
    names = ", ".join(sorted(f"{budget.metadata.namespace}/{budget.metadata.name}" for budget in blocking))
    if len(blocking) > 1:
        return f"more than one PodDisruptionBudget ({names}), which eviction does not support"
    return f"PodDisruptionBudget {names} allows no eviction now" if blocking else ""


def volume_blocker(attachment: VolumeAttachment, claim: str) -> str:
    """The text for a volume that is still attached; ``claim`` is its PersistentVolumeClaim (namespace/name), empty if unknown."""
    volume = attachment.spec.source.persistent_volume_name
    owner = f" (PersistentVolumeClaim {claim})" if claim else ""
    text = f"volume {volume}{owner} is still attached, VolumeAttachment {attachment.metadata.name}"
    if attachment.metadata.deletion_timestamp is not None and attachment.metadata.finalizers:
        return f"{text} waits for {_finalizers(attachment.metadata.finalizers)}"
    return text


def finalizer_blocker(kind: str, meta: ObjectMeta) -> str:
    """The text for an object held by finalizers of other controllers only."""
    return f"{kind} {meta.name} is held by {_finalizers(meta.finalizers)}"


def instance_blocker(provider_id: str, error: Exception | None) -> str:
    """The text for an instance that is not terminated yet, with the provider's error if there is one."""
    if error is None:
        return f"instance {provider_id} is still shutting down"
    return f"the cloud does not end instance {provider_id}: {_truncated(str(error))}"


def deadline_blocker(text: str) -> str:
    """The text for an unparseable deadline annotation: the drain then has no deadline."""
    return f"annotation {labels.TERMINATION_TIMESTAMP} is no RFC 3339 time, so no deadline holds: {_truncated(text)!r}"


def join_blockers(blockers: Sequence[str]) -> str:
    """All blockers in one text of bounded length."""
    return abbreviated(blockers, separator="; ")


def _truncated(text: str) -> str:
    return shorten(text, _MAX_ERROR_LENGTH)


def _finalizers(names: Sequence[str]) -> str:
    return f"{_noun('finalizer', names)} {abbreviated(names)}"


def _pods(names: Sequence[str]) -> str:
    return f"{_noun('pod', names)} {abbreviated(sorted(names))}"


def _noun(word: str, names: Sequence[str]) -> str:
    return f"{word}s" if len(names) > 1 else word
