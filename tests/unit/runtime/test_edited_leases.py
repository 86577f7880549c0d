"""Leases that are edited or deleted by hand."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from karpenter.api.control_plane import Lease, LeaseSpec
from karpenter.api.kinds import LEASE
from karpenter.api.meta import ObjectMeta
from karpenter.kube.errors import NotFound
from support.lease_candidates import (
    NAME,
    NAMESPACE,
    Cluster,
    ended,
    in_virtual_time,
    until,
)

# -- what people do to the object -------------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_lease_that_changed_beside_its_record_is_renewed_all_the_same(cluster: Cluster) -> None:
    first = await cluster.leader()
    await cluster.people.patch(LEASE, NAME, {"metadata": {"annotations": {"seen": "yes"}}}, NAMESPACE)
    await asyncio.sleep(30)
    assert first.leads
    assert first.figure("leader_election_slowpath_total") == 1
    assert (await cluster.people.get(LEASE, NAME, NAMESPACE)).metadata.annotations == {"seen": "yes"}


@in_virtual_time
async def test_annotations_do_not_keep_a_dead_leaders_lease_alive(cluster: Cluster) -> None:
    first = await cluster.leader()
    second = cluster.start("b")
    await asyncio.sleep(5)
    await first.crash()

    async def annotate() -> None:
        for number in range(1000):
            await asyncio.sleep(1)
            await cluster.people.patch(LEASE, NAME, {"metadata": {"annotations": {"n": str(number)}}}, NAMESPACE)

    annotating = asyncio.create_task(annotate())
    assert await until(lambda: second.leads) <= 30
    annotating.cancel()


@in_virtual_time
async def test_a_leader_that_finds_another_holder_stops(cluster: Cluster) -> None:
    first = await cluster.leader()
    second = cluster.start("b")
    await asyncio.sleep(10)
    await cluster.edit(holderIdentity="somebody")
    await ended(first)
    assert first.lost == f"lease {NAMESPACE}/{NAME} was taken by somebody"
    assert not first.leads
    assert await until(lambda: second.leads) >= 10


@pytest.mark.parametrize("how", ["cleared", "deleted", "shortened"])
def test_a_record_that_was_spoilt_by_hand_is_written_anew_by_the_leader(how: str) -> None:
    @in_virtual_time
    async def check(cluster: Cluster) -> None:
        first = await cluster.leader()
        second = cluster.start("b")
        await asyncio.sleep(10)
        await spoil(cluster, how)
        await asyncio.sleep(60)
        assert first.leads
        assert second.won_at is None
        spec = await cluster.record()
        assert (spec.holder_identity, spec.lease_duration_seconds, spec.lease_transitions) == ("a", 15, 0)

    check()


@pytest.mark.parametrize("how", ["cleared", "deleted", "shortened", "given to the other"])
def test_a_lease_that_was_edited_while_its_leader_was_disconnected_is_not_trusted(how: str) -> None:
    """The leader still counts on its ten seconds, and cannot know."""

    @in_virtual_time
    async def check(cluster: Cluster) -> None:
        first = await cluster.leader()
        second = cluster.start("b")
        await asyncio.sleep(10)
        first.connection.is_cut = True
        await spoil(cluster, how)
        assert await until(lambda: second.leads) >= 14
        assert not first.leads

    check()


@in_virtual_time
async def test_a_candidate_that_recreates_a_deleted_lease_waits_for_its_possible_last_holder(cluster: Cluster) -> None:
    """It is deleted twice. What was written in between only its writer knows, and that one is cut off."""
    first = await cluster.leader()
    others = cluster.start("b"), cluster.start("c")
    await asyncio.sleep(5)
    await first.crash()
    await cluster.delete()
    writer = await holder(cluster)
    (other,) = [process for process in others if process.name != writer]
    next(process for process in others if process is not other).connection.is_cut = True
    await cluster.delete()
    assert await holder(cluster) == other.name
    assert await until(lambda: other.leads) >= 9.9


async def holder(cluster: Cluster) -> str:
    """Who holds the lease, as soon as there is one."""
    while True:
        with suppress(NotFound):
            return (await cluster.record()).holder_identity
        await asyncio.sleep(0.01)


async def spoil(cluster: Cluster, how: str) -> None:
    match how:
        case "cleared":
            await cluster.edit(holderIdentity="")
        case "shortened":
            # One second and no holder is what a released lease looks like, whoever wrote it.
            await cluster.edit(leaseDurationSeconds=2)
        case "given to the other":
            await cluster.edit(holderIdentity="b")
        case _:
            await cluster.delete()


@pytest.mark.parametrize(
    "spec",
    [
        LeaseSpec(),
        LeaseSpec(holder_identity="", lease_duration_seconds=1, renew_time="2020-01-01T00:00:00.000000Z"),
        None,
    ],
    ids=["empty", "released", "absent"],
)
def test_a_lease_without_a_holder_is_taken_at_once(spec: LeaseSpec | None) -> None:
    @in_virtual_time
    async def check(cluster: Cluster) -> None:
        if spec is not None:
            meta = ObjectMeta(name=NAME, namespace=NAMESPACE)
            await cluster.people.create(LEASE, Lease(metadata=meta, spec=spec))
        first = cluster.start("a")
        assert await until(lambda: first.leads) <= 0.1

    check()


@in_virtual_time
async def test_a_longer_lease_of_another_holder_is_waited_for(cluster: Cluster) -> None:
    meta = ObjectMeta(name=NAME, namespace=NAMESPACE)
    other = LeaseSpec(holder_identity="x", lease_duration_seconds=60, renew_time="2020-01-01T00:00:00.000000Z")
    await cluster.people.create(LEASE, Lease(metadata=meta, spec=other))
    first = cluster.start("a")
    assert await until(lambda: first.leads) >= 60
