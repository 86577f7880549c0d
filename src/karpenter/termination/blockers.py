"""Telling what holds an ending up: in a condition at once, as an event and a log line when it lasts.

A condition's message says what holds the node now, and is written only when the text changes and at most every ten seconds. After
five minutes a Warning event on Node and NodeClaim and a line in the log say the same, again after pauses that double up to an
hour. The time counts from the deletion the API server recorded, so a new process does not start it anew.
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
from karpenter.kube.errors import KubeError
from karpenter.model import labels, pod_disruption
from karpenter.model.clock import rfc3339
from karpenter.runtime.backoff_schedules import ReportSchedule
from karpenter.runtime.controller_context import ControllerContext
from karpenter.runtime.events import WARNING, InvolvedObject, ObjectEvent, involved_claim, involved_node
from karpenter.termination.pod_eviction import is_budget_refusal

_log = structlog.get_logger()


class BlockerReporter:
    """Reports lasting culprits, with growing pauses."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._schedules: dict[str, ReportSchedule] = {}

    def report(self, node: Node | None, claim: NodeClaim | None, blockers: Sequence[str]) -> float:
        """Say what holds these up, if it is time to; seconds until it will be. At least one of the two is given."""
        metadata = [item.metadata for item in (node, claim) if item is not None]
        now = self._context.clock.now()
        since = metadata[0].deletion_timestamp or now
        told = self._schedules.get(metadata[0].uid) or ReportSchedule.first(since)
        if now >= told.next_report_at:
            self._publish(_involved_objects(node, claim), since, blockers)
            told = told.after_report(now)
        self._schedules[metadata[0].uid] = told
        return (told.next_report_at - now).total_seconds()

    def forget(self, uid: str) -> None:
        """The object is gone."""
        self._schedules.pop(uid, None)

    def _publish(self, involved_objects: Sequence[InvolvedObject], since: datetime, blockers: Sequence[str]) -> None:
        _log.error("termination is held up", since=rfc3339(since), culprits=list(blockers))
        text = f"Termination, wanted since {rfc3339(since)}, is held up: {join_blockers(blockers)}"
        self._context.events.publish(
            *(ObjectEvent(subject, WARNING, "FailedTermination", text, (text,)) for subject in involved_objects)
        )


def _involved_objects(node: Node | None, claim: NodeClaim | None) -> list[InvolvedObject]:
    found = [involved_node(node.metadata)] if node is not None else []
    return found + ([involved_claim(claim.metadata)] if claim is not None else [])


#: A pod may end this long after it was told to without being named.
_ORDINARY_TERMINATION = timedelta(seconds=30)
_MAX_LISTED = 5
_MAX_ERROR_LENGTH = 300


@dataclass(frozen=True)
class DrainState:
    """A drain as it stands: the pods it waits for, all budgets, why pods could not be evicted at the last try (by uid)."""

    waiting_pods: Sequence[Pod]
    budgets: Iterable[PodDisruptionBudget]
    eviction_errors: Mapping[str, KubeError]
    now: datetime


def pod_blockers(drain: DrainState) -> tuple[str, ...]:
    """One sentence per cause that keeps pods on the node."""
    held: dict[str, list[str]] = {}
    for pod in drain.waiting_pods:
        cause = _blocking_cause(pod, drain)
        if cause:
            held.setdefault(cause, []).append(f"{pod.metadata.namespace}/{pod.metadata.name}")
    return tuple(f"{cause}: {_pods(names)}" for cause, names in sorted(held.items()))


def _blocking_cause(pod: Pod, drain: DrainState) -> str:
    if pod.metadata.deletion_timestamp is not None:
        return _slow_termination(pod, pod.metadata.deletion_timestamp, drain.now)
    protection = pod_disruption.disruption_protection(pod, drain.now)
    if protection is not None and protection.active:
        until = f" until {rfc3339(protection.until)}" if protection.until is not None else ""
        return f"protected by the annotation {labels.DO_NOT_DISRUPT}{until}"
    refusal = drain.eviction_errors.get(pod.metadata.uid)
    if refusal is None:
        return ""
    budgets = _blocking_budgets(pod, drain) if is_budget_refusal(refusal) else ""
    return budgets or f"eviction fails ({_truncated(str(refusal))})"


def _slow_termination(pod: Pod, deletion_time: datetime, now: datetime) -> str:
    """Why a pod that was told to go is still there."""
    if now > deletion_time:
        if pod.metadata.finalizers:
            return f"past their grace period, held by {_finalizers(pod.metadata.finalizers)}"
        return "past their grace period, their end is not reported by the kubelet"
    grace = pod.metadata.deletion_grace_period_seconds or 0
    if (deletion_time - now).total_seconds() > grace - _ORDINARY_TERMINATION.total_seconds():
        return ""
    return f"still within their grace period of {grace} s"


def _blocking_budgets(pod: Pod, drain: DrainState) -> str:
    found = pod_disruption.blocking_pdbs(pod, drain.budgets)
    names = ", ".join(sorted(f"{budget.metadata.namespace}/{budget.metadata.name}" for budget in found))
    if len(found) > 1:
        return f"more than one PodDisruptionBudget ({names}), which eviction does not support"
    return f"PodDisruptionBudget {names} allows no eviction now" if found else ""


def volume_blocker(attachment: VolumeAttachment, claim: str) -> str:
    """A volume that is still attached; ``claim`` is the namespace and name of its PersistentVolumeClaim, empty if unknown."""
    volume = attachment.spec.source.persistent_volume_name
    owner = f" (PersistentVolumeClaim {claim})" if claim else ""
    text = f"volume {volume}{owner} is still attached, VolumeAttachment {attachment.metadata.name}"
    if attachment.metadata.deletion_timestamp is not None and attachment.metadata.finalizers:
        return f"{text} waits for {_finalizers(attachment.metadata.finalizers)}"
    return text


def finalizer_blocker(kind: str, meta: ObjectMeta) -> str:
    """An object that only somebody else's finalizers keep."""
    return f"{kind} {meta.name} is held by {_finalizers(meta.finalizers)}"


def instance_blocker(provider_id: str, error: Exception | None) -> str:
    """A cloud that has not ended an instance yet, with its error where it gave one."""
    if error is None:
        return f"instance {provider_id} is still shutting down"
    return f"the cloud does not end instance {provider_id}: {_truncated(str(error))}"


def deadline_blocker(text: str) -> str:
    """A deadline nobody can read: the drain goes on without."""
    return f"annotation {labels.TERMINATION_TIMESTAMP} is no RFC 3339 time, so no deadline holds: {_truncated(text)!r}"


def join_blockers(blockers: Sequence[str]) -> str:
    """All of them in one bounded text."""
    return _abbreviated(blockers, "; ")


def _truncated(text: str) -> str:
    return text if len(text) <= _MAX_ERROR_LENGTH else text[: _MAX_ERROR_LENGTH - 1] + "…"


def _finalizers(names: Sequence[str]) -> str:
    return f"{_noun('finalizer', names)} {_abbreviated(names)}"


def _pods(names: Sequence[str]) -> str:
    return f"{_noun('pod', names)} {_abbreviated(sorted(names))}"


def _noun(word: str, names: Sequence[str]) -> str:
    return f"{word}s" if len(names) > 1 else word


def _abbreviated(names: Sequence[str], separator: str = ", ") -> str:
    rest = len(names) - _MAX_LISTED
    return separator.join(names[:_MAX_LISTED]) + (f" and {rest} other(s)" if rest > 0 else "")
