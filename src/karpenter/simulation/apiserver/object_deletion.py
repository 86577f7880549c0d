"""How an object leaves: grace period of pods, finalizers of everything, and when nothing holds it any longer."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from karpenter.simulation.apiserver.object_store import FOREGROUND_FINALIZER, ORPHAN_FINALIZER, JsonDict
from karpenter.simulation.apiserver.served_resources import ServedResource

#: What happens to dependents: deleted after the owner, deleted before it, or left behind.
BACKGROUND, FOREGROUND, ORPHAN = "Background", "Foreground", "Orphan"

_DEFAULT_GRACE_SECONDS = 30
_TERMINAL_PHASES = ("Succeeded", "Failed")
_PROPAGATION_FINALIZERS = {FOREGROUND: FOREGROUND_FINALIZER, ORPHAN: ORPHAN_FINALIZER}


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """Preconditions and options of a delete call. Empty means not asked for."""

    uid: str = ""
    resource_version: str = ""
    grace_period_seconds: int | None = None
    #: ``BACKGROUND``, ``FOREGROUND`` or ``ORPHAN``; empty means as the object's finalizers say, else background.
    propagation: str = ""


def format_time(moment: datetime) -> str:
    """A time (UTC) as the API writes it, in whole seconds."""
    return moment.replace(tzinfo=None).isoformat(timespec="seconds") + "Z"


def parse_time(text: str) -> datetime:
    """The time that ``format_time`` wrote."""
    return datetime.fromisoformat(text)


def is_deletable(body: JsonDict) -> bool:
    """Whether a deleted object has nothing left to wait for."""
    meta = body["metadata"]
    waiting = meta.get("finalizers") or meta.get("deletionGracePeriodSeconds")
    return bool(meta.get("deletionTimestamp")) and not waiting


def mark_deleted(resource: ServedResource, body: JsonDict, options: DeleteOptions, now: datetime) -> JsonDict:
    """The object marked as being deleted. ``is_deletable`` of the result says whether it is removed at once."""
    asked = options.grace_period_seconds
    grace = _grace_seconds(body, asked) if resource.kind.name == "Pod" else 0
    meta = dict(body["metadata"])
    if options.propagation:
        meta["finalizers"] = _finalizers_for(meta, options.propagation)
    if meta.get("deletionTimestamp"):
        _shorten_grace_period(meta, grace, is_requested=asked is not None)
    else:
        meta["deletionTimestamp"] = format_time(now + timedelta(seconds=grace))
        meta["deletionGracePeriodSeconds"] = grace
        if meta.get("generation"):
            meta["generation"] += 1
    return {**body, "metadata": meta}


def _finalizers_for(meta: JsonDict, propagation: str) -> list[str]:
    others = [name for name in meta.get("finalizers") or () if name not in _PROPAGATION_FINALIZERS.values()]
    return [*others, _PROPAGATION_FINALIZERS[propagation]] if propagation in _PROPAGATION_FINALIZERS else others


def _grace_seconds(pod: JsonDict, requested: int | None) -> int:
    spec = pod.get("spec") or {}
    if not spec.get("nodeName") or (pod.get("status") or {}).get("phase") in _TERMINAL_PHASES:
        return 0
    own = spec.get("terminationGracePeriodSeconds")
    wanted = requested if requested is not None else _DEFAULT_GRACE_SECONDS if own is None else int(own)
    return wanted if wanted >= 0 else 1


def _shorten_grace_period(meta: JsonDict, grace: int, *, is_requested: bool) -> None:
    """A second delete call can only bring the end nearer."""
    present = int(meta.get("deletionGracePeriodSeconds") or 0)
    if is_requested and grace < present:
        end = parse_time(meta["deletionTimestamp"]) - timedelta(seconds=present - grace)
        meta["deletionTimestamp"] = format_time(end)
        meta["deletionGracePeriodSeconds"] = grace
