"""Values of labels over a list of instance types: available values (for ``minValues``), and distinct requirements per key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from karpenter.instancetypes.instance_type import InstanceType
from karpenter.instancetypes.type_sets import TypeSet, type_set
from karpenter.model.requirements import Requirement


@dataclass(frozen=True)
class LabelValues:
    """The available values of one label, each with the types that offer it."""

    by_value: Mapping[str, TypeSet]

    @cached_property
    def _types_with_unique_value(self) -> TypeSet:
        """All types if every type has a unique value, as with type names; else none."""
        all_types: TypeSet = 0
        for types in self.by_value.values():
            all_types |= types
        pairs = sum(types.bit_count() for types in self.by_value.values())
        return all_types if pairs == len(self.by_value) == all_types.bit_count() else 0

    def count(self, types: TypeSet, limit: int) -> int:
        """How many values the types offer, at most ``limit``."""
        if self._types_with_unique_value:
            return min(limit, (types & self._types_with_unique_value).bit_count())
        return sum(1 for _ in islice((1 for having in self.by_value.values() if having & types), limit))

    def first_types_offering(self, order: Iterable[int], count: int) -> set[int]:
        """The first positions that together offer ``count`` values."""
        needed: set[int] = set()
        missing = dict(self.by_value)
        for position in order:
            new_values = [value for value, types in missing.items() if types >> position & 1]
            if new_values:
                needed.add(position)
                for value in new_values:
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

    @property
    def is_fixed(self) -> bool:
        """Whether each form is one value, or the absence of the label."""
        return all(not form.complement and len(form.values) <= 1 for form, _ in self.all_forms)

    def forms_to_test(self, requirement: Requirement) -> tuple[tuple[Requirement, TypeSet], ...]:
        """The forms worth testing; named values are looked up instead."""
        return self.all_forms if requirement.complement else self.open_forms


def label_forms(types: Sequence[InstanceType]) -> dict[str, LabelForms]:
    """The label forms of a list of types, by label key.

    The types of EC2 have forty thousand requirements, most of them the same few objects: each is hashed once, not per type.
    """
    by_identity: dict[int, tuple[Requirement, list[int]]] = {}
    for position, instance_type in enumerate(types):
        for requirement in instance_type.requirements.values():
            known = by_identity.get(id(requirement))
            if known is None:
                by_identity[id(requirement)] = (requirement, [position])
            else:
                known[1].append(position)
    types_by_form: dict[str, dict[Requirement, TypeSet]] = {}
    for requirement, positions in by_identity.values():
        per_form = types_by_form.setdefault(requirement.key, {})
        per_form[requirement] = per_form.get(requirement, 0) | type_set(positions)
    return {key: _forms_of_key(per_form) for key, per_form in types_by_form.items()}


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
