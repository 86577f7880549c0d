"""Images of a class: found by alias or by terms, chosen, and put into the status (AWS-085 to AWS-087, AWS §5).

What SSM and EC2 answered is kept for a minute per edition of a class, SSM behind it for longer: a steady class costs one
DescribeImages a minute at most. The choice among what was found is made anew at each look, as deprecation comes with time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Final, NamedTuple

import structlog
from msgspec.structs import replace

from karpenter.api.ec2 import AMI, EC2NodeClass
from karpenter.model.clock import Clock
from karpenter.providers.aws.cache import Expiring
from karpenter.providers.aws.errors import AwsError
from karpenter.providers.aws.nodeclass import aliases, queries
from karpenter.providers.aws.nodeclass.aliases import Alias, AliasParameter
from karpenter.providers.aws.nodeclass.images import Candidate, select
from karpenter.providers.aws.nodeclass.network import Edition, edition
from karpenter.providers.aws.nodeclass.news import KIND, News
from karpenter.providers.aws.nodeclass.parameters import Parameters
from karpenter.providers.aws.nodeclass.told import AMIS, MINUTE, Told, false, true
from karpenter.providers.aws.ports import DiscoveryPort, ImageQuery
from karpenter.providers.aws.settings import Cluster
from karpenter.providers.aws.shapes import ImageInfo
from karpenter.providers.aws.surroundings import Herald
from karpenter.providers.contract import ProviderError

_AGAIN_SECONDS = 5 * MINUTE
_NOT_FOUND = "AMINotFound"
_log = structlog.get_logger()


class AliasUnresolved(ProviderError):
    """No parameter of an alias holds an image (AWS-180)."""


class _Key(NamedTuple):
    edition: Edition
    kubernetes: str


class Images:
    """Finds images. ``cluster`` tells the cluster as it is now: releases are made per version of Kubernetes."""

    def __init__(
        self,
        ec2: DiscoveryPort,
        parameters: Parameters,
        clock: Clock,
        cluster: Callable[[], Cluster],
        refresh: timedelta,
    ) -> None:
        self._ec2 = ec2
        self._parameters = parameters
        self._clock = clock
        self._cluster = cluster
        self._found: Expiring[_Key, tuple[Candidate, ...]] = Expiring(clock, refresh)

    async def find(self, node_class: EC2NodeClass) -> tuple[AMI, ...]:
        """The images to use (AWS-201). Raises ``AliasUnresolved`` and ``AwsError``."""
        key = _Key(edition(node_class), self._cluster().version)
        found = self._found.get(key)
        if found is None:
            alias = alias_of(node_class)
            found = await (self._by_terms(node_class) if alias is None else self._by_alias(alias, key.kubernetes))
            self._found.put(key, found)
        return select(found, self._clock.now())

    async def _by_alias(self, alias: Alias, kubernetes: str) -> tuple[Candidate, ...]:
        asked = aliases.parameters(alias, kubernetes)
        ids = await asyncio.gather(*(self._of_release(parameter, alias) for parameter in asked))
        found = [(image_id, parameter.variants) for image_id, parameter in zip(ids, asked, strict=True) if image_id]
        if not found:
            raise AliasUnresolved(f'failed to discover any AMIs for alias "{alias}" on Kubernetes {kubernetes}')
        images = {item.image_id: item for item in await self._describe(queries.by_ids(_distinct(ids)))}
        return tuple(
            Candidate(images[image_id], variant)
            for image_id, variants in found
            if image_id in images
            for variant in variants
        )

    async def _of_release(self, parameter: AliasParameter, alias: Alias) -> str:
        """The image's id; empty where there is none.

        What cannot be said now is not taken for "there is none": a class that loses an image lets its machines drift.
        """
        try:
            return await self._parameters.of_release(parameter.name, alias.is_latest)
        except AwsError as error:
            if error.is_throttling or error.has_no_answer:
                raise
            _log.debug("skipping ssm parameter", parameter=parameter.name, error=str(error))
            return ""

    async def _by_terms(self, node_class: EC2NodeClass) -> tuple[Candidate, ...]:
        terms = node_class.spec.ami_selector_terms
        named = [term.ssm_parameter for term in terms if term.ssm_parameter and not term.id]
        held = await asyncio.gather(*map(self._of_user, named))
        images = await self._describe(queries.images(terms, _distinct(held)))
        return tuple(map(Candidate, images))

    async def _of_user(self, name: str) -> str:
        """The image a parameter of the user's holds; empty where it does not exist or holds something else (AWS-192)."""
        try:
            value = await self._parameters.of_user(name)
        except AwsError as error:
            if not error.is_not_found:
                raise
            _log.error("ssm parameter not found", parameter=name)
            return ""
        if not value.startswith("ami-"):
            _log.error("ssm parameter does not hold the id of an image", parameter=name, value=value)
            return ""
        return value

    async def _describe(self, asked: Iterable[ImageQuery]) -> tuple[ImageInfo, ...]:
        answers = await asyncio.gather(*map(self._ec2.describe_images, asked))
        return tuple({image.image_id: image for answer in answers for image in answer}.values())


class ImagesPart:
    """Puts images into the status."""

    condition: Final = AMIS

    def __init__(self, images: Images, cluster: Callable[[], Cluster], news: News, herald: Herald) -> None:
        self._images = images
        self._cluster = cluster
        self._news = news
        self._herald = herald

    async def look(self, node_class: EC2NodeClass) -> Told:
        """See ``Part.look``."""
        alias = alias_of(node_class)
        problem = aliases.why_unsupported(alias, self._cluster().version) if alias is not None else ""
        if problem:
            return Told(node_class.status, false(AMIS, "UnsupportedAlias", problem), final=True)
        try:
            found = await self._images.find(node_class)
        except AliasUnresolved as error:
            # Told as well as tried again: else the class would only say that it waits.
            return Told(replace(node_class.status, amis=()), false(AMIS, _NOT_FOUND, str(error)), fault=error)
        status = replace(node_class.status, amis=found)
        if not found:
            return Told(status, false(AMIS, _NOT_FOUND, "AMISelector did not match any AMIs"), MINUTE)
        self._tell(node_class, alias, found)
        return Told(status, true(AMIS), _AGAIN_SECONDS)

    def _tell(self, node_class: EC2NodeClass, alias: Alias | None, found: tuple[AMI, ...]) -> None:
        ids = tuple(sorted({ami.id for ami in found}))
        if self._news.is_new("amis", node_class, ids):
            _log.info("discovered amis", ids=list(ids))
        if alias is not None and ids != tuple(sorted({ami.id for ami in node_class.status.amis})):
            # So that machines rolled by a release can be told from those rolled by their owner.
            versions = ", ".join(sorted({f"{ami.id} ({ami.name})" for ami in found}))
            message = f"alias {alias} stands for {versions}"
            self._herald.normal(KIND, node_class.metadata, "AliasResolved", message)


def _distinct(ids: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(image_id for image_id in ids if image_id))


def alias_of(node_class: EC2NodeClass) -> Alias | None:
    """The alias of the class's only term (AWS-035); None where its terms have none."""
    found = (aliases.parse(term.alias) for term in node_class.spec.ami_selector_terms if term.alias)
    return next(found, None)
