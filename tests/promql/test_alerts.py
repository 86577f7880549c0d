"""Each alert fires for what it is about, and stays quiet below its threshold, as Prometheus' own engine sees it."""

from __future__ import annotations

import pytest
from monitoring.alerts import ALERTS, rules_yaml

from promql.engine import Scraped, evaluated, rule_faults

pytestmark = pytest.mark.cluster

NOW_SECONDS = 1_900_000_000
_UP = "up 1\n"
_NODES = "karpenter_cluster_state_node_count 10\n"
_CREATE = 'karpenter_cloudprovider_errors_total{method="Create",provider="aws",error="InsufficientCapacityError"}'
_INIT = "operator_nodeclaim_status_condition_current_status_seconds"
_LIMIT = 'karpenter_nodepools_limit{nodepool="a",resource_type="cpu"} 100\n'
_USAGE = 'karpenter_nodepools_usage{nodepool="a",resource_type="cpu"}'
_MESSAGES = "karpenter_interruption_message_queue_duration_seconds_bucket"
_DISRUPTED = 'karpenter_nodeclaims_disrupted_total{reason="underutilized",nodepool="a",termination_mode="graceful"}'
_INCONSISTENT = (
    'operator_status_condition_count{kind="NodeClaim",name="c",type="ConsistentStateFound",reason="r",status='
)

#: Alert -> metrics for which it fires, metrics for which it does not.
CASES: dict[str, tuple[str, str]] = {
    "KarpenterDown": ("other 1", _UP),
    "KarpenterNoLeader": ('leader_election_master_status{name="l"} 0', 'leader_election_master_status{name="l"} 1'),
    "KarpenterClusterStateUnsynced": ("karpenter_cluster_state_synced 0", "karpenter_cluster_state_synced 1"),
    "KarpenterPodsUnschedulable": (
        'karpenter_scheduler_unschedulable_pods_count{controller="provisioner"} 2',
        'karpenter_scheduler_unschedulable_pods_count{controller="provisioner"} 0',
    ),
    "KarpenterPodsWaitTooLong": (
        'karpenter_pods_provisioning_unbound_time_seconds{name="p",namespace="n"} 1000',
        'karpenter_pods_provisioning_unbound_time_seconds{name="p",namespace="n"} 60',
    ),
    "KarpenterLaunchFailures": (f"{_CREATE} 9", f"{_CREATE} 2"),
    "KarpenterNodeClaimNotInitialized": (
        f'{_INIT}{{name="c",type="Initialized",status="Unknown",karpenter_sh_nodepool="a"}} 1000',
        f'{_INIT}{{name="c",type="Initialized",status="True",karpenter_sh_nodepool="a"}} 1000',
    ),
    "KarpenterNodePoolNotReady": (
        'operator_nodepool_status_condition_count{name="a",type="Ready",status="False",reason="NodeClassNotFound"} 1',
        'operator_nodepool_status_condition_count{name="a",type="Ready",status="True",reason="Ready"} 1',
    ),
    "KarpenterNodePoolLimitNear": (f"{_LIMIT}{_USAGE} 95", f"{_LIMIT}{_USAGE} 80"),
    "KarpenterNodesLosePods": (
        'karpenter_pods_lost_by_new_nodes_total{nodepool="a"} 5',
        'karpenter_pods_lost_by_new_nodes_total{nodepool="a"} 1',
    ),
    "KarpenterChurn": (f"{_NODES}{_DISRUPTED} 8", f"{_NODES}{_DISRUPTED} 3"),
    "KarpenterDrainStuck": (
        'operator_nodeclaim_termination_current_time_seconds{name="c"} 4000',
        'operator_nodeclaim_termination_current_time_seconds{name="c"} 400',
    ),
    "KarpenterEvictionsRefused": (
        'karpenter_pods_eviction_requests_total{code="429"} 300',
        'karpenter_pods_eviction_requests_total{code="201"} 300',
    ),
    "KarpenterInconsistentNodeClaim": (f'{_INCONSISTENT}"False"}} 1', f'{_INCONSISTENT}"True"}} 1'),
    "KarpenterReconcilePanics": (
        'controller_runtime_reconcile_panics_total{controller="provisioner"} 1',
        'controller_runtime_reconcile_panics_total{controller="provisioner"} 0',
    ),
    "KarpenterReconcileErrors": (
        'controller_runtime_reconcile_errors_total{controller="provisioner"} 50',
        'controller_runtime_reconcile_errors_total{controller="provisioner"} 3',
    ),
    "KarpenterPriceUnknown": (
        'karpenter_nodepools_cost_tracker_errors_total{nodepool="a"} 1',
        'karpenter_nodepools_cost_tracker_errors_total{nodepool="a"} 0',
    ),
    "KarpenterFrozen": ('karpenter_nodepools_frozen{nodepool="a"} 1', 'karpenter_nodepools_frozen{nodepool="a"} 0'),
    "KarpenterInterruptionsLate": (
        f'{_MESSAGES}{{le="60"}} 0\n{_MESSAGES}{{le="120"}} 10\n{_MESSAGES}{{le="+Inf"}} 10',
        f'{_MESSAGES}{{le="60"}} 10\n{_MESSAGES}{{le="120"}} 10\n{_MESSAGES}{{le="+Inf"}} 10',
    ),
}


def _fires(expression: str, metrics: str) -> bool:
    """Counters are 0 ten minutes before: a function over a range needs two samples."""
    before = "\n".join(f"{line.rsplit(' ', 1)[0]} 0" for line in metrics.splitlines() if "_bucket" in line)
    scrapes = (Scraped(NOW_SECONDS - 600, before + "\n"), Scraped(NOW_SECONDS, metrics + "\n"))
    (answer,) = evaluated(scrapes, [expression], NOW_SECONDS)
    assert answer.error == ""
    return bool(answer.samples)


def test_every_alert_has_a_case() -> None:
    assert set(CASES) == {alert.name for alert in ALERTS}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_fires_for_what_it_is_about(alert) -> None:
    firing, quiet = CASES[alert.name]
    assert _fires(alert.expression, firing)
    assert not _fires(alert.expression, quiet)


def test_prometheus_accepts_the_rule_file() -> None:
    assert rule_faults(rules_yaml()) == []


def test_a_rule_file_with_a_fault_is_refused() -> None:
    assert rule_faults(rules_yaml().replace("absent(", "absent((", 1))
