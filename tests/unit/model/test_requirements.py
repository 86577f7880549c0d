"""The requirement algebra, row by row as the specification tabulates it."""

from __future__ import annotations

import pytest

from karpenter.api.karpenter import NodeSelectorRequirementWithMinValues
from karpenter.model import requirements as r
from karpenter.model.requirements import Op, Requirement, Requirements, requirement

CUSTOM = "example.com/key"
ZONE = "topology.kubernetes.io/zone"
WELL_KNOWN = frozenset({ZONE})


def read(text: str, key: str = CUSTOM) -> Requirement:
    """``NotIn A,1 >=2 <=8 min 3`` and the like, as the tables write them."""
    words = text.split()
    operator, rest = words[0], words[1:]
    values = rest.pop(0).split(",") if rest and operator not in ("Exists", "DNE", ">=", "<=") else []
    return requirement(key, "DoesNotExist" if operator == "DNE" else operator, values)


def shape(obj: Requirement) -> tuple[bool, frozenset[str], int | None, int | None]:
    return obj.complement, obj.values, obj.gte, obj.lte


def form(text: str) -> tuple[bool, frozenset[str], int | None, int | None]:
    """The expected form: ``Exists``, ``DNE``, ``In a,b`` or ``NotIn a,b`` followed by bounds, or bounds alone."""
    gte = lte = None
    values: frozenset[str] = frozenset()
    complement = True
    words = text.replace("≥", ">=").replace("≤", "<=").replace(", ", " ").split()
    for place, word in enumerate(words):
        if word.startswith(">="):
            gte = int(word[2:])
        elif word.startswith("<="):
            lte = int(word[2:])
        elif word in ("In", "DNE"):
            complement = False
        elif place > 0:
            values = frozenset(word.split(","))
    return complement, values, gte, lte


COLUMNS = ["Exists", "DNE", "In A", "In A,B", "NotIn A", "In 1,9", "NotIn 1,2", "Gt 1", "Lt 9"]
TABLE = {
    "Exists": ["Exists", "DNE", "In A", "In A,B", "NotIn A", "In 1,9", "NotIn 1,2", "≥2", "≤8"],
    "In A,B": ["In A,B", "DNE", "In A", "In A,B", "In B", "DNE", "In A,B", "DNE", "DNE"],
    "NotIn A": ["NotIn A", "DNE", "DNE", "In B", "NotIn A", "In 1,9", "NotIn A,1,2", "≥2", "≤8"],
    "In 1,9": ["In 1,9", "DNE", "DNE", "DNE", "In 1,9", "In 1,9", "In 9", "In 9", "In 1"],
    "NotIn 1,2": [
        "NotIn 1,2",
        "DNE",
        "In A",
        "In A,B",
        "NotIn A,1,2",
        "In 9",
        "NotIn 1,2",
        "NotIn 2 ≥2",
        "NotIn 1,2 ≤8",
    ],
    "Gt 1": ["≥2", "DNE", "DNE", "DNE", "≥2", "In 9", "NotIn 2 ≥2", "≥2", "≥2 ≤8"],
    "Lt 9": ["≤8", "DNE", "DNE", "DNE", "≤8", "In 1", "NotIn 1,2 ≤8", "≥2 ≤8", "≤8"],
}
INTERSECTIONS = [(row, COLUMNS[i], want) for row, wants in TABLE.items() for i, want in enumerate(wants)] + [
    ("Gt 1", "Lt 1", "DNE"),
    ("Gt 9", "Lt 9", "DNE"),
    ("Gte 10", "Lte 9", "DNE"),
    ("Gte 8", "Lte 8", "≥8 ≤8"),
    ("In a,b", "In b,c", "In b"),  # API-S190
    ("In a,b", "NotIn b", "In a"),
    ("NotIn a", "NotIn b", "NotIn a,b"),
    ("Exists", "In a", "In a"),
    ("In a", "In b", "DNE"),
    ("DNE", "Exists", "DNE"),
    ("Gt 1", "Lt 9", "≥2 ≤8"),
    ("Gt 5", "Lt 6", "DNE"),
    ("Gte 5", "Gt 5", "≥6"),  # API-S199
]


@pytest.mark.parametrize(("left", "right", "want"), INTERSECTIONS)
def test_intersections_are_those_of_the_table(left: str, right: str, want: str) -> None:
    """SCH-145, SCH-146, SCH-148, API-S190 to API-S199, API-405, API-407: values, complements and bounds."""
    a, b = read(left), read(right)
    assert shape(a.intersect(b)) == form(want)
    assert a.has_intersection(b) == (want != "DNE")


