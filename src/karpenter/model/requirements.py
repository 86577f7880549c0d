"""The requirement algebra: every operator is a set or the complement of one, with bounds (SCH-140 ff.).

A requirement says which values a label may have. Intersection does all the work: a NodePool's requirements, a pod's
selector, a type's labels and an offering's zone are the same kind of thing, and "can these live together" is one question.
Sets of requirements hold one requirement per key; a key that is absent is unconstrained on the asking side and undefined
on the offering side, which is why compatibility (`compatible`) is not symmetric.

Bounds compare label values as Kubernetes does: a value is the 64-bit decimal integer it spells, leading zeros allowed. A
label value cannot begin with a sign, so every value within bounds is at least zero: ``Gte -1`` and ``Gte 0`` are the same
requirement, ``Lt 0`` is ``DoesNotExist``, and the text ``-1``, which no node can carry, satisfies no bound. Where every integer
within the bounds is excluded nothing is left, although a text with leading zeros could spell one of them once more: no user
means that, and a label to write could not be drawn.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from karpenter.api.karpenter import NodeSelectorRequirementWithMinValues
from karpenter.model import labels

#: The largest integer a label is compared by.
MAX_INTEGER = 2**63 - 1
_MAX_INTEGER_LENGTH = len(str(MAX_INTEGER))
_SHOWN_VALUES = 5


class Op(StrEnum):
    """Operators as manifests write them."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"
    GT = "Gt"
    LT = "Lt"
    GTE = "Gte"
    LTE = "Lte"


_NEGATIVE_OPERATORS = frozenset({Op.NOT_IN, Op.DOES_NOT_EXIST})


@dataclass(frozen=True, slots=True)
class Requirement:
    """Which values one label may have.

    ``complement`` False: a value in ``values``. True: a value not in ``values`` and, when bounds are set, an integer
    between ``gte`` and ``lte`` inclusive. ``min_values`` asks for that many different values among instance types.
    ``present``: the label must exist although the form alone would do without it, as in Exists with NotIn, or In with another In.
    """

    key: str
    complement: bool
    values: frozenset[str] = frozenset()
    gte: int | None = None
    lte: int | None = None
    min_values: int | None = None
    present: bool = False

    @property
    def accepts_absent(self) -> bool:
        """Whether a node without the label satisfies the requirement."""
        return not self.present and self.operator in _NEGATIVE_OPERATORS

    @property
    def operator(self) -> Op:
        """The plain operator this form reads as (SCH-141)."""
        if self.complement:
            return Op.NOT_IN if self.values else Op.EXISTS
        return Op.IN if self.values else Op.DOES_NOT_EXIST

    def allows(self, value: str) -> bool:
        """Whether a label with this value satisfies the requirement (SCH-142)."""
        return (value in self.values) != self.complement and _is_within_bounds(value, self.gte, self.lte)

    def intersect(self, other: Requirement) -> Requirement:
        """What satisfies both (SCH-145, SCH-146). Both must be about the same key."""
        gte = _tighter_bound(self.gte, other.gte, max)
        lte = _tighter_bound(self.lte, other.lte, min)
        min_values = _tighter_bound(self.min_values, other.min_values, max)
        present = not (self.accepts_absent and other.accepts_absent)
        if gte is not None and lte is not None and gte > lte:
            return Requirement(self.key, False, min_values=min_values, present=present)
        complement = self.complement and other.complement
        if complement:
            values = self.values | other.values
        elif self.complement:
            values = other.values - self.values
        elif other.complement:
            values = self.values - other.values
        else:
            values = self.values & other.values
        if gte is not None or lte is not None:
            values = frozenset(value for value in values if _is_within_bounds(value, gte, lte))
        if not complement:
            gte = lte = None
        elif _excludes_whole_range(values, gte, lte):
            return Requirement(self.key, False, min_values=min_values, present=True)
        present = present and complement == bool(values)  # the other forms say so themselves
        return Requirement(self.key, complement, values, gte, lte, min_values, present)

    def has_intersection(self, other: Requirement) -> bool:
        """Whether some value satisfies both, without building the result (SCH-148)."""
        gte = _tighter_bound(self.gte, other.gte, max)
        lte = _tighter_bound(self.lte, other.lte, min)
        if gte is not None and lte is not None and gte > lte:
            return False
        if self.complement and other.complement:
            return not _excludes_whole_range(self.values | other.values, gte, lte)
        if self.complement:
            return any(value not in self.values and _is_within_bounds(value, gte, lte) for value in other.values)
        if other.complement:
            return any(value not in other.values and _is_within_bounds(value, gte, lte) for value in self.values)
        return any(value in other.values and _is_within_bounds(value, gte, lte) for value in self.values)

    def is_subset_of(self, other: Requirement) -> bool:
        """Whether every label this one allows, the absent one included, satisfies the other. Both about the same key."""
        if not self.complement:
            if not self.values:
                return other.accepts_absent
            return all(other.allows(value) for value in self.values)
        if not other.complement or _tighter_bound(self.gte, other.gte, max) != self.gte:
            return False
        if self.accepts_absent and not other.accepts_absent:
            return False
        excluded = (value for value in other.values if self.allows(value))
        return _tighter_bound(self.lte, other.lte, min) == self.lte and not any(excluded)

    def __str__(self) -> str:
        parts = [f"{self.key} {self.operator}"]
        if self.values:
            shown = sorted(self.values)
            rest = len(shown) - _SHOWN_VALUES
            listed = " ".join(shown[:_SHOWN_VALUES]) + (f" and {rest} others" if rest > 0 else "")
            parts.append(f"[{listed}]")
        if self.gte is not None:
            parts.append(f">={self.gte}")
        if self.lte is not None:
            parts.append(f"<={self.lte}")
        if self.min_values is not None:
            parts.append(f"minValues {self.min_values}")
        return " ".join(parts)


