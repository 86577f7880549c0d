"""Laws of the requirement algebra, for any requirement manifests can spell."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from karpenter.model import requirements as r
from karpenter.model.requirements import Op, Requirement, Requirements, requirement

KEYS = ("a", "b", "c")
VALUES = ("x", "y", "-1", "0", "1", "2", "3", "9")
NUMBERS = st.integers(min_value=-1, max_value=4).map(str)


@st.composite
def stated(draw: st.DrawFn, keys: tuple[str, ...] = ("a",)) -> Requirement:
    operator = draw(st.sampled_from(list(Op)))
    key = draw(st.sampled_from(keys))
    min_values = draw(st.none() | st.integers(1, 50))
    if operator in (Op.GT, Op.LT, Op.GTE, Op.LTE):
        return requirement(key, operator, [draw(NUMBERS)], min_values)
    return requirement(key, operator, draw(st.frozensets(st.sampled_from(VALUES), max_size=4)), min_values)


SETS = st.lists(stated(keys=KEYS), max_size=5).map(Requirements)


@given(stated(), stated())
def test_intersection_is_commutative(a: Requirement, b: Requirement) -> None:
    assert a.intersect(b) == b.intersect(a)


@given(stated(), stated(), stated())
def test_intersection_is_associative(a: Requirement, b: Requirement, c: Requirement) -> None:
    assert a.intersect(b).intersect(c) == a.intersect(b.intersect(c))


@given(stated(), stated())
def test_intersection_is_idempotent(a: Requirement, b: Requirement) -> None:
    both = a.intersect(b)
    assert a.intersect(a) == a
    assert both.intersect(both) == both
    assert both.intersect(a) == both


@given(stated(), stated(), st.sampled_from(VALUES))
@example(requirement("a", "Lte", ["0"]), requirement("a", "Gte", ["-1"]), "-1")
def test_a_value_is_in_the_intersection_when_it_is_in_both(a: Requirement, b: Requirement, value: str) -> None:
    assert a.intersect(b).allows(value) == (a.allows(value) and b.allows(value))


@given(stated(), stated())
def test_two_requirements_meet_exactly_when_their_intersection_can_be_satisfied(a: Requirement, b: Requirement) -> None:
    assert a.has_intersection(b) == b.has_intersection(a)
    assert a.has_intersection(b) == (a.intersect(b).operator is not Op.DOES_NOT_EXIST)


@given(stated(), stated(), st.sampled_from(VALUES))
@example(requirement("a", "Gte", ["0"]), requirement("a", "Gte", ["-1"]), "0")
def test_a_subset_allows_nothing_the_other_refuses(a: Requirement, b: Requirement, value: str) -> None:
    if a.is_subset_of(b):
        assert b.allows(value) or not a.allows(value)
        assert b.accepts_absent or not a.accepts_absent


@given(SETS)
def test_the_wire_form_says_the_same(items: Requirements) -> None:
    assert r.requirements_from_wire(r.requirements_to_wire(items)) == items


@given(SETS, SETS)
def test_sets_intersect_key_by_key(a: Requirements, b: Requirements) -> None:
    both = a.intersect(b)
    assert both == b.intersect(a)
    shared = {key: a[key].intersect(b[key]) for key in KEYS if key in a and key in b}
    alone = {key: side[key] for side, other in ((a, b), (b, a)) for key in side if key not in other}
    assert dict(both) == shared | alone


@given(SETS, SETS)
def test_the_explanation_is_empty_exactly_when_the_answer_is_yes(a: Requirements, b: Requirements) -> None:
    for allowed in (frozenset[str](), frozenset({"a"})):
        assert (not r.incompatibilities(a, b, allowed)) == r.compatible(a, b, allowed)


@given(SETS, SETS)
def test_allowing_undefined_labels_only_ever_helps(a: Requirements, b: Requirements) -> None:
    assert not r.compatible(a, b, frozenset()) or r.compatible(a, b, frozenset(KEYS))
    assert r.intersects(a, b) == r.intersects(b, a) == r.compatible(a, b, frozenset(KEYS))


@given(SETS)
def test_equal_sets_hash_alike_whatever_their_order(items: Requirements) -> None:
    reverse = Requirements(reversed([items[key] for key in items]))
    assert reverse == items
    assert hash(reverse) == hash(items)
