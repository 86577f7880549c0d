"""TODO: say what belongs here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from karpenter.instancetypes.instance_type import InstanceType
from karpenter.instancetypes.type_sets import TypeSet
from karpenter.model.requirements import Requirement


@dataclass(frozen=True)
class LabelValues:
    """The values of one label that can be had, each with the types to have it on."""

    by_value: Mapping[str, TypeSet]

    @cached_property
    def _types_with_unique_value(self) -> TypeSet:
        """All types, where every type has a value of its own as with type names; else none."""
        together: TypeSet = 0
        for types in self.by_value.values():
            together |= types
        pairs = sum(types.bit_count() for types in self.by_value.values())
        return together if pairs == len(self.by_value) == together.bit_count() else 0

    def count(self, types: TypeSet, limit: int) -> int:
        """How many values the types offer, at most ``enough``."""
        if self._types_with_unique_value:
            return min(limit, (types & self._types_with_unique_value).bit_count())
        return sum(1 for _ in islice((1 for having in self.by_value.values() if having & types), limit))

    def first_types_offering(self, order: Iterable[int], count: int) -> set[int]:
        """The first positions to offer so many values together."""
        needed: set[int] = set()
        missing = dict(self.by_value)
        for position in order:
            gained = [value for value, types in missing.items() if types >> position & 1]
            if gained:
                needed.add(position)
                for value in gained:
                    del missing[value]
                if len(self.by_value) - len(missing) >= count:
                    break
        return needed


@dataclass(frozen=True)
class LabelForms:
    """How the types constrain one label key: each distinct requirement with the types that have it."""

    defining_types: TypeSet
    all_forms: tuple[tuple[Requirement, TypeSet], ...]
    open_forms: tuple[tuple[Requirement, TypeSet], ...]
    by_value: Mapping[str, TypeSet]

    def forms_to_test(self, requirement: Requirement) -> tuple[tuple[Requirement, TypeSet], ...]:
        """The forms worth testing; named values are looked up instead."""
        return self.all_forms if requirement.complement else self.open_forms


def label_forms(types: Sequence[InstanceType]) -> dict[str, LabelForms]:
    """The label forms of a list of types, by label key."""
    found: dict[str, dict[Requirement, int]] = {}
    for position, item in enumerate(types):
        for key, requirement in item.requirements.items():
            per_form = found.setdefault(key, {})
            per_form[requirement] = per_form.get(requirement, 0) | 1 << position
    return {key: _forms_of_key(per_form) for key, per_form in found.items()}


def _forms_of_key(per_form: Mapping[Requirement, int]) -> LabelForms:
    by_value: dict[str, int] = {}
    defined = 0
    for form, types in per_form.items():
        defined |= types
        if not form.complement:
            for value in form.values:
                by_value[value] = by_value.get(value, 0) | types
    open_forms = tuple((form, types) for form, types in per_form.items() if form.complement or not form.values)
    return LabelForms(defined, tuple(per_form.items()), open_forms, by_value)
