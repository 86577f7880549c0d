"""Types that several AWS services share, and the answers of EKS, IAM, SQS and ARC. EC2 has modules of its own."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec
from msgspec import field


class AwsStruct(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="pascal"):
    """Base of everything here."""


class Tag(AwsStruct, frozen=True, kw_only=True):
    """One tag."""

    key: str
    value: str = msgspec.field(default_factory=str)


def tag_list(values: Mapping[str, str]) -> tuple[Tag, ...]:
    """Tags of a map, sorted by key so that equal requests are equal texts."""
    return tuple(Tag(key=key, value=values[key]) for key in sorted(values))


def tag_map(values: tuple[Tag, ...]) -> dict[str, str]:
    """A map of tags."""
    return {tag.key: tag.value for tag in values}


class Ec2Filter(AwsStruct, frozen=True, kw_only=True):
    """One filter of a describe call: any of the values."""

    name: str
    values: tuple[str, ...]


# -- other services -------------------------------------------------------------------------------------------------------------


class RoleInfo(AwsStruct, frozen=True, kw_only=True):
    """A role in an instance profile."""

    role_name: str = ""


class InstanceProfile(AwsStruct, frozen=True, kw_only=True):
    """An instance profile."""

    instance_profile_name: str
    path: str = ""
    roles: tuple[RoleInfo, ...] = ()
    tags: tuple[Tag, ...] = ()


class SqsMessage(AwsStruct, frozen=True, kw_only=True):
    """A message of a queue. ``attributes`` has ``SentTimestamp`` in milliseconds."""

    message_id: str = ""
    receipt_handle: str = ""
    body: str | None = None
    attributes: Mapping[str, str] = {}


class KubernetesNetworkConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Of an EKS cluster."""

    service_ipv4_cidr: str = field(name="serviceIpv4Cidr", default="")
    service_ipv6_cidr: str = field(name="serviceIpv6Cidr", default="")
    ip_family: str = ""


class CertificateAuthority(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Of an EKS cluster: base64 of PEM."""

    data: str = ""


class EksCluster(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An EKS cluster. This service, alone, spells its fields with a small letter first."""

    name: str = ""
    arn: str = ""
    version: str = ""
    endpoint: str = ""
    kubernetes_network_config: KubernetesNetworkConfig | None = None
    certificate_authority: CertificateAuthority | None = None


class ZonalShift(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A zone an EKS cluster shifts away from."""

    away_from: str = ""
    applied_status: str = ""
    expiry_time: datetime | None = None
