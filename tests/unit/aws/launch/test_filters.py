"""The filters that select instance types and offerings for a NodeClaim (AWS §9.2)."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest

from karpenter.api.karpenter import NodeClaim
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.model import labels
from karpenter.providers.aws import aws_labels
from karpenter.providers.aws.instance import launch_filters
from karpenter.providers.aws.instance.launch_filters import LaunchableTypes, filter_instance_types, launch_requirements
from karpenter.providers.contract import InsufficientCapacity, LaunchFailed
from support.builders import wanted
from support.launch_environment import (
    ON_DEMAND,
    RESERVED_OR_ON_DEMAND,
    SPOT_OR_ON_DEMAND,
    claim,
    ec2_type,
    offering,
    reserved,
)

LARGE, XLARGE = ec2_type("m5.large", 0.1), ec2_type("m5.xlarge", 0.2)
METAL = ec2_type("m5.metal", 4.6)
GPU = ec2_type("p3.8xlarge", 12.0, capacity={"nvidia.com/gpu": "4"})


def kept(asked: NodeClaim, types: Iterable[InstanceType], *, varied: bool = True) -> LaunchableTypes:
    return filter_instance_types(launch_requirements(asked), tuple(types), strict_min_values=varied)


def names_of(launchable_types: LaunchableTypes) -> list[str]:
    return [instance_type.name for instance_type in launchable_types.types]


def with_min_values(asked: NodeClaim, least: int) -> NodeClaim:
    more = wanted(labels.INSTANCE_TYPE, "Exists", least=least)
    return msgspec.structs.replace(
        asked, spec=msgspec.structs.replace(asked.spec, requirements=(*asked.spec.requirements, more))
    )


@pytest.mark.parametrize(
    ("requirements", "requests", "expected"),
    [
        pytest.param({}, {"cpu": "1"}, ["m5.large", "m5.xlarge"], id="AWS-420 everything fits"),
        pytest.param({labels.INSTANCE_TYPE: ("m5.xlarge",)}, {}, ["m5.xlarge"], id="AWS-420 by label"),
        pytest.param(
            {"example.com/team": ("blue",)}, {}, ["m5.large", "m5.xlarge"], id="AWS-420 the claim's own label"
        ),
    ],
)
def test_types_must_satisfy_the_claim(
    requirements: dict[str, tuple[str, ...]], requests: dict[str, str], expected: list[str]
) -> None:
    assert names_of(kept(claim("one", requirements, requests), (XLARGE, LARGE))) == expected


def test_a_type_that_is_too_small_or_has_no_available_offering_is_left_out() -> None:
    """AWS-420, AWS-427."""
    sold_out = ec2_type("c5.large", 0.05, offerings=[offering(labels.SPOT, "a", 0.02, available=False)])
    assert names_of(kept(claim(), (LARGE, sold_out))) == ["m5.large"]
    with pytest.raises(InsufficientCapacity, match="all requested instance types were unavailable during launch"):
        kept(claim("one", SPOT_OR_ON_DEMAND, {"cpu": "8"}), (LARGE, sold_out))


def test_only_compatible_available_offerings_are_left() -> None:
    launchable_types = kept(claim("one", {**ON_DEMAND, labels.ZONE: ("b",)}), (LARGE,))
    assert [(override.capacity_type, override.zone) for override in launchable_types.types[0].offerings] == [
        ("on-demand", "b")
    ]


def test_metal_and_accelerated_types_are_left_out_where_others_fit() -> None:
    """AWS-T412, AWS-429, AWS-425: the filter logs the types that it left out."""
    launchable_types = kept(claim(), (LARGE, METAL, GPU))
    assert names_of(launchable_types) == ["m5.large"]
    assert launchable_types.rejections == (
        launch_filters.FilterRejection("exotic-instance", ("m5.metal", "p3.8xlarge")),
    )


def test_metal_and_accelerated_types_are_used_where_nothing_else_fits() -> None:
    """AWS-T413."""
    assert names_of(kept(claim(), (METAL, GPU))) == ["m5.metal", "p3.8xlarge"]


def test_min_values_disable_the_type_preferences() -> None:
    """AWS-T414."""
    dear_spot = ec2_type("m5.xlarge", offerings=[offering(labels.SPOT, "a", 0.25)])
    launchable_types = kept(with_min_values(claim(), 3), (LARGE, METAL, dear_spot))
    assert names_of(launchable_types) == ["m5.large", "m5.xlarge", "m5.metal"]


def test_too_few_values_refuse_the_launch_unless_the_policy_is_best_effort() -> None:
    """AWS-428."""
    with pytest.raises(InsufficientCapacity, match="minValues 3"):
        kept(with_min_values(claim(), 3), (LARGE, XLARGE))
    assert len(kept(with_min_values(claim(), 3), (LARGE, XLARGE), varied=False).types) == 2


def test_spot_offerings_above_the_cheapest_on_demand_price_are_not_requested() -> None:
    """AWS-T415, AWS-426: types without an offering left are dropped."""
    dear = ec2_type("m5.xlarge", offerings=[offering(labels.SPOT, "a", 0.25), offering(labels.ON_DEMAND, "a", 0.30)])
    cheap = ec2_type("m5.large", offerings=[offering(labels.ON_DEMAND, "a", 0.10), offering(labels.SPOT, "b", 0.10)])
    launchable_types = kept(claim(), (dear, cheap))
    left = {
        (instance_type.name, override.capacity_type)
        for instance_type in launchable_types.types
        for override in instance_type.offerings
    }
    assert left == {("m5.xlarge", "on-demand"), ("m5.large", "on-demand"), ("m5.large", "spot")}


def test_the_sixty_cheapest_types_are_requested() -> None:
    """AWS-T431."""
    types = tuple(ec2_type(f"t{number}.large", 1.0 + number) for number in range(80))
    assert names_of(kept(claim(), types[::-1])) == [instance_type.name for instance_type in types[:60]]


@pytest.mark.parametrize(
    ("requirements", "types", "expected"),
    [
        pytest.param(SPOT_OR_ON_DEMAND, (LARGE,), "spot", id="AWS-T410"),
        pytest.param(
            SPOT_OR_ON_DEMAND,
            (
                ec2_type(
                    "m5.large",
                    offerings=[
                        offering(labels.SPOT, "a", 0.04, available=False),
                        offering(labels.ON_DEMAND, "a", 0.1),
                    ],
                ),
            ),
            "on-demand",
            id="AWS-T411",
        ),
        pytest.param(ON_DEMAND, (LARGE,), "on-demand", id="AWS-430 only on-demand allowed"),
        pytest.param(
            {labels.CAPACITY_TYPE: (labels.RESERVED, labels.SPOT, labels.ON_DEMAND)},
            (ec2_type("m5.large", offerings=[reserved("a", 1e-8, 0, "cr-1"), offering(labels.SPOT, "a", 0.04)]),),
            "spot",
            id="K15-A44 the reservation is full",
        ),
        pytest.param(
            RESERVED_OR_ON_DEMAND,
            (ec2_type("m5.large", offerings=[reserved("a", 1e-8, 2, "cr-1"), offering(labels.ON_DEMAND, "a", 0.1)]),),
            "reserved",
            id="AWS-T425",
        ),
    ],
)
def test_one_capacity_type_is_chosen(
    requirements: dict[str, tuple[str, ...]], types: tuple[InstanceType, ...], expected: str
) -> None:
    asked = claim("one", requirements)
    launchable_types = kept(asked, types)
    assert launch_filters.launch_capacity_type(launch_requirements(asked), launchable_types.types) == expected
    assert launch_filters.is_inflexible(launch_requirements(asked), launchable_types.types) is (
        expected == "on-demand" and requirements == SPOT_OR_ON_DEMAND
    )


@pytest.mark.parametrize(
    ("count", "requirements", "expected"),
    [(4, SPOT_OR_ON_DEMAND, True), (5, SPOT_OR_ON_DEMAND, False), (1, ON_DEMAND, False)],
)
def test_few_types_for_a_fallback_to_on_demand_log_a_warning(
    count: int, requirements: dict[str, tuple[str, ...]], expected: bool
) -> None:
    """AWS-431: only where spot was allowed, and below five types."""
    sold_out = [
        ec2_type(
            f"m{number}.large",
            offerings=[offering(labels.SPOT, "a", 0.04, available=False), offering(labels.ON_DEMAND, "a", 0.1)],
        )
        for number in range(count)
    ]
    asked = claim("one", requirements)
    assert launch_filters.is_inflexible(launch_requirements(asked), kept(asked, sold_out).types) is expected


def test_default_tenancy_is_used_where_it_is_allowed() -> None:
    """AWS-430."""
    assert launch_filters.launch_tenancy(launch_requirements(claim())) == "default"
    assert (
        launch_filters.launch_tenancy(launch_requirements(claim("one", {aws_labels.TENANCY: ("dedicated",)})))
        == "dedicated"
    )


def test_of_two_reservations_in_a_zone_the_one_with_more_capacity_is_used() -> None:
    """AWS-T426."""
    both = ec2_type("m5.large", offerings=[reserved("a", 1e-8, 3, "cr-1"), reserved("a", 1e-8, 5, "cr-2")])
    launchable_types = kept(claim("one", RESERVED_OR_ON_DEMAND), (both,))
    assert [override.reservation_id for override in launchable_types.types[0].offerings] == ["cr-2"]


def test_a_request_has_one_reservation_type_the_cheapest() -> None:
    """AWS-T427."""
    plain = ec2_type("m5.large", offerings=[reserved("a", 1e-8, 3, "cr-1")])
    block = ec2_type("p5.48xlarge", offerings=[reserved("a", 5e-6, 3, "cr-2", kind="capacity-block")])
    launchable_types = kept(claim("one", RESERVED_OR_ON_DEMAND), (plain, block))
    assert names_of(launchable_types) == ["m5.large"]


def test_a_request_names_a_single_capacity_block_the_cheapest() -> None:
    """AWS-422."""
    block = ec2_type(
        "p5.48xlarge",
        offerings=[
            reserved("a", 6e-6, 3, "cr-1", kind="capacity-block"),
            reserved("b", 5e-6, 3, "cr-2", kind="capacity-block"),
        ],
    )
    other = ec2_type("p4d.24xlarge", offerings=[reserved("a", 7e-6, 3, "cr-3", kind="capacity-block")])
    launchable_types = kept(claim("one", RESERVED_OR_ON_DEMAND), (block, other))
    assert [
        (instance_type.name, override.reservation_id)
        for instance_type in launchable_types.types
        for override in instance_type.offerings
    ] == [("p5.48xlarge", "cr-2")]


def test_of_equally_cheap_reservation_types_default_is_taken() -> None:
    """AWS-421."""
    types = (
        ec2_type("a1.large", offerings=[reserved("a", 1e-8, 1, "cr-3", again=True)]),
        ec2_type("a2.large", offerings=[reserved("a", 1e-8, 1, "cr-2", kind="capacity-block")]),
        ec2_type("a3.large", offerings=[reserved("a", 1e-8, 1, "cr-1")]),
    )
    assert names_of(kept(claim("one", RESERVED_OR_ON_DEMAND), types)) == ["a3.large"]


def test_without_a_reservation_left_everything_stays() -> None:
    """AWS-421, AWS-423."""
    spent = ec2_type("m5.large", offerings=[reserved("a", 1e-8, 0, "cr-1"), offering(labels.ON_DEMAND, "a", 0.1)])
    assert names_of(kept(claim("one", RESERVED_OR_ON_DEMAND), (spent, XLARGE))) == ["m5.large", "m5.xlarge"]


def test_a_full_reservation_does_not_decide_the_reservation_type() -> None:
    """K15-A41: its price is low but it cannot be launched; the type of the block with capacity stays."""
    full = ec2_type("m5.large", offerings=[reserved("a", 1e-9, 0, "cr-1")])
    block = ec2_type("p5.48xlarge", offerings=[reserved("a", 5e-6, 3, "cr-2", kind="capacity-block")])
    assert names_of(kept(claim("one", RESERVED_OR_ON_DEMAND), (full, block))) == ["p5.48xlarge"]


def test_the_cheapest_capacity_block_with_capacity_is_named_and_without_one_spot_and_on_demand_stay() -> None:
    """K15-A42, K15-A44: where every block is full, a claim that allows it is launched as spot or on demand."""
    full = reserved("a", 5e-6, 0, "cr-1", kind="capacity-block")
    open_block = reserved("b", 6e-6, 2, "cr-2", kind="capacity-block")
    on_demand = offering(labels.ON_DEMAND, "a", 30.0)
    both = kept(
        claim("one", RESERVED_OR_ON_DEMAND), (ec2_type("p5.48xlarge", offerings=[full, open_block, on_demand]),)
    )
    assert [override.reservation_id for override in both.types[0].offerings] == ["cr-2"]
    none = kept(claim("one", RESERVED_OR_ON_DEMAND), (ec2_type("p5.48xlarge", offerings=[full, on_demand]),))
    assert [override.capacity_type for override in none.types[0].offerings] == ["on-demand"]


def test_a_type_with_only_full_reservations_is_left_out_beside_one_with_capacity() -> None:
    """K15-A43, K15-A45: full reserved offerings give no overrides, at any price."""
    full = ec2_type("m5.large", offerings=[reserved("a", 1e-9, 0, "cr-1")])
    left = ec2_type("m5.xlarge", offerings=[reserved("a", 1e-8, 1, "cr-2"), reserved("b", 1e-9, 0, "cr-3")])
    launchable_types = kept(claim("one", RESERVED_OR_ON_DEMAND), (full, left))
    assert names_of(launchable_types) == ["m5.xlarge"]
    assert [override.reservation_id for override in launchable_types.types[0].offerings] == ["cr-2"]


def test_claims_that_do_not_allow_reserved_capacity_never_see_it() -> None:
    """AWS-424."""
    both = ec2_type("m5.large", offerings=[reserved("a", 1e-8, 3, "cr-1"), offering(labels.ON_DEMAND, "a", 0.1)])
    launchable_types = kept(claim("one", ON_DEMAND), (both,))
    assert [override.capacity_type for override in launchable_types.types[0].offerings] == ["on-demand"]


def test_invalid_resource_requests_are_a_create_error() -> None:
    with pytest.raises(LaunchFailed, match="claim one asks for"):
        launch_requirements(claim("one", {}, {"cpu": "lots"}))
