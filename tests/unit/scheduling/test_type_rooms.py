"""The room that types leave for pods is the same whether groups of types are computed one by one or together."""

from __future__ import annotations

import random

import pytest

from karpenter.instancetypes.instance_type import InstanceType
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.instancetypes.type_sets import TypeSet, type_set
from karpenter.model import resources as res
from karpenter.model.requirements import Requirements
from karpenter.scheduling.offerings.type_rooms import TypeRooms

TYPES = 40


def random_types(draw: random.Random) -> TypeIndex:
    """Types of different sizes, every third with a device."""
    types = []
    for number in range(TYPES):
        capacity = {"cpu": draw.randrange(1, 9) * 1000, "pods": draw.randrange(5, 60) * 1000}
        if number % 3 == 0:
            capacity["example.com/device"] = draw.randrange(1, 4) * 1000
        types.append(InstanceType(f"t{number:02}", Requirements(), capacity))
    return TypeIndex(types, frozenset())


def random_overheads(draw: random.Random) -> dict[int, dict[str, int]]:
    """What DaemonSets take of most types: more than some have, and of a resource that no type has now and then."""
    return {
        position: {
            "pods": draw.randrange(0, 50) * 1000,
            **({"cpu": draw.randrange(0, 3) * 500} if draw.random() < 0.5 else {}),
            **({"example.com/other": draw.choice((0, 1000))} if draw.random() < 0.1 else {}),
        }
        for position in range(TYPES)
        if draw.random() < 0.9
    }


def one_by_one(index: TypeIndex, overheads: dict[int, dict[str, int]], requests: dict[str, int]) -> TypeSet:
    """Each type as a group of its own."""
    return sum(
        1 << position
        for position, overhead in overheads.items()
        if index.fitting(res.add(requests, overhead)) >> position & 1
    )


@pytest.mark.parametrize("seed", range(20))
def test_types_fit_beside_their_daemonsets_as_each_does_alone(seed: int) -> None:
    """SCH-216: also where DaemonSets do not fit, and where a resource is missing."""
    draw = random.Random(seed)
    index, overheads = random_types(draw), random_overheads(draw)
    rooms = TypeRooms(index.types, overheads)
    within = type_set(position for position in range(TYPES) if draw.random() < 0.7)
    for requests in (
        {},
        {"cpu": 1500},
        {"cpu": 500, "pods": 1000},
        {"cpu": 0, "example.com/device": 1000},
        {"example.com/nowhere": 1},
    ):
        expected = one_by_one(index, overheads, requests) & within
        assert rooms.fitting(requests, within) == expected


@pytest.mark.parametrize("seed", range(20))
def test_the_most_room_is_that_of_some_type(seed: int) -> None:
    """SCH-216: a resource that none of the types has is left out; one that DaemonSets exceed is negative."""
    draw = random.Random(seed)
    index, overheads = random_types(draw), random_overheads(draw)
    rooms = TypeRooms(index.types, overheads)
    for _ in range(5):
        positions = [position for position in range(TYPES) if draw.random() < 0.1]
        known = [position for position in positions if position in overheads]
        expected = res.maximum(res.subtract(index.types[at].allocatable, overheads[at]) for at in known)
        assert rooms.most(type_set(positions)) == expected
    assert rooms.overhead_of(next(iter(overheads))) == next(iter(overheads.values()))
    assert rooms.overhead_of(TYPES) == {}
