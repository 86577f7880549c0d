"""The context of scheduling passes: nodes, offers, limits and options, and a pass that is known already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from karpenter.scheduling.decision_memory import DecisionMemory
from karpenter.scheduling.devices.type_devices import TypeDevices
from karpenter.scheduling.equivalence_groups import EquivalenceGroup
from karpenter.scheduling.existing_nodes import ExistingNodeIndex
from karpenter.scheduling.objective import Objective
from karpenter.scheduling.offerings.launch_options import LaunchOptionIndex
from karpenter.scheduling.pass_result import DomainOrder, PassResult, PlannedPlacements
from karpenter.scheduling.scheduling_options import PackingMode
from karpenter.scheduling.topology.topology_domains import TopologyDomains


@dataclass(frozen=True, eq=False)
class KnownPass:
    """The result of a pass without caps over ``groups``, and all else the pass was made of."""

    groups: Sequence[EquivalenceGroup]
    made_of: tuple[object, ...]
    result: PassResult


@dataclass(frozen=True, eq=False)
class PassContext:
    """What all passes of a decision have in common. ``strict_min_values``: minValues are not lowered.

    ``devices``: those of types, where pods ask for devices. ``known_pass``: a pass that was made before the decision, so that the
    decision need not make it again; a question about disruption makes one for its price limit (`with_known_pass`).
    """

    existing_nodes: ExistingNodeIndex
    launch_options: LaunchOptionIndex
    domains: TopologyDomains
    planned: PlannedPlacements
    limits: Mapping[str, Mapping[str, int]]
    reservation_units: Mapping[str, int]
    strict_min_values: bool
    objective: Objective
    packing_mode: PackingMode = PackingMode.CHEAPEST
    domain_order: DomainOrder = DomainOrder.LEAST_OCCUPIED
    devices: TypeDevices | None = None
    memory: DecisionMemory = field(default_factory=DecisionMemory)
    known_pass: KnownPass | None = None

    def with_known_pass(self, groups: Sequence[EquivalenceGroup], result: PassResult) -> PassContext:
        """The context with the result that a pass over these groups without caps has in it."""
        return replace(self, known_pass=KnownPass(groups, self._pass_inputs, result))

    def known_result(self, groups: Sequence[EquivalenceGroup]) -> PassResult | None:
        """The result of a pass over these groups without caps, if it is known for just this context."""
        known = self.known_pass
        if known is None or known.groups is not groups:
            return None
        same = all(one is other for one, other in zip(known.made_of, self._pass_inputs, strict=True))
        return known.result if same else None

    @property
    def _pass_inputs(self) -> tuple[object, ...]:
        """What the result of a pass depends on besides its groups and caps."""
        return (self.existing_nodes, self.launch_options, self.domains, self.planned, self.domain_order)
