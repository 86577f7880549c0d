"""What was asked, and what was answered before: the record of all calls, and client tokens."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from support.aws.wire import Call, Fields, Refusal

#: Operations that buy or make something once for a token.
TOKENED = frozenset({"CreateFleet", "RunInstances", "CreateLaunchTemplate", "CreateCapacityReservation"})


@dataclass(frozen=True)
class Recorded:
    """A call and how it ended: ``code`` is empty for one that was carried out. ``at`` is seconds since the epoch."""

    service: str
    operation: str
    parameters: Fields
    at: float
    code: str = ""
    lost: bool = False
    request_id: str = ""

    @property
    def is_dry_run(self) -> bool:
        """Whether nothing was meant to happen."""
        return bool(self.parameters.get("DryRun"))


@dataclass
class Calls:
    """All calls, in the order in which they were answered."""

    all: list[Recorded] = field(default_factory=list)

    def of(self, operation: str) -> list[Recorded]:
        """Calls of an operation, dry runs too."""
        return [call for call in self.all if call.operation == operation]

    def carried_out(self, operation: str) -> list[Recorded]:
        """Calls of an operation that did what they asked for."""
        return [call for call in self.of(operation) if not call.code]

    def clear(self) -> None:
        """From here on."""
        self.all.clear()


@dataclass
class Tokens:
    """Answers by client token: who repeats a request gets the answer again and buys nothing; a changed one is refused."""

    _given: dict[tuple[str, str], tuple[str, Fields]] = field(default_factory=dict)

    def reset(self) -> None:
        """Forget all."""
        self._given.clear()

    def find(self, call: Call) -> Fields | None:
        """The answer given before. Raises ``Refusal``."""
        key = self._key(call)
        if key is None or key not in self._given:
            return None
        said, answer = self._given[key]
        if said != _said(call):
            raise Refusal(
                "IdempotentParameterMismatch",
                f"The client token '{key[1]}' was used before with other parameters.",
            )
        return answer

    def keep(self, call: Call, answer: Fields) -> None:
        """A call with a token was carried out."""
        key = self._key(call)
        if key is not None:
            self._given[key] = (_said(call), answer)

    def _key(self, call: Call) -> tuple[str, str] | None:
        token = call.parameters.get("ClientToken")
        wanted = call.operation in TOKENED and token and not call.parameters.get("DryRun")
        return (call.operation, str(token)) if wanted else None


def _said(call: Call) -> str:
    return json.dumps(call.parameters, sort_keys=True, default=str)
