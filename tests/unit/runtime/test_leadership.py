"""Leader election on a server that fails, and with Leases edited by hand (OPS-361, OPS-O8)."""

from __future__ import annotations

import asyncio
import io
import random
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta

import msgspec
import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from karpenter.api.control_plane import LeaseSpec
from karpenter.api.kinds import LEASE
from karpenter.kube.errors import Forbidden, NotFound
from karpenter.model.clock import rfc3339_micro
from karpenter.runtime import logging
from karpenter.simulation import LoopClock
from karpenter.simulation.virtual_time import run_virtual
from support.examples import examples
from support.lease_candidates import (
    NAME,
    NAMESPACE,
    START,
    Cluster,
    Process,
    ended,
    in_virtual_time,
    now,
    until,
)
from support.suspended_process import stand_still

# -- the ordinary course --------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_the_first_to_come_leads_and_writes_what_other_tools_read(cluster: Cluster) -> None:
    process = await cluster.leader("host_1")
    assert process.won_at == 0.0
    stamp = "2026-01-01T00:00:00.000000Z"
    first = LeaseSpec(
        holder_identity="host_1",
        lease_duration_seconds=15,
        acquire_time=stamp,
        renew_time=stamp,
        lease_transitions=0,
    )
    assert await cluster.record() == first
    await asyncio.sleep(10.5)
    renewed = await cluster.record()
    assert renewed == msgspec.structs.replace(first, renew_time="2026-01-01T00:00:10.000000Z")


@in_virtual_time
async def test_a_second_candidate_waits_while_the_first_renews(cluster: Cluster) -> None:
    await cluster.leader()
    second = cluster.start("b")
    await asyncio.sleep(3600)
    assert second.won_at is None
    assert (await cluster.record()).lease_transitions == 0


@in_virtual_time
async def test_when_the_leader_crashes_the_next_one_leads_within_the_lease_time(cluster: Cluster) -> None:
    first = await cluster.leader()
    second = cluster.start("b")
    await asyncio.sleep(60)
    await first.crash()
    # It was promised 15 s with its last renewal, which the other one saw within 2.2 s.
    assert 12.0 <= await until(lambda: second.leads) <= 15 + 2.3
    spec = await cluster.record()
    assert (spec.holder_identity, spec.lease_transitions) == ("b", 1)
    assert spec.acquire_time is not None
    assert spec.acquire_time > "2026-01-01T00:01:00"


@in_virtual_time
async def test_an_orderly_end_passes_the_lease_on_at_once(cluster: Cluster) -> None:
    """OPS-O8"""
    first = await cluster.leader()
    second = cluster.start("b")
    await asyncio.sleep(60)
    first.leave.set()
    assert await until(lambda: second.leads) <= 2.3
    assert first.task.done()
    assert first.task.exception() is None
    assert not first.leads
    assert (await cluster.record()).lease_transitions == 1


@in_virtual_time
async def test_a_leader_that_stops_leaves_a_lease_without_a_holder(cluster: Cluster) -> None:
    first = await cluster.leader()
    await asyncio.sleep(5)
    left_at = rfc3339_micro(cluster.clock.now())
    first.leave.set()
    await ended(first)
    assert await cluster.record() == LeaseSpec(
        holder_identity="",
        lease_duration_seconds=1,
        acquire_time=left_at,
        renew_time=left_at,
        lease_transitions=0,
    )


@in_virtual_time
async def test_a_candidate_that_stops_before_it_has_won_leaves_the_lease_alone(cluster: Cluster) -> None:
    await cluster.leader()
    second = cluster.start("b")
    await asyncio.sleep(5)
    before = await cluster.record()
    second.leave.set()
    await ended(second)
    assert second.task.exception() is None
    assert (await cluster.record()).holder_identity == before.holder_identity == "a"


@in_virtual_time
async def test_of_three_one_leads_at_a_time_until_none_is_left(cluster: Cluster) -> None:
    processes = [cluster.start(name) for name in "abc"]
    for transitions in range(3):
        await until(lambda: any(process.leads for process in processes))
        (leader,) = [process for process in processes if process.leads]
        assert (await cluster.record()).lease_transitions == transitions
        await leader.crash()
        processes.remove(leader)


