"""Evictions of pods: rate, order and answers (DIS §17.4, OPS-444, OPS-445, OPS-702)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, cast

import pytest

from karpenter.api import kinds
from karpenter.api.core import Pod
from karpenter.kube.errors import Conflict, Forbidden, KubeError, NotFound, ServerUnavailable, TooManyRequests
from karpenter.model import labels
from karpenter.model.pod_disruption import DELETION_COST_ANNOTATION
from karpenter.runtime.reconciler import Reconciler
from karpenter.runtime.workqueue import WorkQueue
from karpenter.termination.pod_eviction import EvictionLimits, EvictionQueue
from support import metrics_scrape
from support.builders import budget, node, pod
from support.virtual_cluster import VirtualCluster, in_virtual_time, until

SEVERAL = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."


@dataclass
class Server:
    """Takes evictions and notes who was asked for when; ``answer`` may raise."""

    asked: list[tuple[float, str]] = field(default_factory=list)
    answer: Callable[[str], None] = lambda name: None
    seconds: float = 0.01

    async def evict(self, name: str, namespace: str, *, uid: str = "") -> None:
        assert uid == f"uid-{name}"
        self.asked.append((asyncio.get_running_loop().time(), name))
        await asyncio.sleep(self.seconds)
        self.answer(name)

    @property
    def names(self) -> list[str]:
        return [name for _, name in self.asked]


def evictor(cluster: VirtualCluster, server: Server, pace: EvictionLimits | None = None) -> EvictionQueue:
    """An evictor at work on a server of its own."""
    assert cluster.manager is not None
    faults: list[tuple[str, Exception]] = []

    def fail(key: str, error: Exception) -> None:
        faults.append((key, error))
        raise AssertionError(f"{key}: {error!r}")

    pace = pace or EvictionLimits()
    queue: WorkQueue[str] = WorkQueue()
    made = EvictionQueue(replace(cluster.manager.context, kube=cast(Any, server)), pace, queue.add)
    cluster.also(Reconciler("test", made.reconcile, pace.workers, queue=queue, on_error=fail).run())
    return made


def pods_of(name: str, count: int) -> list[Pod]:
    return [pod(f"{name}-{number:02}", node_name=name) for number in range(count)]


def most_within(times: list[float], seconds: float) -> int:
    """The most calls in any window of this length."""
    most = first = 0
    for last in range(len(times)):
        while times[last] - times[first] > seconds:
            first += 1
        most = max(most, last - first + 1)
    return most


def counted(cluster: VirtualCluster, series: str, **labels: str) -> float:
    assert cluster.manager is not None
    return metrics_scrape.counted(cluster.manager.metrics.registry, f"karpenter_{series}", labels) or 0.0


@in_virtual_time
async def test_two_hundred_nodes_of_twenty_pods_keep_within_the_limit_and_within_a_minute(
    cluster: VirtualCluster,
) -> None:
    """OPS-702, DIS-036: a burst of a thousand, a hundred a second after that; no pod is evicted twice."""
    await cluster.start()
    server = Server()
    made = evictor(cluster, server)
    started = asyncio.get_running_loop().time()
    for number in range(200):
        made.set_pods(node(f"n{number}", {}), pods_of(f"n{number}", 20))
    await asyncio.sleep(45)
    times = [at for at, _ in server.asked]
    assert len(set(server.names)) == 4000
    first = [at for at, name in server.asked][:4000]
    assert first[-1] - started < 31.5
    for seconds in (1.0, 5.0, 20.0):
        assert most_within(times, seconds) <= 1000 + 100 * seconds + 1


@in_virtual_time
async def test_the_pace_grows_with_what_the_process_is_given(cluster: VirtualCluster) -> None:
    """OPS-701: the numbers come from the settings."""
    await cluster.start()
    server = Server(seconds=0.0)
    made = evictor(cluster, server, EvictionLimits(per_second=2.0, burst=3, workers=5))
    started = asyncio.get_running_loop().time()
    made.set_pods(node("n", {}), pods_of("n", 9))
    await asyncio.sleep(4)
    assert [round(at - started, 1) for at, _ in server.asked] == [0.0, 0.0, 0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0]


@in_virtual_time
async def test_pods_leave_their_node_the_cheapest_first(cluster: VirtualCluster) -> None:
    """DIS §17 Beyond: by deletion cost and priority, inside a tier."""
    await cluster.start()
    await cluster.claim()
    await asyncio.sleep(0.1)
    await cluster.join()
    await asyncio.sleep(1)
    await cluster.running("a-dear", "node-c", meta={"annotations": {DELETION_COST_ANNOTATION: "1000000"}})
    await cluster.running("b-high", "node-c", priority=100)
    await cluster.running("c-plain", "node-c")
    await cluster.running("d-cheap", "node-c", meta={"annotations": {DELETION_COST_ANNOTATION: "-1000000"}})
    await cluster.kube.delete(kinds.NODE, "node-c")
    await asyncio.sleep(3)
    assert [write.name for write in cluster.connection.writes if write.verb == "evict"] == [
        "d-cheap",
        "c-plain",
        "b-high",
        "a-dear",
    ]


@in_virtual_time
async def test_a_refused_eviction_is_retried_with_pauses_that_grow_to_ten_seconds(cluster: VirtualCluster) -> None:
    """DIS-035: a tenth of a second at first."""
    await cluster.start()

    def refuse(name: str) -> None:
        raise ServerUnavailable(SEVERAL, status=500)

    server = Server(answer=refuse, seconds=0.0)
    evictor(cluster, server).set_pods(node("n", {}), pods_of("n", 1))
    await asyncio.sleep(60)
    pauses = [round(later - earlier, 1) for (earlier, _), (later, _) in pairwise(server.asked)]
    assert pauses[:8] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0]
    assert max(pauses) == 10.0


@in_virtual_time
async def test_a_server_that_names_a_pause_is_given_it(cluster: VirtualCluster) -> None:
    """429 with Retry-After."""
    await cluster.start()

    def refuse(name: str) -> None:
        raise TooManyRequests("the budget is being processed", retry_after_seconds=7)

    server = Server(answer=refuse, seconds=0.0)
    evictor(cluster, server).set_pods(node("n", {}), pods_of("n", 1))
    await asyncio.sleep(30)
    assert [round(later - earlier) for (earlier, _), (later, _) in pairwise(server.asked)][:3] == [7, 7, 7]


@in_virtual_time
async def test_a_pod_that_is_wanted_no_more_is_left_alone(cluster: VirtualCluster) -> None:
    """DIS-532: protected meanwhile, or its node given back; K15-424: a refusal is not retried once the node is gone."""
    await cluster.start()

    def refuse(name: str) -> None:
        raise TooManyRequests("budget")

    server = Server(answer=refuse)
    made = evictor(cluster, server)
    first, second = pods_of("n", 2)
    made.set_pods(node("n", {}), [first, second])
    await asyncio.sleep(3)
    assert set(made.eviction_errors("n")) == {"uid-n-00", "uid-n-01"}
    made.set_pods(node("n", {}), [second])
    asked = len(server.asked)
    await asyncio.sleep(30)
    assert {name for _, name in server.asked[asked:]} == {"n-01"}
    made.remove_node("n")
    asked = len(server.asked)
    await asyncio.sleep(30)
    assert len(server.asked) == asked
    assert made.eviction_errors("n") == {}


@pytest.mark.parametrize("error", [NotFound("gone", status=404), Conflict("other uid", status=409)], ids=["404", "409"])
@in_virtual_time
async def test_a_pod_that_is_not_the_one_meant_is_dropped_without_a_word(
    cluster: VirtualCluster, error: KubeError
) -> None:
    """DIS-S303, DIS-531, K15-424: it leaves the queue."""
    await cluster.start()

    def refuse(name: str) -> None:
        raise error

    server = Server(answer=refuse)
    made = evictor(cluster, server)
    made.set_pods(node("n", {}), pods_of("n", 1))
    await asyncio.sleep(5)
    assert server.names == ["n-00"]
    assert made.eviction_errors("n") == {}
    assert await cluster.events() == []
    assert counted(cluster, "pods_eviction_requests_total", code=str(error.status)) == 1


@in_virtual_time
async def test_every_answer_is_counted_by_its_code(cluster: VirtualCluster) -> None:
    """OPS-444, DIS-424; a call without an answer has no code."""
    await cluster.start()
    answers: dict[str, KubeError | None] = {
        "n-00": None,
        "n-01": TooManyRequests("budget"),
        "n-02": Forbidden("no", status=403),
        "n-03": ServerUnavailable("connection reset"),
    }

    def answer(name: str) -> None:
        error = answers[name]
        if error is not None:
            raise error

    evictor(cluster, Server(answer=answer)).set_pods(node("n", {}), pods_of("n", 4))
    await asyncio.sleep(0.05)
    assert counted(cluster, "pods_eviction_requests_total", code="200") == 1
    assert counted(cluster, "pods_eviction_requests_total", code="429") == 1
    assert counted(cluster, "pods_eviction_requests_total", code="403") == 1
    assert counted(cluster, "pods_eviction_requests_total", code="0") == 0


@in_virtual_time
async def test_a_fault_is_logged_once_and_a_refusal_never(cluster: VirtualCluster) -> None:
    """A budget is the pod owner's wish; a missing permission holds nodes and has to be mended."""
    await cluster.start()

    def answer(name: str) -> None:
        raise (
            Forbidden("pods/eviction is forbidden", status=403)
            if name == "n-00"
            else ServerUnavailable(SEVERAL, status=500)
        )

    evictor(cluster, Server(answer=answer)).set_pods(node("n", {}), pods_of("n", 2))
    await asyncio.sleep(60)
    (line,) = cluster.lines("evicting pod failed")
    assert line["Pod"] == {"namespace": "default", "name": "n-00"}
    assert line["Node"] == {"name": "n"}


