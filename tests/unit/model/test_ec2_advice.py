"""Advice about an admitted EC2NodeClass, and the meaning of volume sizes."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from karpenter.api.kinds import EC2_NODE_CLASS
from karpenter.model import runtime_validation
from karpenter.model.ec2_volume_size import VolumeSizeError, volume_size_gib
from karpenter.model.structural_schema import Finding
from support.admission_rows import ABSENT, Json, built

A_B: Json = {"tags": {"a": "b"}}


def advice(change: Mapping[str, object]) -> tuple[Finding, ...]:
    made = built("EC2NodeClass", change)
    assert runtime_validation.admit(EC2_NODE_CLASS, made) == ()
    return runtime_validation.advise_object(EC2_NODE_CLASS.decode(msgspec.json.encode(made)))


def images(*terms: Json) -> Json:
    return {"spec.amiSelectorTerms": list(terms), "spec.amiFamily": "Custom"}


@pytest.mark.parametrize(
    ("change", "path", "words"),
    [
        pytest.param({"spec": ABSENT}, "spec", "missing", id="API-022"),
        pytest.param({"metadata.name": "a" * 64}, "metadata.name", "64 characters", id="API-031"),
        pytest.param(
            {"spec.subnetSelectorTerms": [A_B, {"id": "subnet-1", **A_B}]},
            "spec.subnetSelectorTerms[1]",
            "tags beside id",
            id="AWS-052 subnets",
        ),
        pytest.param(
            {"spec.securityGroupSelectorTerms": [{"id": "sg-1", "name": "n", **A_B}, {"name": "n"}]},
            "spec.securityGroupSelectorTerms[0]",
            "name, tags beside id",
            id="AWS-052 security groups",
        ),
        pytest.param(
            {"spec.securityGroupSelectorTerms": [{"name": "n", **A_B}, A_B]},
            "spec.securityGroupSelectorTerms[0]",
            "tags beside name",
            id="AWS-052 names of security groups",
        ),
        pytest.param(
            {"spec.capacityReservationSelectorTerms": [{"id": "cr-1", "ownerID": "1" * 12}, A_B]},
            "spec.capacityReservationSelectorTerms[0]",
            "ownerID beside id",
            id="AWS-052 reservations",
        ),
        pytest.param(
            images({"id": "ami-1", "ssmParameter": "/p"}),
            "spec.amiSelectorTerms[0]",
            "ssmParameter beside id",
            id="AWS-053 id",
        ),
        pytest.param(
            images({"name": "n", "owner": "self", "ssmParameter": "/p"}),
            "spec.amiSelectorTerms[0]",
            "name, owner beside ssmParameter",
            id="AWS-053",
        ),
        pytest.param(images({"id": "my ami-1"}), "spec.amiSelectorTerms[0].id", "'my ami-1'", id="API-227"),
        pytest.param(
            {"spec.blockDeviceMappings": [{}, {"ebs": {"volumeSize": "Ti"}}]},
            "spec.blockDeviceMappings[1].ebs.volumeSize",
            "'Ti'",
            id="AWS-054",
        ),
    ],
)
def test_fields_without_effect_or_meaning_get_advice(change: Mapping[str, object], path: str, words: str) -> None:
    (finding,) = advice(change)
    assert finding.path == path
    assert words in finding.message


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"spec.subnetSelectorTerms": [{"id": "subnet-1"}, A_B]},
        {"spec.securityGroupSelectorTerms": [{"id": "sg-1"}, {"name": "n"}, A_B]},
        {"spec.capacityReservationSelectorTerms": [{"id": "cr-1"}, {"ownerID": "1" * 12, **A_B}]},
        images({"id": "ami-1"}, {"name": "n", "owner": "self", **A_B}, {"ssmParameter": "/p"}),
        {"spec.blockDeviceMappings": [{"ebs": {"volumeSize": "18Ti"}}, {"ebs": {"snapshotID": "s"}}]},
    ],
)
def test_a_clear_class_gets_no_advice(change: Mapping[str, object]) -> None:
    assert advice(change) == ()


@pytest.mark.parametrize(
    ("text", "gib"),
    [("1Gi", 1), ("59000Gi", 59000), ("20G", 19), ("1G", 1), ("58Ti", 59392), ("18Ti", 18432), ("64T", 59605)],
)
def test_a_volume_has_whole_gibibytes_rounded_up(text: str, gib: int) -> None:
    """AWS-054, AWS-491"""
    assert volume_size_gib(text) == gib


@pytest.mark.parametrize("text", ["Ti", "T", "", "0Gi", "-1Gi", "65T", "59Ti"])
def test_what_is_no_size_of_a_volume_is_refused(text: str) -> None:
    """AWS-054"""
    with pytest.raises(VolumeSizeError):
        volume_size_gib(text)


def test_every_size_that_is_admitted_and_has_a_number_has_a_meaning() -> None:
    """AWS-054: no class that could be stored before stops working."""
    sizes = [f"{n}Ti" for n in range(1, 59)] + [f"{n}T" for n in range(1, 65)] + ["59000Gi", "64000G"]
    assert all(volume_size_gib(size) > 0 for size in sizes)
