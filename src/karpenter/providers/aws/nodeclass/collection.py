"""Instance profiles nobody refers to any more are deleted (AWS-125)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import structlog

from karpenter.api.ec2 import EC2NodeClass
from karpenter.api.karpenter import NodeClaim
from karpenter.providers.aws import names
from karpenter.providers.aws.errors import AwsError
from karpenter.providers.aws.nodeclass.profiles import Profiles, cluster_path
from karpenter.providers.aws.settings import Cluster

_log = structlog.get_logger()


class ProfileCollector:
    """Deletes what is left over. ``classes`` and ``claims`` tell all there are."""

    def __init__(
        self,
        profiles: Profiles,
        cluster: Cluster,
        classes: Callable[[], Iterable[EC2NodeClass]],
        claims: Callable[[], Iterable[NodeClaim]],
    ) -> None:
        self._profiles = profiles
        self._cluster = cluster
        self._classes = classes
        self._claims = claims

    async def collect(self) -> None:
        """One round. A profile that cannot be deleted is left for the next one. Raises ``AwsError`` if they cannot be listed."""
        found = await self._profiles.list(cluster_path(self._cluster))
        # Read after the list: what came to be in use meanwhile counts.
        used = self._used()
        for name in found:
            if name not in used and not self._profiles.is_protected(name):
                await self._delete(name)

    def _used(self) -> set[str]:
        of_claims = (claim.metadata.annotations.get(names.PROFILE, "") for claim in self._claims())
        return {node_class.status.instance_profile for node_class in self._classes()} | set(of_claims)

    async def _delete(self, name: str) -> None:
        try:
            await self._profiles.delete(name)
        except AwsError as error:
            _log.error("garbage collecting instance profile failed", **{"instance-profile": name, "error": str(error)})
            return
        _log.info("garbage collected instance profile", **{"instance-profile": name})
