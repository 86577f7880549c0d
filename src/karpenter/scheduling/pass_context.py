"""What all passes of one decision have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from karpenter.scheduling.decision_memory import DecisionMemory
from karpenter.scheduling.devices.type_devices import TypeDevices
from karpenter.scheduling.existing_nodes import ExistingNodeIndex
from karpenter.scheduling.objective import Objective
from karpenter.scheduling.offerings.purchase_options import PurchaseOptionIndex
from karpenter.scheduling.pass_result import DomainOrder, KnownPass, PlannedPlacements
from karpenter.scheduling.scheduling_options import PackingMode
from karpenter.scheduling.topology.topology_domains import TopologyDomains


@dataclass(frozen=True, eq=False)
class PassContext:
    """What all passes of a decision have in common. ``strict_min_values``: minValues are not lowered.

    ``devices``: those of types, where pods ask for devices.
    """

    existing_nodes: ExistingNodeIndex
    purchase_options: PurchaseOptionIndex
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
