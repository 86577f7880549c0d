"""Machine images with dates, and the public parameters that name them (AWS-966, AWS-967, AWS-184 to AWS-189)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from support.aws.moto_backend import ACCOUNT
from support.aws.queries import at, named, select
from support.aws.wire import Fields, Refusal

#: The account whose images are owned by ``amazon``.
AMAZON = "602401143452"
CANONICAL = "099720109477"
_NEVER = datetime(2099, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Image:
    """A machine image. ``parameters`` are the public parameters that name it."""

    image_id: str
    name: str
    architecture: str
    created: datetime
    owner: str = ACCOUNT
    deprecated_at: datetime | None = None
    tags: dict[str, str] = field(default_factory=dict)
    parameters: tuple[str, ...] = ()
    platform: str = ""


class Release(NamedTuple):
    """A release of all families, named by its day."""

    day: datetime

    @property
    def eks(self) -> str:
        """The version of the EKS images: ``v20260301``."""
        return f"v{self.day:%Y%m%d}"

    @property
    def bottlerocket(self) -> str:
        """Bottlerocket's version, which increases with the release."""
        return f"1.{50 + (self.day - _FIRST.day).days // 30}.0"


_FIRST = Release(datetime(2026, 3, 1, tzinfo=UTC))
RELEASES = (_FIRST, Release(datetime(2026, 8, 1, tzinfo=UTC)))
_ARCHITECTURES = ("x86_64", "arm64")
_FILTERS = {
    "image-id": at("ImageId"),
    "name": at("Name"),
    "architecture": at("Architecture"),
    "state": at("State"),
    "owner-id": at("OwnerId"),
    "owner-alias": at("ImageOwnerAlias"),
}
_ROOT = "/aws/service"
_AL2 = (("", "x86_64"), ("-arm64", "arm64"), ("-gpu", "x86_64"))
#: Kubernetes minor versions from which a family is, or is no longer, published (AWS-085).
_FIRST_WITHOUT_AL2 = 33
_FIRST_WITH_2025 = 35


def _image(name: str, architecture: str, release: Release, parameters: tuple[str, ...], platform: str = "") -> Image:
    digest = hashlib.sha256(name.encode()).hexdigest()[:17]
    deprecated = release.day + timedelta(days=730)
    return Image(f"ami-{digest}", name, architecture, release.day, AMAZON, deprecated, {}, parameters, platform)


def published(kubernetes: str, release: Release) -> Iterator[Image]:
    """What the families publish for a Kubernetes version in a release, with exact parameter names and ``latest`` names."""
    eks = f"{_ROOT}/eks/optimized-ami/{kubernetes}"
    minor = int(kubernetes.partition(".")[2])
    for suffix, architecture in _AL2 if minor < _FIRST_WITHOUT_AL2 else ():
        name = f"amazon-eks{suffix}-node-{kubernetes}-{release.eks}"
        folder = f"{eks}/amazon-linux-2{suffix}"
        yield _image(name, architecture, release, (f"{folder}/{name}/image_id", f"{folder}/recommended/image_id"))
    for architecture in _ARCHITECTURES:
        for variant in ("standard", "nvidia", "neuron") if architecture == "x86_64" else ("standard", "nvidia"):
            name = f"amazon-eks-node-al2023-{architecture}-{variant}-{kubernetes}-{release.eks}"
            folder = f"{eks}/amazon-linux-2023/{architecture}/{variant}"
            ids = (f"{folder}/{name}/image_id", f"{folder}/recommended/image_id")
            yield _image(name, architecture, release, ids)
        for suffix in ("", "-nvidia"):
            name = f"bottlerocket-aws-k8s-{kubernetes}{suffix}-{architecture}-v{release.bottlerocket}-4a1b2c3d"
            folder = f"{_ROOT}/bottlerocket/aws-k8s-{kubernetes}{suffix}/{architecture}"
            ids = (f"{folder}/{release.bottlerocket}/image_id", f"{folder}/latest/image_id")
            yield _image(name, architecture, release, ids)
    yield from _ubuntu(kubernetes, release)
    for build in ("2019", "2022", "2025") if minor >= _FIRST_WITH_2025 else ("2019", "2022"):
        stem = f"Windows_Server-{build}-English-Core-EKS_Optimized-{kubernetes}"
        moving = f"{_ROOT}/ami-windows-latest/{stem}/image_id"
        yield _image(f"{stem}-{release.day:%Y.%m.%d}", "x86_64", release, (moving,), "windows")


