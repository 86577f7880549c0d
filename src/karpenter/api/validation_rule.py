"""One admission rule of a CRD."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ValidationRule:
    """An expression that must hold, and what to tell the user when it does not."""

    expression: str
    message: str

    def as_json(self) -> dict[str, str]:
        """The entry of ``x-kubernetes-validations``."""
        return {"rule": self.expression, "message": self.message}