def _tighter_bound(left: int | None, right: int | None, choose: Callable[[int, int], int]) -> int | None:
    if left is None or right is None:
        return right if left is None else left
    return choose(left, right)


def _is_within_bounds(value: str, gte: int | None, lte: int | None) -> bool:
    if gte is None and lte is None:
        return True
    low, high = _range(gte, lte)
    number = as_integer(value)
    return number is not None and low <= number <= high


def _excludes_whole_range(values: frozenset[str], gte: int | None, lte: int | None) -> bool:
    """Whether every integer within the bounds is excluded, so that no value is left."""
    low, high = _range(gte, lte)
    if (gte is None and lte is None) or high - low >= len(values):
        return False
    return all(str(number) in values for number in range(low, high + 1))


def _range(gte: int | None, lte: int | None) -> tuple[int, int]:
    """Label integers that bounds leave: none is below zero, as a label value cannot begin with a sign."""
    return (max(gte or 0, 0), MAX_INTEGER if lte is None else lte)


def as_integer(value: str) -> int | None:
    """The 64-bit integer a label value spells, or None. Plain ASCII digits with an optional sign, as Go reads them."""
    digits = value[1:] if value[:1] in ("-", "+") else value
    if not (digits.isascii() and digits.isdigit()) or len(digits.lstrip("0")) > _MAX_INTEGER_LENGTH:
        return None
    magnitude = int(digits.lstrip("0") or "0")
    number = -magnitude if value[0] == "-" else magnitude
    return number if -MAX_INTEGER - 1 <= number <= MAX_INTEGER else None


