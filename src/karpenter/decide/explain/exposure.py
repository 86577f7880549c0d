"""Where limits of exposure gave way, in a line, and wishes about them that nobody can read, in a line each."""

from __future__ import annotations

from karpenter.decide.plan import Concession, Plan, Why

_BECAUSE = {
    Why.TOGETHER: "its pods ask to share a host",
    Why.LIMITS: "limits of NodePools leave no other machines",
    Why.NOTHING_ELSE: "nothing else at about that price would hold the pods",
}


def exposure_lines(plan: Plan) -> list[str]:
    """One line for the worst of all concessions, one for each unreadable annotation; none where all is as wished."""
    lines = [_unreadable_line(item.subject, item.annotation, item.fault) for item in plan.unreadable]
    if plan.conceded:
        worst = max(plan.conceded, key=lambda item: (item.number - item.most, item.subject, item.place))
        others = len(plan.conceded) - 1
        more = f" ({others} more like this)" if others else ""
        lines.insert(0, f"exposure gives way{more}: {_sentence(worst)}")
    return lines


def _sentence(item: Concession) -> str:
    what = f"{item.number} pods" if item.why is not Why.NOTHING_ELSE else f"{item.number} spot machines"
    return f"{what} of {item.subject} in {item.place}, wished are at most {item.most}: {_BECAUSE[item.why]}"


def _unreadable_line(subject: str, annotation: str, fault: str) -> str:
    return f"annotation {annotation} of {subject}: {fault}; the default holds"