@pytest.mark.parametrize(
    ("given", "reason"),
    [("Drifted", "Drifted"), ("Unhealthy", "Unhealthy"), ("", "Forceful Termination")],
    ids=["command", "K15-464: repair", "by-hand"],
)
@in_virtual_time
async def test_an_evicted_pod_gets_an_event_with_the_reason_of_its_node(
    cluster: VirtualCluster, given: str, reason: str
) -> None:
    """DIS-S304, DIS-534, OPS-445; OPS-523, DIS-399: the event `Evicted` has the reason.

    OPS-M13: without a reason on the claim, Forceful Termination is counted.
    """
    await cluster.start()
    await cluster.claim()
    await asyncio.sleep(0.1)
    await cluster.join()
    await asyncio.sleep(1)
    await cluster.running("busy", "node-c")
    if given:
        await cluster.set_condition(kinds.NODE_CLAIM, "c", "DisruptionReason", "True", reason=given)
    await cluster.kube.delete(kinds.NODE, "node-c")
    await until(lambda: _has_event(cluster), 10)
    (event,) = await cluster.events("Evicted", "busy")
    assert (event.type, event.message) == ("Normal", f"Evicted pod: {reason}")
    assert counted(cluster, "pods_drained_total", reason=reason) == 1


async def _has_event(cluster: VirtualCluster) -> bool:
    return bool(await cluster.events("Evicted"))


