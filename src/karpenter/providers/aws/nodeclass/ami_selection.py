"""Which of the images that were found are used, and which type gets which (AWS-190, AWS-196 to AWS-202).

An image is for the types its requirements describe: an architecture, and for images of a public release the kind of accelerator.
Among images with the same requirements one is kept, so a type's image follows from the class's status alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple

from karpenter.api.ec2_node_class import AMI, ImageRequirement
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.model import labels
from karpenter.model.requirements import Requirements, compatible, requirement
from karpenter.providers.aws.ec2_descriptions import ImageInfo
from karpenter.providers.aws.userdata.ami_families import WINDOWS_BUILDS

ImageRequirements = tuple[ImageRequirement, ...]

_GPU_COUNT = f"{labels.AWS_GROUP}/instance-gpu-count"
_ACCELERATOR_COUNT = f"{labels.AWS_GROUP}/instance-accelerator-count"
_ARCHITECTURES = {"x86_64": "amd64", "arm64": "arm64"}
_LONG_AGO = datetime.min.replace(tzinfo=UTC)

#: For instances without accelerators.
STANDARD_REQUIREMENTS: ImageRequirements = (
    ImageRequirement(key=_ACCELERATOR_COUNT, operator="DoesNotExist"),
    ImageRequirement(key=_GPU_COUNT, operator="DoesNotExist"),
)
#: For instances with GPUs.
NVIDIA_REQUIREMENTS: ImageRequirements = (ImageRequirement(key=_GPU_COUNT, operator="Exists"),)
#: For instances with accelerators that are no GPUs.
NEURON_REQUIREMENTS: ImageRequirements = (ImageRequirement(key=_ACCELERATOR_COUNT, operator="Exists"),)


def windows_requirements(build: str) -> ImageRequirements:
    """For instances that run this build of Windows (AWS-189)."""
    return (
        ImageRequirement(key=labels.OS, operator="In", values=("windows",)),
        ImageRequirement(key=labels.WINDOWS_BUILD, operator="In", values=(build,)),
    )


class AmiCandidate(NamedTuple):
    """An image that was found, and what it asks of a type beside the architecture. One image may be found for several."""

    image: ImageInfo
    variant: ImageRequirements = ()


class _AmiRank(NamedTuple):
    """How much an image is to be preferred to others with the same requirements (AWS-198)."""

    current: bool
    created: datetime
    name: str
    image_id: str


def select_amis(candidates: Iterable[AmiCandidate], now: datetime) -> tuple[AMI, ...]:
    """The images to use, newest first (AWS-196 to AWS-201). Those of an architecture we do not know are dropped."""
    best: dict[ImageRequirements, tuple[_AmiRank, ImageInfo]] = {}
    for image, variant in candidates:
        architecture = _ARCHITECTURES.get(image.architecture)
        if architecture is None:
            continue
        requirements = _sorted_requirements(
            (*variant, ImageRequirement(key=labels.ARCH, operator="In", values=(architecture,)))
        )
        rank = _AmiRank(
            not is_deprecated_ami(image, now), _parse_date(image.creation_date) or _LONG_AGO, image.name, image.image_id
        )
        if requirements not in best or rank > best[requirements][0]:
            best[requirements] = (rank, image)
    newest_first = sorted(best.items(), key=lambda entry: (_LONG_AGO - entry[1][0].created, entry[1][0].image_id))
    return tuple(
        AMI(id=image.image_id, name=image.name, requirements=requirements, deprecated=not rank.current)
        for requirements, (rank, image) in newest_first
    )


def is_deprecated_ami(image: ImageInfo, now: datetime) -> bool:
    """Whether its owner advises against using it by now (AWS-199)."""
    moment = _parse_date(image.deprecation_time)
    return moment is not None and moment <= now


def ami_for(instance_type: InstanceType, amis: Sequence[AMI]) -> AMI | None:
    """The image a type gets: the first whose requirements it satisfies (AWS-202); None where there is none."""
    offered = instance_type.requirements
    return next((ami for ami in amis if compatible(offered, _ami_requirements(ami.requirements), frozenset())), None)


def is_standard_ami(ami: AMI) -> bool:
    """Whether the image is made for instances without accelerators, or says nothing about them (AWS-127)."""
    return not any(image_requirement.operator == "Exists" for image_requirement in ami.requirements)


@lru_cache(maxsize=1024)
def _ami_requirements(requirements: ImageRequirements) -> Requirements:
    return Requirements(
        requirement(image_requirement.key, image_requirement.operator, image_requirement.values)
        for image_requirement in requirements
    )


def _sorted_requirements(requirements: Iterable[ImageRequirement]) -> ImageRequirements:
    """As the status shows them (AWS-087): short keys first."""
    return tuple(
        sorted(requirements, key=lambda image_requirement: (len(image_requirement.key), image_requirement.key))
    )


def _parse_date(text: str) -> datetime | None:
    """A date as EC2 writes it; None for what is none."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


