"""What can be launched for a pod group: the pools that would take it, each with the types that could hold one of them.

A pool whose types are sold out of reservations, too, has several launch channels: what is launched freely, and each reservation
by itself. A claim keeps to one channel, so one unit of one reservation is all it ever holds; Karpenter holds one of each it
might use and makes others wait for them (§21 Beyond). Stocks are counted in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from karpenter.api.scheduling_constraints import Toleration
from karpenter.instancetypes.type_sets import TypeSet
from karpenter.model import taints
from karpenter.model.requirements import Requirements, compatible
from karpenter.scheduling.devices.type_devices import TypeDevices
from karpenter.scheduling.node_filling import LaunchChannel
from karpenter.scheduling.offerings.nodepool_templates import NodePoolTemplate
from karpenter.scheduling.offerings.remaining_capacity import types_within_limits
from karpenter.scheduling.preferences import RelaxationStep
from karpenter.state.pod_signature import PodSignature

#: Pods with other requests are compared by the types that hold one of them where no more NodePools sell nodes.
MAX_POOLS_COMPARED = 16


class LaunchOptionIndex:
    """Answers of one decision, remembered. ``limits``: what is left of each limited pool's limits at its start.

    ``reservation_units``: what is left of stocks, and of reservations where these are a matter of their own (SCH-580).
    ``strict``: a pool whose minValues cannot be met sells nothing (SCH-364). ``devices``: those of types, where pods ask for
    devices.
    """

    def __init__(
        self,
        templates: Sequence[NodePoolTemplate],
        limits: Mapping[str, Mapping[str, int]],
        reservation_units: Mapping[str, int],
        *,
        strict: bool,
        devices: TypeDevices | None = None,
    ) -> None:
        self._devices = devices
        self._templates = templates
        self._limits = limits
        self._reservation_units = reservation_units
        self._strict_min_values = strict
        self._options: dict[tuple[PodSignature, Requirements, tuple[Toleration, ...]], tuple[LaunchOption, ...]] = {}
        self._suitable: dict[tuple[int, Requirements, tuple[Toleration, ...]], int] = {}
        self._restricted: dict[tuple[Requirements, Requirements], Requirements] = {}
        self._canonical: dict[Requirements, Requirements] = {}
        self._types_fitting: dict[tuple[int, PodSignature], int] = {}
        self._alike: dict[PodSignature, PodSignature] = {}
        self._first_alike: dict[object, PodSignature] = {}

    def options(self, signature: PodSignature, relaxation_step: RelaxationStep) -> tuple[LaunchOption, ...]:
        """Legal launch options of the group, in the order of pools; the same objects for groups that differ in nothing here."""
        signature = self.first_alike(signature)
        key = (signature, relaxation_step.requirements, relaxation_step.tolerations)
        launch_options = self._options.get(key)
        if launch_options is None:
            candidates = [
                option
                for template in self._templates
                for option in self._options_of_template(signature, relaxation_step, template)
            ]
            strict = self._strict_min_values
            legal = [
                option
                for option in candidates
                if option.types and (not strict or option.satisfies_min_values(option.types))
            ]
            launch_options = self._options[key] = tuple(legal)
        return launch_options

    def first_alike(self, signature: PodSignature) -> PodSignature:
        """The first signature that fits on the same types: much is remembered by the identity of its options."""
        first = self._alike.get(signature)
        if first is None:
            devices = signature.device_demand if self._devices is not None else None
            needs = (tuple(sorted(signature.requests.items())), signature.host_ports, devices)
            first = self._first_alike.setdefault(needs, signature)
            if len(self._templates) <= MAX_POOLS_COMPARED:
                types = tuple([self._types_fitting_one(first, template) for template in self._templates])
                first = self._first_alike.setdefault(types, first)
            self._alike[signature] = first
        return first

    def _options_of_template(
        self, signature: PodSignature, relaxation_step: RelaxationStep, template: NodePoolTemplate
    ) -> Iterator[LaunchOption]:
        """What is launched freely comes first: what a pod is worth is judged by it."""
        own = (
            [each for each in sorted(template.index.reservation_units) if each in self._reservation_units]
            if self._reservation_units
            else []
        )
        if not own:
            yield LaunchOption(relaxation_step, template, self._types_for(signature, relaxation_step, template))
            return
        counted = template.index.counted
        free = self.restricted_to(relaxation_step, counted.outside)
        yield LaunchOption(free, template, self._types_for(signature, free, template))
        for reservation in own:
            if self._reservation_units[reservation] > 0:
                held = self.restricted_to(relaxation_step, counted.requirements(reservation))
                yield LaunchOption(held, template, self._types_for(signature, held, template), reservation)

    def restricted_to(self, relaxation_step: RelaxationStep, pins: Requirements) -> RelaxationStep:
        """The relaxation step in one combination; equal ones are one object, as much is remembered by them."""
        key = (relaxation_step.requirements, pins)
        together = self._restricted.get(key)
        if together is None:
            together = relaxation_step.requirements.intersect(pins)
            together = self._restricted[key] = self._canonical.setdefault(together, together)
        return RelaxationStep(
            together, relaxation_step.tolerations, relaxation_step.hard_requirements, relaxation_step.terms
        )

    def _types_for(self, signature: PodSignature, relaxation_step: RelaxationStep, template: NodePoolTemplate) -> int:
        """Types of a pool that could each hold one pod of the group, within what its limits leave."""
        key = (id(template), relaxation_step.requirements, relaxation_step.tolerations)
        suiting = self._suitable.get(key)
        if suiting is None:
            suiting = self._suitable[key] = self._suitable_types(relaxation_step, template)
        if not suiting:
            return 0
        return suiting & self._types_fitting_one(signature, template)

    def _types_fitting_one(self, signature: PodSignature, template: NodePoolTemplate) -> int:
        """Types of a pool that could hold one pod of the group, whatever it asks of nodes."""
        key = (id(template), signature)
        types_fitting_one = self._types_fitting.get(key)
        if types_fitting_one is None:
            types_fitting_one = template.types_fitting(signature.requests) & template.types_with_free_ports(
                signature.host_ports
            )
            if self._devices is not None:
                contents = ((signature.device_demand, 1),)
                types_fitting_one = self._devices.types_holding(template.index, types_fitting_one, contents)
            self._types_fitting[key] = types_fitting_one
        return types_fitting_one

    def _suitable_types(self, relaxation_step: RelaxationStep, template: NodePoolTemplate) -> int:
        """Types of a pool that match these requirements and tolerations, whatever amounts the pods request."""
        index = template.index
        if template.taints and taints.untolerated(template.taints, relaxation_step.tolerations):
            return 0
        if not compatible(template.requirements, relaxation_step.requirements, index.well_known):
            return 0
        types = template.types
        if template.name in self._limits:
            types &= types_within_limits(template, self._limits[template.name])
        if types and relaxation_step.requirements:
            requirements = template.requirements_with(relaxation_step.requirements)
            types &= index.matching(requirements) & index.with_available_offering(requirements)
            types &= index.matching(relaxation_step.requirements)
        return types


@dataclass(frozen=True, eq=False)
class LaunchOption:
    """A legal way to nodes for a pod group: one relaxation step of it on one template. ``types`` could each hold one such pod.

    ``reservation``: the one it draws from, or the stock; None for what is launched freely.
    """

    relaxation_step: RelaxationStep
    template: NodePoolTemplate
    types: TypeSet
    reservation: str | None = None

    @property
    def channel(self) -> LaunchChannel:
        """What claims it may join keep to."""
        return (self.template.name, self.reservation)

    @property
    def is_prepaid(self) -> bool:
        """Whether it draws from a reservation: those are used up before anything else. A stock costs what it is used."""
        return self.template.index.counted.is_prepaid(self.reservation)

    @property
    def pod_requirements(self) -> Requirements:
        """What the pods ask of the node."""
        return self.relaxation_step.requirements

    @cached_property
    def requirements(self) -> Requirements:
        """The pool's requirements with those of the pods."""
        return self.template.requirements_with(self.relaxation_step.requirements)

    @cached_property
    def lowest_price(self) -> float:
        """USD per hour of its cheapest type."""
        prices = self.template.index.prices(self.requirements)
        return prices.cheapest_offering[prices.cheapest(self.types)].price_per_hour

    def satisfies_min_values(self, types: TypeSet) -> bool:
        """Whether these types offer the pool's minValues."""
        return self.template.index.satisfies_min_values(self.requirements, types)


def lowest_price(options: Sequence[LaunchOption]) -> float:
    """USD per hour of the cheapest node among the options."""
    return min((option.lowest_price for option in options), default=float("inf"))
