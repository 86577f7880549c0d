"""Selection of images, and the image of each instance type (AWS-190, AWS-196 to AWS-202)."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from karpenter.api.ec2_node_class import AMI
from karpenter.instancetypes.ec2_packaged_types import packaged_instance_types
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.instancetypes.well_known_labels import complete_requirements, label_in
from karpenter.model import labels
from karpenter.providers.aws.ec2_descriptions import ImageInfo
from karpenter.providers.aws.nodeclass import ami_selection
from karpenter.providers.aws.nodeclass.ami_selection import (
    NEURON_REQUIREMENTS,
    NVIDIA_REQUIREMENTS,
    STANDARD_REQUIREMENTS,
    AmiCandidate,
    ami_for,
    select_amis,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
OLD, NEW = "2025-01-01T00:00:00.000Z", "2025-06-01T00:00:00.000Z"
LONG_PAST, FUTURE = "2025-12-31T23:59:59Z", "2027-01-01T00:00:00Z"


def image(
    image_id: str, created: str = OLD, *, arch: str = "x86_64", name: str = "", deprecated: str = ""
) -> ImageInfo:
    return ImageInfo(
        image_id=image_id, name=name, architecture=arch, creation_date=created, deprecation_time=deprecated
    )


def chosen(*image_infos: ImageInfo) -> list[str]:
    return [ami.id for ami in select_amis(map(AmiCandidate, image_infos), NOW)]


def test_an_older_image_is_preferred_to_a_newer_deprecated_one() -> None:
    """AWS-T184, AWS-198"""
    assert chosen(image("ami-old", OLD), image("ami-new", NEW, deprecated=LONG_PAST)) == ["ami-old"]


def test_of_deprecated_images_the_newer_is_used_and_marked() -> None:
    """AWS-T185"""
    (ami,) = select_amis(
        [
            AmiCandidate(image("ami-a", NEW, deprecated=LONG_PAST)),
            AmiCandidate(image("ami-b", OLD, deprecated=LONG_PAST)),
        ],
        NOW,
    )
    assert (ami.id, ami.deprecated) == ("ami-a", True)


def test_an_image_with_a_future_deprecation_is_current() -> None:
    """AWS-199"""
    assert chosen(image("ami-a", NEW, deprecated=FUTURE), image("ami-b", OLD)) == ["ami-a"]


def test_of_images_of_the_same_moment_the_greater_name_is_used() -> None:
    """AWS-T186"""
    assert chosen(image("ami-1", name="a"), image("ami-2", name="b")) == ["ami-2"]
    assert chosen(image("ami-2", name="b"), image("ami-1", name="a")) == ["ami-2"]


@pytest.mark.parametrize("date", ["", "last summer"])
def test_an_image_without_a_date_counts_as_the_oldest(date: str) -> None:
    """AWS-198"""
    assert chosen(image("ami-z", date, name="z"), image("ami-a", OLD, name="a")) == ["ami-a"]


def test_images_of_other_architectures_are_ignored() -> None:
    """AWS-T190"""
    assert chosen(image("ami-1", arch="i386"), image("ami-2", arch="arm64")) == ["ami-2"]


def test_images_are_listed_newest_first_and_then_by_id() -> None:
    """AWS-201"""
    ami_candidates = [
        AmiCandidate(image("ami-3", OLD), STANDARD_REQUIREMENTS),
        AmiCandidate(image("ami-2", OLD), NVIDIA_REQUIREMENTS),
        AmiCandidate(image("ami-9", NEW, arch="arm64"), STANDARD_REQUIREMENTS),
    ]
    assert [ami.id for ami in select_amis(ami_candidates, NOW)] == ["ami-9", "ami-2", "ami-3"]


def test_requirements_are_shown_short_keys_first() -> None:
    """AWS-087, AWS-190, API-372: they say which instance types the image is for."""
    (ami,) = select_amis([AmiCandidate(image("ami-1"), STANDARD_REQUIREMENTS)], NOW)
    assert [
        (image_requirement.key, image_requirement.operator, image_requirement.values)
        for image_requirement in ami.requirements
    ] == [
        ("kubernetes.io/arch", "In", ("amd64",)),
        ("karpenter.k8s.aws/instance-gpu-count", "DoesNotExist", ()),
        ("karpenter.k8s.aws/instance-accelerator-count", "DoesNotExist", ()),
    ]


def test_an_image_for_two_variants_is_listed_twice() -> None:
    """AWS-190"""
    amis = select_amis(
        [AmiCandidate(image("ami-1"), NEURON_REQUIREMENTS), AmiCandidate(image("ami-1"), NVIDIA_REQUIREMENTS)], NOW
    )
    assert [ami.id for ami in amis] == ["ami-1", "ami-1"]
    assert len({ami.requirements for ami in amis}) == 2


RELEASE = select_amis(
    [
        AmiCandidate(image("ami-plain"), STANDARD_REQUIREMENTS),
        AmiCandidate(image("ami-arm", arch="arm64"), STANDARD_REQUIREMENTS),
        AmiCandidate(image("ami-nvidia"), NVIDIA_REQUIREMENTS),
        AmiCandidate(image("ami-neuron"), NEURON_REQUIREMENTS),
    ],
    NOW,
)
BY_NAME = {instance_type.name: instance_type for instance_type in packaged_instance_types()}


@pytest.mark.parametrize(
    ("instance_type", "expected"),
    [("m5.large", "ami-plain"), ("m6g.large", "ami-arm"), ("g5.xlarge", "ami-nvidia"), ("inf2.xlarge", "ami-neuron")],
)
def test_a_type_gets_the_image_with_matching_requirements(instance_type: str, expected: str) -> None:
    """AWS-202"""
    ami = ami_for(BY_NAME[instance_type], RELEASE)
    assert ami is not None
    assert ami.id == expected


def test_the_first_matching_image_is_used_and_none_if_none_matches() -> None:
    """AWS-202"""
    both = (AMI(id="ami-1", requirements=()), AMI(id="ami-2", requirements=()))
    assert ami_for(BY_NAME["m5.large"], both) == both[0]
    arm_only = tuple(ami for ami in RELEASE if ami.id == "ami-arm")
    assert ami_for(BY_NAME["m5.large"], arm_only) is None


def test_an_image_of_windows_is_for_instances_that_run_its_build() -> None:
    """AWS-189"""
    (ami,) = select_amis([AmiCandidate(image("ami-w"), ami_selection.windows_requirements("10.0.20348"))], NOW)
    requirements = {
        labels.ARCH: label_in(labels.ARCH, "amd64"),
        labels.OS: label_in(labels.OS, "windows"),
        labels.WINDOWS_BUILD: label_in(labels.WINDOWS_BUILD, "10.0.20348"),
    }
    fits = InstanceType("w", complete_requirements(requirements), {})
    other = InstanceType(
        "w",
        complete_requirements({**requirements, labels.WINDOWS_BUILD: label_in(labels.WINDOWS_BUILD, "10.0.17763")}),
        {},
    )
    assert ami_for(fits, (ami,)) == ami
    assert ami_for(other, (ami,)) is None


def test_images_for_accelerators_are_not_standard() -> None:
    """AWS-127"""
    assert {ami.id for ami in RELEASE if ami_selection.is_standard_ami(ami)} == {"ami-plain", "ami-arm"}
