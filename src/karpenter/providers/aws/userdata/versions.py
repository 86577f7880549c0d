"""Which version of Bottlerocket a class's images are, as far as their names tell (AWS-256)."""

from __future__ import annotations

from collections.abc import Iterator

from karpenter.api.ec2 import AMI, EC2NodeClass
from karpenter.providers.aws.userdata.families import alias_version


def image_version(node_class: EC2NodeClass) -> str:
    """``latest``, or a version such as ``v1.46.0``; empty where nothing names one."""
    return alias_version(node_class.spec) or next(_named(node_class), "")


def _named(node_class: EC2NodeClass) -> Iterator[str]:
    """Versions in names: of the terms, of the images the terms name by id, of any image of the family."""
    for term in node_class.spec.ami_selector_terms:
        yield from _versions(term.name or "")
    amis = node_class.status.amis
    wanted = {term.id for term in node_class.spec.ami_selector_terms if term.id is not None}
    yield from _of_images(tuple(ami for ami in amis if ami.id in wanted))
    yield from _of_images(tuple(ami for ami in amis if "bottlerocket" in ami.name.lower()))


def _of_images(amis: tuple[AMI, ...]) -> Iterator[str]:
    for ami in amis:
        yield from _versions(ami.name)


def _versions(name: str) -> Iterator[str]:
    yield from (word for word in name.split("-") if word.startswith("v") and "." in word)
