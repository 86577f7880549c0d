"""Where rules of admission stand in an object, and how they are asked: the frame of ``admission``, whatever the kind.

A place that is as it was is not judged again: servers hold nobody responsible for what was there before (``schema``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from karpenter.model import structural_schema
from karpenter.model.structural_schema import ABSENT, Finding

Viewed = TypeVar("Viewed")

#: A rule about the value at a place, and one about the value and what it replaces; both are told the path.
ValueCheck = Callable[[object, str], Iterable[Finding]]
TransitionCheck = Callable[[object, object, str], Iterable[Finding]]


@dataclass(frozen=True, slots=True)
class RuleLocation:
    """Where rules stand, by the names of the fields on the way.

    ``checks`` judge the value unless it is as it was, ``comparisons`` the change where both sides have a value (API-023).
    """

    field_path: tuple[str, ...]
    checks: tuple[ValueCheck, ...] = ()
    transition_checks: tuple[TransitionCheck, ...] = ()

    def findings(self, body: object, old_body: object) -> Iterator[Finding]:
        """What the rules say of this place."""
        value, old = (
            structural_schema.get_member(body, *self.field_path),
            structural_schema.get_member(old_body, *self.field_path),
        )
        if value is ABSENT or structural_schema.is_unchanged(old, value):
            return
        path = ".".join(self.field_path)
        for check in self.checks:
            yield from check(value, path)
        if old is not ABSENT:
            for compare in self.transition_checks:
                yield from compare(value, old, path)


def typed_check(view: type[Viewed], check: Callable[[Viewed, str], Iterable[Finding]]) -> ValueCheck:
    """A rule that reads the value as ``view``. Where it does not fit, the schema's findings say so and the rule is silent."""

    def read(value: object, path: str) -> Iterable[Finding]:
        try:
            found = msgspec.convert(value, view)
        except msgspec.ValidationError:
            return ()
        return check(found, path)

    return read