@in_virtual_time
async def test_a_node_of_an_unknown_claim_gives_no_reason(cluster: VirtualCluster) -> None:
    """DIS-534"""
    await cluster.start()
    evictor(cluster, Server()).set_pods(node("n", {}), pods_of("n", 1))
    await asyncio.sleep(1)
    assert counted(cluster, "pods_drained_total", reason="") == 1


@pytest.mark.parametrize(
    ("value", "type_", "reason"),
    [
        ("soon", "Warning", "InvalidDoNotDisruptAnnotation"),
        ("1h", "Normal", "DoNotDisruptUntil"),
        ("1s", "Normal", "DoNotDisruptGracePeriodElapsed"),
    ],
    ids=["DIS-092", "DIS-093", "DIS-094"],
)
@in_virtual_time
async def test_a_pod_gets_an_event_about_the_effect_of_its_annotation(
    cluster: VirtualCluster, value: str, type_: str, reason: str
) -> None:
    """OPS-528, OPS-529; OPS-E9, API-S222: an invalid value gets a Warning event and protects nothing."""
    await cluster.start()
    await cluster.claim()
    await asyncio.sleep(0.1)
    await cluster.join()
    await cluster.running("busy", "node-c", meta={"annotations": {labels.DO_NOT_DISRUPT: value}})
    started = {"status": {"startTime": f"{cluster.clock.now():%Y-%m-%dT%H:%M:%SZ}"}}
    await cluster.kube.patch(kinds.POD, "busy", started, "default", subresource="status")
    await asyncio.sleep(5)
    await cluster.kube.delete(kinds.NODE, "node-c")
    await asyncio.sleep(30)
    (event,) = await cluster.events(reason, "busy")
    assert event.type == type_
    evicted = [write.name for write in cluster.connection.writes if write.verb == "evict"]
    assert evicted == ([] if value == "1h" else ["busy"])


