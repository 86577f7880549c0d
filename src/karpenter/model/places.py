"""Where rules of admission stand in an object, and how they are asked: the frame of ``admission``, whatever the kind.

A place that is as it was is not judged again: servers hold nobody responsible for what was there before (``schema``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from karpenter.model import schema
from karpenter.model.schema import NOTHING, Finding

V = TypeVar("V")

#: A rule about the value at a place, and one about the value and what it replaces; both are told the path.
Check = Callable[[object, str], Iterable[Finding]]
Comparison = Callable[[object, object, str], Iterable[Finding]]


@dataclass(frozen=True, slots=True)
class Place:
    """Where rules stand, by the names of the fields on the way.

    ``checks`` judge the value unless it is as it was, ``comparisons`` the change where both sides have a value (API-023).
    """

    names: tuple[str, ...]
    checks: tuple[Check, ...] = ()
    comparisons: tuple[Comparison, ...] = ()

    def judge(self, body: object, old_body: object) -> Iterator[Finding]:
        """What the rules say of this place."""
        value, old = schema.member(body, *self.names), schema.member(old_body, *self.names)
        if value is NOTHING or schema.unchanged(old, value):
            return
        path = ".".join(self.names)
        for check in self.checks:
            yield from check(value, path)
        if old is not NOTHING:
            for compare in self.comparisons:
                yield from compare(value, old, path)


def reading(view: type[V], check: Callable[[V, str], Iterable[Finding]]) -> Check:
    """A rule that reads the value as ``view``. Where it does not fit, the schema's findings say so and the rule is silent."""

    def read(value: object, path: str) -> Iterable[Finding]:
        try:
            found = msgspec.convert(value, view)
        except msgspec.ValidationError:
            return ()
        return check(found, path)

    return read
