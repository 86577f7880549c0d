"""Taints and tolerations: which pods may run on a node, and which taints are temporary.

Two taints are the same when key and effect agree; the value is not part of the identity. Ephemeral taints belong to a node that
is still starting. They are expected to be removed, so planning ignores them and initialization waits for their removal.
"""

from __future__ import annotations

from collections.abc import Iterable

from karpenter.api.scheduling_constraints import Taint, Toleration
from karpenter.model import labels

#: Key and effect of the taints that are expected to go by themselves (SCH-085, OPS-041).
EPHEMERAL_TAINTS = frozenset(
    {
        (labels.NOT_READY_TAINT, "NoSchedule"),
        (labels.NOT_READY_TAINT, "NoExecute"),
        (labels.UNREACHABLE_TAINT, "NoSchedule"),
        ("node.cloudprovider.kubernetes.io/uninitialized", "NoSchedule"),
        (labels.UNREGISTERED_TAINT.key, labels.UNREGISTERED_TAINT.effect),
    }
)
#: Taints of this prefix are readiness gates of other controllers, whatever their effect.
READINESS_PREFIX = "readiness.k8s.io/"

_INT64 = range(-(2**63), 2**63)


def is_same_taint(left: Taint, right: Taint) -> bool:
    """Whether two taints are one: same key and effect, whatever their values."""
    return left.key == right.key and left.effect == right.effect


def is_ephemeral(taint: Taint) -> bool:
    """Whether the taint is expected to go while its node starts (SCH-085, OPS-041)."""
    return (taint.key, taint.effect) in EPHEMERAL_TAINTS or taint.key.startswith(READINESS_PREFIX)


def merge_taints(existing: Iterable[Taint], new_taints: Iterable[Taint]) -> tuple[Taint, ...]:
    """All existing taints, then the added ones that are not there yet; an existing value wins (OPS-024)."""
    merged = list(existing)
    present = {(taint.key, taint.effect) for taint in merged}
    for taint in new_taints:
        if (taint.key, taint.effect) not in present:
            present.add((taint.key, taint.effect))
            merged.append(taint)
    return tuple(merged)


def without_taints(existing: Iterable[Taint], removed: Iterable[Taint]) -> tuple[Taint, ...]:
    """The taints that are none of the removed ones, in their order."""
    identities = {(taint.key, taint.effect) for taint in removed}
    return tuple(taint for taint in existing if (taint.key, taint.effect) not in identities)


def tolerates_taint(tolerations: Iterable[Toleration], taint: Taint) -> bool:
    """Whether any of the tolerations covers the taint (SCH-401). Toleration seconds play no role."""
    return any(_toleration_covers(toleration, taint) for toleration in tolerations)


def untolerated(taints: Iterable[Taint], tolerations: Iterable[Toleration]) -> tuple[Taint, ...]:
    """The taints no toleration covers, in their order; every effect counts (SCH-400)."""
    all_tolerations = tuple(tolerations)
    return tuple(taint for taint in taints if not tolerates_taint(all_tolerations, taint))


def _toleration_covers(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect not in ("", taint.effect) or toleration.key not in ("", taint.key):
        return False
    match toleration.operator:
        case "" | "Equal":
            return toleration.value == taint.value
        case "Exists":
            return True
        case "Lt" | "Gt":
            return _numeric_toleration_covers(toleration, taint)
        case _:
            return False


def _numeric_toleration_covers(toleration: Toleration, taint: Taint) -> bool:
    bound, value = _decimal(toleration.value), _decimal(taint.value)
    if bound is None or value is None:
        return False
    return value < bound if toleration.operator == "Lt" else value > bound


def _decimal(text: str) -> int | None:
    """The 64-bit integer a text spells in plain decimal, None where it spells none: no plus sign, no leading zero."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > len(str(_INT64.stop)):
        return None
    if digits.startswith("0") and text != "0":
        return None
    number = int(text)
    return number if number in _INT64 else None


def taint_text(taint: Taint) -> str:
    """``key=value:effect``, or ``key:effect`` without a value."""
    value = f"={taint.value}" if taint.value else ""
    return f"{taint.key}{value}:{taint.effect}"
