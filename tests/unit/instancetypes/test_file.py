"""Instance-type files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from karpenter.instancetypes import instance_type_file, well_known_labels
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.instancetypes.well_known_labels import well_known_labels_of
from karpenter.model import labels
from karpenter.model import resources as res
from karpenter.model.requirements import Op

SCENARIOS = Path(__file__).resolve().parents[3] / ".." / "shared" / "scenarios"
KWOK = "karpenter.kwok.sh/instance-"


def wanted(zone: str = "a", kind: str = "spot") -> list[dict[str, object]]:
    return [
        {"key": labels.ZONE, "operator": "In", "values": [zone]},
        {"key": labels.CAPACITY_TYPE, "operator": "In", "values": [kind]},
    ]


def described(**changes: object) -> dict[str, object]:
    return {
        "name": "c-4x",
        "architecture": "amd64",
        "operatingSystems": ["linux"],
        "resources": {"cpu": "4", "memory": "8Gi"},
        "offerings": [{"price": 0.1, "requirements": wanted()}],
    } | changes


def loads(*types: dict[str, object]) -> tuple[InstanceType, ...]:
    return instance_type_file.parse_instance_types(json.dumps(types).encode(), "types.json")


def test_a_type_is_what_the_file_says() -> None:
    """OPS-252, Settled: no overhead unless given, 110 pods unless given."""
    (instance_type,) = loads(described())
    assert instance_type.name == "c-4x"
    assert instance_type.capacity == {"cpu": 4000, "memory": 8 * 2**30 * 1000, "pods": 110_000}
    assert instance_type.allocatable == instance_type.capacity
    assert [
        (offering.zone, offering.capacity_type, offering.price_per_hour) for offering in instance_type.offerings
    ] == [("a", "spot", 0.1)]
    assert instance_type.requirements[labels.ARCH].values == {"amd64"}
    assert instance_type.requirements[labels.OS].values == {"linux"}
    assert instance_type.requirements[labels.INSTANCE_TYPE].values == {"c-4x"}


def test_overhead_and_pods_are_taken_when_given() -> None:
    given = described(resources={"cpu": 4, "pods": "20"}, overhead={"cpu": "100m"})
    (instance_type,) = loads(given)
    assert instance_type.allocatable == {"cpu": 3900, "pods": 20_000}


def test_offering_members_may_start_with_a_capital() -> None:
    """OPS-252."""
    offerings = [{"Price": 0.2, "Available": False, "Requirements": wanted(), "ReservationCapacity": 0}]
    (instance_type,) = loads(described(offerings=offerings))
    assert [(offering.price_per_hour, offering.available) for offering in instance_type.offerings] == [(0.2, False)]


def test_available_is_honoured_and_true_by_default() -> None:
    """Settled (OPS-252)."""
    offerings = [
        {"price": 1, "available": False, "requirements": wanted("a")},
        {"price": 1, "requirements": wanted("b")},
    ]
    (instance_type,) = loads(described(offerings=offerings))
    assert [offering.available for offering in instance_type.offerings] == [False, True]


def test_zones_and_capacity_types_of_offerings_become_requirements_of_the_type() -> None:
    offerings = [
        {"price": 1, "requirements": wanted("a", "spot")},
        {"price": 2, "requirements": wanted("b", "on-demand")},
    ]
    (instance_type,) = loads(described(offerings=offerings))
    assert instance_type.requirements[labels.ZONE].values == {"a", "b"}
    assert instance_type.requirements[labels.CAPACITY_TYPE].values == {"spot", "on-demand"}


def test_an_offering_in_two_zones_is_two_offerings() -> None:
    requirements = [{"key": labels.ZONE, "operator": "In", "values": ["b", "a"]}, wanted()[1]]
    (instance_type,) = loads(described(offerings=[{"price": 1, "requirements": requirements}]))
    assert [offering.zone for offering in instance_type.offerings] == ["a", "b"]


def test_labels_become_requirements_and_absent_well_known_ones_do_not_exist() -> None:
    """SCH-116: also a label that only another type of the file has."""
    first, second = loads(described(labels={"example.com/disk": "fast"}), described(name="d"))
    assert first.requirements["example.com/disk"].values == {"fast"}
    assert second.requirements["example.com/disk"].operator == Op.DOES_NOT_EXIST
    assert first.requirements.keys() >= well_known_labels.INSTANCE_LABELS
    assert "example.com/disk" in well_known_labels_of((first, second))


@pytest.mark.parametrize(
    ("name", "size", "family"),
    [
        ("m5.2xlarge", "2xlarge", "m5"),
        ("Standard_D2s_v3", "4", "S"),
        ("n1-standard-4", "4", "n1"),
        ("m5.metal", "metal", "m5"),
        ("c-4x-amd64-linux", "4", "c"),
    ],
    ids=lambda value: f"OPS-P9 {value}",
)
def test_size_and_family_are_derived_from_the_name(name: str, size: str, family: str) -> None:
    """OPS-254, OPS-P9."""
    (instance_type,) = loads(described(name=name))
    assert instance_type.requirements[f"{KWOK}size"].values == {size}
    assert instance_type.requirements[f"{KWOK}family"].values == {family}
    assert instance_type.requirements[f"{KWOK}cpu"].values == {"4"}
    assert instance_type.requirements[f"{KWOK}memory"].values == {"8Gi"}


def test_a_given_label_wins_over_the_derived_one() -> None:
    (instance_type,) = loads(described(labels={f"{KWOK}family": "mine"}))
    assert instance_type.requirements[f"{KWOK}family"].values == {"mine"}


def test_equal_requirements_are_shared() -> None:
    """Files with many types stay small."""
    first, second = loads(described(), described(name="d"))
    assert first.offerings[0] is second.offerings[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": 1}, "types.json: [0].name: expected `str`, got `int`"),
        ({"resources": {"cpu": "four"}}, "types.json: [0].resources.cpu: 'four' is not a quantity"),
        ({"resources": {"cpu": "-4"}}, "types.json: [0].resources.cpu: expected a quantity of at least 0"),
        ({"offerings": [{"requirements": wanted()}]}, "types.json: [0].offerings[0]: expected `price`"),
        (
            {"offerings": [{"price": 1, "zone": "a", "capacityType": "spot"}]},
            "types.json: [0].offerings[0]: expected `requirements`",
        ),
        (
            {"offerings": [{"price": 1, "requirements": wanted()[:1]}]},
            "types.json: [0].offerings[0].requirements: expected `In` with at least one value for "
            "karpenter.sh/capacity-type",
        ),
        (
            {"offerings": [{"price": 1, "requirements": wanted(kind="cheap")}]},
            "types.json: [0].offerings[0].requirements: capacity type 'cheap' is not one of on-demand, reserved, spot",
        ),
        (
            {"offerings": [{"price": 1, "requirements": [{"key": "zone", "operator": "in"}]}]},
            "types.json: [0].offerings[0].requirements[0].operator: invalid enum value 'in'; expected one of In, NotIn",
        ),
        ({"offerings": [{"price": -1, "requirements": wanted()}]}, "types.json: [0].offerings[0].price: expected"),
    ],
)
def test_a_mistake_is_one_line_with_its_place(change: dict[str, object], message: str) -> None:
    """Settled (OPS-251): a bad file stops the start."""
    with pytest.raises(instance_type_file.InstanceTypeFileError) as caught:
        loads(described(**change))
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_name_given_twice_is_refused() -> None:
    with pytest.raises(instance_type_file.InstanceTypeFileError, match=r": \[1\]\.name: c-4x is there twice"):
        loads(described(), described())


def test_a_file_that_is_no_array_is_named_without_a_path() -> None:
    with pytest.raises(instance_type_file.InstanceTypeFileError) as caught:
        instance_type_file.parse_instance_types(b"{}", "types.json")
    assert str(caught.value) == "types.json: expected a JSON array of instance types (expected `array`, got `object`)"


def test_broken_json_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(instance_type_file.InstanceTypeFileError, match="expected a JSON array of instance types"):
        instance_type_file.parse_instance_types(b"[{", "types.json")
    with pytest.raises(instance_type_file.InstanceTypeFileError, match="cannot be read"):
        instance_type_file.load_instance_types(tmp_path / "none.json")


@pytest.mark.parametrize(("name", "count", "offerings"), [("us-east-1", 1345, 6), ("linear-400", 400, 5)])
def test_the_scenario_files_load(name: str, count: int, offerings: int) -> None:
    path = SCENARIOS / f"types-{name}.json"
    if not path.exists():
        pytest.skip("the shared scenarios are not there")
    types = instance_type_file.load_instance_types(path)
    assert len(types) == count
    assert all(
        len(instance_type.offerings) <= offerings and instance_type.allocatable[res.CPU] > 0 for instance_type in types
    )


def test_an_offering_may_say_how_often_it_is_interrupted() -> None:
    """Not there in the reference; what is not said counts as never."""
    sold = [
        {"price": 0.1, "interruptionsPerHour": 0.002, "requirements": wanted()},
        {"price": 0.2, "requirements": wanted("b")},
    ]
    older = [{"Price": 0.1, "InterruptionsPerHour": 0.5, "Requirements": wanted()}]
    calm, wild = loads(described(offerings=sold), described(name="d-4x", offerings=older))
    assert [offering.interruptions_per_hour for offering in calm.offerings] == [0.002, 0.0]
    assert [offering.interruptions_per_hour for offering in wild.offerings] == [0.5]
    with pytest.raises(instance_type_file.InstanceTypeFileError, match="interruptionsPerHour"):
        loads(described(offerings=[{"price": 0.1, "interruptionsPerHour": -1, "requirements": wanted()}]))


def test_an_offering_may_have_amounts_of_its_own() -> None:
    """SCH-117, OPS-238: both spellings; each amount is checked where it stands."""
    larger = {"capacityOverride": {"cpu": "8", "example.com/card": "1"}, "overheadOverride": {"cpu": "200m"}}
    sold = [{"price": 0.1, "requirements": wanted(), **larger}, {"price": 0.2, "requirements": wanted("b")}]
    older = [{"Price": 0.1, "CapacityOverride": {"memory": "1Gi"}, "OverheadOverride": {}, "Requirements": wanted()}]
    new, old = loads(described(offerings=sold), described(name="d-4x", offerings=older))
    special, plain = new.offerings
    assert special.capacity_override == {"cpu": 8_000, "example.com/card": 1_000}
    assert special.overhead_override == {"cpu": 200}
    assert (plain.capacity_override, plain.overhead_override) == ({}, {})
    assert new.sized_by(special).allocatable["cpu"] == 7_800
    assert new.sized_by(plain) == new
    assert old.offerings[0].capacity_override == {"memory": 2**30 * 1_000}
    wrong = [{"price": 0.1, "requirements": wanted(), "capacityOverride": {"cpu": "many"}}]
    with pytest.raises(instance_type_file.InstanceTypeFileError, match=r"offerings\[0\]\.capacityOverride\.cpu"):
        loads(described(offerings=wrong))


def reserved(reservation: str, **sold: object) -> dict[str, object]:
    """An offering of reserved capacity."""
    place = [*wanted(kind="reserved"), {"key": labels.RESERVATION_ID, "operator": "In", "values": [reservation]}]
    return {"price": 0.01, "requirements": place, **sold}


def test_offerings_of_a_reservation_have_its_units_and_others_are_of_none() -> None:
    """SCH-116, SCH-581"""
    sold = [reserved("r1", reservationCapacity=3), {"price": 0.1, "requirements": wanted()}]
    (instance_type,) = loads(described(offerings=sold))
    assert [(offering.reservation_id, offering.reservation_capacity) for offering in instance_type.offerings] == [
        ("r1", 3),
        ("", None),
    ]
    assert instance_type.requirements[labels.RESERVATION_ID].values == {"r1"}
    assert instance_type.offerings[1].requirements[labels.RESERVATION_ID].operator == Op.DOES_NOT_EXIST


def test_a_reservation_cannot_have_fewer_than_no_units() -> None:
    with pytest.raises(instance_type_file.InstanceTypeFileError, match="reservationCapacity"):
        loads(described(offerings=[reserved("r1", reservationCapacity=-1)]))
