"""Which of the images that were found are used, and which type gets which (AWS-190, AWS-196 to AWS-202).

An image is for the types its requirements describe: an architecture, and for images of a public release the kind of accelerator.
Among images with the same requirements one is kept, so a type's image follows from the class's status alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple

from karpenter.api.ec2 import AMI, ImageRequirement
from karpenter.catalog.types import InstanceType
from karpenter.model import labels
from karpenter.model.requirements import Requirements, compatible, requirement
from karpenter.providers.aws.shapes import ImageInfo

ImageRequirements = tuple[ImageRequirement, ...]

_GPU_COUNT = f"{labels.AWS_GROUP}/instance-gpu-count"
_ACCELERATOR_COUNT = f"{labels.AWS_GROUP}/instance-accelerator-count"
_ARCHITECTURES = {"x86_64": "amd64", "arm64": "arm64"}
_LONG_AGO = datetime.min.replace(tzinfo=UTC)

#: For machines without accelerators.
STANDARD: ImageRequirements = (
    ImageRequirement(key=_ACCELERATOR_COUNT, operator="DoesNotExist"),
    ImageRequirement(key=_GPU_COUNT, operator="DoesNotExist"),
)
#: For machines with GPUs.
NVIDIA: ImageRequirements = (ImageRequirement(key=_GPU_COUNT, operator="Exists"),)
#: For machines with accelerators that are no GPUs.
NEURON: ImageRequirements = (ImageRequirement(key=_ACCELERATOR_COUNT, operator="Exists"),)


def windows(build: str) -> ImageRequirements:
    """For machines that run this build of Windows (AWS-189)."""
    return (
        ImageRequirement(key=labels.OS, operator="In", values=("windows",)),
        ImageRequirement(key=labels.WINDOWS_BUILD, operator="In", values=(build,)),
    )


class Candidate(NamedTuple):
    """An image that was found, and what it asks of a type beside the architecture. One image may be found for several."""

    image: ImageInfo
    variant: ImageRequirements = ()


class _Rank(NamedTuple):
    """How much an image is to be preferred to others with the same requirements (AWS-198)."""

    current: bool
    created: datetime
    name: str
    image_id: str


def select(candidates: Iterable[Candidate], now: datetime) -> tuple[AMI, ...]:
    """The images to use, newest first (AWS-196 to AWS-201). Those of an architecture we do not know are dropped."""
    best: dict[ImageRequirements, tuple[_Rank, ImageInfo]] = {}
    for image, variant in candidates:
        architecture = _ARCHITECTURES.get(image.architecture)
        if architecture is None:
            continue
        asked = _sorted((*variant, ImageRequirement(key=labels.ARCH, operator="In", values=(architecture,))))
        rank = _Rank(
            not is_deprecated(image, now), _moment(image.creation_date) or _LONG_AGO, image.name, image.image_id
        )
        if asked not in best or rank > best[asked][0]:
            best[asked] = (rank, image)
    newest_first = sorted(best.items(), key=lambda item: (_LONG_AGO - item[1][0].created, item[1][0].image_id))
    return tuple(
        AMI(id=image.image_id, name=image.name, requirements=asked, deprecated=not rank.current)
        for asked, (rank, image) in newest_first
    )


def is_deprecated(image: ImageInfo, now: datetime) -> bool:
    """Whether its owner advises against using it by now (AWS-199)."""
    moment = _moment(image.deprecation_time)
    return moment is not None and moment <= now


def image_for(instance_type: InstanceType, amis: Sequence[AMI]) -> AMI | None:
    """The image a type gets: the first whose requirements it satisfies (AWS-202); None where there is none."""
    offered = instance_type.requirements
    return next((ami for ami in amis if compatible(offered, _asked(ami.requirements), frozenset())), None)


def is_standard(ami: AMI) -> bool:
    """Whether the image is made for machines without accelerators, or says nothing about them (AWS-127)."""
    return not any(item.operator == "Exists" for item in ami.requirements)


@lru_cache(maxsize=1024)
def _asked(items: ImageRequirements) -> Requirements:
    return Requirements(requirement(item.key, item.operator, item.values) for item in items)


def _sorted(items: Iterable[ImageRequirement]) -> ImageRequirements:
    """As the status shows them (AWS-087): short keys first."""
    return tuple(sorted(items, key=lambda item: (len(item.key), item.key)))


def _moment(text: str) -> datetime | None:
    """A date as EC2 writes it; None for what is none."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
