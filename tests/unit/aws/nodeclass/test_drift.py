"""Drift of an instance from its EC2NodeClass (AWS-560 to AWS-568)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from karpenter.api.ec2_node_class import (
    AMI,
    CapacityReservation,
    EC2NodeClass,
    EC2NodeClassStatus,
    SecurityGroup,
    Subnet,
)
from karpenter.api.karpenter import NodeClaim, NodeClaimSpec, NodeClaimStatus
from karpenter.api.meta import ObjectMeta
from karpenter.providers.aws.ec2_descriptions import (
    GroupIdentifier,
    ImageInfo,
    InstanceInfo,
    InstanceReservationSpecification,
)
from karpenter.providers.aws.nodeclass.ami_selection import STANDARD_REQUIREMENTS, AmiCandidate, select_amis
from karpenter.providers.aws.nodeclass.nodeclass_drift import (
    NO_DRIFT,
    DriftComparison,
    DriftNotDeterminable,
    NodeClassDrift,
    confirmed_drift,
    instance_drift,
    node_class_drift,
)
from karpenter.providers.aws.nodeclass.nodeclass_hash import HASH_ANNOTATION, HASH_VERSION_ANNOTATION
from support.node_class_environment import REFERENCE, TYPES

NOW = datetime(2026, 1, 1, tzinfo=UTC)
BY_NAME = {instance_type.name: instance_type for instance_type in TYPES}


def images(*rows: tuple[str, str, str]) -> tuple[AMI, ...]:
    """Id, architecture, date."""
    return select_amis(
        [
            AmiCandidate(ImageInfo(image_id=name, architecture=arch, creation_date=date), STANDARD_REQUIREMENTS)
            for name, arch, date in rows
        ],
        NOW,
    )


STATUS = EC2NodeClassStatus(
    amis=images(("ami-1", "x86_64", "2025-01-01T00:00:00Z"), ("ami-2", "arm64", "2025-01-01T00:00:00Z")),
    security_groups=(SecurityGroup(id="sg-1"), SecurityGroup(id="sg-2")),
    subnets=(Subnet(id="subnet-1", zone="a"), Subnet(id="subnet-2", zone="b")),
)
RESERVED = InstanceReservationSpecification(capacity_reservation_preference="capacity-reservations-only")


def stamp(value: str, version: str = "py1") -> dict[str, str]:
    return {HASH_ANNOTATION: value, HASH_VERSION_ANNOTATION: version}


def drift_comparison(**changes: Any) -> DriftComparison:
    """The comparison of an instance without drift, with ``changes``."""
    instance = InstanceInfo(
        instance_id="i-1",
        instance_type="m5.large",
        subnet_id="subnet-1",
        security_groups=(GroupIdentifier(group_id="sg-2"), GroupIdentifier(group_id="sg-1")),
    )
    usual: dict[str, Any] = {
        "claim": claimed(),
        "node_class": classed(),
        "instance": instance,
        "types": BY_NAME,
        "group_id": "",
    }
    return DriftComparison(**{**usual, **changes})


def claimed(annotations: dict[str, str] | None = None, image: str = "ami-1", **labels: str) -> NodeClaim:
    return NodeClaim(
        metadata=ObjectMeta(name="c", annotations=stamp("1") if annotations is None else annotations, labels=labels),
        spec=NodeClaimSpec(requirements=(), node_class_ref=REFERENCE),
        status=NodeClaimStatus(image_id=image),
    )


def classed(annotations: dict[str, str] | None = None, **status: Any) -> EC2NodeClass:
    meta = ObjectMeta(name="default", annotations=stamp("1") if annotations is None else annotations)
    return EC2NodeClass(metadata=meta, status=replace(STATUS, **status))


def on(**fields: Any) -> InstanceInfo:
    return replace(drift_comparison().instance, **fields)


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        pytest.param(drift_comparison(), "", id="as-it-should-be"),
        pytest.param(
            drift_comparison(node_class=classed(amis=images(("ami-9", "x86_64", "2025-06-01T00:00:00Z")))),
            "AMIDrift",
            id="AWS-T560",
        ),
        pytest.param(
            drift_comparison(
                node_class=classed(
                    amis=images(("ami-9", "arm64", "2025-06-01T00:00:00Z"), ("ami-1", "x86_64", "2025-01-01T00:00:00Z"))
                )
            ),
            "",
            id="AWS-T561",
        ),
        pytest.param(
            drift_comparison(node_class=classed(amis=images(("ami-2", "arm64", "2025-06-01T00:00:00Z")))),
            "AMIDrift",
            id="AWS-562-no-image-for-the-type",
        ),
        pytest.param(
            drift_comparison(instance=on(security_groups=(GroupIdentifier(group_id="sg-1"),))),
            "SecurityGroupDrift",
            id="AWS-T562-AWS-563",
        ),
        pytest.param(
            drift_comparison(node_class=classed(security_groups=(SecurityGroup(id="sg-2"), SecurityGroup(id="sg-1")))),
            "",
            id="AWS-T568",
        ),
        pytest.param(drift_comparison(instance=on(subnet_id="subnet-9")), "SubnetDrift", id="AWS-T563-AWS-564"),
        pytest.param(
            drift_comparison(instance=on(capacity_reservation_id="cr-1", capacity_reservation_specification=RESERVED)),
            "CapacityReservationDrift",
            id="AWS-565",
        ),
        pytest.param(
            drift_comparison(instance=on(capacity_reservation_id="cr-1")), "", id="AWS-523-merely-in-an-open-one"
        ),
        pytest.param(drift_comparison(group_id="pg-1"), "PlacementGroupDrift", id="AWS-T565"),
        pytest.param(
            drift_comparison(group_id="", claim=claimed(**{"karpenter.k8s.aws/placement-group-id": "pg-1"})),
            "PlacementGroupDrift",
            id="AWS-566-group-taken-away",
        ),
        pytest.param(
            drift_comparison(group_id="pg-1", claim=claimed(**{"karpenter.k8s.aws/placement-group-id": "pg-1"})),
            "",
            id="AWS-566-same-group",
        ),
        pytest.param(
            drift_comparison(instance=on(subnet_id="subnet-9"), group_id=None),
            "SubnetDrift",
            id="AWS-567-the-first-reason-counts",
        ),
    ],
)
def test_the_first_difference_is_the_reason(found: DriftComparison, reason: str) -> None:
    """API-514, DIS-347, DIS-348, DIS-349, DIS-350, DIS-351, API-S237: AWS §12.1"""
    assert instance_drift(found).reason == reason


@pytest.mark.parametrize(
    "drift_comparison",
    [
        pytest.param(drift_comparison(claim=claimed(image="")), id="AWS-T572"),
        pytest.param(drift_comparison(node_class=classed(amis=())), id="no-images"),
        pytest.param(drift_comparison(node_class=classed(security_groups=())), id="no-groups"),
        pytest.param(drift_comparison(node_class=classed(subnets=())), id="no-subnets"),
        pytest.param(drift_comparison(types={}), id="unknown-type"),
        pytest.param(drift_comparison(group_id=None), id="group-not-resolved"),
    ],
)
def test_drift_is_unknown_without_data_to_compare(drift_comparison: DriftComparison) -> None:
    """AWS-567"""
    with pytest.raises(DriftNotDeterminable):
        instance_drift(drift_comparison)


@pytest.mark.parametrize(
    ("claim", "node_class", "reason"),
    [
        pytest.param(claimed(), classed(), "", id="equal"),
        pytest.param(claimed(), classed(stamp("2"), amis=()), "NodeClassDrift", id="AWS-561"),
        pytest.param(claimed(), classed(stamp("2", "v6")), "", id="AWS-561-other-version"),
        pytest.param(claimed({}), classed(), "", id="AWS-T571"),
    ],
)
def test_a_changed_class_has_another_hash(claim: NodeClaim, node_class: EC2NodeClass, reason: str) -> None:
    assert node_class_drift(claim, node_class, lambda name, before, after: ()).reason == reason


def test_the_drift_message_names_the_changed_fields() -> None:
    """AWS §12, its Beyond"""
    changed = node_class_drift(claimed(), classed(stamp("2")), lambda name, before, after: ("userData", "tags"))
    assert changed.message == "EC2NodeClass default was changed: userData, tags"
    newer = drift_comparison(node_class=classed(amis=images(("ami-9", "x86_64", "2025-06-01T00:00:00Z"))))
    assert instance_drift(newer).message == "image ami-1 is not used any more for m5.large, but ami-9"
    groups = drift_comparison(
        instance=on(security_groups=(GroupIdentifier(group_id="sg-1"), GroupIdentifier(group_id="sg-9")))
    )
    assert instance_drift(groups).message == "security groups differ: +sg-2, -sg-9"


IN_GONE = on(capacity_reservation_id="cr-1", capacity_reservation_specification=RESERVED)


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        pytest.param(on(), NO_DRIFT, id="AWS-T564"),
        pytest.param(
            IN_GONE,
            NodeClassDrift("CapacityReservationDrift", "capacity reservation cr-1 is not selected any more"),
            id="AWS-565-confirmed",
        ),
    ],
)
async def test_a_reservation_that_is_gone_is_confirmed_by_a_fresh_read(
    read: InstanceInfo, expected: NodeClassDrift
) -> None:
    async def fresh() -> InstanceInfo:
        return read

    assert await confirmed_drift(drift_comparison(instance=IN_GONE), fresh) == expected


async def test_other_reasons_need_no_fresh_read() -> None:
    """AWS-568"""

    async def fresh() -> InstanceInfo:
        raise AssertionError("not asked for")

    assert (await confirmed_drift(drift_comparison(instance=on(subnet_id="subnet-9")), fresh)).reason == "SubnetDrift"
    reservation = CapacityReservation(
        id="cr-1", availability_zone="a", instance_type="m5.large", instance_match_criteria="open", owner_id="1" * 12
    )
    selected = drift_comparison(instance=IN_GONE, node_class=classed(capacity_reservations=(reservation,)))
    assert await confirmed_drift(selected, fresh) == NO_DRIFT
