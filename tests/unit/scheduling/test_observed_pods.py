"""Series about pods: what they are now, how long they took, and how long those that wait have waited."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import structlog

from karpenter.api.core import Pod, PodResourceClaim
from karpenter.api.meta import Condition, OwnerReference
from karpenter.clustermetrics.cluster_collector import ClusterCollector, ClusterMetricsSnapshot
from karpenter.clustermetrics.cluster_metrics import ClusterMetrics
from karpenter.metrics.exposition import SeriesWriter
from karpenter.model import labels
from karpenter.scheduling.solution import PlacedPods, Solution, ZoneBoundPods
from karpenter.scheduling.unschedulable_reasons import (
    NoRoom,
    UnsupportedResourceClaims,
)
from support.builders import UNSCHEDULABLE, node, node_and_claim, node_pool, pod, replaced, seconds, where
from support.observed_cluster import ObservedCluster
from support.observed_pods import bound, condition, healthy, left, on_new_node, pod_in_phase, ready, running, waiting

GAUGES = (
    "karpenter_pods_unstarted_time_seconds",
    "karpenter_pods_unbound_time_seconds",
    "karpenter_pods_provisioning_unstarted_time_seconds",
    "karpenter_pods_provisioning_unbound_time_seconds",
    "karpenter_pods_provisioning_scheduling_undecided_time_seconds",
)
DURATIONS = (
    "karpenter_pods_bound_duration_seconds",
    "karpenter_pods_startup_duration_seconds",
    "karpenter_pods_provisioning_bound_duration_seconds",
    "karpenter_pods_provisioning_startup_duration_seconds",
    "karpenter_pods_scheduling_decision_duration_seconds",
)


def samples(seen: ObservedCluster) -> dict[str, tuple[float, float]]:
    """Count and sum of every duration that has any."""
    scrape = seen.scrape()
    counted = {name: (scrape.total(f"{name}_count"), scrape.total(f"{name}_sum")) for name in DURATIONS}
    return {name.removeprefix("karpenter_pods_"): both for name, both in counted.items() if both[0]}


def waits(seen: ObservedCluster) -> dict[str, float]:
    """The gauges of waiting times that are there, of all pods together."""
    scrape = seen.scrape()
    short = {name: name.removeprefix("karpenter_pods_").removesuffix("_time_seconds") for name in GAUGES}
    return {short[name]: scrape.total(name) for name in GAUGES if scrape.series(name)}


# -- state ----------------------------------------------------------------------------------------------------------------


def test_a_pod_shows_where_it_is_and_how_it_is() -> None:
    """OPS-440, OPS-446. SCH-686: the labels of the state."""
    seen = ObservedCluster()
    own = {labels.ZONE: "z1", labels.ARCH: "arm64", labels.CAPACITY_TYPE: "spot"}
    boss = OwnerReference(api_version="apps/v1", kind="ReplicaSet", name="web-1", uid="u")
    other = OwnerReference(api_version="v1", kind="Node", name="x", uid="v")
    listed_pod = ready()
    seen.put(*node_and_claim("n", {"cpu": "4"}, labels=own))
    seen.put(replaced(listed_pod, metadata=replaced(listed_pod.metadata, owner_references=(boss, other))))
    assert seen.scrape().series("karpenter_pods_state") == [
        {
            "name": "p",
            "namespace": "default",
            "owner": "/apis/apps/v1/namespaces/default/replicasets/web-1",
            "node": "n",
            "scheduled": "true",
            "nodepool": "np",
            "zone": "z1",
            "arch": "arm64",
            "capacity_type": "spot",
            "instance_type": "some",
            "phase": "Running",
            "ready": "true",
            "managed": "true",
        }
    ]


@pytest.mark.parametrize(
    ("item", "shown"),
    [
        (waiting(), {"scheduled": "false", "phase": "Pending", "ready": "false", "node": "", "managed": "false"}),
        (bound(), {"scheduled": "true", "phase": "Pending", "ready": "false", "node": "n", "managed": "false"}),
        (running(), {"scheduled": "true", "phase": "Running", "ready": "false", "zone": "z9", "nodepool": ""}),
        (ready(), {"scheduled": "true", "phase": "Running", "ready": "true", "owner": ""}),
    ],
    ids=["pending", "scheduled", "running", "ready"],
)
def test_a_pod_has_one_series_at_any_time(item: Pod, shown: dict[str, str]) -> None:
    """OPS-M5"""
    seen = ObservedCluster()
    seen.put(node("n", {"cpu": "4"}, labels={labels.ZONE: "z9"}))
    for earlier in (waiting(), bound(), item):
        seen.put(earlier)
    (series_labels,) = seen.scrape().series("karpenter_pods_state")
    assert {key: series_labels[key] for key in shown} == shown


def test_a_pod_follows_the_labels_of_its_node() -> None:
    """OPS-403"""
    seen = ObservedCluster()
    seen.put(ready(), node("n", {"cpu": "4"}, labels={labels.ZONE: "z1"}))
    seen.put(node("n", {"cpu": "4"}, labels={labels.ZONE: "z2"}))
    assert [series_labels["zone"] for series_labels in seen.scrape().series("karpenter_pods_state")] == ["z2"]
    seen.gone(node("n", {"cpu": "4"}))
    (series_labels,) = seen.scrape().series("karpenter_pods_state")
    assert (series_labels["node"], series_labels["zone"]) == ("n", "")


def test_nothing_is_left_of_a_pod_that_is_gone() -> None:
    """OPS-403. SCH-685: all marks go with the pod."""
    seen = ObservedCluster()
    seen.put(waiting())
    assert '"p"' in seen.scrape().text
    seen.gone(waiting())
    assert '"p"' not in seen.scrape().text


def test_text_of_others_cannot_break_a_line() -> None:
    seen = ObservedCluster()
    seen.put(pod_in_phase("p", 'odd "phase"\n\\'))
    (series_labels,) = seen.scrape().series("karpenter_pods_state")
    assert series_labels["phase"] == 'odd "phase"\n\\'


def test_series_until_a_pod_is_bound_say_whether_it_has_device_claims() -> None:
    """K15-463"""
    seen = ObservedCluster()
    seen.put(_with_claim(waiting("w")), waiting("plain"))
    shown = seen.scrape().series("karpenter_pods_unbound_time_seconds")
    assert {series["name"]: series["dynamic_resources"] for series in shown} == {"w": "true", "plain": "false"}
    scheduled = condition("PodScheduled", seconds(10))
    seen.put(
        _with_claim(pod_in_phase("w", "Running", "n", scheduled)), pod_in_phase("plain", "Running", "n", scheduled)
    )
    scrape = seen.scrape()
    for flag in ("true", "false"):
        assert scrape.value("karpenter_pods_bound_duration_seconds_count", dynamic_resources=flag) == 1


def _with_claim(own: Pod) -> Pod:
    claims = (PodResourceClaim(name="c", resource_claim_name="c"),)
    return replaced(own, spec=replaced(own.spec, resource_claims=claims))


# -- durations ------------------------------------------------------------------------------------------------------------


def test_a_pod_is_timed_from_creation_to_node_to_readiness() -> None:
    """OPS-M5, OPS-441, OPS-447"""
    seen = ObservedCluster()
    for listed_pod in (waiting(), bound(), running()):
        seen.put(listed_pod)
    assert samples(seen) == {"bound_duration_seconds": (1, 10)}
    seen.put(ready())
    seen.put(ready())
    assert samples(seen) == {"bound_duration_seconds": (1, 10), "startup_duration_seconds": (1, 30)}
    scrape = seen.scrape()
    assert scrape.value("karpenter_pods_startup_duration_seconds", quantile="0.5") == pytest.approx(30, rel=0.01)
    assert waits(seen) == {}


def test_a_pod_that_is_ready_at_once_is_timed_all_the_same() -> None:
    seen = ObservedCluster()
    seen.put(waiting(), ready())
    assert samples(seen) == {"bound_duration_seconds": (1, 10), "startup_duration_seconds": (1, 30)}


def test_a_pod_that_never_was_ready_gives_no_sample_of_a_start() -> None:
    """OPS-M6, OPS-448"""
    seen = ObservedCluster()
    for listed_pod in (waiting(), bound(), running(), pod_in_phase("p", "Succeeded", "n")):
        seen.put(listed_pod)
    assert samples(seen) == {"bound_duration_seconds": (1, 10)}
    assert waits(seen) == {}


def test_a_pod_that_ran_when_the_process_started_gives_no_sample() -> None:
    """OPS-M7, OPS-447"""
    seen = ObservedCluster()
    for listed_pod in (running(), ready(), ready(at=40)):
        seen.put(listed_pod)
    assert samples(seen) == {}
    assert waits(seen) == {}


def test_a_pod_of_the_same_name_is_another_pod() -> None:
    seen = ObservedCluster()
    seen.put(waiting())
    seen.gone(waiting())
    seen.put(replaced(ready(), metadata=replaced(ready().metadata, uid="another")))
    assert samples(seen) == {}


def test_times_of_waiting_grow_and_end_with_the_waiting() -> None:
    """OPS-443, OPS-447, OPS-448: a pod counts as bound when it has a node and is past Pending.

    SCH-685, SCH-686: gauges of waiting times end when the pod waits no more.
    """
    seen = ObservedCluster()
    seen.put(waiting())
    seen.passes(7)
    assert waits(seen) == {"unstarted": 7, "unbound": 7, "provisioning_scheduling_undecided": 7}
    seen.passes(5)
    seen.put(bound())
    assert waits(seen) == {"unstarted": 12, "unbound": 12}
    seen.put(running())
    assert waits(seen) == {"unstarted": 12}
    seen.gone(running())
    assert waits(seen) == {}


def test_a_pod_the_scheduler_has_not_looked_at_yet_awaits_no_decision() -> None:
    """OPS-118: only pods that wait for a node count."""
    seen = ObservedCluster()
    seen.put(pod_in_phase("p", "Pending"))
    seen.passes(3)
    assert waits(seen) == {"unstarted": 3, "unbound": 3}


@pytest.mark.parametrize("plan", [on_new_node(waiting()), left(waiting())], ids=["placed", "left"])
def test_the_first_decision_about_a_pod_is_timed(plan: Solution) -> None:
    """OPS-118"""
    seen = ObservedCluster()
    seen.put(node_pool(), waiting())
    seen.passes(4)
    seen.decided(plan)
    seen.passes(10)
    seen.decided(plan)
    assert samples(seen) == {"scheduling_decision_duration_seconds": (1, 4)}
    assert waits(seen) == {"unstarted": 14, "unbound": 14}


def test_untried_siblings_of_a_marked_pod_wait_for_their_decision_from_its_mark_on() -> None:
    """OPS-118: from when they count as pending. Their own marks, which may come after the decision, begin nothing anew."""
    owner = OwnerReference(api_version="apps/v1", kind="ReplicaSet", name="web", uid="web-1", controller=True)

    def replica(name: str, *conditions: Condition) -> Pod:
        bare = pod_in_phase(name, "Pending", "", *conditions)
        return replaced(bare, metadata=replaced(bare.metadata, owner_references=(owner,)))

    seen = ObservedCluster()
    seen.state.untried_pods.enable()
    seen.put(replica("before"), replica("marked"))
    seen.passes(5)
    seen.put(replica("marked", UNSCHEDULABLE))
    seen.passes(2)
    seen.put(replica("after"))
    seen.passes(1)
    assert waits(seen)["provisioning_scheduling_undecided"] == 3 + 3 + 1
    seen.decided(left(replica("marked"), replica("before"), replica("after")))
    seen.put(replica("before", UNSCHEDULABLE))
    assert samples(seen) == {"scheduling_decision_duration_seconds": (3, 7)}


def test_a_planned_pod_is_timed_from_the_first_plan() -> None:
    """OPS-447; SCH-680 to 682: times count from the first sight, the first decision and the first success."""
    seen = ObservedCluster()
    seen.put(healthy(), waiting())
    seen.passes(4)
    seen.decided(on_new_node(waiting()))
    seen.passes(1)
    seen.decided(on_new_node(waiting()))
    assert waits(seen) == {"unstarted": 5, "unbound": 5, "provisioning_unstarted": 1, "provisioning_unbound": 1}
    for listed_pod in (bound(), running(), ready()):
        seen.put(listed_pod)
    assert samples(seen) == {
        "bound_duration_seconds": (1, 10),
        "startup_duration_seconds": (1, 30),
        "provisioning_bound_duration_seconds": (1, 6),
        "provisioning_startup_duration_seconds": (1, 26),
        "scheduling_decision_duration_seconds": (1, 4),
    }


@pytest.mark.parametrize("key", ["claim-n", "n"], ids=["by-claim", "by-node"])
def test_a_place_on_a_node_that_exists_counts_as_planned(key: str) -> None:
    seen = ObservedCluster()
    seen.put(healthy(), waiting(), *node_and_claim("n", {"cpu": "4"}))
    seen.decided(Solution(placed_on_existing=(PlacedPods(key, "n", (waiting(),)),)))
    seen.passes(2)
    assert waits(seen)["provisioning_unbound"] == 2


def test_plans_on_a_pool_whose_nodes_do_not_register_are_not_timed() -> None:
    """OPS-064, OPS-118. SCH-683: the time of a healthy NodePool counts only with NodeRegistrationHealthy."""
    seen = ObservedCluster()
    seen.put(node_pool(), waiting())
    seen.decided(on_new_node(waiting()))
    seen.passes(2)
    assert "provisioning_unbound" not in waits(seen)


@pytest.mark.parametrize(
    "later", [left(waiting()), on_new_node(waiting(), pool="sick")], ids=["left", "unhealthy-pool"]
)
def test_a_plan_without_a_good_place_begins_anew(later: Solution) -> None:
    """OPS-118"""
    seen = ObservedCluster()
    seen.put(healthy(), node_pool("sick"), waiting())
    seen.decided(on_new_node(waiting()))
    seen.passes(5)
    seen.decided(later)
    assert "provisioning_unbound" not in waits(seen)
    seen.decided(on_new_node(waiting()))
    seen.passes(3)
    assert waits(seen)["provisioning_unbound"] == 3


def test_pods_of_leaving_nodes_are_not_timed_as_waiting() -> None:
    """OPS-118"""
    seen = ObservedCluster()
    seen.put(healthy(), waiting(), bound())
    seen.decided(on_new_node(bound()))
    assert samples(seen) == {}
    assert "provisioning_unstarted" not in waits(seen)


def test_a_clock_that_runs_behind_gives_no_negative_duration() -> None:
    seen = ObservedCluster()
    seen.put(waiting(), ready(scheduled=-5, at=-3))
    assert samples(seen) == {"bound_duration_seconds": (1, 0), "startup_duration_seconds": (1, 0)}


# -- what plans leave -----------------------------------------------------------------------------------------------------


def test_pods_without_a_place_are_counted_until_they_wait_no_more() -> None:
    """OPS-461"""
    seen = ObservedCluster()
    pods = [waiting(name) for name in "abc"]
    seen.put(*pods)
    seen.decided(left(*pods))
    own = {"controller": "provisioner"}
    assert seen.scrape().value("karpenter_scheduler_unschedulable_pods_count", **own) == 3
    seen.gone(pods[0])
    seen.put(bound("b"))
    assert seen.scrape().value("karpenter_scheduler_unschedulable_pods_count", **own) == 1
    seen.decided(on_new_node(pods[2]))
    assert seen.scrape().value("karpenter_scheduler_unschedulable_pods_count", **own) == 0


def test_a_pod_that_went_while_the_plan_was_carried_out_is_not_counted() -> None:
    """OPS-403"""
    seen = ObservedCluster()
    seen.put(waiting("a"), waiting("b"))
    seen.gone(waiting("a"))
    seen.put(bound("b"))
    seen.decided(left(waiting("a"), waiting("b"), waiting("never-seen")))
    assert seen.scrape().value("karpenter_scheduler_unschedulable_pods_count") == 0


def prices(seen: ObservedCluster) -> tuple[float, ...]:
    """Price, lower bound and gap, as far as they are shown."""
    names = {f"karpenter_scheduler_plan_price{end}" for end in ("", "_lower_bound", "_gap")}
    return tuple(value for name, _, value in seen.scrape() if name in names)


def test_the_price_of_what_was_launched_last_stays_while_nothing_is_launched() -> None:
    seen = ObservedCluster()
    assert prices(seen) == ()
    plan = on_new_node(waiting("a"))
    seen.decided(replace(plan, lower_bound_per_hour=0.8))
    shown = prices(seen)
    assert shown == pytest.approx((1.0, 0.8, 0.25))
    seen.decided(Solution())
    assert prices(seen) == shown
    seen.decided(replace(plan, lower_bound_per_hour=None))
    assert prices(seen) == (plan.price_per_hour,)


def test_a_part_that_breaks_costs_its_own_figures_only() -> None:
    """OPS-371"""
    seen = ObservedCluster()

    class Broken(ClusterCollector):
        def on_pod(self, old: Pod | None, new: Pod | None) -> None:
            raise ZeroDivisionError

        def prepare(self, picture: ClusterMetricsSnapshot) -> SeriesWriter:
            def write() -> Iterator[str]:
                yield "# whole lines only\n"
                raise ZeroDivisionError

            return write

    seen.observatory = ClusterMetrics(seen.context, seen, [Broken(), *seen.parts])
    seen.metrics.registry.sources[:] = [seen.observatory]
    with structlog.testing.capture_logs() as logs:
        seen.put(waiting())
        assert waits(seen) != {}
    assert [(line["event"], line["part"]) for line in logs] == [("observing failed", "Broken")] * 2


def test_pods_refused_for_their_own_sake_are_counted_apart() -> None:
    """OPS-462"""
    seen = ObservedCluster()
    seen.put(waiting("a"), waiting("b"))
    refused = left(waiting("a"), cause=UnsupportedResourceClaims(("gpu",)))
    seen.decided(Solution(unschedulable=(*refused.unschedulable, *left(waiting("b")).unschedulable)))
    scrape = seen.scrape()
    assert scrape.value("karpenter_scheduler_ignored_pods_count") == 1
    assert scrape.value("karpenter_scheduler_unschedulable_pods_count") == 1
    seen.put(bound("a"))
    assert seen.scrape().value("karpenter_scheduler_ignored_pods_count") == 0


@pytest.mark.parametrize(
    ("spec", "zone"),
    [
        ({}, "flexible"),
        ({"node_selector": {"disk": "ssd"}}, "flexible"),
        ({"node_selector": {labels.ZONE: "z1"}}, "z1"),
        ({"node_selector": {"failure-domain.beta.kubernetes.io/zone": "z1"}}, "z1"),
        ({"affinity": where(labels.ZONE, "In", "z2")}, "z2"),
        ({"affinity": where(labels.ZONE, "In", "z1", "z2")}, "flexible"),
        ({"affinity": where(labels.ZONE, "NotIn", "z1")}, "flexible"),
        ({"affinity": where(labels.ZONE, "In", "z1", "z2"), "node_selector": {labels.ZONE: "z1"}}, "z1"),
        ({"affinity": where(labels.ZONE, "In", "z2"), "node_selector": {labels.ZONE: "z1"}}, "none"),
        ({"affinity": where(labels.ZONE, "Bogus", "z2")}, "none"),
    ],
)
def test_waiting_pods_are_counted_by_the_zone_they_ask_for(spec: dict[str, Any], zone: str) -> None:
    """OPS-463"""
    seen = ObservedCluster()
    seen.put(pod("p", {"cpu": "1"}, **spec))
    counts = seen.scrape().values("karpenter_scheduler_pending_pods_by_effective_zone_count", "zone")
    assert counts == {zone: 1}


def test_effective_zones_of_a_plan_are_counted_while_the_pod_waits() -> None:
    """SCH-665, SCH-668: volumes and other pods, which the pod's own words do not tell"""
    seen = ObservedCluster()
    seen.put(waiting("a"), waiting("b"))
    seen.decided(Solution(zone_bound=(ZoneBoundPods("z3", (waiting("a"), waiting("gone"))),)))
    name = "karpenter_scheduler_pending_pods_by_effective_zone_count"
    assert seen.scrape().values(name, "zone") == {"z3": 1, "flexible": 1}
    seen.gone(waiting("a"))
    assert seen.scrape().values(name, "zone") == {"flexible": 1}


def test_pods_that_other_pods_keep_away_are_unschedulable_not_ignored() -> None:
    """SCH-663, SCH-664; both are 0 when nothing waits (SCH-667 Beyond)"""
    seen = ObservedCluster()
    seen.put(waiting("a"))
    seen.decided(left(waiting("a"), cause=NoRoom()))
    counts = ("karpenter_scheduler_ignored_pods_count", "karpenter_scheduler_unschedulable_pods_count")
    assert [seen.scrape().value(name) for name in counts] == [0, 1]
    seen.gone(waiting("a"))
    assert [seen.scrape().value(name) for name in counts] == [0, 0]


@pytest.mark.parametrize("after", [bound(), pod_in_phase("p", "Failed", "", UNSCHEDULABLE)], ids=["bound", "terminal"])
def test_a_pod_with_a_node_or_an_end_awaits_no_decision(after: Pod) -> None:
    """K15-386: the gauge of undecided pods has no row of it any more."""
    seen = ObservedCluster()
    seen.put(waiting())
    seen.passes(3)
    assert "provisioning_scheduling_undecided" in waits(seen)
    seen.put(after)
    assert "provisioning_scheduling_undecided" not in waits(seen)
