"""How a NodePool's latest machines fared: whether their Nodes registered (API-650, OPS-060).

A ring is a value: what it would say after one more outcome is what a longer ring says. One failure among good outcomes, or alone,
is no illness; two among the latest four are.
"""

from __future__ import annotations

from dataclasses import dataclass

from karpenter.model.conditions import FALSE, TRUE, UNKNOWN

_KEPT = 4
_TOO_MANY = 2


@dataclass(frozen=True, slots=True)
class Ring:
    """The latest outcomes, oldest first: True for a machine that registered, False for one given up."""

    outcomes: tuple[bool, ...] = ()

    def then(self, *outcomes: bool) -> Ring:
        """The ring after these outcomes."""
        return Ring((*self.outcomes, *outcomes)[-_KEPT:])

    @property
    def status(self) -> str:
        """As the status of a condition: True is healthy, False is not, Unknown without any outcome."""
        if not self.outcomes:
            return UNKNOWN
        return FALSE if self.outcomes.count(False) >= _TOO_MANY else TRUE


def seeded(status: str) -> Ring:
    """The ring a new process starts from, by the condition the last one left (API-651)."""
    match status:
        case "True":
            return Ring((True,))
        case "False":
            return Ring((False, False))
        case _:
            return Ring()
