"""The election: who leads when, on a server that fails, with people who edit the Lease by hand (OPS-361, OPS-O8)."""

from __future__ import annotations

import asyncio
import io
import random
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import msgspec
import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from karpenter.api.control_plane import Lease, LeaseSpec
from karpenter.api.kinds import LEASE, Kind
from karpenter.api.meta import ObjectMeta, Wire
from karpenter.kube.errors import Forbidden, KubeError, NotFound, ServerUnavailable
from karpenter.kube.protocol import JsonObject
from karpenter.kube.write_fence import Fence
from karpenter.metrics import Metrics
from karpenter.model.clock import rfc3339_micro
from karpenter.runtime import logging
from karpenter.runtime.leader_election import ElectionCandidate, LeaderElection, LeadershipLost
from karpenter.simulation import LoopClock
from karpenter.simulation.apiserver import MemoryKube, MemoryServer
from karpenter.simulation.virtual_time import run_virtual
from support.examples import examples
from support.pausing import stand_still

START = datetime(2026, 1, 1, tzinfo=UTC)
NAMESPACE, NAME = "kube-system", "karpenter-leader-election"
T = TypeVar("T", bound=Wire)


class Line(MemoryKube):
    """A process's connection, which can be cut in several ways."""

    def __init__(self, server: MemoryServer) -> None:
        super().__init__(server)
        #: Nothing gets through, and that is noticed at once.
        self.is_cut = False
        #: Nothing gets through, and nobody says so.
        self.hangs = False
        #: What is asked for is done, but the answer never comes.
        self.loses_answers = False
        self.refusal: KubeError | None = None
        self.seconds_there = self.seconds_back = 0.0

    async def get(self, kind: Kind[T], name: str, namespace: str = "") -> T:
        return await self._carry(lambda: MemoryKube.get(self, kind, name, namespace))

    async def create(self, kind: Kind[T], obj: T) -> T:
        return await self._carry(lambda: MemoryKube.create(self, kind, obj))

    async def patch(self, kind: Kind[T], name: str, patch: JsonObject, namespace: str = "", **more: Any) -> T:
        return await self._carry(lambda: MemoryKube.patch(self, kind, name, patch, namespace, **more))

    async def _carry(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        await self._travel(self.seconds_there)
        answer = await call()
        if self.loses_answers:
            raise ServerUnavailable("the connection broke")
        await self._travel(self.seconds_back)
        return answer

    async def _travel(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if self.hangs:
            await asyncio.Event().wait()
        if self.is_cut:
            raise ServerUnavailable("no route to host")
        if self.refusal is not None:
            raise self.refusal


class Skewed:
    """A clock that is wrong."""

    def __init__(self, clock: LoopClock, by: timedelta) -> None:
        self._clock = clock
        self._by = by

    def now(self) -> datetime:
        return self._clock.now() + self._by


class Permits:
    """Every permission that was ever given, and whether two overlapped."""

    def __init__(self) -> None:
        self.fences: list[Fence] = []
        self.overlaps: list[str] = []
        self.given = 0

    def fence(self, owner: str) -> Fence:
        permits = self

        class Watched(Fence):
            def extend_until(self, moment: float) -> None:
                now = asyncio.get_running_loop().time()
                if moment > now:
                    permits.given += 1
                    others = [fence for fence in permits.fences if fence is not self and fence.valid_until > now]
                    if others:
                        permits.overlaps.append(f"{owner} at {now}")
                super().extend_until(moment)

        made = Watched()
        self.fences.append(made)
        return made


class Process:
    """One candidate."""

    def __init__(self, cluster: Cluster, name: str, skew: timedelta) -> None:
        self.name = name
        self.line = Line(cluster.server)
        self.fence = cluster.permits.fence(name)
        self.metrics = Metrics()
        self.leave = asyncio.Event()
        self.won_at: float | None = None
        candidate = ElectionCandidate(NAMESPACE, NAME, name)
        self.election = LeaderElection(self.line, candidate, self.fence, Skewed(cluster.clock, skew), self.metrics)
        self.task = asyncio.create_task(self.election.run(self._won, self.leave))
        self.task.add_done_callback(lambda task: task.cancelled() or task.exception())

    def _won(self) -> None:
        self.won_at = asyncio.get_running_loop().time()

    @property
    def leads(self) -> bool:
        return self.fence.is_open

    @property
    def lost(self) -> str:
        """Why it ended."""
        error = self.task.exception()
        assert isinstance(error, LeadershipLost)
        return str(error)

    def figure(self, series: str) -> float | None:
        return self.metrics.registry.get_sample_value(series, {"name": NAME})

    async def crash(self) -> None:
        """It ends without a word, and so does its permission: nothing is written by what does not run."""
        self.task.cancel()
        with suppress(asyncio.CancelledError, LeadershipLost):
            await self.task
        self.fence.extend_until(float("-inf"))


class Cluster:
    def __init__(self, clock: LoopClock) -> None:
        self.clock = clock
        self.server = MemoryServer(clock)
        self.people = MemoryKube(self.server)
        self.permits = Permits()
        self.processes: list[Process] = []

    def start(self, name: str, skew: timedelta = timedelta(0)) -> Process:
        process = Process(self, name, skew)
        self.processes.append(process)
        return process

    async def leader(self, name: str = "a") -> Process:
        process = self.start(name)
        await until(lambda: process.leads)
        return process

    async def record(self) -> LeaseSpec:
        return (await self.people.get(LEASE, NAME, NAMESPACE)).spec

    async def edit(self, **spec: Any) -> None:
        await self.people.patch(LEASE, NAME, {"spec": spec}, NAMESPACE)

    async def delete(self) -> None:
        await self.people.delete(LEASE, NAME, NAMESPACE)


def story(test: Callable[[Cluster], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a test in virtual time; in none of them may two processes lead at once."""

    def in_virtual_time() -> None:
        async def main(clock: LoopClock) -> None:
            cluster = Cluster(clock)
            await test(cluster)
            assert cluster.permits.overlaps == []

        run_virtual(main, START)

    in_virtual_time.__name__ = test.__name__
    in_virtual_time.__doc__ = test.__doc__
    return in_virtual_time


def now() -> float:
    return asyncio.get_running_loop().time()


async def until(condition: Callable[[], bool], seconds: float = 120.0) -> float:
    """Wait for a condition, to a hundredth of a second; how long it took."""
    began = now()
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)
    return now() - began


async def ended(process: Process, seconds: float = 120.0) -> float:
    return await until(process.task.done, seconds)


# -- the ordinary course --------------------------------------------------------------------------------------------------


@story
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


@story
async def test_a_second_one_waits_while_the_first_renews(cluster: Cluster) -> None:
    await cluster.leader()
    second = cluster.start("b")
    await asyncio.sleep(3600)
    assert second.won_at is None
    assert (await cluster.record()).lease_transitions == 0


@story
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


@story
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


@story
async def test_what_a_leader_leaves_behind_is_a_lease_nobody_holds(cluster: Cluster) -> None:
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


@story
async def test_one_who_leaves_before_it_has_won_takes_nothing_away(cluster: Cluster) -> None:
    await cluster.leader()
    second = cluster.start("b")
    await asyncio.sleep(5)
    before = await cluster.record()
    second.leave.set()
    await ended(second)
    assert second.task.exception() is None
    assert (await cluster.record()).holder_identity == before.holder_identity == "a"


@story
async def test_of_three_one_leads_at_a_time_until_none_is_left(cluster: Cluster) -> None:
    processes = [cluster.start(name) for name in "abc"]
    for transitions in range(3):
        await until(lambda: any(process.leads for process in processes))
        (leader,) = [process for process in processes if process.leads]
        assert (await cluster.record()).lease_transitions == transitions
        await leader.crash()
        processes.remove(leader)


@story
async def test_the_figures_say_who_leads(cluster: Cluster) -> None:
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


@story
async def test_a_leader_that_is_cut_off_stops_before_the_next_one_leads(cluster: Cluster) -> None:
    first = await cluster.leader()
    second = cluster.start("b")
    await asyncio.sleep(60)
    first.line.is_cut = True
    assert await ended(first) <= 10.1
    assert not first.leads
    assert first.lost == f"lease {NAMESPACE}/{NAME} was not renewed within 10 s: no route to host"
    assert await until(lambda: second.leads) >= 3.0


@story
async def test_a_server_that_hangs_is_asked_again_in_time(cluster: Cluster) -> None:
    """One attempt must not use up the whole time: a second one may succeed."""
    first = await cluster.leader()
    await asyncio.sleep(1.9)
    first.line.hangs = True
    await asyncio.sleep(3)
    first.line.hangs = False
    await asyncio.sleep(60)
    assert first.leads
    assert first.election.fault is None


@story
async def test_a_server_that_hangs_for_good_costs_the_lease(cluster: Cluster) -> None:
    first = await cluster.leader()
    first.line.hangs = True
    assert await ended(first) <= 10.1
    assert first.lost.endswith(f"no answer about lease {NAMESPACE}/{NAME} within 5 s")


@story
async def test_a_process_that_stood_still_for_longer_than_its_permission_ends(cluster: Cluster) -> None:
    first = await cluster.leader()
    await asyncio.sleep(5)
    before = await cluster.record()
    stand_still(60)
    assert not first.leads
    await ended(first, 1.0)
    assert first.lost.endswith("this process stood still")
    assert await cluster.record() == before


@story
async def test_a_lost_answer_to_taking_the_lease_costs_one_look(cluster: Cluster) -> None:
    first = cluster.start("a")
    first.line.loses_answers = True
    await asyncio.sleep(1)
    assert (await cluster.record()).holder_identity == "a"
    assert not first.leads
    first.line.loses_answers = False
    assert await until(lambda: first.leads) <= 2.3
    assert (await cluster.record()).lease_transitions == 0


@story
async def test_lost_answers_to_renewals_are_survived(cluster: Cluster) -> None:
    first = await cluster.leader()
    first.line.loses_answers = True
    await asyncio.sleep(7)
    first.line.loses_answers = False
    await asyncio.sleep(30)
    assert first.leads
    assert first.figure("leader_election_slowpath_total") == 3


@story
async def test_the_permission_counts_from_when_it_was_asked_for(cluster: Cluster) -> None:
    """However long the answer took."""
    first = cluster.start("a")
    first.line.seconds_there = first.line.seconds_back = 1.2
    await until(lambda: first.leads)
    asked_at = now() - 2.4
    assert first.fence.valid_until == pytest.approx(asked_at + 10.0, abs=0.02)


@story
async def test_a_candidate_without_rights_says_so_and_goes_on_trying(cluster: Cluster) -> None:
    first = cluster.start("a")
    first.line.refusal = Forbidden("leases are forbidden", status=403)
    await asyncio.sleep(60)
    assert first.election.fault is first.line.refusal
    first.line.refusal = None
    assert await until(lambda: first.leads) <= 2.3
    assert first.election.fault is None


@story
async def test_a_lease_that_cannot_be_given_back_keeps_nobody(cluster: Cluster) -> None:
    first = await cluster.leader()
    second = cluster.start("b")
    await asyncio.sleep(5)
    first.line.hangs = True
    first.leave.set()
    assert await ended(first) <= 5.1
    assert first.task.exception() is None
    await until(lambda: second.leads)


@pytest.mark.parametrize(
    "skew", [timedelta(minutes=-1), timedelta(minutes=1), timedelta(days=-400), timedelta(days=400)]
)
def test_wrong_clocks_change_nothing(skew: timedelta) -> None:
    """The times in the record are for people."""

    @story
    async def check(cluster: Cluster) -> None:
        first = cluster.start("a", skew)
        await until(lambda: first.leads)
        second = cluster.start("b", -skew)
        await asyncio.sleep(600)
        assert second.won_at is None
        await first.crash()
        assert 12.0 <= await until(lambda: second.leads) <= 15 + 2.3

    check()


# -- what people do to the object -------------------------------------------------------------------------------------------


@story
async def test_a_lease_that_changed_beside_its_record_is_renewed_all_the_same(cluster: Cluster) -> None:
    first = await cluster.leader()
    await cluster.people.patch(LEASE, NAME, {"metadata": {"annotations": {"seen": "yes"}}}, NAMESPACE)
    await asyncio.sleep(30)
    assert first.leads
    assert first.figure("leader_election_slowpath_total") == 1
    assert (await cluster.people.get(LEASE, NAME, NAMESPACE)).metadata.annotations == {"seen": "yes"}


@story
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


@story
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
    @story
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
def test_a_record_that_was_spoilt_while_its_leader_was_cut_off_is_not_believed(how: str) -> None:
    """The leader still counts on its ten seconds, and cannot know."""

    @story
    async def check(cluster: Cluster) -> None:
        first = await cluster.leader()
        second = cluster.start("b")
        await asyncio.sleep(10)
        first.line.is_cut = True
        await spoil(cluster, how)
        assert await until(lambda: second.leads) >= 14
        assert not first.leads

    check()


@story
async def test_who_writes_a_deleted_lease_again_waits_for_whoever_may_have_held_it_last(cluster: Cluster) -> None:
    """It is deleted twice. What was written in between only its writer knows, and that one is cut off."""
    first = await cluster.leader()
    others = cluster.start("b"), cluster.start("c")
    await asyncio.sleep(5)
    await first.crash()
    await cluster.delete()
    writer = await holder(cluster)
    (other,) = [process for process in others if process.name != writer]
    next(process for process in others if process is not other).line.is_cut = True
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
            # One second and no holder would be a release in due form, whoever wrote it.
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
def test_a_lease_nobody_holds_is_taken_at_once(spec: LeaseSpec | None) -> None:
    @story
    async def check(cluster: Cluster) -> None:
        if spec is not None:
            meta = ObjectMeta(name=NAME, namespace=NAMESPACE)
            await cluster.people.create(LEASE, Lease(metadata=meta, spec=spec))
        first = cluster.start("a")
        assert await until(lambda: first.leads) <= 0.1

    check()


@story
async def test_a_longer_lease_of_somebody_else_is_waited_for(cluster: Cluster) -> None:
    meta = ObjectMeta(name=NAME, namespace=NAMESPACE)
    other = LeaseSpec(holder_identity="x", lease_duration_seconds=60, renew_time="2020-01-01T00:00:00.000000Z")
    await cluster.people.create(LEASE, Lease(metadata=meta, spec=other))
    first = cluster.start("a")
    assert await until(lambda: first.leads) >= 60


# -- what is said ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    logging.configure("info", stream)
    yield stream
    structlog.reset_defaults()


def test_the_log_tells_who_stands_who_leads_and_nothing_while_nothing_changes(log: io.StringIO) -> None:
    @story
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
Happenings = list[tuple[str, int, float, float]]
ANY_COURSE = given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(2, 3),
    events=st.lists(
        st.tuples(st.sampled_from(EVENTS), st.integers(0, 2), st.floats(0.0, 20.0), st.floats(0.1, 25.0)), max_size=14
    ),
)


@settings(max_examples=examples(60), deadline=None)
@ANY_COURSE
def test_whatever_happens_two_never_lead_and_in_the_end_one_does(seed: int, count: int, events: Happenings) -> None:
    play(seed, count, events)


def play(seed: int, count: int, events: Happenings) -> None:
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
    line = process.line
    line.is_cut = line.hangs = line.loses_answers = False
    line.seconds_there = line.seconds_back = 0.0


async def happen(cluster: Cluster, what: str, whom: Process, lasting: float) -> None:
    loop = asyncio.get_running_loop()
    match what:
        case "cut" | "hang" | "mute" | "slow":
            line = whom.line
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
            # One second and no holder would be a release in due form, whoever wrote it.
            await cluster.edit(leaseDurationSeconds=2)
        case "give":
            await cluster.edit(holderIdentity=whom.name)
        case "annotate":
            await cluster.people.patch(LEASE, NAME, {"metadata": {"annotations": {"x": str(now())}}}, NAMESPACE)
