"""How an object leaves: grace period of pods, finalizers of everything, and when nothing holds it any longer."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from karpenter.kube.memory.resources import Resource
from karpenter.kube.memory.store import FOREGROUND_FINALIZER, ORPHAN_FINALIZER, JsonDict

#: What happens to dependents: deleted after the owner, deleted before it, or left behind.
BACKGROUND, FOREGROUND, ORPHAN = "Background", "Foreground", "Orphan"

_DEFAULT_GRACE_SECONDS = 30
_TERMINAL = ("Succeeded", "Failed")
_FINALIZER = {FOREGROUND: FOREGROUND_FINALIZER, ORPHAN: ORPHAN_FINALIZER}


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """Preconditions and wishes of a delete call. Empty means not asked for."""

    uid: str = ""
    resource_version: str = ""
    grace_period_seconds: int | None = None
    #: ``BACKGROUND``, ``FOREGROUND`` or ``ORPHAN``; empty means as the object's finalizers say, else background.
    propagation: str = ""


def stamp(moment: datetime) -> str:
    """A time (UTC) as the API writes it, in whole seconds."""
    return moment.replace(tzinfo=None).isoformat(timespec="seconds") + "Z"


def parse_stamp(text: str) -> datetime:
    """The time ``stamp`` wrote."""
    return datetime.fromisoformat(text)


def is_finished(body: JsonDict) -> bool:
    """Whether a deleted object has nothing left to wait for."""
    meta = body["metadata"]
    waiting = meta.get("finalizers") or meta.get("deletionGracePeriodSeconds")
    return bool(meta.get("deletionTimestamp")) and not waiting


def begin(resource: Resource, body: JsonDict, options: DeleteOptions, now: datetime) -> JsonDict:
    """The object after a delete call, marked as being deleted. ``is_finished`` of the result tells whether it goes at once."""
    asked = options.grace_period_seconds
    grace = _grace(body, asked) if resource.kind.name == "Pod" else 0
    meta = dict(body["metadata"])
    if options.propagation:
        meta["finalizers"] = _finalizers(meta, options.propagation)
    if meta.get("deletionTimestamp"):
        _shorten(meta, grace, asked=asked is not None)
    else:
        meta["deletionTimestamp"] = stamp(now + timedelta(seconds=grace))
        meta["deletionGracePeriodSeconds"] = grace
        if meta.get("generation"):
            meta["generation"] += 1
    return {**body, "metadata": meta}


def _finalizers(meta: JsonDict, propagation: str) -> list[str]:
    others = [name for name in meta.get("finalizers") or () if name not in _FINALIZER.values()]
    return [*others, _FINALIZER[propagation]] if propagation in _FINALIZER else others


def _grace(pod: JsonDict, asked: int | None) -> int:
    spec = pod.get("spec") or {}
    if not spec.get("nodeName") or (pod.get("status") or {}).get("phase") in _TERMINAL:
        return 0
    own = spec.get("terminationGracePeriodSeconds")
    wanted = asked if asked is not None else _DEFAULT_GRACE_SECONDS if own is None else int(own)
    return wanted if wanted >= 0 else 1


def _shorten(meta: JsonDict, grace: int, *, asked: bool) -> None:
    """A second delete call can only bring the end nearer."""
    present = int(meta.get("deletionGracePeriodSeconds") or 0)
    if asked and grace < present:
        end = parse_stamp(meta["deletionTimestamp"]) - timedelta(seconds=present - grace)
        meta["deletionTimestamp"] = stamp(end)
        meta["deletionGracePeriodSeconds"] = grace
