"""Gangs under a running controller: launched together, removed together, retried after a pause."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from karpenter.api import kinds
from karpenter.api.karpenter import Disruption, NodeClaim, NodePool
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.metrics.exposition import render_sync
from karpenter.model import labels
from karpenter.model.feature_gate_flags import parse_feature_gates
from karpenter.providers.contract import Instance, InsufficientCapacity
from karpenter.settings import Settings
from support.builders import pod, pods
from support.consolidation_cases import OPEN
from support.gang_builders import gang_pods, pod_group
from support.metrics_scrape import Scrape
from support.provisioning_cases import claims, start_with_pool
from support.topology_builders import affinity_term, pod_anti_affinity_to
from support.virtual_cluster import VirtualCluster, in_virtual_time

LARGE = {"cpu": "3"}
GANGS = Settings(feature_gates=parse_feature_gates("GangScheduling=true"))


def gangs_shown(cluster: VirtualCluster) -> tuple[float, float]:
    """How many gangs the metrics show as complete and as incomplete."""
    assert cluster.manager is not None
    scrape = Scrape(render_sync(cluster.manager.metrics.registry))
    complete, incomplete = (
        scrape.value("karpenter_scheduler_gangs_count", outcome=outcome) for outcome in ("complete", "incomplete")
    )
    return complete, incomplete


@in_virtual_time
async def test_nothing_is_launched_before_the_last_pod_of_a_gang_exists(cluster: VirtualCluster) -> None:
    await start_with_pool(cluster, GANGS)
    await cluster.kube.create(kinds.POD_GROUP, pod_group("train", 3))
    first, second, third = gang_pods("train", 3, LARGE)
    await cluster.waiting(first, second)
    await asyncio.sleep(30)
    assert await claims(cluster) == []
    events = await cluster.events("FailedScheduling")
    assert "PodGroup default/train waits for pods: 2 of at least 3 exist" in events[0].message
    assert gangs_shown(cluster) == (0, 1)
    await cluster.waiting(third)
    await asyncio.sleep(30)
    launched = await claims(cluster)
    assert launched
    assert {claim.metadata.annotations[labels.GANG] for claim in launched} == {"PodGroup default/train"}
    assert gangs_shown(cluster) == (1, 0)
    for member in (first, second, third):
        await cluster.gone(member.metadata.name)
    await asyncio.sleep(15)
    assert gangs_shown(cluster) == (0, 0)


@in_virtual_time
async def test_pods_are_planned_one_by_one_without_the_gate_and_kinds_that_are_missing_stop_nothing(
    cluster: VirtualCluster,
) -> None:
    await start_with_pool(cluster)
    await cluster.waiting(*gang_pods("train", 2, LARGE))
    await asyncio.sleep(30)
    assert len(await claims(cluster)) > 0


@in_virtual_time
async def test_nodes_of_a_gang_that_cannot_start_are_removed_and_it_is_retried_after_a_pause(
    cluster: VirtualCluster,
) -> None:
    await start_with_pool(cluster, GANGS)
    await cluster.kube.create(kinds.POD_GROUP, pod_group("train", 3))
    members = gang_pods("train", 3, LARGE)
    await cluster.waiting(*members)
    await asyncio.sleep(20)
    launched = {claim.metadata.name for claim in await claims(cluster)}
    assert launched
    await cluster.gone(members[2].metadata.name)
    await asyncio.sleep(40)
    assert {claim.metadata.name for claim in await claims(cluster)} == launched
    await asyncio.sleep(60)
    assert [claim for claim in await claims(cluster) if claim.metadata.deletion_timestamp is None] == []
    assert {event.involved_object.name for event in await cluster.events("GangIncomplete")} == launched
    await cluster.waiting(pod("train-new", LARGE, scheduling_group=members[2].spec.scheduling_group))
    await asyncio.sleep(60)
    assert [claim for claim in await claims(cluster) if claim.metadata.deletion_timestamp is None]


async def standing(cluster: VirtualCluster) -> list[NodeClaim]:
    return [claim for claim in await claims(cluster) if claim.metadata.deletion_timestamp is None]


def sell_at_most(
    cluster: VirtualCluster, count: int, on_refusal: Callable[[], None] = lambda: None, refusal_seconds: float = 0
) -> None:
    """The cloud has so many instances; later launches fail by insufficient capacity, after a while."""
    launch, served = cluster.cloud.create, set[str]()

    async def create(claim: NodeClaim) -> Instance:
        if claim.metadata.name not in served and len(served) == count:
            on_refusal()
            await asyncio.sleep(refusal_seconds)
            raise InsufficientCapacity("all gone")
        served.add(claim.metadata.name)
        return await launch(claim)

    cluster.cloud.create = create


@in_virtual_time
async def test_nothing_half_launched_stays_when_capacity_runs_out_for_one_member(cluster: VirtualCluster) -> None:
    await start_with_pool(cluster, GANGS)

    async def sold_out(_pool: NodePool) -> tuple[InstanceType, ...]:
        return ()

    sell_at_most(cluster, 3, lambda: setattr(cluster.cloud, "instance_types", sold_out))
    await cluster.kube.create(kinds.POD_GROUP, pod_group("train", 4))
    await cluster.waiting(*gang_pods("train", 4, {"cpu": "7"}))
    await asyncio.sleep(20)
    assert len(await standing(cluster)) == len(cluster.cloud.launched) == 3, "the gang may still be completed"
    await asyncio.sleep(70)
    assert await standing(cluster) == []


@in_virtual_time
async def test_a_gang_of_which_one_node_fails_again_and_again_gives_the_others_back_and_pauses(
    cluster: VirtualCluster,
) -> None:
    await start_with_pool(cluster, GANGS)
    sell_at_most(cluster, 1, refusal_seconds=20)
    await cluster.kube.create(kinds.POD_GROUP, pod_group("train", 2))
    await cluster.waiting(*gang_pods("train", 2, {"cpu": "7"}))
    await asyncio.sleep(3)
    (launched,) = [claim for claim in await standing(cluster) if claim.status.provider_id]
    await cluster.join(launched.metadata.name, amounts={"cpu": "8"})
    await asyncio.sleep(18 * 60)
    assert await cluster.events("GangIncomplete") == []
    await asyncio.sleep(3 * 60)
    given_back = {event.involved_object.name for event in await cluster.events("GangIncomplete")}
    assert launched.metadata.name in given_back
    assert launched.metadata.uid not in {claim.metadata.uid for claim in await standing(cluster)}


@in_virtual_time
async def test_two_gangs_that_fit_one_after_the_other_do_not_starve_each_other(cluster: VirtualCluster) -> None:
    """A limit holds one of them. The first runs while the other waits, which starts when the first has gone."""
    cluster.simulated()
    cluster.scheduled()
    await cluster.node_class()
    await cluster.pool(limits={"cpu": "24"})
    await cluster.start(GANGS)
    members = {}
    for name in ("first", "second"):
        await cluster.kube.create(kinds.POD_GROUP, pod_group(name, 3))
        members[name] = gang_pods(name, 3, {"cpu": "6"})
        await cluster.waiting(*members[name])
    await asyncio.sleep(240)
    assert await placed_of(cluster) == {"first": 3}
    for member in members["first"]:
        await cluster.gone(member.metadata.name)
    await asyncio.sleep(600)
    assert await placed_of(cluster) == {"second": 3}


async def placed_of(cluster: VirtualCluster) -> dict[str, int]:
    """How many pods of each gang have a node."""
    bound = [pod for pod in await cluster.all(kinds.POD) if pod.spec.node_name]
    return dict(Counter(pod.metadata.name.rpartition("-")[0] for pod in bound))


@in_virtual_time
async def test_consolidation_leaves_nodes_of_a_running_gang_alone_that_it_cannot_do_without(
    cluster: VirtualCluster,
) -> None:
    """Smaller nodes would do once the fillers have gone, and do where pods are no gang."""
    assert await moved_after_fillers_went(cluster, GANGS) == 0
    blocked = [event.message for event in await cluster.events("Unconsolidatable")]
    assert any("PodGroup default/train runs on this node and others" in text for text in blocked)


@in_virtual_time
async def test_consolidation_moves_pods_of_no_gang(cluster: VirtualCluster) -> None:
    assert await moved_after_fillers_went(cluster, Settings()) > 0


async def moved_after_fillers_went(cluster: VirtualCluster, settings: Settings) -> int:
    """How many nodes of two pods apart were replaced by smaller ones after others on them had ended."""
    cluster.simulated()
    cluster.scheduled()
    await cluster.node_class()
    policy = Disruption(consolidate_after="10s", consolidation_policy="WhenEmptyOrUnderutilized", budgets=OPEN)
    await cluster.pool(disruption=policy)
    await cluster.start(settings)
    await cluster.kube.create(kinds.POD_GROUP, pod_group("train", 2))
    members = gang_pods(
        "train",
        2,
        {"cpu": "2"},
        meta={"labels": {"app": "train"}},
        affinity=pod_anti_affinity_to(affinity_term("train")),
    )
    fillers = pods(
        2,
        {"cpu": "4"},
        prefix="filler",
        meta={"labels": {"app": "filler"}},
        affinity=pod_anti_affinity_to(affinity_term("filler")),
    )
    await cluster.waiting(*members, *fillers)
    await asyncio.sleep(240)
    assert await placed_of(cluster) == {"train": 2, "filler": 2}
    before = {claim.metadata.uid for claim in await standing(cluster)}
    for filler in fillers:
        await cluster.gone(filler.metadata.name)
    await asyncio.sleep(1800)
    after = {claim.metadata.uid for claim in await standing(cluster)}
    return len(before - after)
