"""A cluster becomes a study: what it recorded with ``--record-trace``, and what it is now with ``--from-cluster``."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from karpenter.api.karpenter import NodePool
from karpenter.api.kwok_node_class import KWOKNodeClass
from karpenter.api.meta import ObjectMeta
from karpenter.cli.main import app
from karpenter.model.clock import SystemClock
from karpenter.settings import Settings
from karpenter.simulation import LoopClock, SimulationConfig, run_virtual, running_cluster
from karpenter.simulation.apiserver import MemoryServer
from karpenter.simulation.apiserver.http_front import kubeconfig_for, serving
from karpenter.simulator.trace_file import read_trace
from karpenter.simulator.workload import MONDAY, PodLife, Workload, WorkloadPodTemplate, ordered_workload
from karpenter.simulator.workload_player import WorkloadPlayer
from support.fault_week import TYPES
from support.manifest_builders import Json, pod, pool, type_of
from support.snapshot_builders import claim, node, running

_HOUR = 3600
_TYPES_FILE = "types.json"


def simulated(folder: Path, *options: str) -> dict[str, Any]:
    """The report of ``karpenter simulate``."""
    (folder / _TYPES_FILE).write_text(json.dumps([type_of("a.small", 2, 4, 0.1), type_of("a.large", 8, 16, 0.35)]))
    given = ["simulate", "--instance-types", str(folder / _TYPES_FILE), "-o", "json", *options]
    result = CliRunner().invoke(app, given, catch_exceptions=False)
    assert (result.exit_code, result.stderr) == (0, "")
    (report,) = json.loads(result.stdout)["reports"]
    return dict(report)


# -- recorded -------------------------------------------------------------------------------------------------------------


def web_and_jobs() -> Workload:
    """Six replicas, two of which come after ten minutes and leave after forty, and three jobs of five minutes."""
    web = WorkloadPodTemplate("web", {"cpu": "500m", "memory": "512Mi"})
    job = WorkloadPodTemplate("job", {"cpu": "1500m", "memory": "1024Mi"})
    lives = [PodLife(f"web-{number}", web, 0, None) for number in range(4)]
    lives += [PodLife(f"web-{number}", web, 600, 2400) for number in (4, 5)]
    lives += [PodLife(f"job-{number}", job, 900 * number, None, 300) for number in (1, 2, 3)]
    return ordered_workload("shop", lives, _HOUR)


async def recorded(clock: LoopClock, trace: Path) -> int:
    """Play the workload for an hour, evict two replicas meanwhile; the number of pods that were bound."""
    settings = Settings(record_trace=str(trace))
    async with running_cluster(clock, SimulationConfig(TYPES, settings)) as cluster:
        bound: set[str] = set()
        cluster.manager.informers.pods.subscribe(
            lambda _, new: bound.add(new.metadata.uid) if new is not None else None
        )
        await cluster.create(KWOKNodeClass(metadata=ObjectMeta(name="default")), msgspec.convert(pool(), NodePool))
        player = WorkloadPlayer(
            cluster.kube, cluster.manager.informers.pods, web_and_jobs(), lambda: 3.0, lambda _: None
        )
        playing = asyncio.create_task(player.run())
        await asyncio.sleep(_HOUR / 2)
        for name in ("web-0", "web-4"):
            (evicted,) = (each for each in cluster.pods() if each.metadata.name == name)
            await cluster.kube.evict(name, evicted.metadata.namespace)
        await asyncio.sleep(_HOUR / 2)
        playing.cancel()
        return len(bound)


def test_what_a_cluster_recorded_is_simulated_with_the_same_pods_though_some_were_evicted(tmp_path: Path) -> None:
    trace = tmp_path / "month.csv"
    played, pods_seen = web_and_jobs(), run_virtual(lambda clock: recorded(clock, trace), MONDAY)
    assert pods_seen >= len(played.pods) + 2, "two pods came back"
    read = read_trace(trace)

    def requested(workload: Workload) -> Counter[str]:
        return Counter(life.template.requests["cpu"] for life in workload.pods)

    assert requested(read) == requested(played)
    left = sorted(life.leaves_at_seconds for life in read.pods if life.leaves_at_seconds is not None)
    assert left == [pytest.approx(second, abs=60) for second in (1200, 2100, 2400, 2400, 3000)], "jobs are deleted"
    (tmp_path / "pools.json").write_text(json.dumps(pool()))
    report = simulated(tmp_path, "--trace", str(trace), "-f", str(tmp_path / "pools.json"))
    assert report["waiting"]["arrivals"]["pods"] == len(played.pods)
    assert report["waiting"]["stillWaiting"] == 0


# -- the cluster now ------------------------------------------------------------------------------------------------------


def replica(number: int) -> Json:
    made = pod(f"web-{number}")
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u", "controller": True}
    made["metadata"] = {"name": f"web-{number}", "namespace": "prod", "ownerReferences": [owner]}
    return made


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryServer]:
    """An embedded API server, which the kubeconfig names."""
    server, kubeconfig = MemoryServer(SystemClock()), tmp_path / "kubeconfig"
    ready, over = threading.Event(), threading.Event()

    async def serve() -> None:
        async with serving(server) as url:
            kubeconfig.write_text(kubeconfig_for(url), encoding="utf-8")
            ready.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(60)
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    try:
        yield server
    finally:
        over.set()
        thread.join()


def test_the_pods_of_a_running_cluster_are_simulated_with_its_nodepools(tmp_path: Path, cluster: MemoryServer) -> None:
    cluster.load_objects([pool(), *(replica(number) for number in range(4))])
    report = simulated(tmp_path, "--from-cluster", "--pattern", "steady", "--days", "0.02")
    assert report["waiting"]["arrivals"]["pods"] == 4
    assert report["waiting"]["stillWaiting"] == 0
    assert report["cost"]["usd"] >= report["cost"]["lowerBoundUsd"] > 0


def test_a_study_of_a_running_cluster_begins_with_its_nodes_as_old_as_they_are(
    tmp_path: Path, cluster: MemoryServer
) -> None:
    """By the clock of this machine: of two NodeClaims that live three hours the older one has half an hour left."""
    now = datetime.now(UTC)
    old = node("old", created=f"{now - timedelta(hours=2, minutes=30):%Y-%m-%dT%H:%M:%SZ}")
    young = node("young", created=f"{now - timedelta(minutes=5):%Y-%m-%dT%H:%M:%SZ}")
    claims = [claim(each, expireAfter="3h") for each in (old, young)]
    never = pool(disruption={"consolidateAfter": "Never"})
    cluster.load_objects([never, old, young, *claims, running("o", "old"), running("y", "young")])
    report = simulated(tmp_path, "--from-cluster", "--pattern", "steady", "--days", "0.08")
    assert (report["start"]["nodes"], report["start"]["runningPods"]) == (2, 2)
    assert report["start"]["usdPerHour"] == 0.7
    assert [event["node"] for event in report["events"] if event["event"] == "ended"] == ["old"]


def named(kind: str, name: str, namespace: str, spec: Json, api_version: str) -> Json:
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace, "annotations": {"team": "a"}},
        "spec": spec,
    }


def test_daemonsets_and_disruption_budgets_of_a_running_cluster_are_simulated(
    tmp_path: Path, cluster: MemoryServer
) -> None:
    """What an API server gave them is not given to that of the simulation, which refuses it."""
    template = {
        "metadata": {"labels": {"app": "agent"}},
        "spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "1900m"}}}]},
    }
    selector = {"matchLabels": {"app": "agent"}}
    agent = named("DaemonSet", "agent", "monitoring", {"selector": selector, "template": template}, "apps/v1")
    budget = named("PodDisruptionBudget", "web", "prod", {"minAvailable": 1, "selector": selector}, "policy/v1")
    cluster.load_objects([pool(), agent, budget, *(replica(number) for number in range(4))])
    report = simulated(tmp_path, "--from-cluster", "--pattern", "steady", "--days", "0.02")
    assert report["waiting"]["stillWaiting"] == 0
    assert {line["instanceType"] for line in report["capacity"]} == {"a.large"}, "the agent takes most of a small one"


def test_a_cluster_without_nodepools_is_reported_in_one_line(tmp_path: Path, cluster: MemoryServer) -> None:
    cluster.load_objects([replica(1)])
    result = CliRunner().invoke(app, ["simulate", "--from-cluster", "--days", "0.02"])
    assert result.exit_code == 2
    assert "the cluster: there is no NodePool in it" in result.stderr


def test_a_cluster_that_does_not_answer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kubeconfig").write_text(kubeconfig_for("http://127.0.0.1:1"), encoding="utf-8")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    result = CliRunner().invoke(app, ["simulate", "--from-cluster", "--days", "0.02"])
    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) == 1
    assert "127.0.0.1:1" in result.stderr
