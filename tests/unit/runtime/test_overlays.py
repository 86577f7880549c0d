"""NodeOverlays under a running controller: applied at once, together, and never in part (SCH §26)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from karpenter.api import kinds
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.meta import ObjectMeta
from karpenter.api.node_overlay import NodeOverlay, NodeOverlaySpec, OverlayRequirement
from karpenter.kube.errors import Conflict
from karpenter.model import conditions, labels
from karpenter.model.feature_gate_flags import parse_feature_gates
from karpenter.nodeoverlay.overlaid_provider import OverlaidProvider
from karpenter.providers.contract import InsufficientCapacity, ProviderError
from karpenter.settings import Settings
from support.builders import pod
from support.virtual_cluster import VirtualCluster, in_virtual_time, refusing, until

ON = Settings(feature_gates=parse_feature_gates("NodeOverlay=true"))


def req(key: str, *values: str) -> OverlayRequirement:
    return OverlayRequirement(key=key, operator="In", values=values)


async def overlay(cluster: VirtualCluster, name: str, *requirements: OverlayRequirement, **spec: Any) -> None:
    node_overlay = NodeOverlay(metadata=ObjectMeta(name=name), spec=NodeOverlaySpec(requirements=requirements, **spec))
    await cluster.kube.create(kinds.NODE_OVERLAY, node_overlay)
    await asyncio.sleep(0.5)


async def verdict(cluster: VirtualCluster, name: str, type_: str = "ValidationSucceeded") -> tuple[str, str, str]:
    condition = conditions.find_condition((await cluster.kube.get(kinds.NODE_OVERLAY, name)).status.conditions, type_)
    return ("", "", "") if condition is None else (condition.status, condition.reason, condition.message)


async def begin(cluster: VirtualCluster) -> None:
    await cluster.node_class()
    await cluster.pool()
    await cluster.start(ON)
    await asyncio.sleep(0.5)


async def claims(cluster: VirtualCluster) -> list[NodeClaim]:
    return await cluster.all(kinds.NODE_CLAIM)


async def _has_claims(cluster: VirtualCluster) -> bool:
    return bool(await claims(cluster))


@in_virtual_time
async def test_pods_get_nodes_by_overlay_prices_and_claims_say_so(cluster: VirtualCluster) -> None:
    """S-250, SCH-620, SCH-760. API-167, API-458: the NodeClaim says that a price was overlaid, and no capacity."""
    await begin(cluster)
    await overlay(cluster, "discount", req(labels.INSTANCE_TYPE, "t7"), price="0.0001")
    await cluster.waiting(pod("p", {"cpu": "100m"}))
    await until(lambda: _has_claims(cluster))
    (claim,) = await claims(cluster)
    assert cluster.manager is not None
    assert cluster.manager.provisioner.last_plan.new_claims[0].instance_types[0] == "t7"
    assert claim.metadata.annotations[labels.PRICE_OVERLAY] == "true"
    assert labels.CAPACITY_OVERLAY not in claim.metadata.annotations
    assert (await verdict(cluster, "discount", "Ready"))[0] == "True"


@in_virtual_time
async def test_launches_request_the_type_that_is_cheapest_by_overlays(cluster: VirtualCluster) -> None:
    """SCH-760: the simulated cloud would launch the smallest type."""
    cluster.simulated()
    await begin(cluster)
    await overlay(cluster, "discount", req(labels.INSTANCE_TYPE, "t7"), req(labels.ZONE, "z2"), price_adjustment="-99%")
    await cluster.waiting(pod("p", {"cpu": "100m"}))
    await until(lambda: _are_launched(cluster))
    (claim,) = await claims(cluster)
    actual = claim.metadata.labels
    assert (actual[labels.INSTANCE_TYPE], actual[labels.ZONE]) == ("t7", "z2")
    assert "t0" in next(r.values for r in claim.spec.requirements if r.key == labels.INSTANCE_TYPE)


async def _are_launched(cluster: VirtualCluster) -> bool:
    return bool(await claims(cluster)) and all(claim.status.provider_id for claim in await claims(cluster))


@in_virtual_time
async def test_what_is_cheapest_but_sold_out_is_not_waited_for(cluster: VirtualCluster) -> None:
    await begin(cluster)
    await overlay(cluster, "discount", req(labels.INSTANCE_TYPE, "t7"), price="0")
    cluster.cloud.refuse("create", InsufficientCapacity("sold out"))
    await cluster.waiting(pod("p", {"cpu": "100m"}))
    await until(lambda: _are_launched(cluster))
    asked = [name for call, name in cluster.cloud.calls if call == "create"]
    assert len(asked) == 2
    assert len(set(asked)) == 1


@in_virtual_time
async def test_a_resource_that_overlays_add_is_launched_and_stays_expected_until_the_node_has_it(
    cluster: VirtualCluster,
) -> None:
    """S-251: requests to the cloud leave out resources that it does not know, and no second instance is launched."""
    await begin(cluster)
    await overlay(cluster, "devices", req(labels.INSTANCE_TYPE, "t3"), capacity={"x/dev": "1"})
    await cluster.waiting(pod("p", {"cpu": "100m", "x/dev": "1"}))
    await until(lambda: _has_claims(cluster))
    await asyncio.sleep(60)
    (claim,) = await claims(cluster)
    assert claim.metadata.annotations[labels.CAPACITY_OVERLAY] == "true"
    assert claim.spec.resources.requests["x/dev"] == "1"
    assert claim.status.allocatable["x/dev"] == "1"


@in_virtual_time
async def test_with_the_gate_off_overlays_change_nothing(cluster: VirtualCluster) -> None:
    """SCH-750"""
    await cluster.node_class()
    await cluster.pool()
    await cluster.start()
    await overlay(cluster, "devices", req(labels.INSTANCE_TYPE, "t3"), capacity={"x/dev": "1"})
    await cluster.waiting(pod("p", {"cpu": "100m", "x/dev": "1"}))
    await asyncio.sleep(30)
    assert await claims(cluster) == []
    assert await verdict(cluster, "devices") == ("", "", "")


@in_virtual_time
async def test_a_clash_is_reported_with_both_overlays_and_ends_when_a_weight_changes(cluster: VirtualCluster) -> None:
    """SCH-757, API-162 Beyond. SCH-751, API-165: an edit evaluates all overlays again."""
    await begin(cluster)
    await overlay(cluster, "a", req(labels.INSTANCE_TYPE, "t3"), price="1")
    await overlay(cluster, "b", req(labels.INSTANCE_TYPE, "t3", "t4"), price="2")
    status, reason, message = await verdict(cluster, "a")
    assert (status, reason) == ("False", "Conflict")
    assert message.startswith("conflict with another overlay: b also sets the price of instance type t3 in NodePool np")
    assert (await verdict(cluster, "b"))[0] == "True"
    assert (await verdict(cluster, "a", "Ready"))[0] == "False"
    assert cluster.lines("ignoring nodeoverlay")[0]["NodeOverlay"] == {"name": "a"}
    await cluster.kube.patch(kinds.NODE_OVERLAY, "a", {"spec": {"weight": 7}})
    await asyncio.sleep(0.5)
    assert (await verdict(cluster, "a"))[0] == "True"


@in_virtual_time
async def test_an_invalid_overlay_gets_the_reason_in_its_condition(cluster: VirtualCluster) -> None:
    """API-163"""
    await begin(cluster)
    await overlay(cluster, "o", capacity={"vpc.amazonaws.com/efa": "1"})
    status, reason, message = await verdict(cluster, "o")
    assert (status, reason) == ("False", "RuntimeValidation")
    assert "restricted resource" in message


@in_virtual_time
async def test_nothing_is_launched_before_overlays_were_evaluated(cluster: VirtualCluster) -> None:
    """API-166, API-S113, SCH-752: one pool whose types cannot be had stays out, and is tried again.

    API-S112: the NodePool whose types cannot be had is tried again, the others go on.
    """
    await cluster.node_class()
    await cluster.pool("good")
    await cluster.pool("odd", weight=50)
    plain = cluster.cloud.instance_types
    broken = [True]

    async def types(nodepool: NodePool) -> Any:
        if nodepool.metadata.name == "odd" and broken[0]:
            raise ProviderError("no answer")
        return await plain(nodepool)

    cluster.cloud.instance_types = types
    await cluster.start(ON)
    await asyncio.sleep(1)
    await overlay(cluster, "o", price="0.5")
    await asyncio.sleep(5)
    assert (await verdict(cluster, "o"))[0] == "True"
    await cluster.waiting(pod("p", {"cpu": "100m"}))
    await until(lambda: _has_claims(cluster))
    assert [claim.metadata.labels[labels.NODE_POOL] for claim in await claims(cluster)] == ["good"]
    broken[0] = False
    await asyncio.sleep(61)
    await cluster.waiting(pod("q", {"cpu": "64"}), pod("r", {"cpu": "7"}))
    await until(lambda: _of_pool(cluster, "odd"))


async def _of_pool(cluster: VirtualCluster, name: str) -> bool:
    return name in {claim.metadata.labels[labels.NODE_POOL] for claim in await claims(cluster)}


@in_virtual_time
async def test_a_verdict_that_meets_another_write_is_written_again(cluster: VirtualCluster) -> None:
    await begin(cluster)
    cluster.connection.refuse = refusing(lambda: Conflict("changed"), 1, "patch NodeOverlay/status")
    await overlay(cluster, "o", price="1")
    await asyncio.sleep(2)
    assert (await verdict(cluster, "o"))[0] == "True"


@in_virtual_time
async def test_overlays_at_rest_are_left_alone(cluster: VirtualCluster) -> None:
    """What we write of an overlay is no reason to judge it again."""
    await begin(cluster)
    await overlay(cluster, "o", price="1")
    asked = len(cluster.cloud.calls)
    written = len(cluster.writes("NodeOverlay"))
    assert written == 1
    await asyncio.sleep(3)
    assert len(cluster.writes("NodeOverlay")) == written
    assert len([call for call in cluster.cloud.calls[asked:] if call[0] == "instance_types"]) <= 2


@in_virtual_time
async def test_without_its_overlay_a_type_is_what_it_was(cluster: VirtualCluster) -> None:
    await begin(cluster)
    await overlay(cluster, "devices", capacity={"x/dev": "1"})
    await cluster.kube.delete(kinds.NODE_OVERLAY, "devices")
    await asyncio.sleep(0.5)
    await cluster.waiting(pod("p", {"x/dev": "1"}))
    await asyncio.sleep(20)
    assert await claims(cluster) == []


@pytest.mark.parametrize("gate", [True, False])
@in_virtual_time
async def test_overlays_are_applied_outside_of_what_is_measured_and_only_with_their_gate(
    cluster: VirtualCluster, gate: bool
) -> None:
    """OPS-244: the provider that the process hands in is measured; what it wraps around that are overlays."""
    await cluster.node_class()
    await cluster.pool()
    await cluster.start(Settings(feature_gates=parse_feature_gates(f"NodeOverlay={str(gate).lower()}")))
    assert cluster.manager is not None
    provider = cluster.manager.context.provider
    assert isinstance(provider, OverlaidProvider) is gate
    await asyncio.sleep(1)
    if isinstance(provider, OverlaidProvider):
        pool = await cluster.kube.get(kinds.NODE_POOL, "np")
        assert await provider.types_without_overlays(pool) == await cluster.cloud.instance_types(pool)
