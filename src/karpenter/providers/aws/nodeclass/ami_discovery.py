"""Images of a class: found by alias or by terms, chosen, and put into the status (AWS-085 to AWS-087, AWS §5).

What SSM and EC2 answered is kept for a minute per edition of a class, SSM behind it for longer: a steady class costs one
DescribeImages a minute at most. Each reconcile chooses again among the images found, because images become deprecated with time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from math import inf
from typing import Final, NamedTuple

import structlog
from cachetools import TLRUCache, TTLCache
from msgspec.structs import replace

from karpenter.api.ec2_node_class import AMI, AMISelectorTerm, EC2NodeClass
from karpenter.api.kinds import EC2_NODE_CLASS
from karpenter.model import ubuntu_images
from karpenter.model.clock import Clock
from karpenter.providers.aws.aws_apis import DiscoveryApi, ImageQuery, SsmApi
from karpenter.providers.aws.aws_context import AwsEventRecorder
from karpenter.providers.aws.aws_errors import AwsError
from karpenter.providers.aws.aws_settings import AwsClusterInfo, AwsSettings
from karpenter.providers.aws.ec2_descriptions import ImageInfo
from karpenter.providers.aws.nodeclass import ami_selection, selector_queries
from karpenter.providers.aws.nodeclass.ami_selection import (
    AmiAlias,
    AmiAliasParameter,
    AmiCandidate,
    is_deprecated_ami,
    select_amis,
)
from karpenter.providers.aws.nodeclass.nodeclass_discovery import NodeClassGeneration, generation_of
from karpenter.providers.aws.nodeclass.nodeclass_subreconcilers import (
    AMIS_READY,
    MINUTE,
    NodeClassChangeLog,
    SubreconcileResult,
    condition_false,
    condition_true,
)
from karpenter.providers.contract import ProviderError

_REQUEUE_SECONDS = 5 * MINUTE
_NOT_FOUND = "AMINotFound"
_log = structlog.get_logger()


class AmiAliasUnresolved(ProviderError):
    """No parameter of an alias holds an image (AWS-180)."""


class _AmiCacheKey(NamedTuple):
    edition: NodeClassGeneration
    kubernetes: str


class AmiProvider:
    """Finds images. ``cluster`` is the cluster as it is now: releases are made per version of Kubernetes."""

    def __init__(
        self,
        ec2: DiscoveryApi,
        parameters: SsmParameters,
        clock: Clock,
        cluster: Callable[[], AwsClusterInfo],
        settings: AwsSettings,
    ) -> None:
        self._ec2 = ec2
        self._parameters = parameters
        self._clock = clock
        self._cluster = cluster
        self._ubuntu_parameter = settings.ubuntu_image_parameter
        refresh = settings.ami_refresh_interval
        self._candidates: TTLCache[_AmiCacheKey, tuple[AmiCandidate, ...], datetime] = TTLCache(inf, refresh, clock.now)

    async def find(self, node_class: EC2NodeClass) -> tuple[AMI, ...]:
        """The images to use (AWS-201). Raises ``AmiAliasUnresolved`` and ``AwsError``."""
        key = _AmiCacheKey(generation_of(node_class), self._cluster().version)
        candidates = self._candidates.get(key)
        if candidates is None:
            alias = ami_alias_of(node_class)
            candidates = await (
                self._by_terms(node_class, key.kubernetes) if alias is None else self._by_alias(alias, key.kubernetes)
            )
            self._candidates[key] = candidates
        return select_amis(candidates, self._clock.now())

    async def _by_alias(self, alias: AmiAlias, kubernetes: str) -> tuple[AmiCandidate, ...]:
        parameters = ami_selection.alias_parameters(alias, kubernetes)
        ids = await asyncio.gather(*(self._release_image(parameter, alias) for parameter in parameters))
        variants_by_id = [
            (image_id, parameter.variants) for image_id, parameter in zip(ids, parameters, strict=True) if image_id
        ]
        if not variants_by_id:
            raise AmiAliasUnresolved(f'failed to discover any AMIs for alias "{alias}" on Kubernetes {kubernetes}')
        images = {
            image_info.image_id: image_info
            for image_info in await self._describe(selector_queries.image_queries_by_id(_distinct(ids)))
        }
        return tuple(
            AmiCandidate(images[image_id], variant)
            for image_id, variants in variants_by_id
            if image_id in images
            for variant in variants
        )

    async def _release_image(self, parameter: AmiAliasParameter, alias: AmiAlias) -> str:
        """The image's id; empty where there is none.

        What cannot be said now is not taken for "there is none": a class that loses an image lets its instances drift.
        """
        try:
            return await self._parameters.release_value(parameter.name, alias.is_latest)
        except AwsError as error:
            if error.is_throttling or error.has_no_answer:
                raise
            _log.debug("skipping ssm parameter", parameter=parameter.name, error=str(error))
            return ""

    async def _by_terms(self, node_class: EC2NodeClass, kubernetes: str) -> tuple[AmiCandidate, ...]:
        terms = node_class.spec.ami_selector_terms or self._ubuntu_terms(kubernetes)
        parameters = [term.ssm_parameter for term in terms if term.ssm_parameter and not term.id]
        image_ids = await asyncio.gather(*map(self._user_image, parameters))
        images = await self._describe(selector_queries.image_queries(terms, _distinct(image_ids)))
        return tuple(map(AmiCandidate, images))

    def _ubuntu_terms(self, kubernetes: str) -> tuple[AMISelectorTerm, ...]:
        """Only a class of family Ubuntu may go without terms: Canonical's images for the cluster's version (API-860)."""
        names = ubuntu_images.image_parameters(kubernetes, self._ubuntu_parameter)
        return tuple(AMISelectorTerm(ssm_parameter=name) for name in names)

    async def _user_image(self, name: str) -> str:
        """The image a parameter of the user's holds; empty where it does not exist or holds something else (AWS-192)."""
        try:
            value = await self._parameters.user_value(name)
        except AwsError as error:
            if not error.is_not_found:
                raise
            _log.error("ssm parameter not found", parameter=name)
            return ""
        if not value.startswith("ami-"):
            _log.error("ssm parameter does not hold the id of an image", parameter=name, value=value)
            return ""
        return value

    async def _describe(self, image_queries: Iterable[ImageQuery]) -> tuple[ImageInfo, ...]:
        answers = await asyncio.gather(*map(self._ec2.describe_images, image_queries))
        return tuple({image.image_id: image for answer in answers for image in answer}.values())