def requirement(key: str, operator: str, values: Iterable[str] = (), min_values: int | None = None) -> Requirement:
    """Build a requirement from its manifest form; the key's alias is resolved (SCH-140, SCH-143).

    Bounds expect exactly one integer; anything else matches nothing (validation reports it). Lower bounds below zero are
    raised to zero and an upper bound below zero leaves nothing, since label integers start at zero (SCH-140 Beyond).
    """
    key = labels.normalise(key)
    listed = tuple(values)
    if operator == Op.IN:
        return Requirement(key, False, frozenset(listed), min_values=min_values)
    if operator == Op.NOT_IN:
        return Requirement(key, True, frozenset(listed), min_values=min_values)
    if operator == Op.EXISTS:
        return Requirement(key, True, min_values=min_values)
    if operator == Op.DOES_NOT_EXIST:
        return Requirement(key, False, min_values=min_values)
    bound = as_integer(listed[0]) if len(listed) == 1 else None
    if bound is None:
        return Requirement(key, False, min_values=min_values)
    if operator in (Op.GT, Op.GTE):
        gte = max(bound + 1 if operator == Op.GT else bound, 0)
        return Requirement(key, gte <= MAX_INTEGER, gte=gte if gte <= MAX_INTEGER else None, min_values=min_values)
    lte = bound - 1 if operator == Op.LT else bound
    return Requirement(key, lte >= 0, lte=lte if lte >= 0 else None, min_values=min_values)


class Requirements(Mapping[str, Requirement]):
    """An immutable set of requirements, one per key (SCH-147). Hashable, so results can be cached by it."""

    __slots__ = ("_by_key", "_hash")

    def __init__(self, requirements: Iterable[Requirement] = ()) -> None:
        stated = tuple(requirements)
        by_key = {added.key: added for added in stated}
        self._by_key = by_key if len(by_key) == len(stated) else _intersected(stated)
        self._hash: int | None = None

    def __getitem__(self, key: str) -> Requirement:
        return self._by_key[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_key)

    def __len__(self) -> int:
        return len(self._by_key)

    def __contains__(self, key: object) -> bool:
        return key in self._by_key

    def keys(self) -> KeysView[str]:
        """Keys, values and items are those of a dict: what `Mapping` makes of the rest is many times slower."""
        return self._by_key.keys()

    def values(self) -> ValuesView[Requirement]:
        """One requirement per key."""
        return self._by_key.values()

    def items(self) -> ItemsView[str, Requirement]:
        """Each key with its requirement."""
        return self._by_key.items()

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(frozenset(self._by_key.values()))
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Requirements) and self._by_key == other._by_key

    def __repr__(self) -> str:
        return f"Requirements({self})"

    def __str__(self) -> str:
        return ", ".join(sorted(str(stated) for key, stated in self._by_key.items() if key != labels.HOSTNAME))

    def requirement_for(self, key: str) -> Requirement:
        """The requirement for a key; an absent key reads as Exists (SCH-147)."""
        return self._by_key.get(key) or Requirement(key, True)

    def intersect(self, other: Requirements) -> Requirements:
        """Both sets at once: per key the intersection, other keys as they are."""
        if not other:
            return self
        if not self:
            return other
        both = Requirements()
        both._by_key = {**self._by_key, **other._by_key}
        for key in self._by_key.keys() & other._by_key.keys():
            both._by_key[key] = self._by_key[key].intersect(other._by_key[key])
        return both

    def without(self, keys: Iterable[str]) -> Requirements:
        """The same set lacking some keys."""
        dropped = frozenset(keys)
        return Requirements(stated for key, stated in self._by_key.items() if key not in dropped)


def _intersected(stated: Iterable[Requirement]) -> dict[str, Requirement]:
    """Per key the intersection of its requirements."""
    by_key: dict[str, Requirement] = {}
    for added in stated:
        earlier = by_key.get(added.key)
        by_key[added.key] = added if earlier is None else earlier.intersect(added)
    return by_key


def requirements_from_labels(values: Mapping[str, str]) -> Requirements:
    """Labels as requirements: each ``In`` its one value (API-409)."""
    return Requirements(map(_label, values, values.values()))


@lru_cache(maxsize=65_536)
def _label(key: str, value: str) -> Requirement:
    """One label as a requirement, shared: thousands of nodes carry the same ones."""
    return Requirement(labels.normalise(key), False, frozenset((value,)))