def _ubuntu(kubernetes: str, release: Release) -> Iterator[Image]:
    """Canonical's images for EKS: names contain dates, parameters name the latest image."""
    for arch, architecture in (("amd64", "x86_64"), ("arm64", "arm64")):
        name = f"ubuntu-eks/k8s_{kubernetes}/images/hvm-ssd/ubuntu-jammy-22.04-{arch}-server-{release.day:%Y%m%d}"
        moving = f"{_ROOT}/canonical/ubuntu/eks/22.04/{kubernetes}/stable/current/{arch}/hvm/ebs-gp2/ami-id"
        yield replace(_image(name, architecture, release, (moving,)), owner=CANONICAL)


class Images:
    """The image table."""

    def __init__(self, kubernetes: tuple[str, ...]) -> None:
        self._kubernetes = kubernetes
        self._images: dict[str, Image] = {}
        self._parameters: dict[str, str] = {}
        self.reset()

    def reset(self) -> None:
        """The initial releases."""
        self._images.clear()
        self._parameters.clear()
        for release in RELEASES:
            self.release(release)

    def release(self, release: Release) -> None:
        """Publish images of a day for all families; ``latest`` parameters name them."""
        for kubernetes in self._kubernetes:
            for image in published(kubernetes, release):
                self.add(image)

    def add(self, image: Image) -> None:
        """Add an image, or replace the one with the same id."""
        self._images[image.image_id] = image
        self._parameters.update(dict.fromkeys(image.parameters, image.image_id))

    def deprecate(self, image_id: str, since: datetime) -> None:
        """Deprecate an image from a time on."""
        self.add(replace(self._images[image_id], deprecated_at=since))

    def remove(self, image_id: str) -> None:
        """Deregister an image. Parameters that name it stay, as AWS's do."""
        del self._images[image_id]

    def find(self, image_id: str) -> Image | None:
        """An image by id."""
        return self._images.get(image_id)

    def by_name(self, name: str) -> Image:
        """An image by its exact name."""
        return next(image for image in self._images.values() if image.name == name)

    def parameter(self, name: str) -> str | None:
        """The value of a public parameter; None if the double does not have it. An ARN is accepted as a name."""
        match = re.match(r"arn:[^:]+:ssm:[^:]*:[^:]*:parameter(/.*)", name)
        return self._parameters.get(match.group(1) if match else name)

    def describe(self, parameters: Fields, now: datetime) -> Fields:
        """DescribeImages. Without ``IncludeDeprecated`` deprecated images of other accounts are left out."""
        wanted = parameters.get("ImageIds")
        entries = named(map(_entry, self._images.values()), "ImageId", wanted, "InvalidAMIID.NotFound")
        entries = [entry for entry in entries if _is_owned(entry, parameters.get("Owners") or ())]
        if not parameters.get("IncludeDeprecated"):
            entries = [entry for entry in entries if not self._is_hidden(entry, now)]
        return {"Images": select(entries, parameters.get("Filters"), _FILTERS)}

    def _is_hidden(self, entry: Fields, now: datetime) -> bool:
        image = self._images[entry["ImageId"]]
        return image.owner != ACCOUNT and (image.deprecated_at or _NEVER) <= now

    def check(self, image_id: str) -> Image:
        """The image of a launch. Raises ``Refusal``."""
        if not re.fullmatch(r"ami-[0-9a-f]{8,17}", image_id):
            raise Refusal("InvalidAMIID.Malformed", f'Invalid id: "{image_id}" (expecting "ami-...")')
        image = self._images.get(image_id)
        if image is None:
            raise Refusal("InvalidAMIID.NotFound", f"The image id '[{image_id}]' does not exist")
        return image


def _is_owned(entry: Fields, owners: tuple[str, ...]) -> bool:
    mine = {entry["OwnerId"], entry.get("ImageOwnerAlias")} | ({"self"} if entry["OwnerId"] == ACCOUNT else set())
    return not owners or bool(mine.intersection(owners))


def _moment(value: datetime) -> str:
    return f"{value:%Y-%m-%dT%H:%M:%S}.000Z"


def _entry(image: Image) -> Fields:
    entry: Fields = {
        "ImageId": image.image_id,
        "Name": image.name,
        "ImageLocation": f"{image.owner}/{image.name}",
        "Architecture": image.architecture,
        "CreationDate": _moment(image.created),
        "OwnerId": image.owner,
        "State": "available",
        "Public": image.owner in (AMAZON, CANONICAL),
        "ImageType": "machine",
        "VirtualizationType": "hvm",
        "RootDeviceType": "ebs",
        "RootDeviceName": "/dev/sda1" if image.platform else "/dev/xvda",
        "BlockDeviceMappings": [],
        "Tags": [{"Key": key, "Value": value} for key, value in image.tags.items()],
    }
    if image.owner == AMAZON:
        entry["ImageOwnerAlias"] = "amazon"
    if image.deprecated_at is not None:
        entry["DeprecationTime"] = _moment(image.deprecated_at)
    if image.platform:
        entry["Platform"] = image.platform
    return entry
