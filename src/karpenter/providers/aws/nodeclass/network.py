"""Subnets and security groups of a class (AWS-088 to AWS-090, AWS-143 to AWS-147)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Final, NamedTuple

import structlog
from msgspec.structs import replace

from karpenter.api.ec2 import EC2NodeClass, SecurityGroup, Subnet
from karpenter.model.clock import Clock
from karpenter.providers.aws.cache import Expiring
from karpenter.providers.aws.nodeclass import queries
from karpenter.providers.aws.nodeclass.news import News, Warnings
from karpenter.providers.aws.nodeclass.told import MINUTE, SECURITY_GROUPS, SUBNETS, Told, false, true
from karpenter.providers.aws.ports import DiscoveryPort
from karpenter.providers.aws.shapes import SecurityGroupInfo, SubnetInfo

_GROUPS_REFRESHED = timedelta(minutes=1)
_GROUPS_AGAIN_SECONDS = 5 * MINUTE
_SEVERAL_VPCS = "SubnetsInSeveralVPCs"
#: The word launches use when EC2 refuses for this reason (AWS-452).
_OTHER_VPC = "SecurityGroupSubnetVPCMismatch"
_log = structlog.get_logger()

#: Told of every subnet's free addresses whenever they were asked for (AWS-143).
CountAddresses = Callable[[str, int], None]


class Edition(NamedTuple):
    """A class as its owner last changed it: what is cached of its selectors is cached for this."""

    uid: str
    generation: int


def edition(node_class: EC2NodeClass) -> Edition:
    """The edition of a class."""
    return Edition(node_class.metadata.uid, node_class.metadata.generation)


class Subnets:
    """Finds subnets. Each answer from EC2 is also told to ``counted``; answers are kept for ``refresh``."""

    def __init__(self, port: DiscoveryPort, clock: Clock, refresh: timedelta, counted: CountAddresses) -> None:
        self._port = port
        self._counted = counted
        self._found: Expiring[Edition, tuple[SubnetInfo, ...]] = Expiring(clock, refresh)

    def known(self, node_class: EC2NodeClass) -> tuple[SubnetInfo, ...] | None:
        """The class's subnets as they were found lately; None if they were not."""
        return self._found.get(edition(node_class))

    async def find(self, node_class: EC2NodeClass) -> tuple[SubnetInfo, ...]:
        """The class's subnets, most free addresses first (AWS-089). Raises ``AwsError``."""
        known = self.known(node_class)
        if known is not None:
            return known
        asked = queries.subnets(node_class.spec.subnet_selector_terms)
        answers = await asyncio.gather(*(self._port.describe_subnets(filters) for filters in asked))
        by_id = {item.subnet_id: item for answer in answers for item in answer}
        found = tuple(sorted(by_id.values(), key=lambda item: (-item.available_ip_address_count, item.subnet_id)))
        for item in found:
            self._counted(item.subnet_id, item.available_ip_address_count)
        self._found.put(edition(node_class), found)
        return found


class SubnetsPart:
    """Puts subnets into the status."""

    condition: Final = SUBNETS

    def __init__(self, subnets: Subnets, news: News, warnings: Warnings) -> None:
        self._subnets = subnets
        self._news = news
        self._warnings = warnings

    async def look(self, node_class: EC2NodeClass) -> Told:
        """See ``Part.look``."""
        found = await self._subnets.find(node_class)
        status = replace(node_class.status, subnets=tuple(map(_subnet, found)))
        if not found:
            return Told(status, false(SUBNETS, "SubnetsNotFound", "SubnetSelector did not match any Subnets"), MINUTE)
        # The order follows free addresses, so it changes all the time and is no news.
        shown = tuple(f"{item.subnet_id}:{item.availability_zone}" for item in sorted(found, key=_subnet_id))
        if self._news.is_new("subnets", node_class, shown):
            _log.info("discovered subnets", subnets=list(shown))
        self._warnings.judge(node_class, _SEVERAL_VPCS, _several_vpcs(found))
        return Told(status, true(SUBNETS), MINUTE)


class SecurityGroups:
    """Finds security groups."""

    def __init__(self, port: DiscoveryPort, clock: Clock) -> None:
        self._port = port
        self._found: Expiring[Edition, tuple[SecurityGroupInfo, ...]] = Expiring(clock, _GROUPS_REFRESHED)

    async def find(self, node_class: EC2NodeClass) -> tuple[SecurityGroupInfo, ...]:
        """The class's groups, by id. Raises ``AwsError``."""
        known = self._found.get(edition(node_class))
        if known is not None:
            return known
        asked = queries.security_groups(node_class.spec.security_group_selector_terms)
        answers = await asyncio.gather(*(self._port.describe_security_groups(filters) for filters in asked))
        by_id = {item.group_id: item for answer in answers for item in answer}
        found = tuple(by_id[group_id] for group_id in sorted(by_id))
        self._found.put(edition(node_class), found)
        return found


class SecurityGroupsPart:
    """Puts security groups into the status, and warns where they cannot go with the subnets."""

    condition: Final = SECURITY_GROUPS

    def __init__(self, groups: SecurityGroups, subnets: Subnets, news: News, warnings: Warnings) -> None:
        self._groups = groups
        self._subnets = subnets
        self._news = news
        self._warnings = warnings

    async def look(self, node_class: EC2NodeClass) -> Told:
        """See ``Part.look``."""
        found = await self._groups.find(node_class)
        told = tuple(SecurityGroup(id=item.group_id, name=item.group_name) for item in found)
        status = replace(node_class.status, security_groups=told)
        if not found:
            message = "SecurityGroupSelector did not match any SecurityGroups"
            return Told(status, false(SECURITY_GROUPS, "SecurityGroupsNotFound", message), MINUTE)
        shown = tuple(item.group_id for item in found)
        if self._news.is_new("security-groups", node_class, shown):
            _log.info("discovered security groups", **{"security-groups": list(shown)})
        subnets = self._subnets.known(node_class)
        if subnets is not None:
            self._warnings.judge(node_class, _OTHER_VPC, _foreign_groups(found, subnets))
        return Told(status, true(SECURITY_GROUPS), _GROUPS_AGAIN_SECONDS)


def _subnet(item: SubnetInfo) -> Subnet:
    return Subnet(id=item.subnet_id, zone=item.availability_zone, zone_id=item.availability_zone_id)


def _subnet_id(item: SubnetInfo) -> str:
    return item.subnet_id


def _several_vpcs(subnets: Iterable[SubnetInfo]) -> str:
    """A tag may be on subnets of several VPCs, and a launch would come to lie in any of them."""
    vpcs = sorted({item.vpc_id for item in subnets})
    return f"selected subnets lie in {len(vpcs)} VPCs: {', '.join(vpcs)}" if len(vpcs) > 1 else ""


def _foreign_groups(groups: Iterable[SecurityGroupInfo], subnets: Iterable[SubnetInfo]) -> str:
    """EC2 refuses a launch whose groups and subnet are of different VPCs."""
    vpcs = {item.vpc_id for item in subnets}
    foreign = sorted(f"{item.group_id} ({item.vpc_id})" for item in groups if item.vpc_id not in vpcs)
    if not foreign or not vpcs:
        return ""
    return f"security groups lie in another VPC than the subnets ({', '.join(sorted(vpcs))}): {', '.join(foreign)}"
