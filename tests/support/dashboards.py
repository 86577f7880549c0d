"""Dashboards and alerts over scrapes of a running process, evaluated by Prometheus' own engine."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import pytest
from monitoring.alerts import ALERTS
from monitoring.files import DASHBOARDS
from monitoring.overview import OVERVIEW
from monitoring.panels import Dashboard

from controlplane.process import Controller
from karpenter.api.core import Node, Pod
from karpenter.model import labels, quantity
from promql.engine import Answer, Scraped, evaluated

#: What Grafana puts in place of its variables.
_VARIABLES = {"$__rate_interval": "5m", "$__interval": "1h", "$nodepool": ".*"}

#: What the panels of Karpenter's own dashboards compute (operations §5.10), in words of ours.
#: Prometheus 3 stores the quantile 1 as 1.0.
KARPENTERS_PANELS: Mapping[str, str] = {
    "nodes created": "sum by (nodepool) (rate(karpenter_nodes_created_total[5m]))",
    "nodes terminated": "sum by (nodepool) (rate(karpenter_nodes_terminated_total[5m]))",
    "eligible nodes": "sum by (reason) (karpenter_voluntary_disruption_eligible_nodes)",
    "disruptions": "sum by (reason) (karpenter_nodeclaims_disrupted_total)",
    "disruption actions": "sum by (consolidation_type, decision) (karpenter_voluntary_disruption_decisions_total)",
    "pod phases": "count by (phase) (karpenter_pods_state)",
    "pods by instance type": "count by (instance_type) (karpenter_pods_state)",
    "use of limits": 'karpenter_nodepools_usage{resource_type="cpu"} / karpenter_nodepools_limit{resource_type="cpu"}',
    "nodes of NodePools": 'count by (nodepool) (karpenter_nodes_allocatable{nodepool!="N/A", resource_type="cpu"})',
    "spot share": 'count(karpenter_nodes_allocatable{capacity_type="spot"}) / count(karpenter_nodes_allocatable)',
    "node fill": (
        '(karpenter_nodes_total_daemon_requests{resource_type="pods"}'
        ' + karpenter_nodes_total_pod_requests{resource_type="pods"})'
        ' / karpenter_nodes_allocatable{resource_type="pods"}'
    ),
    "termination latency": 'max by (nodepool) (karpenter_nodes_termination_duration_seconds{quantile="0.9"})',
    "startup latency": 'max(karpenter_pods_startup_duration_seconds{quantile=~"1|1.0"})',
    "reconcile latency": (
        "histogram_quantile(0.95, sum by (le, controller) (rate(controller_runtime_reconcile_time_seconds_bucket[10m])))"
    ),
    "reconcile rate": 'sum by (controller) (rate(controller_runtime_reconcile_total{job="karpenter"}[5m]))',
    "queue depth": "sum by (name) (workqueue_depth)",
}


def scrape_now(running: Controller) -> Scraped:
    """The metrics now, with the series that Prometheus adds for a target that answers."""
    return Scraped(int(time.time()), running.exposition() + "\n# TYPE up gauge\nup 1\n")


def queries(dashboard: Dashboard) -> dict[str, tuple[str, ...]]:
    """The expressions of each panel, by its title, as Grafana sends them."""
    return {
        panel.title: tuple(_sent(query.expression) for query in panel.queries)
        for row in dashboard.rows
        for panel in row.panels
    }


def _sent(expression: str) -> str:
    for variable, value in _VARIABLES.items():
        expression = expression.replace(variable, value)
    return expression


def check_every_panel_shows_something(scrapes: Sequence[Scraped]) -> None:
    """Every query of every dashboard is PromQL and has an answer at one of the scrapes."""
    for dashboard in DASHBOARDS:
        asked = [(title, text) for title, texts in queries(dashboard).items() for text in texts]
        expressions = [text for _, text in asked]
        answers = [evaluated(scrapes, expressions, scrape.seconds) for scrape in scrapes]
        for (title, text), *given in zip(asked, *answers, strict=True):
            assert [answer.error for answer in given if answer.error] == [], (title, text)
            assert any(answer.samples for answer in given), f"{dashboard.title}, {title}: nothing for {text}"


def check_karpenters_panels_show_something(scrapes: Sequence[Scraped]) -> None:
    """Users keep the dashboards of Karpenter: each of their panels has data."""
    answers = [evaluated(scrapes, list(KARPENTERS_PANELS.values()), scrape.seconds) for scrape in scrapes]
    for name, *given in zip(KARPENTERS_PANELS, *answers, strict=True):
        assert [answer.error for answer in given if answer.error] == [], name
        assert any(answer.samples for answer in given), name


def check_no_alert_fires(scrapes: Sequence[Scraped]) -> None:
    """A healthy cluster raises no alert that lasts: none is there at the first and at the last scrape."""
    expressions = [alert.expression for alert in ALERTS]
    answers = [evaluated(scrapes, expressions, scrape.seconds) for scrape in scrapes]
    for alert, *given in zip(ALERTS, *answers, strict=True):
        assert [answer.error for answer in given if answer.error] == [], alert.name
        assert not all(answer.samples for answer in given), alert.name


def check_overview(scrape: Scraped, pods: Iterable[Pod], nodes: Sequence[Node]) -> None:
    """OPS-V3: the figures of the overview are those of the API server."""
    shown = {title: _values(scrape, texts) for title, texts in queries(OVERVIEW).items()}
    placed = [pod for pod in pods if pod.spec.node_name]
    types = Counter(node.metadata.labels[labels.INSTANCE_TYPE] for node in nodes)
    assert shown["Active nodes"] == {(): len(nodes)}
    assert shown["Pending pods"] == {(): 0}
    assert shown["Instance type distribution"] == {(("instance_type", name),): count for name, count in types.items()}
    assert shown["Nodes by NodePool"] == {(("nodepool", "default"),): len(nodes)}
    phases = Counter(pod.status.phase for pod in placed)
    assert shown["Pods by phase"] == {(("phase", phase),): count for phase, count in phases.items()}
    for title, label, key in (
        ("Nodes by zone", "zone", labels.ZONE),
        ("Nodes by capacity type", "capacity_type", labels.CAPACITY_TYPE),
    ):
        there = Counter(node.metadata.labels[key] for node in nodes)
        assert shown[title] == {((label, name),): count for name, count in there.items()}
    for title, resource in (("CPU utilization", "cpu"), ("Memory utilization", "memory")):
        (percent,) = shown[title].values()
        assert percent == pytest.approx(100 * _requested_share(resource, placed, nodes), rel=1e-3)
    launched = Counter[str]()
    for of, value in shown["Node provisioning timeline"].items():
        launched[dict(of).get("instance_type", "")] += round(value or 0)
    assert launched == types


def check_timeline_of_disruptions(scrape: Scraped, disrupted: int) -> None:
    """OPS-V3, OPS-810: below the line are the nodes that went, by reason."""
    shown = _values(scrape, queries(OVERVIEW)["Node provisioning timeline"])
    gone = {dict(of)["reason"]: -(value or 0) for of, value in shown.items() if "reason" in dict(of)}
    assert gone == {"empty": disrupted}


def _requested_share(resource: str, placed: Iterable[Pod], nodes: Iterable[Node]) -> float:
    """What pods request of what the nodes offer, from the objects of the API server."""
    asked = (container.resources.requests.get(resource, "0") for pod in placed for container in pod.spec.containers)
    requested = sum(quantity.parse_milli(str(amount)) for amount in asked)
    offered = sum(quantity.parse_milli(str(node.status.allocatable[resource])) for node in nodes)
    return requested / offered


def _values(scrape: Scraped, expressions: Sequence[str]) -> Mapping[tuple[tuple[str, str], ...], float | None]:
    answers: tuple[Answer, ...] = evaluated((scrape,), expressions, scrape.seconds)
    assert [answer.error for answer in answers if answer.error] == []
    return {of: value for answer in answers for of, value in answer.samples.items()}