@in_virtual_time
async def test_metrics_show_the_leader(cluster: Cluster) -> None:
    """OPS-494"""
    first = await cluster.leader()
    second = cluster.start("b")
    await asyncio.sleep(5)
    status = "leader_election_master_status"
    assert (first.figure(status), second.figure(status)) == (1, 0)
    assert first.figure("leader_election_slowpath_total") == 0
    first.leave.set()
    await until(lambda: second.leads)
    assert (first.figure(status), second.figure(status)) == (0, 1)


# -- faults ---------------------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_leader_that_is_cut_off_stops_before_the_next_one_leads(cluster: Cluster) -> None:
    first = await cluster.leader()
    second = cluster.start("b")
    await asyncio.sleep(60)
    first.connection.is_cut = True
    assert await ended(first) <= 10.1
    assert not first.leads
    assert first.lost == f"lease {NAMESPACE}/{NAME} was not renewed within 10 s: no route to host"
    assert await until(lambda: second.leads) >= 3.0


@in_virtual_time
async def test_a_renewal_on_a_server_that_hangs_is_retried_in_time(cluster: Cluster) -> None:
    """One attempt must not use up the whole time: a second one may succeed."""
    first = await cluster.leader()
    await asyncio.sleep(1.9)
    first.connection.hangs = True
    await asyncio.sleep(3)
    first.connection.hangs = False
    await asyncio.sleep(60)
    assert first.leads
    assert first.election.fault is None


@in_virtual_time
async def test_a_server_that_hangs_for_good_costs_the_lease(cluster: Cluster) -> None:
    first = await cluster.leader()
    first.connection.hangs = True
    assert await ended(first) <= 10.1
    assert first.lost.endswith(f"no answer about lease {NAMESPACE}/{NAME} within 5 s")


@in_virtual_time
async def test_a_process_that_stood_still_for_longer_than_its_permission_ends(cluster: Cluster) -> None:
    first = await cluster.leader()
    await asyncio.sleep(5)
    before = await cluster.record()
    stand_still(60)
    assert not first.leads
    await ended(first, 1.0)
    assert first.lost.endswith("this process stood still")
    assert await cluster.record() == before


@in_virtual_time
async def test_a_lost_answer_to_taking_the_lease_costs_one_look(cluster: Cluster) -> None:
    first = cluster.start("a")
    first.connection.loses_answers = True
    await asyncio.sleep(1)
    assert (await cluster.record()).holder_identity == "a"
    assert not first.leads
    first.connection.loses_answers = False
    assert await until(lambda: first.leads) <= 2.3
    assert (await cluster.record()).lease_transitions == 0


@in_virtual_time
async def test_lost_answers_to_renewals_are_survived(cluster: Cluster) -> None:
    first = await cluster.leader()
    first.connection.loses_answers = True
    await asyncio.sleep(7)
    first.connection.loses_answers = False
    await asyncio.sleep(30)
    assert first.leads
    assert first.figure("leader_election_slowpath_total") == 3


@in_virtual_time
async def test_the_permission_counts_from_when_it_was_asked_for(cluster: Cluster) -> None:
    """However long the answer took."""
    first = cluster.start("a")
    first.connection.seconds_there = first.connection.seconds_back = 1.2
    await until(lambda: first.leads)
    asked_at = now() - 2.4
    assert first.fence.valid_until == pytest.approx(asked_at + 10.0, abs=0.02)


@in_virtual_time
async def test_a_candidate_without_rights_says_so_and_goes_on_trying(cluster: Cluster) -> None:
    first = cluster.start("a")
    first.connection.refusal = Forbidden("leases are forbidden", status=403)
    await asyncio.sleep(60)
    assert first.election.fault is first.connection.refusal
    first.connection.refusal = None
    assert await until(lambda: first.leads) <= 2.3
    assert first.election.fault is None


@in_virtual_time
async def test_a_lease_that_cannot_be_released_does_not_block_the_stop(cluster: Cluster) -> None:
    first = await cluster.leader()
    second = cluster.start("b")
    await asyncio.sleep(5)
    first.connection.hangs = True
    first.leave.set()
    assert await ended(first) <= 5.1
    assert first.task.exception() is None
    await until(lambda: second.leads)


@pytest.mark.parametrize(
    "skew", [timedelta(minutes=-1), timedelta(minutes=1), timedelta(days=-400), timedelta(days=400)]
)
def test_wrong_clocks_change_nothing(skew: timedelta) -> None:
    """The times in the record are for people."""

    @in_virtual_time
    async def check(cluster: Cluster) -> None:
        first = cluster.start("a", skew)
        await until(lambda: first.leads)
        second = cluster.start("b", -skew)
        await asyncio.sleep(600)
        assert second.won_at is None
        await first.crash()
        assert 12.0 <= await until(lambda: second.leads) <= 15 + 2.3

    check()