def test_three_requirements_of_one_key_meet() -> None:
    """API-S198"""
    together = Requirements([read("In 1,5,9"), read("Gt 1"), read("Lte 5")])
    assert together[CUSTOM] == read("In 5")


def test_numeric_bounds_contain_integers_only() -> None:
    """API-S196, API-406"""
    between = read("Gt 1").intersect(read("Lt 9"))
    assert [value for value in ("1", "2", "8", "9", "a", "2.5", "", "٣") if between.allows(value)] == ["2", "8"]


def test_the_largest_of_two_min_values_counts() -> None:
    """API-S200, SCH-363: two requirements of one key."""
    left = requirement(CUSTOM, "Exists", (), 3)
    right = requirement(CUSTOM, "Exists", (), 5)
    assert left.intersect(right).min_values == right.intersect(left).min_values == 5


def test_an_empty_intersection_of_bounds_keeps_min_values() -> None:
    """SCH-145"""
    left = requirement(CUSTOM, "Gt", ("5",), 3)
    assert left.intersect(read("Lt 6")) == Requirement(CUSTOM, False, min_values=3, present=True)


@pytest.mark.parametrize(
    ("left", "right", "accepted"),
    [
        ("NotIn a", "DNE", True),
        ("NotIn a", "NotIn b", True),
        ("NotIn a", "Exists", False),
        ("NotIn 1", "Gt 0", False),
        ("In a", "In b", False),
        ("In a", "NotIn a", False),
        ("DNE", "Exists", False),
        ("Gt 5", "Lt 6", False),
    ],
)
def test_a_node_without_the_label_satisfies_an_intersection_only_if_it_satisfies_both(
    left: str, right: str, accepted: bool
) -> None:
    """A contradiction reads as DoesNotExist, yet nothing meets it, not even a node that lacks the label."""
    assert read(left).intersect(read(right)).accepts_absent is accepted
    assert read(right).intersect(read(left)).accepts_absent is accepted


@pytest.mark.parametrize(
    ("operator", "value", "want"),
    [
        ("Gt", str(2**63 - 1), "DNE"),
        ("Lt", "0", "DNE"),  # SCH-140 Beyond
        ("Lte", "0", "≤0"),
        ("Gte", "0", "≥0"),
        ("Gte", "-1", "≥0"),
        ("Gt", "-5", "≥0"),
        ("Lte", "-1", "DNE"),
        ("Gt", "abc", "DNE"),
        ("Gt", "9" * 5000, "DNE"),
    ],
)
def test_bounds_at_the_ends_match_nothing_rather_than_fail(operator: str, value: str, want: str) -> None:
    assert shape(requirement(CUSTOM, operator, (value,))) == form(want)


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("-0", 0), ("+5", 5), ("007", 7), ("-12", -12), (str(2**63 - 1), 2**63 - 1), (str(-(2**63)), -(2**63))]
    + [(text, None) for text in ("", "+", "-", "1.0", "1_000", " 1", "0x1", str(2**63), "9" * 5000, "²")],
)
def test_label_integers_are_plain_64_bit_decimals(text: str, number: int | None) -> None:
    assert r.as_integer(text) == number


COMPATIBLE_COLUMNS = ["(absent)", "Exists", "DNE", "In A", "NotIn A", "Gt 1"]
COMPATIBLE = {
    ("absent", CUSTOM): "ok no ok no ok no",
    ("absent", ZONE): "ok ok ok ok ok ok",
    ("Exists", CUSTOM): "ok ok no ok ok ok",
    ("DNE", CUSTOM): "ok no ok no ok no",
    ("In A", CUSTOM): "ok ok no ok no no",
    ("In B", CUSTOM): "ok ok no no ok no",
    ("NotIn A", CUSTOM): "ok ok ok no ok ok",
    ("Gt 1", CUSTOM): "ok ok no no ok ok",
}
RELATIONS = [
    (left, key, right, verdict == "ok")
    for (left, key), verdicts in COMPATIBLE.items()
    for right, verdict in zip(COMPATIBLE_COLUMNS, verdicts.split(), strict=True)
]


def one(text: str, key: str) -> Requirements:
    return Requirements() if "absent" in text else Requirements([read(text, key)])


@pytest.mark.parametrize(("left", "key", "right", "want"), RELATIONS)
def test_compatibility_is_that_of_the_table(left: str, key: str, right: str, want: bool) -> None:
    """SCH-165, SCH-166, API-S205 to API-S208, API-408: well-known keys may be undefined."""
    offered, asked = one(left, key), one(right, key)
    assert r.compatible(offered, asked, WELL_KNOWN) == want
    assert (r.incompatibilities(offered, asked, WELL_KNOWN) == ()) == want


