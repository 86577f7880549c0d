"""Whether every new node for some pods could be of a refused kind, determined without packing the pods.

Consolidation refuses to replace spot nodes by spot nodes (DIS-200). If every node that may be launched could be spot, no packing
helps. Most sets of spot nodes are of this kind.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from karpenter.model.requirements import Requirements
from karpenter.scheduling.offerings.launch_options import LaunchOption
from karpenter.scheduling.whatif.counted_pass import CountedDemand


@dataclass(frozen=True)
class RefusedNodes:
    """All new nodes for the pods could be had in the refused way."""


@dataclass(frozen=True, eq=False)
class RefusedOptions:
    """What options sell in the refused way. Options are kept with what is known of them, so that their identity stays theirs."""

    _known: dict[tuple[int, int], tuple[LaunchOption, Requirements, bool]] = field(default_factory=dict)

    def are_all(self, demands: Iterable[CountedDemand], refused: Requirements) -> bool:
        """Whether each node for any of these pods together could be had so.

        A node with pods that ask for different things may have none of the types that each of them can have, so all must ask
        for the same; and it must be for sale without a reservation.
        """
        asked: dict[str, Requirements] = {}
        for option in (option for demand in demands for option in demand.options):
            same = asked.setdefault(option.template.name, option.requirements)
            if same is not option.requirements and same != option.requirements:
                return False
            if not self._sells_all(option, refused):
                return False
        return bool(asked)

    def _sells_all(self, option: LaunchOption, refused: Requirements) -> bool:
        key = (id(option), id(refused))
        if key not in self._known:
            self._known[key] = (option, refused, _sells_all(option, refused))
        return self._known[key][2]


def _sells_all(option: LaunchOption, refused: Requirements) -> bool:
    """Whether every type of the option is available in the refused way, whatever else is on the node."""
    asked = option.requirements
    if option.reservation is not None or any(each.min_values is not None for each in asked.values()):
        return False
    if not all(asked.requirement_for(key).has_intersection(own) for key, own in refused.items()):
        return False
    return not option.types & ~option.template.index.with_available_offering(asked.intersect(refused))
