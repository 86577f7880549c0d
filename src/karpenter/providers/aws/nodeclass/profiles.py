"""Instance profiles: what gives a machine its role (AWS-096 to AWS-099, AWS-120 to AWS-122).

A profile is made for a class and never changed: another role means another profile, as machines that run use the old one. IAM
forgets and learns slowly, so answers are kept, and a profile that was just made is found again by its role even if nobody could
write down its name. All that is ours lies below ``/karpenter/<region>/<cluster>/``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Final, NamedTuple

import structlog
from msgspec.structs import replace

from karpenter.api.ec2 import EC2NodeClass
from karpenter.model import labels
from karpenter.model.clock import Clock
from karpenter.providers.aws import names
from karpenter.providers.aws.cache import Expiring
from karpenter.providers.aws.errors import AwsError
from karpenter.providers.aws.nodeclass.told import INSTANCE_PROFILE, Told, false, true
from karpenter.providers.aws.ports import IamPort
from karpenter.providers.aws.settings import Cluster

_NO_SUCH_ENTITY = "NoSuchEntity"
_NAME = re.compile(r"[\w+=,.@-]{1,128}", re.ASCII)
_NAMES_KEPT = timedelta(minutes=1)
_ROLES_KEPT = timedelta(minutes=15)
_UNKNOWN_ROLES_KEPT = timedelta(minutes=1)
_PROTECTED = timedelta(hours=1)
_FNV_OFFSET, _FNV_PRIME, _64_BITS = 0xCBF29CE484222325, 0x100000001B3, 2**64 - 1
_log = structlog.get_logger()


class _Wanted(NamedTuple):
    """What a profile is made for."""

    role: str
    uid: str


class Profiles:
    """Instance profiles of this cluster. ``unique`` gives a text that was never used before."""

    def __init__(self, iam: IamPort, clock: Clock, cluster: Cluster, unique: Callable[[], str]) -> None:
        self._iam = iam
        self._cluster = cluster
        self._unique = unique
        self._made: Expiring[_Wanted, str] = Expiring(clock, _NAMES_KEPT)
        self._roles: Expiring[str, str] = Expiring(clock, _ROLES_KEPT)
        self._unknown_roles: Expiring[str, AwsError] = Expiring(clock, _UNKNOWN_ROLES_KEPT)
        self._protected: Expiring[str, bool] = Expiring(clock, _PROTECTED)

    def protect(self, name: str) -> None:
        """Keep the collection from taking a profile for an hour, though nothing refers to it any more, or not yet."""
        if name:
            self._protected.put(name, True)

    def is_protected(self, name: str) -> bool:
        """Whether the collection must leave it."""
        return self._protected.get(name) is not None

    def just_made(self, node_class: EC2NodeClass) -> str:
        """The profile made for the class and its role within the last minute; empty if none was (AWS-097)."""
        return self._made.get(_wanted(node_class)) or ""

    async def role_of(self, name: str) -> str:
        """The role of a profile, by its name; empty where the profile, or its role, does not exist. Raises ``AwsError``."""
        known = self._roles.get(name)
        if known is not None:
            return known
        try:
            profile = await self._iam.get_instance_profile(name)
        except AwsError as error:
            if not error.is_not_found:
                raise
            return ""
        role = profile.roles[0].role_name if profile.roles else ""
        self._roles.put(name, role)
        return role

    async def make(self, node_class: EC2NodeClass) -> str:
        """Make a profile with the class's role; its name (AWS-098). Raises ``AwsError``, leaving nothing behind if it can."""
        role = role_name(node_class.spec.role or "")
        refused = self._unknown_roles.get(role)
        if refused is not None:
            raise refused
        name = _name(self._cluster, node_class, self._unique())
        self.protect(name)
        path = class_path(self._cluster, node_class)
        try:
            await self._iam.create_instance_profile(name, path, _tags(self._cluster, node_class))
            await self._iam.add_role_to_instance_profile(name, role)
        except AwsError as error:
            if _is_about_role(error):
                self._unknown_roles.put(role, error)
            with suppress(AwsError):
                await self.delete(name)
            raise
        self._roles.put(name, role)
        self._made.put(_wanted(node_class), name)
        _log.info("created instance profile", **{"instance-profile": name, "role": role})
        return name

    async def delete(self, name: str) -> None:
        """Delete a profile with whatever role it has; one that does not exist is fine (AWS-122). Raises ``AwsError``."""
        try:
            profile = await self._iam.get_instance_profile(name)
            for role in profile.roles:
                await self._iam.remove_role_from_instance_profile(name, role.role_name)
            await self._iam.delete_instance_profile(name)
        except AwsError as error:
            if not error.is_not_found:
                raise
        self._roles.drop(name)
        self._protected.drop(name)

    async def list(self, path: str) -> tuple[str, ...]:
        """Names of the profiles below a path. Raises ``AwsError``."""
        return tuple(item.instance_profile_name for item in await self._iam.list_instance_profiles(path))


