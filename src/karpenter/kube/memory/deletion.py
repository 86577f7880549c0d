"""How an object leaves: grace period of pods, finalizers of everything, and when nothing holds it any longer."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from karpenter.kube.memory.resources import Resource
from karpenter.kube.memory.store import JsonDict

_DEFAULT_GRACE_SECONDS = 30
_TERMINAL = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """Preconditions and wishes of a delete call. Empty means not asked for."""

    uid: str = ""
    resource_version: str = ""
    grace_period_seconds: int | None = None
    #: Leave dependents behind. Background and foreground deletion are the same here: dependents go with their owner.
    orphan: bool = False


def stamp(moment: datetime) -> str:
    """A time as the API writes it, in whole seconds."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_stamp(text: str) -> datetime:
    """The time ``stamp`` wrote."""
    return datetime.fromisoformat(text)


def is_finished(body: JsonDict) -> bool:
    """Whether a deleted object has nothing left to wait for."""
    meta = body["metadata"]
    waiting = meta.get("finalizers") or meta.get("deletionGracePeriodSeconds")
    return bool(meta.get("deletionTimestamp")) and not waiting


def begin(resource: Resource, body: JsonDict, grace_period_seconds: int | None, now: datetime) -> JsonDict:
    """The object after a delete call, marked as being deleted. ``is_finished`` of the result tells whether it goes at once."""
    grace = _grace(body, grace_period_seconds) if resource.kind.name == "Pod" else 0
    meta = dict(body["metadata"])
    if meta.get("deletionTimestamp"):
        _shorten(meta, grace, asked=grace_period_seconds is not None)
    else:
        meta["deletionTimestamp"] = stamp(now + timedelta(seconds=grace))
        meta["deletionGracePeriodSeconds"] = grace
        if meta.get("generation"):
            meta["generation"] += 1
    return {**body, "metadata": meta}


def _grace(pod: JsonDict, asked: int | None) -> int:
    spec = pod.get("spec") or {}
    if not spec.get("nodeName") or (pod.get("status") or {}).get("phase") in _TERMINAL:
        return 0
    if asked is not None:
        return max(asked, 0)
    own = spec.get("terminationGracePeriodSeconds")
    return _DEFAULT_GRACE_SECONDS if own is None else max(int(own), 0)


def _shorten(meta: JsonDict, grace: int, *, asked: bool) -> None:
    """A second delete call can only bring the end nearer."""
    present = int(meta.get("deletionGracePeriodSeconds") or 0)
    if asked and grace < present:
        end = parse_stamp(meta["deletionTimestamp"]) - timedelta(seconds=present - grace)
        meta["deletionTimestamp"] = stamp(end)
        meta["deletionGracePeriodSeconds"] = grace
