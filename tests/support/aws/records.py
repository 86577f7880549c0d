"""Recorded calls, and answers by client token."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from support.aws.wire import Call, Fields, Refusal

#: Operations that are idempotent by client token.
TOKENED = frozenset({"CreateFleet", "RunInstances", "CreateLaunchTemplate", "CreateCapacityReservation"})


@dataclass(frozen=True)
class RecordedCall:
    """A call and its result: ``code`` is empty for a call that succeeded. ``at`` is seconds since the epoch."""

    service: str
    operation: str
    parameters: Fields
    at: float
    code: str = ""
    lost: bool = False
    request_id: str = ""

    @property
    def is_dry_run(self) -> bool:
        """Whether the call is a dry run."""
        return bool(self.parameters.get("DryRun"))


@dataclass
class Calls:
    """All calls, in the order of their answers."""

    all: list[RecordedCall] = field(default_factory=list)

    def of(self, operation: str) -> list[RecordedCall]:
        """Calls of an operation, including dry runs."""
        return [call for call in self.all if call.operation == operation]

    def carried_out(self, operation: str) -> list[RecordedCall]:
        """Successful calls of an operation, without dry runs."""
        return [call for call in self.of(operation) if not call.code]

    def clear(self) -> None:
        """Clear the record."""
        self.all.clear()


@dataclass
class ClientTokens:
    """Answers by client token: a repeated request gets the same answer without effect; a changed request is refused."""

    _given: dict[tuple[str, str], tuple[str, Fields]] = field(default_factory=dict)

    def reset(self) -> None:
        """Clear all tokens."""
        self._given.clear()

    def find(self, call: Call) -> Fields | None:
        """The earlier answer to the same token. Raises ``Refusal``."""
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
        """Store the answer to a call with a token."""
        key = self._key(call)
        if key is not None:
            self._given[key] = (_said(call), answer)

    def _key(self, call: Call) -> tuple[str, str] | None:
        token = call.parameters.get("ClientToken")
        wanted = call.operation in TOKENED and token and not call.parameters.get("DryRun")
        return (call.operation, str(token)) if wanted else None


def _said(call: Call) -> str:
    return json.dumps(call.parameters, sort_keys=True, default=str)