def test_the_strict_relation_allows_no_undefined_label() -> None:
    assert not r.compatible(Requirements(), one("In A", ZONE), frozenset())
    assert r.incompatibilities(Requirements(), one("In A", ZONE), frozenset()) == (r.UndefinedKey(read("In A", ZONE)),)


def test_all_incompatibilities_are_listed_by_key() -> None:
    offered = Requirements([read("In A", "b"), read("In A", "c")])
    asked = Requirements([read("In B", "c"), read("In A", "b"), read("Exists", "a")])
    assert r.incompatibilities(offered, asked, frozenset()) == (
        r.UndefinedKey(read("Exists", "a")),
        r.ValueMismatch(read("In B", "c"), read("In A", "c")),
    )


@pytest.mark.parametrize(("value", "want"), [("arm64", False), ("amd64", True)])
def test_an_old_spelling_of_a_label_means_the_new_one(value: str, want: bool) -> None:
    """API-S209, SCH-143, API-425, API-426: before any comparison."""
    offered = r.requirements_from_labels({"kubernetes.io/arch": "amd64"})
    asked = Requirements([requirement("beta.kubernetes.io/arch", "In", (value,))])
    assert r.compatible(offered, asked, frozenset()) == want


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (requirement("k", "In", ["b", "a"]), "k In [a b]"),
        (requirement("k", "In", "gfedcba"), "k In [a b c d e and 2 others]"),
        (requirement("k", "NotIn", ["a"]), "k NotIn [a]"),
        (requirement("k", "Exists"), "k Exists"),
        (requirement("k", "DoesNotExist", ["x"]), "k DoesNotExist"),
        (requirement("k", "Gt", ["1"]), "k Exists >=2"),
        (requirement("k", "Lt", ["9"], 3), "k Exists <=8 minValues 3"),
    ],
)
def test_requirements_read_as_users_know_them_from_logs(item: Requirement, text: str) -> None:
    """SCH-171, API-411"""
    assert str(item) == text


def test_a_set_reads_sorted_and_without_the_host_name() -> None:
    """SCH-171"""
    requirements = [requirement(key, "Exists") for key in ("b", "kubernetes.io/hostname", "a")]
    assert str(Requirements(requirements)) == "a Exists, b Exists"


def test_bounds_and_exclusions_both_reach_the_wire() -> None:
    """API-410, SCH-170 with its Beyond"""
    requirements = Requirements([read("NotIn 3,4"), read("Gt 1"), read("Lte 8")])
    wire = [(entry.operator, entry.values) for entry in r.requirements_to_wire(requirements)]
    assert wire == [("Gte", ("2",)), ("Lte", ("8",)), ("NotIn", ("3", "4"))]
    assert r.requirements_from_wire(r.requirements_to_wire(requirements)) == requirements


def test_absent_keys_read_as_exists() -> None:
    """SCH-147"""
    assert Requirements().requirement_for("k").operator is Op.EXISTS


def test_sets_can_be_cut_and_compared_and_used_as_keys() -> None:
    both = Requirements([read("In A", "a"), read("In B", "b")])
    other_order = Requirements([read("In B", "b"), read("In A", "a")])
    assert both == other_order
    assert hash(both) == hash(other_order)
    assert both.without(["a"]) == Requirements([read("In B", "b")])
    assert both.intersect(Requirements()) == Requirements().intersect(both) == both


def test_values_of_exists_are_ignored() -> None:
    """API-S045"""
    entry = NodeSelectorRequirementWithMinValues(key="k", operator="Exists", values=("a",))
    assert r.requirements_from_wire([entry])["k"].allows("b")


@pytest.mark.parametrize(
    ("requirement", "operator", "allowed", "excluded"),
    [
        (Requirement("k", False, frozenset("a")), "In", ["a"], ["b", ""]),
        (Requirement("k", False), "DoesNotExist", [], ["a"]),
        (Requirement("k", True, frozenset("a")), "NotIn", ["b"], ["a"]),
        (Requirement("k", True), "Exists", ["a", ""], []),
        (Requirement("k", True, gte=2, lte=4), "Exists", ["2", "4"], ["1", "5", "x"]),
    ],
)
def test_a_form_has_an_operator_and_decides_values(
    requirement: Requirement, operator: str, allowed: list[str], excluded: list[str]
) -> None:
    """SCH-141: the operator of each form. SCH-142: with a bound, a value that is no integer is outside."""
    assert requirement.operator == operator
    assert all(map(requirement.allows, allowed))
    assert not any(map(requirement.allows, excluded))
