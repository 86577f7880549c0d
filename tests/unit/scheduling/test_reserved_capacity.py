"""Reserved capacity: each reservation sells as many instances as it has units left (SCH §21)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from karpenter.instancetypes.instance_type import InstanceType, Offering
from karpenter.instancetypes.well_known_labels import well_known_labels_of
from karpenter.model import labels
from karpenter.model.requirements import Requirements, requirement, requirements_from_labels
from karpenter.scheduling.explain.nearest_fit_messages import nearest_fit_sentence
from karpenter.scheduling.scheduling_options import SchedulingOptions
from karpenter.scheduling.solution import Solution
from support.builders import asked, categories, claim, left, node_pool, pod, pods, sizes, wanted
from support.instance_types import shape
from support.plans_on_types import SoldTypes, plan_on_types

DEAR, CHEAP = 1.0, 0.01


def reserved(reservation: str, units: int, zone: str = "z1") -> Offering:
    place = {labels.ZONE: zone, labels.CAPACITY_TYPE: "reserved", labels.RESERVATION_ID: reservation}
    return Offering(requirements_from_labels(place), CHEAP, available=True, reservation_capacity=units)


def selling(*offerings: Offering, name: str = "m") -> InstanceType:
    """A type that holds two pods of one CPU, also sold on demand in two zones."""
    own = shape(name, {"cpu": 2, "memory": "8Gi", "pods": 9}, overhead={})
    named = sorted({offering.reservation_id for offering in offerings})
    elsewhere = tuple(
        Offering(requirements_from_labels({labels.ZONE: zone, labels.CAPACITY_TYPE: "on-demand"}), DEAR)
        for zone in ("z1", "z2")
    )
    values = requirement(labels.RESERVATION_ID, "In", named)
    kinds = requirement(labels.CAPACITY_TYPE, "In", ("on-demand", "reserved"))
    rest = own.requirements.without((labels.CAPACITY_TYPE, labels.ZONE))
    zones = requirement(labels.ZONE, "In", ("z1", "z2"))
    together = rest.intersect(Requirements((values, kinds, zones)))
    return replace(own, requirements=together, offerings=(*offerings, *elsewhere))


def held(result: Solution) -> list[str]:
    """The reservation of every claim, empty for what is launched freely."""
    return sorted(
        next(
            (entry.values[0] for entry in new_nodeclaim.claim.spec.requirements if entry.key == labels.RESERVATION_ID),
            "",
        )
        for new_nodeclaim in result.new_claims
    )


ONE = {"cpu": "1"}


def plan(*objects: object, types: SoldTypes, options: SchedulingOptions | None = None) -> Solution:
    """The decision where everything types and offerings speak of is well known, as with a cloud that has reservations."""
    return plan_on_types(objects, types, well_known_labels_of, options)


def test_a_claim_draws_from_one_reservation_and_says_which() -> None:
    """SCH-588"""
    result = plan(node_pool(), pods(2, ONE), types=[selling(reserved("r1", 5), reserved("r2", 5))])
    assert (sizes(result), asked(result, labels.CAPACITY_TYPE)) == ([2], [("In", ("reserved",))])
    assert held(result) in (["r1"], ["r2"])


def test_a_reservation_sells_no_more_than_its_units_and_the_rest_is_launched_freely() -> None:
    """SCH-585, K15-085, §21 Beyond: no pod has to wait for the next pass.

    OPS-243, AWS-601: uses are counted by reservation within a pass.
    """
    result = plan(node_pool(), pods(6, ONE), types=[selling(reserved("r1", 2))])
    assert (held(result), left(result)) == (["", "r1", "r1"], [])


def test_pools_share_the_units_of_one_reservation() -> None:
    """S-210"""
    pools = [node_pool(name) for name in ("a", "b")]
    own = [pod(name, ONE, node_selector={labels.NODE_POOL: name}) for name in ("a", "b")]
    result = plan(pools, own, types=[selling(reserved("r1", 1))])
    assert (held(result), left(result)) == (["", "r1"], [])


def test_pools_with_reservations_of_their_own_use_both() -> None:
    """S-211"""
    pools = [
        node_pool(name, (wanted(labels.RESERVATION_ID, "In", reservation),))
        for name, reservation in (("a", "r1"), ("b", "r2"))
    ]
    own = [pod(name, ONE, node_selector={labels.NODE_POOL: name}) for name in ("a", "b")]
    result = plan(pools, own, types=[selling(reserved("r1", 1), reserved("r2", 1))])
    assert held(result) == ["r1", "r2"]


def test_a_pod_that_asks_for_reserved_capacity_waits_where_none_is_left() -> None:
    """S-212"""
    choosy = pods(3, ONE, node_selector={labels.CAPACITY_TYPE: "reserved"})
    result = plan(node_pool(), choosy, types=[selling(reserved("r1", 1))])
    assert (held(result), len(left(result))) == (["r1"], 1)


@pytest.mark.parametrize("units", [0, 1])
def test_a_pod_that_waits_for_reserved_capacity_names_the_used_up_reservation(units: int) -> None:
    """Used up before this pass, or by other pods in it (SCH-586: there such pods get no reason about reservations)."""
    choosy = pods(units + 1, {"cpu": "2"}, node_selector={labels.CAPACITY_TYPE: "reserved"})
    result = plan(node_pool(), choosy, types=[selling(reserved("r1", units))])
    (waiting,) = result.unschedulable
    assert nearest_fit_sentence(waiting.nearest_fit).endswith(
        "all matching offerings are reserved capacity, and the reservation r1 is used up"
    )
    assert categories(result) == {"types-offering"}


def test_a_pod_that_is_too_large_anyway_does_not_name_reservations() -> None:
    result = plan(node_pool(), pod("p", {"cpu": "3"}), types=[selling(reserved("r1", 0))])
    assert "reserv" not in nearest_fit_sentence(result.unschedulable[0].nearest_fit)


def test_a_heavier_pool_whose_reservation_is_used_up_is_still_the_one_to_launch_from() -> None:
    """S-213: not relaxed; launched freely in the same pass."""
    pools = [node_pool("heavy", weight=10), node_pool("light")]
    types = {"heavy": [selling(reserved("r1", 0))], "light": [selling(reserved("r2", 5))]}
    result = plan(pools, pod("p", ONE), types=types)
    assert ([new_nodeclaim.node_pool for new_nodeclaim in result.new_claims], held(result)) == (["heavy"], [""])


def test_a_pod_goes_to_the_next_pool_where_a_heavier_one_has_only_full_reservations() -> None:
    """K15-084 as a fallback: at once, where Karpenter defers the pod. K15-S16: a pod that asks for reserved capacity waits."""
    reserved_only = node_pool("heavy", (wanted(labels.CAPACITY_TYPE, "In", "reserved"),), weight=10)
    types = {"heavy": [selling(reserved("r1", 0))], "light": [selling(reserved("r2", 0))]}
    result = plan(reserved_only, node_pool("light"), pod("p", ONE), types=types)
    assert ([new_nodeclaim.node_pool for new_nodeclaim in result.new_claims], held(result)) == (["light"], [""])
    alone = plan(reserved_only, pod("p", ONE), types=types)
    assert (alone.new_claims, left(alone)) == ((), ["p"])


def test_a_claim_that_has_not_launched_takes_its_unit_already() -> None:
    """SCH-581: the cloud does not count it yet."""
    coming = claim(
        "coming",
        requirements=(wanted(labels.RESERVATION_ID, "In", "r1"), wanted(labels.CAPACITY_TYPE, "In", "reserved")),
    )
    result = plan(node_pool(), coming, pods(2, {"cpu": "2"}), types=[selling(reserved("r1", 1))])
    assert held(result) == [""]


@pytest.mark.parametrize("units", [0, 1])
def test_without_the_gate_reserved_offerings_are_like_any_other(units: int) -> None:
    """SCH-580; K15-081, K15-086: but a full reservation puts no ``reserved`` on a claim."""
    result = plan(
        node_pool(),
        pods(4, ONE),
        types=[selling(reserved("r1", units))],
        options=SchedulingOptions(reserved_capacity=False),
    )
    assert asked(result, labels.CAPACITY_TYPE)[0][1] == (("on-demand", "reserved") if units else ("on-demand",))
