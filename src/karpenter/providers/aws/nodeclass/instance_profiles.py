"""Instance profiles: what gives an instance its role (AWS-096 to AWS-099, AWS-120 to AWS-122).

A profile is made for a class and never changed: another role means another profile, because running instances use the old one.
IAM is eventually consistent, so answers are kept, and a new profile is found again by its role even if its name could not be
written to the class. All our profiles have a path below ``/karpenter/<region>/<cluster>/``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime, timedelta
from math import inf
from typing import Final, NamedTuple

import structlog
from cachetools import TTLCache
from msgspec.structs import replace

from karpenter.api.ec2_node_class import EC2NodeClass
from karpenter.api.karpenter import NodeClaim
from karpenter.model import labels
from karpenter.model.clock import Clock
from karpenter.providers.aws import aws_labels
from karpenter.providers.aws.aws_apis import IamApi
from karpenter.providers.aws.aws_errors import AwsError
from karpenter.providers.aws.aws_settings import AwsClusterInfo
from karpenter.providers.aws.nodeclass.nodeclass_subreconcilers import (
    INSTANCE_PROFILE_READY,
    SubreconcileResult,
    condition_false,
    condition_true,
)

_NO_SUCH_ENTITY = "NoSuchEntity"
_MAX_NAME_LENGTH = 128
_PROFILE_NAME = re.compile(rf"[\w+=,.@-]{{1,{_MAX_NAME_LENGTH}}}", re.ASCII)
_NO_NAME_CHARACTER = re.compile(r"[^\w+=,.@-]", re.ASCII)
_NAME_TTL = timedelta(minutes=1)
_ROLE_TTL = timedelta(minutes=15)
_UNKNOWN_ROLE_TTL = timedelta(minutes=1)
_PROTECTED_FOR = timedelta(hours=1)
_FNV_OFFSET, _FNV_PRIME, _64_BITS = 0xCBF29CE484222325, 0x100000001B3, 2**64 - 1
_log = structlog.get_logger()


class _ProfileKey(NamedTuple):
    """What a profile is made for."""

    role: str
    uid: str


class InstanceProfileProvider:
    """Instance profiles of this cluster. ``unique`` gives a text that was never used before."""

    def __init__(self, iam: IamApi, clock: Clock, cluster: AwsClusterInfo, unique: Callable[[], str]) -> None:
        self._iam = iam
        self._cluster = cluster
        self._unique = unique
        self._recent: TTLCache[_ProfileKey, str, datetime] = TTLCache(inf, _NAME_TTL, clock.now)
        self._roles: TTLCache[str, str, datetime] = TTLCache(inf, _ROLE_TTL, clock.now)
        self._unknown_roles: TTLCache[str, AwsError, datetime] = TTLCache(inf, _UNKNOWN_ROLE_TTL, clock.now)
        self._protected: TTLCache[str, bool, datetime] = TTLCache(inf, _PROTECTED_FOR, clock.now)

    def protect(self, name: str) -> None:
        """Keep the collection from taking a profile for an hour, though nothing refers to it any more, or not yet."""
        if name:
            self._protected[name] = True

    def is_protected(self, name: str) -> bool:
        """Whether the collection must leave it."""
        return self._protected.get(name) is not None

    def recently_created(self, node_class: EC2NodeClass) -> str:
        """The profile made for the class and its role within the last minute; empty if none was (AWS-097)."""
        return self._recent.get(_profile_key(node_class)) or ""

    async def role_of(self, name: str) -> str:
        """The role of a profile, by its name; empty where the profile, or its role, does not exist. Raises ``AwsError``."""
        cached = self._roles.get(name)
        if cached is not None:
            return cached
        try:
            profile = await self._iam.get_instance_profile(name)
        except AwsError as error:
            if not error.is_not_found:
                raise
            return ""
        role = profile.roles[0].role_name if profile.roles else ""
        self._roles[name] = role
        return role

    async def create(self, node_class: EC2NodeClass) -> str:
        """Make a profile with the class's role; its name (AWS-098). Raises ``AwsError``, leaving nothing behind if it can."""
        role = role_name(node_class.spec.role or "")
        refused = self._unknown_roles.get(role)
        if refused is not None:
            raise refused
        name = _profile_name(self._cluster, node_class, self._unique())
        self.protect(name)
        path = node_class_profile_path(self._cluster, node_class)
        try:
            await self._iam.create_instance_profile(name, path, _profile_tags(self._cluster, node_class))
            await self._iam.add_role_to_instance_profile(name, role)
        except AwsError as error:
            if _is_unknown_role(error):
                self._unknown_roles[role] = error
            with suppress(AwsError):
                await self.delete(name)
            raise
        self._roles[name] = role
        self._recent[_profile_key(node_class)] = name
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
        self._roles.pop(name, None)
        self._protected.pop(name, None)

    async def list(self, path: str) -> tuple[str, ...]:
        """Names of the profiles below a path. Raises ``AwsError``."""
        return tuple(
            instance_profile.instance_profile_name for instance_profile in await self._iam.list_instance_profiles(path)
        )


