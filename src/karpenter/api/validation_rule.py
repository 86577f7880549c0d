"""One admission rule of a CRD: the only statement of the rule.

``api.crds`` writes the expression and the message into the schema, where a real API server evaluates them.
``model.cel_validation`` evaluates the same expression offline; code, field, item and hint are for its findings only.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ValidationRule:
    """An expression that must hold, and what to tell the user when it does not.

    ``code`` is the kind of finding, ``field`` the member of the value that a finding is about, ``hint`` says how to fix it.
    ``item`` is what the expression demands of each entry ``x`` of a list (or each key ``x`` of a map), empty where the rule is
    about the value as a whole: with it a finding names the entry.
    """

    expression: str
    message: str
    code: str
    field: str = ""
    hint: str = ""
    item: str = ""

    @property
    def is_transition_rule(self) -> bool:
        """Whether the rule compares the value with the one it replaces; it is evaluated in updates only (API-023)."""
        return "oldSelf" in self.expression

    def as_json(self) -> dict[str, str]:
        """The entry of ``x-kubernetes-validations``."""
        return {"rule": self.expression, "message": self.message}


def for_each(condition: str, message: str, code: str, *, field: str = "", hint: str = "") -> ValidationRule:
    """A rule for each entry ``x`` of a list, or each key ``x`` of a map."""
    return ValidationRule(f"self.all(x, {condition})", message, code, field, hint, condition)
