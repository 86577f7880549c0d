"""`--record-trace`: what a cluster's pods did, as a file that `karpenter simulate` replays."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

from karpenter.api.core import Pod
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
        self.recorder = PodTraceRecorder(path, self.clock, max_pods)  # type: ignore[arg-type]
        self._pods: dict[str, Pod] = {}

    def arrives(self, name: str, kind: str = "ReplicaSet", created: timedelta = timedelta()) -> None:
        meta = {"owner_references": (owner(kind, f"{kind}-of-web"),), "creation_timestamp": self.clock.at + created}
        requests = {"cpu": "1500m", "memory": "3Gi", "nvidia.com/gpu": "1"}
        self._change(name, pod(name, requests, meta=meta))

    def is_in_phase(self, name: str, phase: str) -> None:
        before = self._pods[name]
        self._change(name, replaced(before, status=replaced(before.status, phase=phase)))  # type: ignore[arg-type]

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


def test_no_name_of_the_cluster_is_in_the_file_and_pods_of_one_workload_are_told_together(tmp_path: Path) -> None:
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