_LATEST = "latest"
_EKS = "/aws/service/eks/optimized-ami"
_BOTTLEROCKET = "/aws/service/bottlerocket"
_WINDOWS = "/aws/service/ami-windows-latest"
_AL2_VARIANTS = {
    "": (STANDARD_REQUIREMENTS,),
    "-arm64": (STANDARD_REQUIREMENTS,),
    "-gpu": (NEURON_REQUIREMENTS, NVIDIA_REQUIREMENTS),
}
_AL2023_VARIANTS = {"standard": STANDARD_REQUIREMENTS, "nvidia": NVIDIA_REQUIREMENTS, "neuron": NEURON_REQUIREMENTS}
_AL2023_IMAGES = (
    ("x86_64", "standard"),
    ("x86_64", "nvidia"),
    ("x86_64", "neuron"),
    ("arm64", "standard"),
    ("arm64", "nvidia"),
)
_BOTTLEROCKET_IMAGES = (
    ("", "x86_64", (STANDARD_REQUIREMENTS, NEURON_REQUIREMENTS)),
    ("", "arm64", (STANDARD_REQUIREMENTS,)),
    ("-nvidia", "x86_64", (NVIDIA_REQUIREMENTS,)),
    ("-nvidia", "arm64", (NVIDIA_REQUIREMENTS,)),
)


class AmiAlias(NamedTuple):
    """A family of public images, in small letters, and a release of it."""

    family: str
    version: str

    @property
    def is_latest(self) -> bool:
        """Whether what it stands for changes with time (AWS-181)."""
        return self.version == _LATEST

    def __str__(self) -> str:
        return f"{self.family}@{self.version}"


class AmiAliasParameter(NamedTuple):
    """A parameter that holds the id of an image, and the sorts of instances the image is for."""

    name: str
    variants: tuple[ImageRequirements, ...]


def parse_alias(text: str) -> AmiAlias:
    """The alias of a term, as admission lets it through (AWS-036)."""
    family, _, version = text.partition("@")
    return AmiAlias(family, version)


def unsupported_reason(alias: AmiAlias, kubernetes: str) -> str:
    """Why a cluster of this version (``major.minor``) cannot use the alias; empty when it can (AWS-085)."""
    number = tuple(int(part) for part in kubernetes.split("."))
    if alias.family == "al2" and number >= (1, 33):
        return f"AL2 images are not published for Kubernetes {kubernetes}, the last version is 1.32; use al2023"
    if alias.family == "windows2025" and number < (1, 35):
        return f"Windows Server 2025 images are not published for Kubernetes {kubernetes}, the first version is 1.35"
    return ""


def alias_parameters(alias: AmiAlias, kubernetes: str) -> tuple[AmiAliasParameter, ...]:
    """The parameters of an alias for a cluster of this version; none for a family that is unknown."""
    if alias.family == "al2":
        return tuple(_al2_parameters(alias, kubernetes))
    if alias.family == "al2023":
        return tuple(_al2023_parameters(alias, kubernetes))
    if alias.family == "bottlerocket":
        return tuple(_bottlerocket_parameters(alias, kubernetes))
    return tuple(_windows_parameters(alias, kubernetes))


def _al2_parameters(alias: AmiAlias, kubernetes: str) -> Iterator[AmiAliasParameter]:
    for suffix, variants in _AL2_VARIANTS.items():
        release = "recommended" if alias.is_latest else f"amazon-eks{suffix}-node-{kubernetes}-{alias.version}"
        yield AmiAliasParameter(f"{_EKS}/{kubernetes}/amazon-linux-2{suffix}/{release}/image_id", variants)


def _al2023_parameters(alias: AmiAlias, kubernetes: str) -> Iterator[AmiAliasParameter]:
    for arch, variant in _AL2023_IMAGES:
        pinned = f"amazon-eks-node-al2023-{arch}-{variant}-{kubernetes}-{alias.version}"
        release = "recommended" if alias.is_latest else pinned
        name = f"{_EKS}/{kubernetes}/amazon-linux-2023/{arch}/{variant}/{release}/image_id"
        yield AmiAliasParameter(name, (_AL2023_VARIANTS[variant],))


def _bottlerocket_parameters(alias: AmiAlias, kubernetes: str) -> Iterator[AmiAliasParameter]:
    version = alias.version.removeprefix("v")
    for suffix, arch, variants in _BOTTLEROCKET_IMAGES:
        yield AmiAliasParameter(f"{_BOTTLEROCKET}/aws-k8s-{kubernetes}{suffix}/{arch}/{version}/image_id", variants)


def _windows_parameters(alias: AmiAlias, kubernetes: str) -> Iterator[AmiAliasParameter]:
    year = alias.family.removeprefix("windows")
    build = WINDOWS_BUILDS.get(f"Windows{year}")
    if build is not None:
        name = f"{_WINDOWS}/Windows_Server-{year}-English-Core-EKS_Optimized-{kubernetes}/image_id"
        yield AmiAliasParameter(name, (windows_requirements(build),))