@in_virtual_time
async def test_a_protection_that_ends_lets_its_pod_go_at_that_moment(cluster: VirtualCluster) -> None:
    """DIS-091, DIS-525, K15-421: the drain looks again, and its pod is evicted once it may be."""
    await cluster.start()
    await cluster.claim()
    await asyncio.sleep(0.1)
    await cluster.join()
    await cluster.running("busy", "node-c", meta={"annotations": {labels.DO_NOT_DISRUPT: "60s"}})
    started = {"status": {"startTime": f"{cluster.clock.now():%Y-%m-%dT%H:%M:%SZ}"}}
    await cluster.kube.patch(kinds.POD, "busy", started, "default", subresource="status")
    await asyncio.sleep(1)
    await cluster.kube.delete(kinds.NODE, "node-c")
    await asyncio.sleep(55)
    assert "evict Pod" not in cluster.writes()
    condition = await cluster.condition("c", "Drained")
    assert condition is not None
    assert condition[2].startswith("protected by the annotation karpenter.sh/do-not-disrupt until 2026-01-01T00:01:0")
    await asyncio.sleep(6)
    assert "evict Pod" in cluster.writes()


@in_virtual_time
async def test_a_pod_with_two_budgets_stays_and_both_are_named(cluster: VirtualCluster) -> None:
    """DIS-533"""
    await cluster.start()
    await cluster.claim()
    await asyncio.sleep(0.1)
    await cluster.join()
    await asyncio.sleep(1)
    for name in ("one", "two"):
        await cluster.kube.create(kinds.POD_DISRUPTION_BUDGET, budget(name, {"app": "a"}, max_unavailable="100%"))
    await cluster.running("kept", "node-c", meta={"labels": {"app": "a"}})
    await cluster.kube.delete(kinds.NODE, "node-c")
    await asyncio.sleep(30)
    condition = await cluster.condition("c", "Drained")
    assert condition is not None
    assert condition[2] == (
        "more than one PodDisruptionBudget (default/one, default/two), which eviction does not support: pod default/kept"
    )
    assert cluster.lines("evicting pod failed") == []
    await cluster.kube.delete(kinds.POD_DISRUPTION_BUDGET, "two", "default")
    counted = {"status": {"observedGeneration": 1, "disruptionsAllowed": 1}}
    await cluster.kube.patch(kinds.POD_DISRUPTION_BUDGET, "one", counted, "default", subresource="status")
    await until(lambda: _has_event(cluster), 15)
