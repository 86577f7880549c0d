"""A client and a server that restarts while objects are written: no event is lost, none comes twice.

The client runs on an event loop in a thread of its own, so that it goes on while the test stops and starts the server.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import pytest

from controlplane.harness import ControlPlane
from karpenter.api.core import ConfigMap, Namespace
from karpenter.api.kinds import CONFIG_MAP, NAMESPACE
from karpenter.api.meta import ObjectMeta
from karpenter.kube import client, errors
from karpenter.kube.client import KubeClient
from karpenter.kube.informer import Informer, WatchScope
from karpenter.kube.protocol import JsonObject

pytestmark = pytest.mark.cluster

R = TypeVar("R")
Told = tuple[ConfigMap | None, ConfigMap | None]

_WRITERS = 20
_NAMES_EACH = 3
_ENOUGH = 120
_PAUSE_SECONDS = 0.2
_DEADLINE_SECONDS = 60.0
_HALF = "half"


@dataclass
class Follower:
    """An informer and every event of its handler."""

    informer: Informer[ConfigMap]
    delivered: list[Told] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.informer.subscribe(lambda old, new: self.delivered.append((old, new)))

    @property
    def uids(self) -> set[str]:
        return {new.metadata.uid for _, new in tuple(self.delivered) if new is not None}

    @property
    def versions(self) -> dict[str, str]:
        return {config_map.metadata.name: config_map.metadata.resource_version for config_map in self.informer}


@dataclass
class Work:
    """Writers that make, change and delete objects until they are stopped, and two informers that follow."""

    plane: ControlPlane
    namespace: str
    made: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)
    followers: list[Follower] = field(default_factory=list)
    final: list[dict[str, str]] = field(default_factory=list)
    _is_over: bool = False

    def stop(self) -> None:
        """Have the writers come to an end."""
        self._is_over = True

    async def run(self) -> None:
        """Until ``stop``, and then until the informers know what the server has."""
        async with self.plane.client() as writing, self.plane.client() as one, self.plane.client() as other:
            await writing.create(NAMESPACE, Namespace(metadata=ObjectMeta(name=self.namespace)))
            everything, half = WatchScope(self.namespace), WatchScope(self.namespace, f"{_HALF}=yes")
            self.followers = [
                Follower(Informer(reader, CONFIG_MAP, scope)) for reader, scope in ((one, everything), (other, half))
            ]
            following = [asyncio.create_task(follower.informer.run()) for follower in self.followers]
            await asyncio.gather(*(self._write(writing, number) for number in range(_WRITERS)))
            for follower, scope in zip(self.followers, (everything, half), strict=True):
                listing = await writing.list(CONFIG_MAP, self.namespace, label_selector=scope.label_selector)
                present = {
                    config_map.metadata.name: config_map.metadata.resource_version for config_map in listing.items
                }
                self.final.append(present)
                await until(lambda follower=follower, present=present: follower.versions == present)
            for task in following:
                task.cancel()
            await asyncio.wait(following)

    async def _write(self, kube: KubeClient, writer: int) -> None:
        turn = 0
        while not self._is_over:
            name = f"object-{writer}-{turn % _NAMES_EACH}"
            uid = await surely(lambda name=name, turn=turn: self._made(kube, name, turn))
            self.made.add(uid)
            for step in ("yes", "no", "yes"):
                change: JsonObject = {"metadata": {"labels": {_HALF: step}}, "data": {"turn": str(turn), "step": step}}
                await surely(lambda name=name, change=change: kube.patch(CONFIG_MAP, name, change, self.namespace))
            if turn % _NAMES_EACH != writer % _NAMES_EACH or not self._is_over:
                await surely(lambda name=name, uid=uid: self._gone(kube, name, uid))
                self.deleted.add(uid)
            turn += 1

    async def _made(self, kube: KubeClient, name: str, turn: int) -> str:
        meta = ObjectMeta(name=name, namespace=self.namespace)
        try:
            made = await kube.create(CONFIG_MAP, ConfigMap(metadata=meta, data={"turn": str(turn)}))
        except errors.AlreadyExists:  # by an earlier try whose answer was lost
            made = await kube.get(CONFIG_MAP, name, self.namespace)
        return made.metadata.uid

    async def _gone(self, kube: KubeClient, name: str, uid: str) -> None:
        try:
            await kube.delete(CONFIG_MAP, name, self.namespace, uid=uid)
        except errors.NotFound:  # by an earlier try whose answer was lost
            return


async def surely(do: Callable[[], Awaitable[R]]) -> R:
    """List again after a failure, as any client does."""
    while True:
        try:
            return await do()
        except (errors.ServerUnavailable, errors.TooManyRequests):
            await asyncio.sleep(_PAUSE_SECONDS)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(_DEADLINE_SECONDS):
        while not condition():
            await asyncio.sleep(0.02)


@contextmanager
def working(plane: ControlPlane, namespace: str) -> Iterator[Work]:
    """Work going on in a thread of its own while the context lasts; afterwards it has come to an end."""
    work = Work(plane, namespace)
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(asyncio.run, work.run())
        try:
            yield work
        finally:
            work.stop()
        running.result(2 * _DEADLINE_SECONDS)


def go_on(plane: ControlPlane, work: Work) -> None:
    """Wait until a good many more objects have been made."""
    enough = len(work.deleted) + _ENOUGH
    plane.until(lambda: len(work.deleted) >= enough, f"{enough} objects that came and went")


def noticed(plane: ControlPlane, work: Work) -> None:
    """Wait until both informers know that the server is away."""
    faults = [each.informer for each in work.followers]
    plane.until(lambda: all(isinstance(each.fault, errors.ServerUnavailable) for each in faults), "both to notice")


def recovered(plane: ControlPlane, work: Work) -> set[str]:
    """Wait until both informers tell of what is new since the server came back; the objects made until then."""
    old = set(work.made)
    plane.until(lambda: all(each.uids - old for each in work.followers), "both to recover")
    assert not any(each.informer.fault for each in work.followers)
    return set(work.made)


def check(follower: Follower, final: dict[str, str]) -> Counter[str]:
    """Check that the events of each object add up to its present state. How often each deletion was delivered."""
    present: dict[str, ConfigMap] = {}
    latest: dict[str, int] = {}
    endings: Counter[str] = Counter()
    for old, new in follower.delivered:
        config_map = old or new
        assert config_map is not None
        name, uid = config_map.metadata.name, config_map.metadata.uid
        assert present.get(name) is old, "each difference starts from the last one"
        if new is None:
            del present[name]
            endings[uid] += 1
            continue
        assert new.metadata.uid == uid, "a recreated object is delivered as one"
        assert int(new.metadata.resource_version) > latest.get(uid, 0), "never the same again, and never an older state"
        latest[uid] = int(new.metadata.resource_version)
        present[name] = new
    assert {name: listed_map.metadata.resource_version for name, listed_map in present.items()} == final
    return endings


def check_all(work: Work, before: set[str]) -> None:
    """Every difference once, whatever happened on the way; nothing left out of what was made after ``before``."""
    everything, half = (check(each, final) for each, final in zip(work.followers, work.final, strict=True))
    assert set(everything.values()) == {1}
    assert work.deleted - before <= set(everything) <= work.deleted
    assert len(work.deleted - before) >= _ENOUGH / 2
    # In this half objects come and go with their label as well.
    assert sum(half.values()) > len(half)
    assert all(work.final)


@pytest.mark.soak
@pytest.mark.parametrize("away_seconds", [0, 20])
def test_nothing_is_lost_and_nothing_comes_twice_across_a_restart(
    control_plane: ControlPlane, away_seconds: int
) -> None:
    with working(control_plane, f"restart-{away_seconds}") as work:
        go_on(control_plane, work)
        control_plane.stop_server()
        back = time.monotonic() + away_seconds
        noticed(control_plane, work)
        control_plane.until(lambda: time.monotonic() >= back, "the end of the outage")
        control_plane.start_server()
        before = recovered(control_plane, work)
        go_on(control_plane, work)
    check_all(work, before)


@pytest.mark.soak
def test_a_server_that_stands_still_is_left_and_found_again(
    control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connections stay open all the time; with the usual idle timeout this takes a minute and a half."""
    monkeypatch.setattr(client, "_WATCH_IDLE_SECONDS", (1.0, 2.0))
    with working(control_plane, "pause") as work:
        go_on(control_plane, work)
        control_plane.pause_server()
        try:
            noticed(control_plane, work)
        finally:
            control_plane.resume_server()
        before = recovered(control_plane, work)
        go_on(control_plane, work)
    check_all(work, before)
