"""A cloud seen through overlays: what pools may use, and what the cloud itself is asked (SCH-760, API-166)."""

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


class Cloud:
    """Sells the first type it is asked for, unless that is sold out."""

    def __init__(self) -> None:
        self.types: tuple[InstanceType, ...] = STD
        self.asked: list[NodeClaim] = []
        self.sold_out: frozenset[str] = frozenset()

    async def instance_types(self, pool: NodePool) -> tuple[InstanceType, ...]:
        return self.types

    async def create(self, claim: NodeClaim) -> Instance:
        self.asked.append(claim)
        named = next((r.values for r in claim.spec.requirements if r.key == labels.INSTANCE_TYPE), ("default",))
        left = [name for name in named if name not in self.sold_out]
        if not left:
            raise InsufficientCapacity("sold out")
        own = {"cpu": 4000}
        return Instance("id", claim.metadata.name, {labels.INSTANCE_TYPE: left[0]}, own, own, NOW)


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def seen(*overlays: ParsedOverlay) -> tuple[Cloud, OverlaidProvider]:
    """A cloud, and how it looks with these overlays in force."""
    cloud = Cloud()
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
    """The values a claim accepts of a label; none where it accepts all."""
    return next((requirement.values for requirement in nodeclaim.spec.requirements if requirement.key == key), ())


DEVICES = overlay(capacity=res.parse_resources({"x/dev": "2"}))


def test_a_pool_that_was_not_judged_has_no_types() -> None:
    """API-166. OPS-229: the error names the NodePool."""
    _, provider = seen()
    other = node_pool("other")
    with pytest.raises(UnevaluatedNodePool, match="other"):
        run(provider.instance_types(other))
    assert run(provider.types_without_overlays(other)) is STD


def test_the_same_types_are_the_same_object_until_something_changes() -> None:
    cloud, provider = seen(DEVICES)
    first = run(provider.instance_types(POOL))
    assert first is not STD
    assert run(provider.instance_types(POOL)) is first
    assert not provider.set_overlays((DEVICES,), [NodePoolInstanceTypes(POOL, STD)])
    assert run(provider.instance_types(POOL)) is first
    cloud.types = STD[:2]
    assert [instance_type.name for instance_type in run(provider.instance_types(POOL))] == ["small", "default"]
    assert all(instance_type.overlay_capacity for instance_type in run(provider.instance_types(POOL)))


def test_without_overlays_the_clouds_own_types_are_seen() -> None:
    _, provider = seen()
    assert run(provider.instance_types(POOL)) is STD
    assert provider.set_overlays((DEVICES,), [NodePoolInstanceTypes(POOL, STD)])
    assert provider.set_overlays((), [NodePoolInstanceTypes(POOL, STD)])
    assert run(provider.instance_types(POOL)) is STD


def test_the_cloud_is_not_asked_for_what_it_does_not_know_and_the_instance_has_it() -> None:
    """S-251"""
    cloud, provider = seen(DEVICES)
    instance = run(provider.create(claim(labels.CAPACITY_OVERLAY, cpu="1", x_dev="1")))
    assert dict(cloud.asked[0].spec.resources.requests) == {"cpu": "1"}
    assert instance.capacity == {"cpu": 4000, "x/dev": 2000}
    assert instance.allocatable == {"cpu": 4000, "x/dev": 2000}


def test_a_claim_no_overlay_touched_passes_as_it_is() -> None:
    cloud, provider = seen(DEVICES)
    plain = claim(cpu="1")
    run(provider.create(plain))
    assert cloud.asked == [plain]


def test_the_cheapest_by_overlays_is_asked_for_first_and_anything_else_next() -> None:
    """SCH-760"""
    only_small = Requirements((requirement(labels.INSTANCE_TYPE, Op.IN, ("small",)),))
    cloud, provider = seen(overlay(price=PriceChange(Decimal(100), Decimal(0)), requirements=only_small))
    run(provider.create(claim(labels.PRICE_OVERLAY, cpu="1")))
    (first,) = cloud.asked
    assert values(first, labels.INSTANCE_TYPE) == ("default",)
    assert values(first, labels.ZONE) == ("z1",)
    cloud.asked.clear()
    cloud.sold_out = frozenset({"default"})
    with pytest.raises(InsufficientCapacity):
        run(provider.create(claim(labels.PRICE_OVERLAY, cpu="1")))
    assert [values(nodeclaim, labels.INSTANCE_TYPE) for nodeclaim in cloud.asked] == [("default",), ()]
