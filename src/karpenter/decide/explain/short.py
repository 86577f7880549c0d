"""The short form of why a pod waits, as its event carries it: the texts users alert on first, then the nearest miss."""

from __future__ import annotations

from karpenter.decide.explain.messages import pod_message
from karpenter.decide.explain.misses import sentence
from karpenter.decide.obstacles import Miss, Obstacle
from karpenter.decide.plan import UnplacedPod

#: How the event begins (SCH-652).
FAILED = "Failed to schedule pod, "
_CUT = "..."
#: What the API server takes of an event's message, in bytes.
LONGEST_BYTES = 1024


def event_text(unplaced: UnplacedPod) -> str:
    """At most ``LONGEST_BYTES`` long; where that is short, the reasons of the many pools are cut, not the nearest miss."""
    known = sentence(unplaced.nearest, unplaced.beside)
    near = _cut(f"; {known}", LONGEST_BYTES // 2) if known else ""
    return _cut(FAILED + pod_message(unplaced.reasons), LONGEST_BYTES - len(near.encode())) + near


def _cut(text: str, most_bytes: int) -> str:
    encoded = text.encode()
    if len(encoded) <= most_bytes:
        return text
    return encoded[: most_bytes - len(_CUT)].decode(errors="ignore") + _CUT


def subjects(unplaced: UnplacedPod) -> str:
    """What the pod waits for without the amounts, which change from pass to pass: equal as long as there is no news."""
    misses = [miss for miss in (unplaced.nearest, unplaced.beside) if miss is not None]
    return "; ".join([pod_message(unplaced.reasons), *map(_subject, misses)])


def _subject(miss: Miss) -> str:
    where = miss.node or miss.node_pool
    confined = [f"{item.relation} {item.key} {item.domain}" for item in miss.confined]
    return ", ".join([where, *confined, *sorted(_kind(item) for item in miss.obstacles)])


def _kind(obstacle: Obstacle) -> str:
    about = (getattr(obstacle, name, "") for name in ("resource", "key", "taint", "asked", "zones"))
    return " ".join([type(obstacle).__name__, *(str(item) for item in about if item and not isinstance(item, int))])
