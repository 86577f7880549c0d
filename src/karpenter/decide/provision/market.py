"""What can be bought for a class of pods: the pools that would take it, each with the types that could hold one of them.

A pool whose types are sold out of reservations, too, has several lanes: what is bought freely, and each reservation by
itself. A claim keeps to one lane, so one unit of one reservation is all it ever holds; the reference holds one of each it
might use and makes others wait for them (§21 Beyond).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from karpenter.api.core import Toleration
from karpenter.catalog.index import TypeIndex, TypeSet
from karpenter.cluster.classes import PodClass
from karpenter.decide.provision.company import Chance
from karpenter.decide.provision.demand import Option
from karpenter.decide.provision.limits import affordable
from karpenter.decide.provision.reservations import FREELY, of_reservation
from karpenter.decide.provision.templates import Template
from karpenter.decide.provision.variants import Variant
from karpenter.model import taints
from karpenter.model.requirements import Requirement, Requirements, compatible


def chance_of(option: Option, asked: Requirements) -> Chance:
    """Whether a machine bought so will be what somebody else asks of nodes, whichever of its types and offerings it is."""
    offered, index = option.requirements, option.template.index
    types = option.template.types & index.matching(offered)
    within = offered.intersect(asked)
    if not compatible(offered, asked, index.well_known) or not types & index.matching(within) & index.buyable(within):
        return Chance.NEVER
    return Chance.SURELY if all(_implied(offered, item, index, types) for item in asked.values()) else Chance.PERHAPS


def _implied(offered: Requirements, asked: Requirement, index: TypeIndex, types: TypeSet) -> bool:
    held = offered.of(asked.key)
    if asked.key not in index.well_known:
        return held.implies(asked) if asked.key in offered else asked.accepts_absent
    if not types & ~index.implying(held, asked):
        return True
    if asked.gte is not None or asked.lte is not None:
        return False
    otherwise = offered.intersect(Requirements((Requirement(asked.key, not asked.complement, asked.values),)))
    return not types & index.matching(otherwise) & index.buyable(otherwise)


class Market:
    """Answers of one decision, remembered. ``limits``: what is left of each limited pool's limits at its start.

    ``units``: what is left of every reservation, empty where reserved capacity is no matter of its own (SCH-580). ``strict``: a
    pool whose minValues cannot be met sells nothing (SCH-364).
    """

    def __init__(
        self,
        templates: Sequence[Template],
        limits: Mapping[str, Mapping[str, int]],
        units: Mapping[str, int],
        *,
        strict: bool,
    ) -> None:
        self._templates = templates
        self._limits = limits
        self._units = units
        self._strict = strict
        self._options: dict[tuple[PodClass, Requirements, tuple[Toleration, ...]], tuple[Option, ...]] = {}
        self._suiting: dict[tuple[int, Requirements, tuple[Toleration, ...]], int] = {}
        self._together: dict[tuple[Requirements, Requirements], Requirements] = {}
        self._equal: dict[Requirements, Requirements] = {}
        self._holding: dict[tuple[int, PodClass], int] = {}

    def options(self, pod_class: PodClass, variant: Variant) -> tuple[Option, ...]:
        """Legal ways to buy for the class, in the order of pools."""
        key = (pod_class, variant.requirements, variant.tolerations)
        known = self._options.get(key)
        if known is None:
            found = [option for template in self._templates for option in self._lanes(pod_class, variant, template)]
            strict = self._strict
            legal = [option for option in found if option.types and (not strict or option.diverse(option.types))]
            known = self._options[key] = tuple(legal)
        return known

    def _lanes(self, pod_class: PodClass, variant: Variant, template: Template) -> Iterator[Option]:
        """What is bought freely comes first: what a pod is worth is judged by it."""
        own = [each for each in sorted(template.index.reservations) if each in self._units] if self._units else []
        if not own:
            yield Option(variant, template, self._types_for(pod_class, variant, template))
            return
        free = self.pinned(variant, FREELY)
        yield Option(free, template, self._types_for(pod_class, free, template))
        for reservation in own:
            if self._units[reservation] > 0:
                held = self.pinned(variant, of_reservation(reservation))
                yield Option(held, template, self._types_for(pod_class, held, template), reservation)

    def price(self, options: Sequence[Option]) -> float:
        """USD per hour of the cheapest machine among them."""
        found = (option.cheapest for option in options)
        return min(found, default=float("inf"))

    def pinned(self, variant: Variant, pins: Requirements) -> Variant:
        """The variant in one cell; equal ones are one object, as much is remembered by them."""
        key = (variant.requirements, pins)
        together = self._together.get(key)
        if together is None:
            together = variant.requirements.intersect(pins)
            together = self._together[key] = self._equal.setdefault(together, together)
        return Variant(together, variant.tolerations, variant.firm, variant.terms)

    def _types_for(self, pod_class: PodClass, variant: Variant, template: Template) -> int:
        """Types of a pool that could each hold one pod of the class, within what its limits leave."""
        key = (id(template), variant.requirements, variant.tolerations)
        suiting = self._suiting.get(key)
        if suiting is None:
            suiting = self._suiting[key] = self._suit(variant, template)
        if not suiting:
            return 0
        return suiting & self._holding_one(pod_class, template)

    def _holding_one(self, pod_class: PodClass, template: Template) -> int:
        """Types of a pool that could hold one pod of the class, whatever it asks of nodes."""
        key = (id(template), pod_class)
        known = self._holding.get(key)
        if known is None:
            known = template.holding(pod_class.requests) & template.open_to(pod_class.ports)
            self._holding[key] = known
        return known

    def _suit(self, variant: Variant, template: Template) -> int:
        """Types of a pool that suit whoever asks this of nodes, however much they request."""
        index = template.index
        if template.taints and taints.untolerated(template.taints, variant.tolerations):
            return 0
        if not compatible(template.requirements, variant.requirements, index.well_known):
            return 0
        types = template.types
        if template.name in self._limits:
            types &= affordable(template, self._limits[template.name])
        if types and variant.requirements:
            requirements = template.narrowed(variant.requirements)
            types &= index.matching(requirements) & index.buyable(requirements)
            types &= index.matching(variant.requirements)
        return types
