"""A provider with node overlays: instance types of NodePools, and requests to the cloud (SCH-760, API-166)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from decimal import Decimal
from typing import Any, TypeVar, cast

import msgspec
import pytest

from karpenter.api.karpenter import NodeClaim, NodeClaimResourceRequests, NodePool
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.instancetypes.overlay_application import NodePoolInstanceTypes, ParsedOverlay, PriceChange
from karpenter.model import labels
from karpenter.model import resources as res
from karpenter.model.requirements import Op, Requirements, requirement
from karpenter.nodeoverlay.overlaid_provider import OverlaidProvider
from karpenter.providers.contract import CloudProvider, Instance, InsufficientCapacity, UnevaluatedNodePool
from karpenter.scheduling.planned_nodeclaims import static_claim
from support.builders import NOW, node_pool
from support.instance_types import STD

POOL = node_pool()
T = TypeVar("T")


class FakeCloud:
    """Launches the first requested type that is available."""

    def __init__(self) -> None:
        self.types: tuple[InstanceType, ...] = STD
        self.asked: list[NodeClaim] = []
        self.unavailable: frozenset[str] = frozenset()

    async def instance_types(self, pool: NodePool) -> tuple[InstanceType, ...]:
        return self.types

    async def create(self, claim: NodeClaim) -> Instance:
        self.asked.append(claim)
        named = next((r.values for r in claim.spec.requirements if r.key == labels.INSTANCE_TYPE), ("default",))
        left = [name for name in named if name not in self.unavailable]
        if not left:
            raise InsufficientCapacity("no capacity")
        own = {"cpu": 4000}
        return Instance("id", claim.metadata.name, {labels.INSTANCE_TYPE: left[0]}, own, own, NOW)


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def with_overlays(*overlays: ParsedOverlay) -> tuple[FakeCloud, OverlaidProvider]:
    """A cloud and its provider with these overlays."""
    cloud = FakeCloud()
    provider = OverlaidProvider(cast(CloudProvider, cloud))
    provider.set_overlays(overlays, [NodePoolInstanceTypes(POOL, STD)])
    return cloud, provider


def claim(*annotations: str, **requests: str) -> NodeClaim:
    nodeclaim = static_claim(POOL, "c", labels.WELL_KNOWN)
    meta = msgspec.structs.replace(nodeclaim.metadata, annotations=dict.fromkeys(annotations, "true"))
    wanted = {name.replace("_", "/"): amount for name, amount in requests.items()}
    spec = msgspec.structs.replace(nodeclaim.spec, resources=NodeClaimResourceRequests(requests=wanted))
    return msgspec.structs.replace(nodeclaim, metadata=meta, spec=spec)


def overlay(**fields: Any) -> ParsedOverlay:
    return ParsedOverlay(**{"name": "o", "requirements": Requirements(), **fields})


def values(nodeclaim: NodeClaim, key: str) -> tuple[str, ...]:
    """The values that a NodeClaim accepts for a label; empty if it accepts all."""
    return next((requirement.values for requirement in nodeclaim.spec.requirements if requirement.key == key), ())


DEVICES = overlay(capacity=res.parse_resources({"x/dev": "2"}))


def test_a_node_pool_whose_overlays_were_not_evaluated_has_no_types() -> None:
    """API-166. OPS-229: the error names the NodePool."""
    _, provider = with_overlays()
    other = node_pool("other")
    with pytest.raises(UnevaluatedNodePool, match="other"):
        run(provider.instance_types(other))
    assert run(provider.types_without_overlays(other)) is STD


def test_the_types_are_the_same_object_until_something_changes() -> None:
    cloud, provider = with_overlays(DEVICES)
    first = run(provider.instance_types(POOL))
    assert first is not STD
    assert run(provider.instance_types(POOL)) is first
    assert not provider.set_overlays((DEVICES,), [NodePoolInstanceTypes(POOL, STD)])
    assert run(provider.instance_types(POOL)) is first
    cloud.types = STD[:2]
    assert [instance_type.name for instance_type in run(provider.instance_types(POOL))] == ["small", "default"]
    assert all(instance_type.overlay_capacity for instance_type in run(provider.instance_types(POOL)))


def test_without_overlays_the_types_of_the_cloud_are_returned() -> None:
    _, provider = with_overlays()
    assert run(provider.instance_types(POOL)) is STD
    assert provider.set_overlays((DEVICES,), [NodePoolInstanceTypes(POOL, STD)])
    assert provider.set_overlays((), [NodePoolInstanceTypes(POOL, STD)])
    assert run(provider.instance_types(POOL)) is STD


def test_labels_of_overlays_are_not_requested_from_the_cloud_and_the_instance_has_them() -> None:
    """S-251"""
    cloud, provider = with_overlays(DEVICES)
    instance = run(provider.create(claim(labels.CAPACITY_OVERLAY, cpu="1", x_dev="1")))
    assert dict(cloud.asked[0].spec.resources.requests) == {"cpu": "1"}
    assert instance.capacity == {"cpu": 4000, "x/dev": 2000}
    assert instance.allocatable == {"cpu": 4000, "x/dev": 2000}


def test_a_claim_without_overlays_is_passed_on_unchanged() -> None:
    cloud, provider = with_overlays(DEVICES)
    plain = claim(cpu="1")
    run(provider.create(plain))
    assert cloud.asked == [plain]


def test_the_cheapest_type_by_overlays_is_requested_first_and_then_all_types() -> None:
    """SCH-760"""
    only_small = Requirements((requirement(labels.INSTANCE_TYPE, Op.IN, ("small",)),))
    cloud, provider = with_overlays(overlay(price=PriceChange(Decimal(100), Decimal(0)), requirements=only_small))
    run(provider.create(claim(labels.PRICE_OVERLAY, cpu="1")))
    (first,) = cloud.asked
    assert values(first, labels.INSTANCE_TYPE) == ("default",)
    assert values(first, labels.ZONE) == ("z1",)
    cloud.asked.clear()
    cloud.unavailable = frozenset({"default"})
    with pytest.raises(InsufficientCapacity):
        run(provider.create(claim(labels.PRICE_OVERLAY, cpu="1")))
    assert [values(nodeclaim, labels.INSTANCE_TYPE) for nodeclaim in cloud.asked] == [("default",), ()]