# -- what is said ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    logging.configure("info", stream)
    yield stream
    structlog.reset_defaults()


def test_the_log_names_candidates_and_leaders_and_is_silent_while_nothing_changes(log: io.StringIO) -> None:
    @in_virtual_time
    async def check(cluster: Cluster) -> None:
        first = await cluster.leader()
        cluster.start("b")
        await asyncio.sleep(600)
        await first.crash()
        await asyncio.sleep(600)

    check()
    lines = [msgspec.json.decode(line) for line in log.getvalue().splitlines()]
    said = [line["message"] + line.get("identity", "") for line in lines]
    lease = f"{NAMESPACE}/{NAME}"
    assert said == [
        f"attempting to acquire leader lease {lease}...",
        f"successfully acquired lease {lease}",
        f"attempting to acquire leader lease {lease}...",
        "new leader electeda",
        f"successfully acquired lease {lease}",
    ]


# -- any course of events -----------------------------------------------------------------------------------------------------

EVENTS = (
    "cut", "hang", "mute", "slow", "crash", "leave", "restart", "clear", "delete", "shorten", "give", "annotate", "still",
)  # fmt: skip


#: What, to whom, after how long, for how long (both in seconds).
Events = list[tuple[str, int, float, float]]
ANY_COURSE = given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(2, 3),
    events=st.lists(
        st.tuples(st.sampled_from(EVENTS), st.integers(0, 2), st.floats(0.0, 20.0), st.floats(0.1, 25.0)), max_size=14
    ),
)


@settings(max_examples=examples(60), deadline=None)
@ANY_COURSE
def test_whatever_happens_two_never_lead_and_in_the_end_one_does(seed: int, count: int, events: Events) -> None:
    play(seed, count, events)


def play(seed: int, count: int, events: Events) -> None:
    random.seed(seed)

    async def main(clock: LoopClock) -> None:
        cluster = Cluster(clock)
        rng = random.Random(seed)
        for number in range(count):
            cluster.start(f"p{number}", timedelta(seconds=rng.uniform(-1e6, 1e6)))
        await asyncio.sleep(5)
        for what, whom, after, lasting in events:
            await asyncio.sleep(after)
            await happen(cluster, what, cluster.processes[whom % len(cluster.processes)], lasting)
        for process in cluster.processes:
            mend(process)
        await asyncio.sleep(30)
        if not any(not process.task.done() for process in cluster.processes):
            cluster.start("last")
        await until(lambda: any(process.leads for process in cluster.processes), 60)
        assert cluster.permits.overlaps == []
        assert cluster.permits.given > 0

    run_virtual(main, START)


def mend(process: Process) -> None:
    line = process.connection
    line.is_cut = line.hangs = line.loses_answers = False
    line.seconds_there = line.seconds_back = 0.0


async def happen(cluster: Cluster, what: str, whom: Process, lasting: float) -> None:
    loop = asyncio.get_running_loop()
    match what:
        case "cut" | "hang" | "mute" | "slow":
            line = whom.connection
            line.is_cut, line.hangs, line.loses_answers = what == "cut", what == "hang", what == "mute"
            if what == "slow":
                line.seconds_there, line.seconds_back = lasting / 3, lasting / 5
            loop.call_later(lasting, mend, whom)
        case "crash":
            await whom.crash()
        case "leave":
            whom.leave.set()
        case "restart":
            await whom.crash()
            # A new process that never saw the lease is the one that cannot know it was deleted; see the module's head.
            with suppress(NotFound):
                await cluster.record()
                cluster.start(f"p{len(cluster.processes)}")
                await asyncio.sleep(0.1)
        case "still":
            stand_still(lasting)
        case _:
            with suppress(NotFound):
                await by_hand(cluster, what, whom)


async def by_hand(cluster: Cluster, what: str, whom: Process) -> None:
    match what:
        case "clear":
            await cluster.edit(holderIdentity="")
        case "delete":
            await cluster.delete()
        case "shorten":
            # One second and no holder is what a released lease looks like, whoever wrote it.
            await cluster.edit(leaseDurationSeconds=2)
        case "give":
            await cluster.edit(holderIdentity=whom.name)
        case "annotate":
            await cluster.people.patch(LEASE, NAME, {"metadata": {"annotations": {"x": str(now())}}}, NAMESPACE)
