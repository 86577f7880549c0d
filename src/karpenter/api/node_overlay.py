"""NodeOverlay (``karpenter.sh/v1alpha1``): what users know better about instance types than their cloud does (API §5)."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from karpenter.api.karpenter import QUALIFIED_NAME_PATTERN, NodeSelectorRequirementWithMinValues, Operator
from karpenter.api.meta import Condition, ObjectMeta, Wire, WireResources

PRICE_PATTERN = r"^\d+(\.\d+)?$"
PRICE_ADJUSTMENT_PATTERN = r"^(([+-]{1}(\d*\.?\d+))|(\+{1}\d*\.?\d+%)|(^(-\d{1,2}(\.\d+)?%)$)|(-100%))$"


class OverlayRequirement(Wire, frozen=True, kw_only=True):
    """A requirement on a label of the instance types, offerings or NodePools that an overlay is about."""

    key: Annotated[str, Meta(max_length=316, pattern=QUALIFIED_NAME_PATTERN)]
    operator: Operator
    values: tuple[str, ...] = ()

    def as_nodepool_requirement(self) -> NodeSelectorRequirementWithMinValues:
        """The same requirement as a NodePool would write it."""
        return NodeSelectorRequirementWithMinValues(key=self.key, operator=self.operator, values=self.values)


class NodeOverlaySpec(Wire, frozen=True, kw_only=True):
    """What is changed, and of which instance types.

    ``price`` replaces the price per hour; ``price_adjustment`` changes it by an amount or a percentage and always begins with a
    sign: "+0.10", "-0.10", "+5%", "-5%", down to "-100%". Of overlays that set the same thing the one with the highest
    ``weight`` counts.
    """

    requirements: Annotated[tuple[OverlayRequirement, ...], Meta(max_length=100)]
    price: Annotated[str, Meta(pattern=PRICE_PATTERN)] | None = None
    price_adjustment: Annotated[str, Meta(pattern=PRICE_ADJUSTMENT_PATTERN)] | None = None
    capacity: WireResources = {}
    weight: Annotated[int, Meta(ge=1, le=10_000)] | None = None


class NodeOverlayStatus(Wire, frozen=True, kw_only=True):
    """Whether the overlay is used (API-155)."""

    conditions: tuple[Condition, ...] = ()


class NodeOverlay(Wire, frozen=True, kw_only=True):
    """Changes the price, or adds to the capacity, of instance types as scheduling sees them."""

    spec: NodeOverlaySpec
    metadata: ObjectMeta = ObjectMeta()
    status: NodeOverlayStatus = NodeOverlayStatus()