def requirements_from_wire(entries: Iterable[NodeSelectorRequirementWithMinValues]) -> Requirements:
    """Requirements of a NodePool or NodeClaim."""
    return Requirements(requirement(entry.key, entry.operator, entry.values, entry.min_values) for entry in entries)


def requirements_to_wire(requirements: Requirements) -> tuple[NodeSelectorRequirementWithMinValues, ...]:
    """Manifest form, sorted by key. Bounds become Gte and Lte (SCH-170); exclusions beside bounds are kept (its Beyond)."""
    return tuple(entry for key in sorted(requirements) for entry in _wire_entries(requirements[key]))


def _wire_entries(stated: Requirement) -> Iterator[NodeSelectorRequirementWithMinValues]:
    bounded = stated.gte is not None or stated.lte is not None
    if stated.present and not bounded:
        yield _wire(stated, Op.EXISTS, ())
    if stated.gte is not None:
        yield _wire(stated, Op.GTE, (str(stated.gte),))
    if stated.lte is not None:
        yield _wire(stated, Op.LTE, (str(stated.lte),))
    if not bounded or stated.values:
        yield _wire(stated, stated.operator, tuple(sorted(stated.values)))


def _wire(stated: Requirement, operator: Op, values: tuple[str, ...]) -> NodeSelectorRequirementWithMinValues:
    return NodeSelectorRequirementWithMinValues(
        key=stated.key, operator=operator.value, values=values, min_values=stated.min_values
    )


@dataclass(frozen=True, slots=True)
class UndefinedKey:
    """The left side requires a label that the right side does not define. ``suggested_key``: a similar known label, if any."""

    required: Requirement
    suggested_key: str = ""


@dataclass(frozen=True, slots=True)
class ValueMismatch:
    """Both sides constrain a label and no value satisfies both."""

    required: Requirement
    offered: Requirement


Incompatibility = UndefinedKey | ValueMismatch


def intersects(left: Requirements, right: Requirements) -> bool:
    """Whether every key present on both sides has a common value (SCH-165)."""
    return not _mismatches(left, right, stop_at_first=True)


def _mismatches(left: Requirements, right: Requirements, *, stop_at_first: bool) -> list[ValueMismatch]:
    mismatches: list[ValueMismatch] = []
    for key, asked in right.items():
        if key in left:
            offered = left[key]
            if not offered.has_intersection(asked) and not (offered.accepts_absent and asked.accepts_absent):
                mismatches.append(ValueMismatch(asked, offered))
                if stop_at_first:
                    break
    return mismatches


def compatible(left: Requirements, right: Requirements, allowed_undefined: frozenset[str]) -> bool:
    """Whether what ``left`` offers can satisfy what ``right`` asks (SCH-166).

    ``allowed_undefined`` holds the keys ``left`` may leave undefined; the empty set makes the relation strict.
    """
    return not any(_undefined(left, right, allowed_undefined)) and intersects(left, right)


def _undefined(left: Requirements, right: Requirements, allowed: frozenset[str]) -> Iterator[Requirement]:
    for key, asked in right.items():
        if key not in left and key not in allowed and not asked.accepts_absent:
            yield asked


def incompatibilities(
    left: Requirements, right: Requirements, allowed_undefined: frozenset[str]
) -> tuple[Incompatibility, ...]:
    """Why ``compatible`` says no, sorted by key; empty when it says yes."""
    undefined = [
        UndefinedKey(asked, _similar_key(asked.key, allowed_undefined) or _similar_key(asked.key, left))
        for asked in _undefined(left, right, allowed_undefined)
    ]
    mismatched = _mismatches(left, right, stop_at_first=False)
    return tuple(sorted((*undefined, *mismatched), key=lambda mismatch: mismatch.required.key))


def _similar_key(key: str, known_keys: Iterable[str]) -> str:
    """A known_keys key that ends as this one does, else one that contains it, the first by name; empty without one (SCH-169)."""
    end = key.partition("/")[2] or key
    similar = [other for other in known_keys if key in other or other.endswith(end)]
    return min(similar, key=lambda other: (not other.endswith(f"/{end}"), other), default="")
