"""How an informer deals with lost permissions, failed attempts and objects that do not decode."""

from __future__ import annotations

import pytest

from karpenter.api.core import Pod
from karpenter.kube import errors
from karpenter.kube.protocol import UndecodableObject, WatchEvent
from support.followed_informers import (
    ADDED,
    DELETED,
    MODIFIED,
    bookmark,
    event,
    listing,
    pod,
    watched,
)


def unreadable(name: str) -> UndecodableObject:
    return UndecodableObject("Pod", "ns", name, "broken")


def test_attempts_are_spaced_by_one_second_doubling_to_ten() -> None:
    seen = watched([errors.ServerUnavailable("away")] * 100, seconds=100)
    gaps = [after - before for before, after in zip(seen.reader.times, seen.reader.times[1:], strict=False)]
    assert gaps == [1, 2, 4, 8, *[10] * 8]


def test_attempts_after_an_event_start_at_one_second_again() -> None:
    away = [errors.ServerUnavailable("away")]
    seen = watched([listing()], away, away, [bookmark("11"), errors.ServerUnavailable("away")], away)
    gaps = [after - before for before, after in zip(seen.reader.times[1:], seen.reader.times[2:], strict=False)]
    assert gaps == [1, 2, 1, 2]


@pytest.mark.parametrize(("jitter", "expected"), [(0.0, 1.0), (1.0, 0.5)])
def test_jitter_shortens_a_pause_by_at_most_half(jitter: float, expected: float) -> None:
    seen = watched([errors.ServerUnavailable("away"), listing()], jitter=jitter)
    assert seen.reader.times[1] == expected


def test_a_permission_lost_during_a_watch_is_waited_out() -> None:
    seen = watched([listing(pod("a")), listing(pod("a"))], [errors.Forbidden("no")], seconds=0.5)
    assert isinstance(seen.informer.fault, errors.Forbidden)
    assert seen.names == ["a"]


def test_rejected_objects_are_reported_and_the_others_kept() -> None:
    seen = watched(
        [listing(pod("a"), rejected=(unreadable("bad"),))],
        [WatchEvent(ADDED, "11", None, unreadable("worse")), event(ADDED, pod("b", "12"))],
    )
    assert [rejected.name for rejected in seen.rejected] == ["bad", "worse"]
    assert seen.names == ["a", "b"]
    assert seen.reader.asked[-1] == "watch 12"


def test_an_object_that_becomes_unreadable_keeps_its_last_good_state() -> None:
    stored_pod = pod("a", "1")
    seen = watched(
        [listing(stored_pod), listing(version="30", rejected=(unreadable("a"),))],
        [WatchEvent(MODIFIED, "11", None, unreadable("a")), errors.Gone("too old")],
    )
    assert seen.informer.get("a", "ns") is stored_pod
    assert seen.delivered == [(None, stored_pod)]


def test_an_unreadable_state_that_comes_twice_is_reported_once() -> None:
    bad: WatchEvent[Pod] = WatchEvent(MODIFIED, "11", None, unreadable("a"))
    seen = watched([listing(pod("a"))], [bad, errors.ServerUnavailable("reset by peer")], [bad, bookmark("12")])
    assert len(seen.rejected) == 1


def test_an_unreadable_object_without_a_version_is_reported() -> None:
    seen = watched([listing()], [WatchEvent(ADDED, "", None, unreadable("a"))])
    assert len(seen.rejected) == 1


def test_an_unreadable_object_can_still_be_deleted() -> None:
    stored_pod = pod("a", "1")
    seen = watched([listing(stored_pod)], [WatchEvent(DELETED, "11", None, unreadable("a"))])
    assert seen.delivered == [(None, stored_pod), (stored_pod, None)]
