"""Launch templates in EC2: made once, found again, given back when nobody needs them (AWS §10.1).

A template's name is a hash of its content, so whoever needs one knows its name without asking, and a second process makes the
same one. Templates stay while their class does and anybody used them within hours (Beyond AWS-483): making and deleting them with
every burst costs two calls and races with slow launches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import datetime, timedelta

import structlog

from karpenter.model.clock import Clock
from karpenter.providers.aws import names
from karpenter.providers.aws.errors import AwsError
from karpenter.providers.aws.failures import TEMPLATE_GONE
from karpenter.providers.aws.launch.contents import Content, Machine, content, template_data
from karpenter.providers.aws.ports import TemplatePort
from karpenter.providers.aws.settings import Cluster
from karpenter.providers.aws.shapes import Filter, LaunchTemplate, tag_map

__all__ = ["UNUSED_FOR", "Content", "Machine", "Templates", "content", "template_data"]

#: How long a template nobody used is kept.
UNUSED_FOR = timedelta(hours=12)
_EXISTS = "InvalidLaunchTemplateName.AlreadyExistsException"
_NOT_FOUND = frozenset({TEMPLATE_GONE, "InvalidLaunchTemplateId.NotFound"})
_log = structlog.get_logger()


class Templates:
    """The cluster's launch templates."""

    def __init__(self, ec2: TemplatePort, cluster: Cluster, clock: Clock) -> None:
        self._ec2 = ec2
        self._cluster = cluster
        self._clock = clock
        self._used: dict[str, datetime] = {}
        self._owners: dict[str, str] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def ensure(self, wanted: Content) -> str:
        """The name of the template, once it exists (AWS-482). Raises ``AwsError``."""
        async with self._locks.setdefault(wanted.name, asyncio.Lock()):
            if wanted.name not in self._used and not await self._is_there(wanted.name):
                await self._create(wanted)
            self._used[wanted.name] = self._clock.now()
            self._owners[wanted.name] = tag_map(wanted.tags.tags).get(names.NODE_CLASS, "")
        return wanted.name

    def forget(self, wanted: Iterable[str]) -> None:
        """These may be gone: look again before they are used (AWS-457)."""
        for name in wanted:
            self._used.pop(name, None)
            self._owners.pop(name, None)

    async def adopt(self) -> None:
        """Know the templates there are, as when this process begins to lead (AWS-484). An error is only logged."""
        try:
            found = await self._own()
        except AwsError as error:
            _log.error("listing launch templates failed", error=str(error))
            return
        for item in found:
            self._know(item)

    async def collect(self, classes: Iterable[str]) -> tuple[str, ...]:
        """Delete what nobody used for hours, and what is of a class that is no more; the names. Raises ``AwsError``.

        A template this process does not know of was used by another one: its age begins when it is first seen.
        """
        alive = frozenset(classes)
        deleted = []
        for item in await self._own():
            last = self._know(item)
            is_orphan = self._owners[item.launch_template_name] not in alive
            if not is_orphan and self._clock.now() - last <= UNUSED_FOR:
                continue
            if await self._delete_unused(item, last):
                deleted.append(item.launch_template_name)
        return tuple(deleted)

    def forget_class(self, node_class: str) -> None:
        """A class is gone, and its end took its templates along: one of the same name makes its own."""
        self.forget([name for name, owner in self._owners.items() if owner == node_class])

    def _know(self, item: LaunchTemplate) -> datetime:
        """When a template there is was used last, as far as this process knows."""
        self._owners[item.launch_template_name] = tag_map(item.tags).get(names.NODE_CLASS, "")
        return self._used.setdefault(item.launch_template_name, self._clock.now())

    async def _own(self) -> tuple[LaunchTemplate, ...]:
        cluster = Filter(name=f"tag:{names.CLUSTER_TAG}", values=(self._cluster.name,))
        return await self._ec2.describe_launch_templates(filters=(cluster,))

    async def _is_there(self, name: str) -> bool:
        try:
            found = await self._ec2.describe_launch_templates(names=(name,))
        except AwsError as error:
            if error.code in _NOT_FOUND:
                return False
            raise
        if len(found) != 1:
            raise AwsError("UnexpectedAnswer", f"expected one launch template {name}, found {len(found)}")
        _log.debug("discovered launch template", **{"launch-template-name": name}, id=found[0].launch_template_id)
        return True

    async def _create(self, wanted: Content) -> None:
        try:
            made = await self._ec2.create_launch_template(wanted.name, wanted.data, wanted.tags)
        except AwsError as error:
            # Made by another process, or by a call of ours whose answer was lost; the name says that it is the same.
            if error.code == _EXISTS:
                return
            raise
        _log.debug("created launch template", **{"launch-template-name": wanted.name}, id=made.launch_template_id)

    async def _delete_unused(self, item: LaunchTemplate, since: datetime) -> bool:
        """Delete one that nobody used since; whether nobody did."""
        if self._used.get(item.launch_template_name) != since:
            return False
        await self._delete(item)
        return True

    async def _delete(self, item: LaunchTemplate) -> None:
        name = item.launch_template_name
        async with self._locks.setdefault(name, asyncio.Lock()):
            self.forget((name,))
            try:
                await self._ec2.delete_launch_template(item.launch_template_id)
            except AwsError as error:
                if error.code not in _NOT_FOUND:
                    raise
        _log.debug("deleted launch template", **{"launch-template-name": name}, id=item.launch_template_id)