class InstanceProfilePart:
    """Puts a profile with the class's role into the status, or the one the class names."""

    condition: Final = INSTANCE_PROFILE

    def __init__(self, profiles: Profiles) -> None:
        self._profiles = profiles

    async def look(self, node_class: EC2NodeClass) -> Told:
        """See ``Part.look``."""
        given = node_class.spec.instance_profile
        if not given:
            return await self._of_role(node_class)
        if node_class.status.instance_profile != given:
            self._profiles.protect(node_class.status.instance_profile)
        return _told(node_class, given)

    async def _of_role(self, node_class: EC2NodeClass) -> Told:
        previous = node_class.status.instance_profile
        name = self._profiles.just_made(node_class) or previous
        current = await self._profiles.role_of(name) if name else ""
        if current and current == role_name(node_class.spec.role or ""):
            return _told(node_class, name)
        try:
            made = await self._profiles.make(node_class)
        except AwsError as error:
            message = f"creating instance profile, {error}"
            return Told(
                node_class.status, false(INSTANCE_PROFILE, "InstanceProfileCreationFailed", message), fault=error
            )
        self._profiles.protect(previous)
        return _told(node_class, made)


def cluster_path(cluster: Cluster) -> str:
    """Below this path are all profiles made for the cluster."""
    return f"/karpenter/{cluster.region}/{cluster.name}/"


def class_path(cluster: Cluster, node_class: EC2NodeClass) -> str:
    """Below this path are all profiles made for one class."""
    return f"{cluster_path(cluster)}{node_class.metadata.uid}/"


def role_name(role: str) -> str:
    """A role without its path: what IAM calls it (AWS-121)."""
    return role.rpartition("/")[2]


def legacy_name(cluster: Cluster, node_class: EC2NodeClass) -> str:
    """The profile early versions made for a class of this name; empty where no profile can be called so (AWS-124)."""
    name = f"{cluster.name}_{_fnv(cluster.region + node_class.metadata.name)}"
    return name if _NAME.fullmatch(name) else ""


def _name(cluster: Cluster, node_class: EC2NodeClass, unique: str) -> str:
    return f"{cluster.name}_{_fnv(cluster.region + node_class.metadata.name + unique)}"


def _fnv(text: str) -> int:
    """The FNV-1 hash of 64 bits: names that exist already were made with it."""
    value = _FNV_OFFSET
    for byte in text.encode():
        value = (value * _FNV_PRIME & _64_BITS) ^ byte
    return value


def _tags(cluster: Cluster, node_class: EC2NodeClass) -> dict[str, str]:
    return {
        **node_class.spec.tags,
        f"kubernetes.io/cluster/{cluster.name}": "owned",
        names.CLUSTER_TAG: cluster.name,
        names.NODE_CLASS: node_class.metadata.name,
        labels.REGION: cluster.region,
    }


def _wanted(node_class: EC2NodeClass) -> _Wanted:
    return _Wanted(node_class.spec.role or "", node_class.metadata.uid)


def _is_about_role(error: AwsError) -> bool:
    """Whether IAM does not know the role, rather than the profile (AWS-120)."""
    return error.code == _NO_SUCH_ENTITY and "role" in error.message.lower()


def _told(node_class: EC2NodeClass, name: str) -> Told:
    return Told(replace(node_class.status, instance_profile=name), true(INSTANCE_PROFILE))