class InstanceProfileReconciler:
    """Puts a profile with the class's role into the status, or the one the class names."""

    condition: Final = INSTANCE_PROFILE_READY

    def __init__(self, profiles: InstanceProfileProvider) -> None:
        self._profiles = profiles

    async def reconcile(self, node_class: EC2NodeClass) -> SubreconcileResult:
        """See ``NodeClassSubreconciler.reconcile``."""
        profile = node_class.spec.instance_profile
        if not profile:
            return await self._reconcile_role(node_class)
        if node_class.status.instance_profile != profile:
            self._profiles.protect(node_class.status.instance_profile)
        return _ready_result(node_class, profile)

    async def _reconcile_role(self, node_class: EC2NodeClass) -> SubreconcileResult:
        previous = node_class.status.instance_profile
        name = self._profiles.recently_created(node_class) or previous
        current = await self._profiles.role_of(name) if name else ""
        if current and current == role_name(node_class.spec.role or ""):
            return _ready_result(node_class, name)
        try:
            profile = await self._profiles.create(node_class)
        except AwsError as error:
            message = f"creating instance profile, {error}"
            return SubreconcileResult(
                node_class.status,
                condition_false(INSTANCE_PROFILE_READY, "InstanceProfileCreationFailed", message),
                error=error,
            )
        self._profiles.protect(previous)
        return _ready_result(node_class, profile)


def cluster_profile_path(cluster: AwsClusterInfo) -> str:
    """Below this path are all profiles made for the cluster."""
    return f"/karpenter/{cluster.region}/{cluster.name}/"


def node_class_profile_path(cluster: AwsClusterInfo, node_class: EC2NodeClass) -> str:
    """Below this path are all profiles made for one class."""
    return f"{cluster_profile_path(cluster)}{node_class.metadata.uid}/"


def role_name(role: str) -> str:
    """A role without its path: what IAM calls it (AWS-121)."""
    return role.rpartition("/")[2]


def legacy_profile_name(cluster: AwsClusterInfo, node_class: EC2NodeClass) -> str:
    """The profile early versions made for a class of this name; empty where no profile can be called so (AWS-124)."""
    name = f"{cluster.name}_{_fnv(cluster.region + node_class.metadata.name)}"
    return name if _PROFILE_NAME.fullmatch(name) else ""


def _profile_name(cluster: AwsClusterInfo, node_class: EC2NodeClass, unique: str) -> str:
    """A new name. What IAM does not take of a cluster's name is replaced; the hash keeps names apart (AWS-943)."""
    end = f"_{_fnv(cluster.region + node_class.metadata.name + unique)}"
    return _NO_NAME_CHARACTER.sub("-", cluster.name)[: _MAX_NAME_LENGTH - len(end)] + end


def _fnv(text: str) -> int:
    """The FNV-1 hash of 64 bits: names that exist already were made with it."""
    value = _FNV_OFFSET
    for byte in text.encode():
        value = (value * _FNV_PRIME & _64_BITS) ^ byte
    return value


def _profile_tags(cluster: AwsClusterInfo, node_class: EC2NodeClass) -> dict[str, str]:
    return {
        **node_class.spec.tags,
        f"kubernetes.io/cluster/{cluster.name}": "owned",
        aws_labels.CLUSTER_TAG: cluster.name,
        aws_labels.NODE_CLASS: node_class.metadata.name,
        labels.REGION: cluster.region,
    }


def _profile_key(node_class: EC2NodeClass) -> _ProfileKey:
    return _ProfileKey(node_class.spec.role or "", node_class.metadata.uid)


def _is_unknown_role(error: AwsError) -> bool:
    """Whether IAM does not know the role, rather than the profile (AWS-120)."""
    return error.code == _NO_SUCH_ENTITY and "role" in error.message.lower()


def _ready_result(node_class: EC2NodeClass, name: str) -> SubreconcileResult:
    return SubreconcileResult(replace(node_class.status, instance_profile=name), condition_true(INSTANCE_PROFILE_READY))


class InstanceProfileGarbageCollector:
    """Deletes profiles that are left over. ``node_classes`` and ``claims`` give all there are."""

    def __init__(
        self,
        profiles: InstanceProfileProvider,
        cluster: AwsClusterInfo,
        node_classes: Callable[[], Iterable[EC2NodeClass]],
        claims: Callable[[], Iterable[NodeClaim]],
    ) -> None:
        self._profiles = profiles
        self._cluster = cluster
        self._node_classes = node_classes
        self._claims = claims

    async def collect(self) -> None:
        """One round. A profile that cannot be deleted is left for the next one. Raises ``AwsError`` if they cannot be listed."""
        profiles = await self._profiles.list(cluster_profile_path(self._cluster))
        # Read after the list: what came to be in use meanwhile counts.
        used = self._profiles_in_use()
        for name in profiles:
            if name not in used and not self._profiles.is_protected(name):
                await self._delete(name)

    def _profiles_in_use(self) -> set[str]:
        of_claims = (claim.metadata.annotations.get(aws_labels.INSTANCE_PROFILE_NAME, "") for claim in self._claims())
        return {node_class.status.instance_profile for node_class in self._node_classes()} | set(of_claims)

    async def _delete(self, name: str) -> None:
        try:
            await self._profiles.delete(name)
        except AwsError as error:
            _log.error("garbage collecting instance profile failed", **{"instance-profile": name, "error": str(error)})
            return
        _log.info("garbage collected instance profile", **{"instance-profile": name})