class AmiReconciler:
    """Puts images into the status."""

    condition: Final = AMIS_READY

    def __init__(
        self,
        amis: AmiProvider,
        cluster: Callable[[], AwsClusterInfo],
        changes: NodeClassChangeLog,
        events: AwsEventRecorder,
    ) -> None:
        self._amis = amis
        self._cluster = cluster
        self._changes = changes
        self._events = events

    async def reconcile(self, node_class: EC2NodeClass) -> SubreconcileResult:
        """See ``NodeClassSubreconciler.reconcile``."""
        alias = ami_alias_of(node_class)
        problem = ami_selection.unsupported_reason(alias, self._cluster().version) if alias is not None else ""
        if problem:
            return SubreconcileResult(
                node_class.status, condition_false(AMIS_READY, "UnsupportedAlias", problem), terminal=True
            )
        try:
            candidates = await self._amis.find(node_class)
        except AmiAliasUnresolved as error:
            # The condition says so while it is tried again; else the class would only say that it waits.
            return SubreconcileResult(
                replace(node_class.status, amis=()), condition_false(AMIS_READY, _NOT_FOUND, str(error)), error=error
            )
        status = replace(node_class.status, amis=candidates)
        if not candidates:
            return SubreconcileResult(
                status, condition_false(AMIS_READY, _NOT_FOUND, "AMISelector did not match any AMIs"), MINUTE
            )
        self._report_changes(node_class, alias, candidates)
        return SubreconcileResult(status, condition_true(AMIS_READY), _REQUEUE_SECONDS)

    def _report_changes(self, node_class: EC2NodeClass, alias: AmiAlias | None, amis: tuple[AMI, ...]) -> None:
        ids = tuple(sorted({ami.id for ami in amis}))
        if self._changes.has_changed("amis", node_class, ids):
            _log.info("discovered amis", ids=list(ids))
        if alias is not None and ids != tuple(sorted({ami.id for ami in node_class.status.amis})):
            # The event shows which instances are replaced because of a release, and which because of a change of the class.
            versions = ", ".join(sorted({f"{ami.id} ({ami.name})" for ami in amis}))
            message = f"alias {alias} stands for {versions}"
            self._events.normal(EC2_NODE_CLASS, node_class.metadata, "AliasResolved", message)


def _distinct(ids: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(image_id for image_id in ids if image_id))


def ami_alias_of(node_class: EC2NodeClass) -> AmiAlias | None:
    """The alias of the class's only term (AWS-035); None where its terms have none."""
    aliases = (ami_selection.parse_alias(term.alias) for term in node_class.spec.ami_selector_terms if term.alias)
    return next(aliases, None)


_PARAMETER_TTL = timedelta(hours=24)
#: A parameter of the user's changes when the user says so, so it is asked for more often.
_USER_PARAMETER_TTL = timedelta(minutes=5)


class _ParameterValue(NamedTuple):
    image_id: str
    mutable: bool
    ttl: timedelta


def _expiry(name: str, value: _ParameterValue, now: datetime) -> datetime:
    return now + value.ttl


class SsmParameters:
    """Values of parameters by name."""

    def __init__(self, ssm: SsmApi, ec2: DiscoveryApi, clock: Clock) -> None:
        self._ssm = ssm
        self._ec2 = ec2
        self._clock = clock
        self._values: TLRUCache[str, _ParameterValue, datetime] = TLRUCache(inf, _expiry, clock.now)

    async def release_value(self, name: str, mutable: bool) -> str:
        """The value of a public parameter; ``mutable`` where it follows the newest release. Raises ``AwsError``."""
        return await self._get(name, mutable, _PARAMETER_TTL)

    async def user_value(self, name: str) -> str:
        """The value of a parameter a term names. Raises ``AwsError``."""
        return await self._get(name, True, _USER_PARAMETER_TTL)

    async def discard_outdated(self) -> None:
        """Forget values that may have changed and whose image is deprecated or gone, so that the new one is read (AWS-182).

        Raises ``AwsError``.
        """
        mutable = {name: value.image_id for name, value in self._values.items() if value.mutable}
        current: set[str] = set()
        for query in selector_queries.image_queries_by_id(tuple(dict.fromkeys(mutable.values()))):
            images = await self._ec2.describe_images(query)
            current |= {image.image_id for image in images if not is_deprecated_ami(image, self._clock.now())}
        for name, image_id in mutable.items():
            if image_id not in current:
                self._values.pop(name, None)

    async def _get(self, name: str, mutable: bool, ttl: timedelta) -> str:
        cached = self._values.get(name)
        if cached is not None:
            return cached.image_id
        value = await self._ssm.get_parameter(name)
        self._values[name] = _ParameterValue(value, mutable, ttl)
        _log.info("discovered ssm parameter", parameter=name, value=value)
        return value
