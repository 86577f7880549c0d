"""Aliases of public image releases, such as ``al2023@latest``, and the SSM parameters behind them (AWS-180 to AWS-189)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from karpenter.providers.aws.nodeclass.images import NEURON, NVIDIA, STANDARD, ImageRequirements, windows
from karpenter.providers.aws.userdata.families import WINDOWS_BUILDS

_LATEST = "latest"
_EKS = "/aws/service/eks/optimized-ami"
_BOTTLEROCKET = "/aws/service/bottlerocket"
_WINDOWS = "/aws/service/ami-windows-latest"
_AL2_VARIANTS = {"": (STANDARD,), "-arm64": (STANDARD,), "-gpu": (NEURON, NVIDIA)}
_AL2023_VARIANTS = {"standard": STANDARD, "nvidia": NVIDIA, "neuron": NEURON}
_AL2023_IMAGES = (
    ("x86_64", "standard"),
    ("x86_64", "nvidia"),
    ("x86_64", "neuron"),
    ("arm64", "standard"),
    ("arm64", "nvidia"),
)
_BOTTLEROCKET_IMAGES = (
    ("", "x86_64", (STANDARD, NEURON)),
    ("", "arm64", (STANDARD,)),
    ("-nvidia", "x86_64", (NVIDIA,)),
    ("-nvidia", "arm64", (NVIDIA,)),
)


class Alias(NamedTuple):
    """A family of public images, in small letters, and a release of it."""

    family: str
    version: str

    @property
    def is_latest(self) -> bool:
        """Whether what it stands for changes with time (AWS-181)."""
        return self.version == _LATEST

    def __str__(self) -> str:
        return f"{self.family}@{self.version}"


class AliasParameter(NamedTuple):
    """A parameter that holds the id of an image, and the sorts of machines the image is for."""

    name: str
    variants: tuple[ImageRequirements, ...]


def parse(text: str) -> Alias:
    """The alias of a term, as admission lets it through (AWS-036)."""
    family, _, version = text.partition("@")
    return Alias(family, version)


def why_unsupported(alias: Alias, kubernetes: str) -> str:
    """Why a cluster of this version (``major.minor``) cannot use the alias; empty when it can (AWS-085)."""
    number = tuple(int(part) for part in kubernetes.split("."))
    if alias.family == "al2" and number >= (1, 33):
        return f"AL2 images are not published for Kubernetes {kubernetes}, the last version is 1.32; use al2023"
    if alias.family == "windows2025" and number < (1, 35):
        return f"Windows Server 2025 images are not published for Kubernetes {kubernetes}, the first version is 1.35"
    return ""


def parameters(alias: Alias, kubernetes: str) -> tuple[AliasParameter, ...]:
    """The parameters of an alias for a cluster of this version; none for a family that is unknown."""
    if alias.family == "al2":
        return tuple(_al2(alias, kubernetes))
    if alias.family == "al2023":
        return tuple(_al2023(alias, kubernetes))
    if alias.family == "bottlerocket":
        return tuple(_bottlerocket(alias, kubernetes))
    return tuple(_windows(alias, kubernetes))


def _al2(alias: Alias, kubernetes: str) -> Iterator[AliasParameter]:
    for suffix, variants in _AL2_VARIANTS.items():
        release = "recommended" if alias.is_latest else f"amazon-eks{suffix}-node-{kubernetes}-{alias.version}"
        yield AliasParameter(f"{_EKS}/{kubernetes}/amazon-linux-2{suffix}/{release}/image_id", variants)


def _al2023(alias: Alias, kubernetes: str) -> Iterator[AliasParameter]:
    for arch, variant in _AL2023_IMAGES:
        pinned = f"amazon-eks-node-al2023-{arch}-{variant}-{kubernetes}-{alias.version}"
        release = "recommended" if alias.is_latest else pinned
        name = f"{_EKS}/{kubernetes}/amazon-linux-2023/{arch}/{variant}/{release}/image_id"
        yield AliasParameter(name, (_AL2023_VARIANTS[variant],))


def _bottlerocket(alias: Alias, kubernetes: str) -> Iterator[AliasParameter]:
    version = alias.version.removeprefix("v")
    for suffix, arch, variants in _BOTTLEROCKET_IMAGES:
        yield AliasParameter(f"{_BOTTLEROCKET}/aws-k8s-{kubernetes}{suffix}/{arch}/{version}/image_id", variants)


def _windows(alias: Alias, kubernetes: str) -> Iterator[AliasParameter]:
    year = alias.family.removeprefix("windows")
    build = WINDOWS_BUILDS.get(f"Windows{year}")
    if build is not None:
        name = f"{_WINDOWS}/Windows_Server-{year}-English-Core-EKS_Optimized-{kubernetes}/image_id"
        yield AliasParameter(name, (windows(build),))
