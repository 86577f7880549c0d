"""`--record-trace`: what a cluster's pods did, as a file that `karpenter simulate` replays."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

from karpenter.api.core import Pod
from karpenter.api.meta import Condition
from karpenter.provisioning.pod_trace_recorder import PodTraceRecorder
from karpenter.simulator.trace_file import read_trace
from support.builders import NOW, owner, pod, replaced


class MovedClock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.at = NOW

    def now(self) -> object:
        return self.at

    def move(self, **amount: float) -> None:
        self.at += timedelta(**amount)


class Recorded:
    """A recorder, and the pods it has heard of."""

    def __init__(self, path: Path, max_pods: int = 100) -> None:
        self.clock = MovedClock()
        self.recorder = PodTraceRecorder(path, self.clock, max_pods)
        self._pods: dict[str, Pod] = {}

    def arrives(self, name: str, kind: str = "ReplicaSet", created: timedelta = timedelta()) -> None:
        meta = {"owner_references": (owner(kind, f"{kind}-of-web"),), "creation_timestamp": self.clock.at + created}
        requests = {"cpu": "1500m", "memory": "3Gi", "nvidia.com/gpu": "1"}
        self._change(name, pod(name, requests, meta=meta))

    def is_in_phase(self, name: str, phase: str) -> None:
        before = self._pods[name]
        self._change(name, replaced(before, status=replaced(before.status, phase=phase)))

    def is_disrupted(self, name: str) -> None:
        before = self._pods[name]
        condition = Condition(type="DisruptionTarget", status="True", reason="EvictionByEvictionAPI")
        self._change(name, replaced(before, status=replaced(before.status, conditions=(condition,))))

    def leaves(self, name: str) -> None:
        self.recorder.on_pod(self._pods.pop(name), None)

    def _change(self, name: str, after: Pod) -> None:
        self.recorder.on_pod(self._pods.get(name), after)
        self._pods[name] = after


def test_a_recorded_trace_is_replayed_with_its_arrivals_lifetimes_and_requests(tmp_path: Path) -> None:
    trace = tmp_path / "month.csv"
    seen = Recorded(trace)
    seen.arrives("old", created=timedelta(hours=-5))
    seen.clock.move(minutes=10)
    seen.arrives("service")
    seen.arrives("job", kind="Job")
    seen.is_in_phase("job", "Running")
    seen.clock.move(minutes=30)
    seen.is_in_phase("job", "Succeeded")
    seen.leaves("job")
    seen.leaves("service")
    asyncio.run(seen.recorder.write())
    lives = {
        (life.arrives_at_seconds, life.leaves_at_seconds, life.runs_for_seconds) for life in read_trace(trace).pods
    }
    assert lives == {(0, None, None), (600, 2400, None), (600, None, 1800)}
    templates = {life.template.requests["cpu"] for life in read_trace(trace).pods}
    assert templates == {"1500m"}
    assert all(life.template.requests["memory"] == "3072Mi" for life in read_trace(trace).pods)
    assert all(life.template.requests["nvidia.com/gpu"] == "1" for life in read_trace(trace).pods)


def test_an_evicted_pod_and_its_replacement_are_one_arrival(tmp_path: Path) -> None:
    """A ReplicaSet replaces a pod while it terminates, a StatefulSet afterwards."""
    trace = tmp_path / "month.csv"
    seen = Recorded(trace)
    for name in ("web-1", "web-2"):
        seen.arrives(name)
    seen.clock.move(minutes=10)
    seen.is_disrupted("web-1")
    seen.arrives("web-3")
    seen.is_disrupted("web-1")
    seen.leaves("web-1")
    seen.is_disrupted("web-2")
    seen.leaves("web-2")
    seen.clock.move(seconds=20)
    seen.arrives("web-4")
    seen.clock.move(minutes=10)
    seen.leaves("web-3")
    asyncio.run(seen.recorder.write())
    lives = [(life.arrives_at_seconds, life.leaves_at_seconds) for life in read_trace(trace).pods]
    assert sorted(lives, key=str) == [(0, 1220), (0, None)]


def test_a_pod_that_comes_long_after_a_disruption_or_for_another_workload_replaces_none(tmp_path: Path) -> None:
    trace = tmp_path / "month.csv"
    seen = Recorded(trace)
    seen.arrives("web-1")
    seen.clock.move(minutes=1)
    seen.is_disrupted("web-1")
    seen.leaves("web-1")
    seen.arrives("db-0", kind="StatefulSet")
    seen.clock.move(minutes=6)
    seen.arrives("web-2")
    asyncio.run(seen.recorder.write())
    assert [life.arrives_at_seconds for life in read_trace(trace).pods] == [0, 60, 420]


def test_no_name_of_the_cluster_is_in_the_file_and_pods_of_one_workload_share_an_entry(tmp_path: Path) -> None:
    seen = Recorded(tmp_path / "t.csv")
    for name in ("web-1", "web-2"):
        seen.arrives(name)
    content = seen.recorder.content()
    assert "web" not in content.replace("workload", "")
    assert len({row.rsplit(",", 1)[1] for row in content.splitlines()[1:]}) == 1
    again = Recorded(tmp_path / "t.csv")
    again.arrives("web-1")
    assert again.recorder.content().splitlines()[1] not in content, "the key of the hashes is random"


def test_pods_of_daemonsets_are_left_out(tmp_path: Path) -> None:
    seen = Recorded(tmp_path / "t.csv")
    seen.arrives("agent", kind="DaemonSet")
    assert len(seen.recorder.content().splitlines()) == 1


def test_of_too_many_pods_those_that_ended_first_are_left_out(tmp_path: Path) -> None:
    seen = Recorded(tmp_path / "t.csv", max_pods=3)
    for number in range(5):
        seen.arrives(f"p{number}")
        seen.clock.move(seconds=1)
        if number < 3:
            seen.leaves(f"p{number}")
    starts = [row.split(",")[1] for row in seen.recorder.content().splitlines()[1:]]
    assert starts == ["2", "3", "4"]


def test_a_file_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    seen = Recorded(tmp_path / "missing" / "t.csv")
    seen.arrives("p")
    asyncio.run(seen.recorder.write())
    assert not (tmp_path / "missing").exists()
