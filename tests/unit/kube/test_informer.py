"""The contract of an informer, against a scripted reader and in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpenter.api.core import Pod
from karpenter.api.kinds import POD, Kind
from karpenter.kube import errors
from karpenter.kube.informer import Informer, WatchScope
from karpenter.kube.protocol import Listing, WatchEvent, WatchEventType
from support.followed_informers import (
    ADDED,
    DELETED,
    MODIFIED,
    ScriptedReader,
    bookmark,
    cancelled_after,
    event,
    in_virtual_time,
    listing,
    pod,
    ran,
    watched,
)


@dataclass
class PagedReader(ScriptedReader):
    """Gives lists in pages of one pod, whose last is an error where ``expiring`` says so."""

    expiring: list[bool] = field(default_factory=list)

    async def pages(
        self, kind: Kind[Pod], namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> AsyncIterator[Listing[Pod]]:
        self._note("pages")
        expires = bool(self.expiring) and self.expiring.pop(0)
        answer = self.lists.pop(0)
        if isinstance(answer, errors.KubeError):
            raise answer
        yield Listing((), answer.resource_version, answer.undecodable)
        for listed_pod in answer.items:
            yield Listing((listed_pod,), answer.resource_version)
            await asyncio.sleep(1)
        if expires:
            raise errors.Gone("the pages are too old")


def test_the_first_list_is_delivered_as_additions() -> None:
    a, b = pod("a"), pod("b")
    seen = watched([listing(a, b)])
    assert seen.delivered == [(None, a), (None, b)]
    assert seen.names == ["a", "b"]
    assert seen.informer.synced
    assert seen.reader.asked == ["list", "watch 10"]


def test_it_is_not_synced_before_the_first_list_is_in() -> None:
    seen = watched([errors.ServerUnavailable("away")] * 100, seconds=60)
    assert not seen.informer.synced
    assert isinstance(seen.informer.fault, errors.ServerUnavailable)


def test_waiting_for_sync_ends_once_the_handlers_know_the_list() -> None:
    reader = ScriptedReader([listing(pod("a"))])
    pods: list[Pod | None] = []

    async def main(_: object) -> Informer[Pod]:
        informer = Informer(reader, POD)
        informer.subscribe(lambda old, new: pods.append(new))
        running = asyncio.create_task(informer.run())
        await informer.wait_synced()
        assert len(pods) == 1
        running.cancel()
        return informer

    in_virtual_time(main)


def test_changes_are_delivered_with_the_previous_object() -> None:
    old, new, fresh = pod("a", "1"), pod("a", "11"), pod("b", "12")
    seen = watched([listing(old)], [event(MODIFIED, new), event(ADDED, fresh), event(DELETED, pod("a", "13"))])
    assert seen.delivered == [(None, old), (old, new), (None, fresh), (new, None)]
    assert seen.names == ["b"]


def test_a_known_version_is_not_delivered_again() -> None:
    seen = watched([listing(pod("a", "5"))], [event(ADDED, pod("a", "5")), event(MODIFIED, pod("a", "5"))])
    assert len(seen.delivered) == 1


def test_the_deletion_of_an_unknown_object_is_nothing() -> None:
    seen = watched([listing()], [event(DELETED, pod("a", "11"))])
    assert seen.delivered == []


def test_a_stream_that_ends_is_continued_from_the_last_version() -> None:
    seen = watched([listing()], [event(ADDED, pod("a", "11"))], [bookmark("20")], [event(ADDED, pod("b", "21"))])
    assert seen.reader.asked == ["list", "watch 10", "watch 11", "watch 20", "watch 21"]
    assert seen.names == ["a", "b"]


def test_a_stream_that_breaks_is_continued_from_the_last_version() -> None:
    seen = watched([listing()], [event(ADDED, pod("a", "11")), errors.ServerUnavailable("stalled")], [bookmark("12")])
    assert seen.reader.asked == ["list", "watch 10", "watch 11", "watch 12"]
    assert len(seen.delivered) == 1


def test_a_fault_is_shown_until_the_next_event() -> None:
    away = [errors.ServerUnavailable("away")]
    broken = watched([listing()], *[away] * 200)
    assert isinstance(broken.informer.fault, errors.ServerUnavailable)
    mended = watched([listing()], [errors.ServerUnavailable("away")], [bookmark("11")])
    assert mended.informer.fault is None


def test_a_stream_that_opens_ends_a_fault_before_its_first_event() -> None:
    seen = watched([listing()], [errors.ServerUnavailable("away")], [300.0], seconds=2)
    assert seen.informer.fault is None


def test_pauses_grow_while_streams_open_and_break() -> None:
    opened_and_lost = [0.0, errors.ServerUnavailable("away")]
    seen = watched([listing()], *[opened_and_lost] * 4)
    gaps = [after - before for before, after in zip(seen.reader.times[1:], seen.reader.times[2:], strict=False)]
    assert gaps == [1, 2, 4, 8]


def test_a_quiet_stream_that_lasted_and_broke_is_opened_again_after_a_second() -> None:
    away = [errors.ServerUnavailable("away")]
    seen = watched([listing()], away, away, away, [100.0, errors.ServerUnavailable("away")])
    gaps = [after - before for before, after in zip(seen.reader.times[1:], seen.reader.times[2:], strict=False)]
    assert gaps == [1, 2, 4, 101]


def test_a_healthy_stream_is_followed_by_the_next_without_a_pause() -> None:
    seen = watched([listing()], [300.0], [300.0])
    assert seen.reader.times == [0, 0, 300, 600]


def test_a_stream_that_the_server_ends_after_events_is_followed_by_the_next_without_a_pause() -> None:
    """A server does so when a client reads a burst of changes slowly, and the burst goes on meanwhile."""
    seen = watched([listing()], *[[bookmark(str(version))] for version in range(11, 15)])
    assert seen.reader.times[:6] == [0] * 6


def test_a_server_that_ends_each_stream_after_its_first_event_is_given_a_pause_now_and_then() -> None:
    seen = watched([listing()], *[[bookmark(str(version))] for version in range(11, 71)])
    streams = seen.reader.times[1:]
    assert [sum(second <= time < second + 1 for time in streams) for second in range(5)] == [11] * 5


def test_a_stream_that_ends_without_events_is_followed_after_a_pause() -> None:
    seen = watched([listing()], [], [], [])
    gaps = [after - before for before, after in zip(seen.reader.times[1:], seen.reader.times[2:], strict=False)]
    assert gaps[:3] == [1, 2, 4]


def test_a_version_too_old_lists_again_and_delivers_only_the_differences() -> None:
    same, changed, lost = pod("same", "1"), pod("changed", "2"), pod("lost", "3")
    after, fresh = pod("changed", "22"), pod("fresh", "23")
    seen = watched([listing(same, changed, lost), listing(same, after, fresh, version="30")], [errors.Gone("too old")])
    assert seen.delivered[3:] == [(lost, None), (changed, after), (None, fresh)]
    assert seen.reader.asked == ["list", "watch 10", "list", "watch 30"]


@pytest.mark.parametrize("again", [ADDED, MODIFIED, DELETED])
def test_events_that_come_twice_after_a_reconnection_are_delivered_once(again: WatchEventType) -> None:
    first, second = pod("a", "11"), pod("a", "12")
    seen = watched(
        [listing()],
        [event(ADDED, first), event(MODIFIED, second), errors.ServerUnavailable("reset by peer")],
        [event(again, first), event(again, second), bookmark("20")],
    )
    assert seen.delivered == [(None, first), (first, second)]
    assert seen.informer.get("a", "ns") is second


def test_a_deletion_is_delivered_once_and_earlier_events_do_not_restore_the_object() -> None:
    first, last = pod("a", "11"), pod("a", "13")
    seen = watched(
        [listing()],
        [event(ADDED, first), event(DELETED, last), errors.ServerUnavailable("reset by peer")],
        [event(MODIFIED, pod("a", "12")), event(DELETED, last), bookmark("20"), event(MODIFIED, pod("a", "12"))],
    )
    assert seen.delivered == [(None, first), (first, None)]
    assert seen.names == []


def test_the_deletion_of_an_earlier_namesake_does_not_end_the_present_one() -> None:
    before, after = pod("a", "11", uid="one"), pod("a", "13", uid="two")
    seen = watched([listing(before)], [event(ADDED, after), event(DELETED, pod("a", "12", uid="one"))])
    assert seen.delivered == [(None, before), (before, None), (None, after)]


def test_events_out_of_order_are_delivered_all_the_same() -> None:
    """The API promises order; that it is broken must cost nothing that was not known."""
    late, early = pod("late", "11"), pod("early", "12")
    seen = watched([listing()], [event(ADDED, early), event(ADDED, late)])
    assert seen.delivered == [(None, early), (None, late)]
    assert seen.reader.asked[-1] == "watch 12"


def test_versions_that_are_no_numbers_are_only_compared_for_equality() -> None:
    first, second, third = pod("a", "x9"), pod("a", "x10"), pod("a", "3")
    seen = watched([listing(first, version="x1")], [event(MODIFIED, each) for each in (second, second, third)])
    assert seen.delivered == [(None, first), (first, second), (second, third)]
    assert seen.reader.asked[-1] == "watch 3"


def test_a_recreated_object_is_delivered_as_deletion_and_addition_though_its_deletion_was_not_seen() -> None:
    before, after = pod("a", "1", uid="one"), pod("a", "20", uid="two")
    seen = watched([listing(before)], [event(MODIFIED, after)])
    assert seen.delivered == [(None, before), (before, None), (None, after)]


def test_an_object_deleted_and_recreated_in_a_gap_is_delivered_as_deletion_and_addition() -> None:
    before, after = pod("a", "1", uid="one"), pod("a", "20", uid="two")
    seen = watched([listing(before), listing(after, version="30")], [errors.Gone("too old")])
    assert seen.delivered == [(None, before), (before, None), (None, after)]


QUIET = [90.0]


def test_streams_that_stay_silent_are_followed_by_a_list() -> None:
    """OPS-109: a server restored from a back-up is silent until its versions have caught up with ours."""
    stored_pod, missed = pod("a", "8"), pod("b", "4")
    seen = watched([listing(stored_pod), listing(missed, version="5")], QUIET, QUIET, QUIET)
    assert seen.reader.asked == ["list", "watch 10", "watch 10", "watch 10", "list", "watch 5"]
    assert seen.reader.times == [0, 0, 90, 180, 270, 270]
    assert seen.delivered == [(None, stored_pod), (stored_pod, None), (None, missed)]


def test_a_stream_with_as_little_as_a_bookmark_is_not_silent() -> None:
    spoken = [90.0, bookmark("11")]
    seen = watched([listing()], QUIET, QUIET, spoken, QUIET, QUIET)
    assert seen.reader.asked == ["list", *["watch 10"] * 3, *["watch 11"] * 3]


def test_streams_that_break_are_not_silent_ones() -> None:
    broken = [90.0, errors.ServerUnavailable("reset by peer")]
    assert "list" not in watched([listing()], *[broken] * 6).reader.asked[1:]


def test_kinds_that_lost_their_streams_together_do_not_list_together() -> None:
    readers = [ScriptedReader([listing(), listing()], [[errors.Gone("too old")]]) for _ in range(5)]

    async def main(_: object) -> Informer[Pod]:
        informers = [Informer(reader, POD) for reader in readers]
        await asyncio.gather(*(cancelled_after(5, informer.run) for informer in informers))
        return informers[0]

    in_virtual_time(main)
    moments = [
        moment for reader in readers for what, moment in zip(reader.asked, reader.times, strict=True) if what == "list"
    ]
    again = [moment for moment in moments if moment > 0]
    assert len(set(again)) == len(readers)
    assert all(0.5 <= moment <= 1.0 for moment in again)


def test_a_list_in_pages_is_delivered_as_a_whole() -> None:
    lost, kept, fresh = pod("lost", "1"), pod("kept", "2"), pod("fresh", "20")
    reader = PagedReader([listing(lost, kept), listing(fresh, kept, version="30")], [[errors.Gone("too old")]])
    seen = ran(reader)
    assert seen.delivered == [(None, lost), (None, kept), (lost, None), (None, fresh)]
    assert seen.reader.asked == ["pages", "watch 10", "pages", "watch 30"]


def test_listing_again_keeps_the_objects_that_are_known() -> None:
    """Two states of fifty thousand pods at once would not fit."""
    stored_pod = pod("a", "1")
    seen = ran(PagedReader([listing(stored_pod), listing(pod("a", "1"), version="30")], [[errors.Gone("too old")]]))
    assert seen.reader.asked[-1] == "watch 30"
    assert seen.informer.get("a", "ns") is stored_pod


def test_expired_pages_are_not_reported_and_the_list_is_read_in_one_piece() -> None:
    half, whole = listing(pod("a", "1"), pod("b", "2")), listing(pod("b", "2"), pod("c", "3"), version="30")
    seen = ran(PagedReader([half, whole], expiring=[True]))
    assert seen.names == ["b", "c"]
    assert [old for old, new in seen.delivered if new is None] == []
    assert seen.reader.asked == ["pages", "list", "watch 30"]


def test_a_long_list_lets_others_have_their_turn() -> None:
    reader = ScriptedReader([listing(*(pod(f"number-{number}") for number in range(2000)))])
    known_at_each_turn: list[int] = []

    async def main(_: object) -> Informer[Pod]:
        informer = Informer(reader, POD)

        async def somebody_else() -> None:
            while not informer.synced:
                known_at_each_turn.append(len(informer))
                await asyncio.sleep(0)

        await asyncio.gather(cancelled_after(5, informer.run), somebody_else())
        return informer

    assert len(in_virtual_time(main)) == 2000
    steps = [after - before for before, after in pairwise(known_at_each_turn)]
    assert 0 < max(steps) <= 250


def test_indexes_follow_every_change() -> None:
    before = listing(pod("a", "1", node="n1"), pod("b", "2", node="n1"), pod("c", "3"))
    seen = watched([before], [event(MODIFIED, pod("a", "11", node="n2")), event(DELETED, pod("b", "12"))])
    assert seen.informer.by_index("node", "n1") == ()
    assert [obj.metadata.name for obj in seen.informer.by_index("node", "n2")] == ["a"]


def test_a_late_handler_gets_all_existing_objects() -> None:
    seen = watched([listing(pod("a"), pod("b"))])
    late: list[Pod | None] = []
    seen.informer.subscribe(lambda old, new: late.append(new))
    assert late == list(seen.informer)


def test_handlers_find_the_store_in_agreement_with_their_event() -> None:
    reader = ScriptedReader(
        [listing(pod("a", "1"))], [[event(MODIFIED, pod("a", "11")), event(DELETED, pod("a", "12"))]]
    )
    agreed: list[bool] = []

    async def main(_: object) -> Informer[Pod]:
        informer = Informer(reader, POD)
        informer.subscribe(lambda old, new: agreed.append(informer.get("a", "ns") is new))
        await cancelled_after(10, informer.run)
        return informer

    in_virtual_time(main)
    assert agreed == [True, True, True]


def test_a_handler_that_raises_ends_the_run() -> None:
    reader = ScriptedReader([listing(pod("a"))])

    async def main(_: object) -> Informer[Pod]:
        informer = Informer(reader, POD)
        informer.subscribe(lambda old, new: 1 / 0)
        await informer.run()
        return informer

    with pytest.raises(ZeroDivisionError):
        in_virtual_time(main)


def test_cancelling_closes_the_stream() -> None:
    assert watched([listing()], [bookmark("11"), 1000.0], seconds=5).reader.open_streams == 0


def test_only_the_given_scope_is_requested() -> None:
    reader = ScriptedReader([listing()])

    async def main(_: object) -> Informer[Pod]:
        informer = Informer(reader, POD, WatchScope("ns", "app=web", "spec.nodeName=n"))
        await cancelled_after(5, informer.run)
        return informer

    in_virtual_time(main)
    assert reader.scopes == [("ns", "app=web", "spec.nodeName=n")] * 2


_NAMES = st.sampled_from("abcd")
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), _NAMES),
        st.tuples(st.just("delete"), _NAMES),
        st.tuples(st.sampled_from(["break", "end", "gap", "again", "swap"]), st.just("")),
    ),
    max_size=30,
)


@given(_STEPS)
def test_events_of_handlers_always_add_up_to_the_server_state(steps: list[tuple[str, str]]) -> None:
    """Whatever happens to the stream, replaying the differences gives the server's state, each step starting from the last."""
    server: dict[str, Pod] = {}
    lists: list[Listing[Pod] | errors.KubeError] = [listing(version="0")]
    watches: list[list[WatchEvent[Pod] | errors.KubeError | float]] = [[]]
    said: list[WatchEvent[Pod]] = []
    for number, (step, name) in enumerate(steps, start=1):
        if step == "put":
            change = MODIFIED if name in server else ADDED
            server[name] = pod(
                name, str(number), uid=f"{name}-{number}" if change is ADDED else server[name].metadata.uid
            )
            said.append(event(change, server[name]))
            watches[-1].append(said[-1])
        elif step == "delete" and name in server:
            said.append(WatchEvent(DELETED, str(number), server.pop(name)))
            watches[-1].append(said[-1])
        elif step in ("break", "end"):
            watches[-1].extend([errors.ServerUnavailable("away")] if step == "break" else [])
            watches.append([])
        elif step == "again":
            # The server repeats itself, in this stream or after a reconnection.
            watches[-1].extend(said)
        elif step == "swap":
            watches[-1][-2:] = reversed(watches[-1][-2:])
        elif step == "gap":
            # The stream is lost together with what it had to say: the list has to make up for it.
            watches[-1] = [errors.Gone("too old")]
            lists.append(listing(*server.values(), version=str(number)))
            watches.append([])
    seen = watched(lists, *watches)
    replayed: dict[str, Pod] = {}
    for old, new in seen.delivered:
        key = (old or new).metadata.name
        assert replayed.get(key) == old
        assert old != new
        if new is None:
            del replayed[key]
        else:
            replayed[key] = new
    assert replayed == server == {obj.metadata.name: obj for obj in seen.informer}
