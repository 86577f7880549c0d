"""The placement group of a class (AWS-093 to AWS-095, AWS-153, AWS-154)."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from karpenter.api.ec2 import EC2NodeClass, PlacementGroupSelector
from karpenter.model.clock import Clock
from karpenter.providers.aws.cache import Expiring
from karpenter.providers.aws.errors import AwsError
from karpenter.providers.aws.nodeclass import queries
from karpenter.providers.aws.nodeclass.told import MINUTE, PLACEMENT_GROUP, Told, false, true
from karpenter.providers.aws.ports import DiscoveryPort
from karpenter.providers.aws.shapes import PlacementGroupInfoEntry

_LOOKED_UP = timedelta(minutes=1)
_KEPT = timedelta(hours=24)
#: How EC2 says that it knows no such group, instead of an empty answer.
_UNKNOWN = frozenset({"InvalidPlacementGroup.Unknown", "InvalidPlacementGroupId.NotFound"})


class PlacementGroups:
    """Resolves selectors. What was found is kept for a day, so that launches go on while EC2 does not answer."""

    def __init__(self, port: DiscoveryPort, clock: Clock) -> None:
        self._port = port
        self._recent: Expiring[PlacementGroupSelector, bool] = Expiring(clock, _LOOKED_UP)
        self._known: Expiring[PlacementGroupSelector, PlacementGroupInfoEntry] = Expiring(clock, _KEPT)

    def known(self, node_class: EC2NodeClass) -> PlacementGroupInfoEntry | None:
        """The group the class's machines go into, as far as is known; None without one."""
        selector = node_class.spec.placement_group_selector
        return None if selector is None else self._known.get(selector)

    async def find(self, selector: PlacementGroupSelector) -> PlacementGroupInfoEntry | None:
        """The group, looked up at most once a minute. That EC2 knows of none ends what was kept. Raises ``AwsError``."""
        if self._recent.get(selector) is None:
            found = await self._asked(selector)
            self._recent.put(selector, True)
            if found:
                self._known.put(selector, found[0])
            else:
                self._known.drop(selector)
        return self._known.get(selector)

    async def _asked(self, selector: PlacementGroupSelector) -> tuple[PlacementGroupInfoEntry, ...]:
        try:
            return await self._port.describe_placement_groups(queries.placement_group(selector))
        except AwsError as error:
            if error.code not in _UNKNOWN:
                raise
            return ()


class PlacementGroupPart:
    """Judges whether the class's group is there; the status has no field for it."""

    condition: Final = PLACEMENT_GROUP

    def __init__(self, groups: PlacementGroups) -> None:
        self._groups = groups

    async def look(self, node_class: EC2NodeClass) -> Told:
        """See ``Part.look``."""
        selector = node_class.spec.placement_group_selector
        if selector is None:
            return Told(node_class.status, true(PLACEMENT_GROUP))
        try:
            found = await self._groups.find(selector)
        except AwsError as error:
            verdict = false(PLACEMENT_GROUP, "PlacementGroupResolutionFailed", f"resolving placement group, {error}")
            return Told(node_class.status, verdict, fault=error)
        if found is None:
            named = selector.id or selector.name
            verdict = false(PLACEMENT_GROUP, "PlacementGroupNotFound", f"no placement group {named} is available")
            return Told(node_class.status, verdict, MINUTE)
        return Told(node_class.status, true(PLACEMENT_GROUP))
