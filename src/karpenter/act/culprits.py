"""What holds the end of a node up, named so that somebody can mend it: pure functions from what is known to sentences.

A drain that goes its ordinary way has no culprits: pods that wait for their turn or end within half a minute are not worth a
word. Pods held by the same cause share a sentence, and sentences carry no figures that change by the second: the same cause is
the same text, which is what keeps a condition from being written all the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from karpenter.act.evict import is_refusal
from karpenter.api.core import Pod, PodDisruptionBudget, VolumeAttachment
from karpenter.api.meta import ObjectMeta
from karpenter.kube.errors import KubeError
from karpenter.model import disruption_budgets, labels, pods
from karpenter.model.clock import rfc3339

#: A pod may end this long after it was told to without being named.
_ORDINARY_ENDING = timedelta(seconds=30)
_MOST = 5
_LONGEST_ERROR = 300


@dataclass(frozen=True)
class DrainPicture:
    """A drain as it stands: the pods it waits for, all budgets, why pods could not be evicted at the last try (by uid)."""

    waiting: Sequence[Pod]
    budgets: Iterable[PodDisruptionBudget]
    refusals: Mapping[str, KubeError]
    now: datetime


def of_pods(drain: DrainPicture) -> tuple[str, ...]:
    """One sentence per cause that keeps pods on the node."""
    held: dict[str, list[str]] = {}
    for pod in drain.waiting:
        cause = _cause(pod, drain)
        if cause:
            held.setdefault(cause, []).append(f"{pod.metadata.namespace}/{pod.metadata.name}")
    return tuple(f"{cause}: {_pods(names)}" for cause, names in sorted(held.items()))


def _cause(pod: Pod, drain: DrainPicture) -> str:
    if pod.metadata.deletion_timestamp is not None:
        return _slow_ending(pod, pod.metadata.deletion_timestamp, drain.now)
    protection = pods.protection(pod, drain.now)
    if protection is not None and protection.active:
        until = f" until {rfc3339(protection.until)}" if protection.until is not None else ""
        return f"protected by the annotation {labels.DO_NOT_DISRUPT}{until}"
    refusal = drain.refusals.get(pod.metadata.uid)
    if refusal is None:
        return ""
    budgets = _budgets(pod, drain) if is_refusal(refusal) else ""
    return budgets or f"eviction fails ({_cut(str(refusal))})"


def _slow_ending(pod: Pod, end: datetime, now: datetime) -> str:
    """Why a pod that was told to go is still there."""
    if now > end:
        if pod.metadata.finalizers:
            return f"past their grace period, held by {_finalizers(pod.metadata.finalizers)}"
        return "past their grace period, their end is not reported by the kubelet"
    grace = pod.metadata.deletion_grace_period_seconds or 0
    if (end - now).total_seconds() > grace - _ORDINARY_ENDING.total_seconds():
        return ""
    return f"still within their grace period of {grace} s"


def _budgets(pod: Pod, drain: DrainPicture) -> str:
    found = disruption_budgets.preventing(pod, drain.budgets)
    names = ", ".join(sorted(f"{budget.metadata.namespace}/{budget.metadata.name}" for budget in found))
    if len(found) > 1:
        return f"more than one PodDisruptionBudget ({names}), which eviction does not support"
    return f"PodDisruptionBudget {names} allows no eviction now" if found else ""


def of_volume(attachment: VolumeAttachment, claim: str) -> str:
    """A volume that is still attached; ``claim`` is the namespace and name of its PersistentVolumeClaim, empty if unknown."""
    volume = attachment.spec.source.persistent_volume_name
    owner = f" (PersistentVolumeClaim {claim})" if claim else ""
    text = f"volume {volume}{owner} is still attached, VolumeAttachment {attachment.metadata.name}"
    if attachment.metadata.deletion_timestamp is not None and attachment.metadata.finalizers:
        return f"{text} waits for {_finalizers(attachment.metadata.finalizers)}"
    return text


def of_finalizers(kind: str, meta: ObjectMeta) -> str:
    """An object that only somebody else's finalizers keep."""
    return f"{kind} {meta.name} is held by {_finalizers(meta.finalizers)}"


def of_instance(provider_id: str, error: Exception | None) -> str:
    """A cloud that has not ended an instance yet, with its error where it gave one."""
    if error is None:
        return f"instance {provider_id} is still shutting down"
    return f"the cloud does not end instance {provider_id}: {_cut(str(error))}"


def of_deadline(text: str) -> str:
    """A deadline nobody can read: the drain goes on without."""
    return f"annotation {labels.TERMINATION_TIMESTAMP} is no RFC 3339 time, so no deadline holds: {_cut(text)!r}"


def joined(culprits: Sequence[str]) -> str:
    """All of them in one bounded text."""
    return _listed(culprits, "; ")


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_ERROR else text[: _LONGEST_ERROR - 1] + "…"


def _finalizers(names: Sequence[str]) -> str:
    return f"{_noun('finalizer', names)} {_listed(names)}"


def _pods(names: Sequence[str]) -> str:
    return f"{_noun('pod', names)} {_listed(sorted(names))}"


def _noun(word: str, names: Sequence[str]) -> str:
    return f"{word}s" if len(names) > 1 else word


def _listed(names: Sequence[str], separator: str = ", ") -> str:
    rest = len(names) - _MOST
    return separator.join(names[:_MOST]) + (f" and {rest} other(s)" if rest > 0 else "")
