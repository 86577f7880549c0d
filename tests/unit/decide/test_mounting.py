"""How many volumes machines take (SCH-470)."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpenter.cluster.volumes import Mounted, Volumes
from karpenter.decide.provision.mounting import UNLIMITED, Mounts, of_machine, of_types
from karpenter.model import labels
from support.builders import flatten, machine, pod, snapshot
from support.disks import DRIVER, csi_node, pv, pvc, user

OTHER = "other.example.com"


def mounts(*claims: str, driver: str = DRIVER) -> Mounted:
    return {driver: frozenset(claims)}


def test_pods_fit_as_long_as_their_driver_attaches_more() -> None:
    """SCH-470"""
    some = Mounts({DRIVER: 3}, mounts("held"))
    assert some.room([mounts(name) for name in "abc"]) == 2
    assert some.take([mounts("a"), mounts("b")]).room([mounts("c")]) == 0
    assert some.room([mounts("a", "b"), mounts("c")]) == 1
    assert some.room([mounts("a", "b", "c")]) == 0


def test_pods_that_share_a_claim_all_fit() -> None:
    """S-138: a claim several pods share is attached once."""
    state = [csi_node("n", ebs=10), pvc("data", "v"), pv("v"), machine("n", {"cpu": 100})]
    volumes = snapshot(state).volumes
    hundred = [volumes.of(user(f"p{number}", "data")).mounts for number in range(100)]
    empty = of_machine(volumes, "n", ())
    assert empty.room(hundred) == 100
    assert empty.take(hundred).room([mounts(f"x{number}") for number in range(20)]) == 9


def test_who_adds_nothing_is_welcome_where_there_is_too_much() -> None:
    """The scheduler lets such a pod in; a limit that came late must not keep it from its volume."""
    full = Mounts({DRIVER: 1}, mounts("a", "b"))
    assert full.room([mounts("a"), mounts("b", "a"), mounts("c")]) == 2
    assert (full.obstacle(mounts("a")), bool(full.obstacle(mounts("c")))) == ("", True)


def test_the_obstacle_names_driver_count_and_limit() -> None:
    """SCH-470"""
    some = Mounts({DRIVER: 2, OTHER: 0}, mounts("a"))
    text = "would exceed volume limit (provisioner=ebs.csi.aws.com, volume-count=3, volume-limit=2)"
    assert some.obstacle(mounts("b", "c")) == text
    assert some.obstacle(mounts("x", driver=OTHER)).endswith(
        "(provisioner=other.example.com, volume-count=1, volume-limit=0)"
    )
    assert some.obstacle({**mounts("b", "c"), OTHER: frozenset("x")}) == text
    assert some.obstacle(mounts("b")) == some.obstacle({}) == some.obstacle(mounts("x", driver="unheard-of")) == ""


def test_a_driver_without_limit_takes_everything() -> None:
    """SCH-470, S-139"""
    many = [mounts(f"c{number}", driver=OTHER) for number in range(1000)]
    assert UNLIMITED.room(many) == Mounts({DRIVER: 1}, mounts("a")).room(many) == 1000
    assert UNLIMITED.take(many) is UNLIMITED


def test_a_machine_holds_what_its_pods_mount() -> None:
    """SCH-093"""
    running = user("p", "a", "b", node_name="n")
    state = snapshot(csi_node("n", ebs=3), pvc("a", "va"), pvc("b", "vb"), pv("va"), pv("vb"), running)
    found = of_machine(state.volumes, "n", [running, pod("q", node_name="n")])
    assert found.room([mounts("default/a"), mounts("default/c"), mounts("default/d")]) == 2
    assert of_machine(state.volumes, "m", [running]) is UNLIMITED
    assert of_machine(Volumes(), "n", [running]) is UNLIMITED


def test_new_machines_allow_what_those_of_their_type_do() -> None:
    """SCH-293 Beyond: of nodes that differ, the one that allows least counts."""
    named = {"a": "large", "b": "large", "c": "small", "d": "plain"}
    there = [machine(name, {"cpu": 4}, labels={labels.INSTANCE_TYPE: kind}) for name, kind in named.items()]
    limits = [csi_node("a", ebs=25), csi_node("b", ebs=24, other=7), csi_node("c", ebs=0), csi_node("gone", ebs=1)]
    state = snapshot(flatten(there), limits)
    found = of_types(state.volumes, state.nodes)
    assert found.keys() == {"large", "small"}
    thirty = [mounts(f"c{number}") for number in range(30)]
    assert (found["large"].room(thirty), found["small"].room(thirty)) == (24, 0)
    assert found["large"].room([mounts(str(number), driver="other") for number in range(30)]) == 7
    assert of_types(Volumes(), state.nodes) == {}


CLAIMS = st.frozensets(st.sampled_from("abcdef"), max_size=4)
WANTED = st.lists(st.dictionaries(st.sampled_from([DRIVER, OTHER, "free"]), CLAIMS, max_size=3), max_size=8)
LIMITS = st.dictionaries(st.sampled_from([DRIVER, OTHER]), st.integers(0, 5))


@given(LIMITS, st.dictionaries(st.sampled_from([DRIVER, OTHER]), CLAIMS), WANTED)
def test_room_counts_exactly_the_pods_that_meet_no_obstacle(
    limits: dict[str, int], held: dict[str, frozenset[str]], wanted: list[dict[str, frozenset[str]]]
) -> None:
    """One by one or all at once: the same pods fit."""
    some, fitting = Mounts(limits, held), 0
    while fitting < len(wanted) and not some.obstacle(wanted[fitting]):
        some = some.take([wanted[fitting]])
        fitting += 1
    assert Mounts(limits, held).room(wanted) == fitting


@pytest.mark.parametrize("limit", [25, 1_000_000])
def test_twenty_thousand_pods_are_counted_in_no_time(limit: int) -> None:
    some = Mounts({DRIVER: limit}, {})
    wanted = [mounts(f"c{number}") for number in range(20_000)]
    begun = time.thread_time()
    assert some.room(wanted) == min(limit, 20_000)
    assert time.thread_time() - begun < 1
