"""Faults as a list of text: drawn from a seed, written on one line, and shrunk to the few that matter."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

#: Kinds of faults with the range their amount is drawn from, and how often each is drawn relative to the others.
#: What each does is in ``fault_week``.
KINDS: dict[str, tuple[int, int, int]] = {
    "crash": (1, 25, 6),
    "leave": (1, 1, 2),
    "lease": (1, 2, 1),
    "cut": (5, 300, 2),
    "still": (5, 200, 1),
    "unanswered": (1, 6, 3),
    "conflict": (1, 8, 3),
    "throttled": (1, 30, 2),
    "unavailable": (1, 8, 2),
    "watches": (1, 1, 2),
    "gone": (1, 1, 2),
    "jump": (-180, 180, 1),
    "stockout": (5, 90, 2),
    "interrupt": (1, 3, 3),
    "lose": (1, 2, 2),
    "slow": (1, 2, 1),
    "drift": (1, 1, 1),
}
#: That there is one more fault in a minute.
_MOST_LIKELY = 0.7


@dataclass(frozen=True)
class Fault:
    """What goes wrong at a minute, and how much of it."""

    minute: int
    kind: str
    amount: int

    def __str__(self) -> str:
        return f"{self.minute}:{self.kind}:{self.amount}"

    @staticmethod
    def parse(text: str) -> Fault:
        minute, kind, amount = text.split(":")
        return Fault(int(minute), kind, int(amount))


def drawn_faults(seed: int, minutes: int, per_hour: float) -> list[Fault]:
    """Faults at random minutes; some come close together, as troubles do."""
    dice = random.Random(f"{seed} faults")
    names, weights = list(KINDS), [weight for _, _, weight in KINDS.values()]
    faults: list[Fault] = []
    for minute in range(1, minutes):
        near = bool(faults) and faults[-1].minute >= minute - 3
        while dice.random() < min(_MOST_LIKELY, per_hour / 60 * (4 if near else 1)):
            kind = dice.choices(names, weights)[0]
            low, high, _ = KINDS[kind]
            faults.append(Fault(minute, kind, dice.randint(low, high)))
    return faults


def shrunk(faults: Sequence[Fault], fails: Callable[[Sequence[Fault]], bool], most_runs: int = 10_000) -> list[Fault]:
    """As few of the faults as still fail, by leaving out halves, then quarters, and so on down to single ones."""
    kept, size, runs = list(faults), len(faults), 0
    while size and runs < most_runs:
        size = (size + 1) // 2
        start = 0
        left_out = False
        while start < len(kept) and runs < most_runs:
            rest = kept[:start] + kept[start + size :]
            runs += 1
            if fails(rest):
                kept, left_out = rest, True
            else:
                start += size
        if size == 1 and not left_out:
            break
    return kept
